"""The task and method files of the package: their names, what they say of themselves, and whose settings an environment gets."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal

import taac

DEFAULT_TASK = "default"  # its settings apply to environments that no task file names
Kind = Literal["tasks", "methods", "backbones", "."]
INCLUDED = ("base", "common", "taac_base")  # by method files


def search_path() -> list[Path]:
    """Returns the folders that hold `gin/` and `experiments/`: the repository around the package, or one in the package."""
    package = Path(taac.__file__).resolve().parent
    return [p for p in (package.parent, package / "configs") if (p / "gin" / "base.gin").is_file()]


@functools.cache
def additions() -> dict[str, Path]:
    """Returns name -> path of the files to add after a method: backbones, and those in `gin/` itself, such as `her`."""
    return {**files("backbones"), **{name: path for name, path in files(".").items() if name not in INCLUDED}}


@functools.cache
def files(kind: Kind) -> dict[str, Path]:
    """Returns name -> path of the files in `gin/tasks`, `gin/methods`, `gin/backbones` or `gin` itself, sorted by name."""
    found = {path.stem: path for folder in reversed(search_path()) for path in (folder / "gin" / kind).glob("*.gin")}
    return dict(sorted(found.items()))


def about(path: Path) -> str:
    """Returns the first line of a file's opening comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


@functools.cache
def environments(task: str) -> tuple[str, ...]:
    """Returns the environment ids that the opening comment of a task file names, in their order."""
    text = files("tasks")[task].read_text(encoding="utf-8")
    header = re.match(r"(#.*\n)*", text)
    assert header is not None  # it matches nothing at least
    return tuple(dict.fromkeys(re.findall(r"\b[A-Za-z]\w*-v\d+\b", header[0])))


def task_of(env_name: str) -> str | None:
    """Returns the task file that names an environment, whatever its version and the module before a colon; None if none does."""
    name = _without_version(env_name.rpartition(":")[2])
    return next((task for task in files("tasks") if name in map(_without_version, environments(task))), None)


def _without_version(env_name: str) -> str:
    return re.sub(r"-v\d+$", "", env_name)
