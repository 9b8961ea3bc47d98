"""What is done to a run folder to do harm: links, pipes and devices in place of files, names, sizes, trees."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from experiments.reliability.sandbox import MARKER, SCRIPT, Sandbox

READERS = ("train", "play", "plot", "report", "compare")
FILES = ("config.gin", "run.json", "evaluations.csv", "checkpoints/240.json", "checkpoints/240.safetensors")
NEW = (
    ".lock", "evaluations.csv.tmp", "run.json.tmp", "config.gin.tmp", "curves.png", "curves.csv", "diverged-240.json",
    "checkpoints/361.json", "checkpoints/frames-0-1.safetensors", "best/99.json", "events.out.tfevents.9.host",
    "checkpoint.pt", f"{MARKER}.py", "notes",
)  # fmt: skip
ABOVE = ("compare.json", "report.md", "report.json", "plot.png", "compare.sbatch")  # beside the runs


class NotPossible(Exception):
    """This system does not let it be tried."""


class Attack(NamedTuple):
    """A kind of attack, the commands that read what it changes, and what does it, which says what it did."""

    kind: str
    commands: tuple[str, ...]
    do: Callable[[Sandbox, random.Random], str]


# What lies in the place of a file ------------------------------------------------------------------------------------


def _place(sandbox: Sandbox, rng: random.Random) -> Path:
    """A path in the victim's folder or beside it, emptied."""
    names = [*FILES, *NEW, "checkpoints", "best", *[f"../../../{name}" for name in ABOVE], events_name(sandbox.run)]
    path = Path(os.path.normpath(sandbox.run / rng.choice(names)))
    _remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def events_name(run: Path) -> str:
    return next(path.name for path in sorted(run.glob("events.*")))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rename(path.parent.parent.parent / f"moved-{path.name}")
    else:
        path.unlink(missing_ok=True)


def link(sandbox: Sandbox, rng: random.Random) -> str:
    home = sandbox.canary / "home"
    targets = (
        home / ".bashrc",
        home,
        home / "new",
        Path("/dev/zero"),
        Path("itself"),
        home / "run.json",
        Path("/proc/self/mem"),
    )
    path, target = _place(sandbox, rng), rng.choice(targets)
    path.symlink_to(path.name if target.name == "itself" else target)
    return f"{path.name} -> {target}"


def links_everywhere(sandbox: Sandbox, rng: random.Random) -> str:
    home = sandbox.canary / "home"
    for path in [p for p in sandbox.run.rglob("*") if p.is_file() and rng.random() < 0.7]:
        path.unlink()
        path.symlink_to(rng.choice((home / ".bashrc", home / "240.json", home / "new")))
    return "links in the place of most files"


def hard_link(sandbox: Sandbox, rng: random.Random) -> str:
    path = sandbox.run / rng.choice([*FILES, *NEW, events_name(sandbox.run)])
    _remove(path)
    os.link(sandbox.canary / "home" / ".bashrc", path)
    return path.name


def pipe(sandbox: Sandbox, rng: random.Random) -> str:
    path = _place(sandbox, rng)
    os.mkfifo(path)
    return path.name


def listening(sandbox: Sandbox, rng: random.Random) -> str:
    path, before = _place(sandbox, rng), os.getcwd()
    os.chdir(path.parent)  # a socket's name has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)
    return path.name


def device(sandbox: Sandbox, rng: random.Random) -> str:
    path, (major, minor) = _place(sandbox, rng), rng.choice([(1, 5), (1, 8), (1, 3), (5, 0)])  # zero, random, null, tty
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except OSError as error:
        raise NotPossible(f"devices: {error.strerror}") from error
    return f"{path.name}: {major},{minor}"


def folder(sandbox: Sandbox, rng: random.Random) -> str:
    path = _place(sandbox, rng)
    path.mkdir()
    (path / "inside").write_text("x")
    return path.name


def empty_or_huge(sandbox: Sandbox, rng: random.Random) -> str:
    path = sandbox.run / rng.choice([*FILES, "diverged-240.json", events_name(sandbox.run)])
    size = rng.choice((0, 0, 70 << 20, 2 << 30, 1 << 40))
    path.touch()
    os.truncate(path, 0)
    os.truncate(path, size)
    return f"{path.name}: {size} bytes"


def tree(sandbox: Sandbox, rng: random.Random) -> str:
    """Folders in folders, or many files, or a circle of links, in the run or beside it."""
    top = rng.choice((sandbox.run, sandbox.run / "checkpoints", sandbox.runs))
    how = rng.choice(("deep", "many", "circle"))
    if how == "deep":
        path = top
        for _ in range(400):
            path = path / "d"
        os.makedirs(path)
    elif how == "many":
        for number in range(3000):
            (top / f"{number}.json.tmp").touch()
    else:
        (top / "circle").symlink_to(top)
        (top / "up").symlink_to(sandbox.case)
    return f"{how} in {top.name}"


NAMES: tuple[bytes, ...] = (
    b"line\nbreak", b"\x1b[2Jevil", b"tab\there", b"$\\frac{", SCRIPT.replace("/", " ").encode(), b"=cmd|'evil'!A0",
    b"\xff\xfe", b"-rf", b"%s%n", b"a" * 250, "\u202egnp.exe".encode(), b"`touch x`", b"; touch x", b"[x](javascript:evil)",
)  # fmt: skip


def odd_names(sandbox: Sandbox, rng: random.Random) -> str:
    """Files, event files, folders of runs and folders of checkpoints with names that are more than names."""
    name, where = rng.choice(NAMES), rng.choice(("file", "events", "run", "checkpoint"))
    if where == "run":
        shutil.copytree(
            sandbox.run.with_name("seed_1"), os.fsdecode(os.path.join(os.fsencode(sandbox.run.parent), name))
        )
    else:
        name = {"file": b"", "events": b"events.out.tfevents.", "checkpoint": b"checkpoints/"}[where] + name
        with open(os.path.join(os.fsencode(sandbox.run), name[:250]), "wb") as file:
            file.write(b"\0" * 20)
    return f"{where} {name!r}"


PLACES = (
    Attack("symbolic link in the place of a file or folder", READERS, link),
    Attack("links in the place of most files", READERS, links_everywhere),
    Attack("hard link to a file elsewhere", ("train", "plot", "report"), hard_link),
    Attack("named pipe", READERS, pipe),
    Attack("socket", READERS, listening),
    Attack("device", READERS, device),
    Attack("folder in the place of a file", READERS, folder),
    Attack("empty file, or one of up to a terabyte", READERS, empty_or_huge),
    Attack("deep and wide trees, circles of links", ("train", "plot", "report", "compare"), tree),
    Attack("odd names of files and folders", ("train", "plot", "report"), odd_names),
)
