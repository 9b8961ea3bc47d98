"""Which runs are the user's own, so that `taac play` may import what they imported, from any working directory.

A run that begins or resumes is noted in a file of the user's home, where nobody else can write: a digest of the run folder's path
and of its config.gin, and the folders of the modules that it imported. What the modules hold later is the user's own code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from taac.errors import TaacError
from taac.runs import durable


class NotOwn(TaacError):
    """A run is not known to be the user's own. The message is a clause that says why."""


def note(folder: Path, config: str, modules: Iterable[str]) -> None:
    """Notes a run as the user's own: its folder, the text of its config.gin, and the imported modules that this names.

    Without a home to write to, nothing is noted.
    """
    names = {module.partition(".")[0] for module in modules} - {"taac"}
    line = json.dumps([_digest(folder, config), sorted({place for name in names if (place := _folder_of(name))})])
    with contextlib.suppress(OSError, RuntimeError):
        path = _notes()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with durable.locked(path.with_name(".runs.lock")):  # homes are shared, and NFS does not append
            if line not in _lines(path):
                with open(path, "a", encoding="utf-8") as file:
                    file.write(f"\n{line}")  # a line before it may be torn, where a disk was full


def allow_imports(folder: Path, config: str) -> None:
    """Makes what the user's own run imported importable, at the end of Python's path. Raises NotOwn if the run is not known.

    `config` is the very text that is parsed afterwards.
    """
    digest = _digest(folder, config)
    try:
        known: dict[str, list[str]] = {}
        for line in _lines(_notes()):
            if line.startswith(f'["{digest}"'):
                with contextlib.suppress(json.JSONDecodeError):  # it may be torn, where a disk was full
                    known.update([json.loads(line)])
    except (OSError, RuntimeError, ValueError) as error:
        raise NotOwn(f"the list of your runs cannot be read: {error}") from error
    if digest not in known:
        raise NotOwn(
            "it is not among your runs: another user or machine trained it, or it has been changed, moved or copied since"
        )
    sys.path += [place for place in known[digest] if place not in sys.path]


def _notes() -> Path:
    """`taac/runs` in $XDG_STATE_HOME, by default ~/.local/state: a line of JSON for each run."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / "taac" / "runs"


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def _digest(folder: Path, config: str) -> str:
    return hashlib.sha256(f"{folder.resolve()}\n{config}".encode()).hexdigest()


def _folder_of(name: str) -> str | None:
    """Returns the folder from which a top-level module is imported; None if it is in none. Does not import it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    of_package = next(iter(spec.submodule_search_locations or ()), None)
    place = of_package or (spec.origin if spec.has_location else None)
    return os.path.dirname(os.path.abspath(place)) if place else None
