"""The rooms of the house: an import only ever runs down the floors, never in a circle, and a room keeps to its libraries."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "taac"

# From the ground up. A room imports from lower floors and from itself; the files of the first floor are one room.
FLOORS = (
    {"data_structures", "errors", "nest", "specs"},
    {"ops", "machine", "configuration"},
    {"networks", "replay", "environments"},
    {"algorithms", "runs"},
    {"demonstrations", "pictures"},
    {"acting", "learning", "campaigns", "analysis"},
    {"parallel", "deployment"},
    {"training"},
    {"checking", "playing"},
    {"registry"},
    {"commands", "api"},
    {"__main__"},
)
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
# What a room may not import although it lies below: other rooms (`taac.<room>`) and libraries.
FORBIDDEN: dict[str, set[str]] = {
    **{room: {"gin", "tensorboard", "gymnasium"} for room in (*FLOORS[0], "ops", "machine")},
    "configuration": {"torch"},
    "networks": {"tensorboard", "gymnasium"},
    "replay": {"tensorboard"},
    "environments": {"tensorboard"},
    "algorithms": {"tensorboard", "gymnasium"},
    "runs": {"taac.algorithms", "tensorboard"},
    "demonstrations": {"tensorboard"},
    "campaigns": {"taac.algorithms", "tensorboard"},
    "analysis": {"taac.algorithms", "taac.networks", "taac.replay", "taac.environments", "torch", "gymnasium", "gin"},
}


def room_of(module: str) -> str:
    """The room of a module of the package: "replay" of "taac.replay.sum_tree"."""
    return module.split(".")[1]


@functools.cache
def imported(source: str) -> set[str]:
    """Full names of what a source imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(module: str, source: str) -> list[str]:
    """What a module imports that it may not."""
    room, wrong = room_of(module), []
    forbidden = FORBIDDEN.get(room, set())
    for name in imported(source):
        parts = name.split(".")
        if parts[0] != "taac":
            if forbidden & set(parts):
                wrong.append(name)
        elif len(parts) > 1 and parts[1] in FLOOR and parts[1] != room:
            target = parts[1]
            lower = FLOOR[target] < FLOOR[room] or FLOOR[target] == FLOOR[room] == 0
            if not lower or f"taac.{target}" in forbidden:
                wrong.append(name)
    return sorted(wrong)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_of(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> the modules among `sources` that it imports."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = imported(source)
        modules = {name if name in sources else name.rpartition(".")[0] for name in names} & set(sources)
        found[module] = modules - {module}
    return found


def folders(modules: Mapping[str, set[str]], packages: Iterable[str]) -> dict[str, set[str]]:
    """The same graph between the folders that the modules lie in."""
    packages = set(packages)

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    found: dict[str, set[str]] = {}
    for module, targets in modules.items():
        # A folder's __init__ and what lies below it belong together: only arrows between neighbours count.
        here = folder(module)
        below = {folder(target) for target in targets}
        found.setdefault(here, set()).update(
            there for there in below if not f"{there}.".startswith(f"{here}.") and not f"{here}.".startswith(f"{there}.")
        )
    return found


def circle(edges: Mapping[str, set[str]]) -> tuple[str, ...] | None:
    """The nodes of a circle of arrows; None if there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return tuple(error.args[1])
    return None


PACKAGES = {module_of(path) for path in PACKAGE.rglob("__init__.py")}


def test_imports_run_down_the_floors():
    modules = {module: source for module, source in SOURCES.items() if module != "taac"}
    assert {room_of(module) for module in modules} == set(FLOOR)
    assert {module: wrong for module, source in modules.items() if (wrong := violations(module, source))} == {}


def test_no_modules_and_no_folders_import_each_other():
    assert circle(graph(SOURCES)) is None
    assert circle(folders(graph(SOURCES), PACKAGES)) is None


def test_analysis_is_built_from_readers_to_report():
    order = ("readers", "statistics", "curves", "report")
    places = {m: order.index(m.split(".")[2]) for m in SOURCES if m.startswith("taac.analysis.") and m.split(".")[2] in order}
    edges = [(a, b) for a, targets in graph(SOURCES).items() for b in targets if a in places and b in places]
    assert [(a, b) for a, b in edges if places[a] < places[b]] == []


@pytest.mark.parametrize(
    "modules, absent",
    [
        ("taac.environments.single", "torch gin"),  # what every worker of asynchronous environments imports
        ("taac.environments.wrappers, taac.environments.delays, taac.environments.images", "torch"),
        ("taac.analysis.curves.plots, taac.analysis.report.page", "torch gymnasium gin taac.training"),
        ("taac.runs.layout", "torch gin"),
    ],
)
def test_what_is_imported_often_brings_nothing_large_along(modules, absent):
    code = f"import sys, {modules}; assert not {set(absent.split())} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
