"""The rooms of the house: an import only ever runs down the floors, never in a circle, and a room keeps to its libraries."""

from __future__ import annotations

import ast
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
    {"training", "deployment"},
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


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes of which each can be reached from each (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in number:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], number[target])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return sorted(found)


PACKAGES = {module_of(path) for path in PACKAGE.rglob("__init__.py")}


@pytest.mark.parametrize("module", [module for module in SOURCES if module != "taac"])
def test_imports_run_down_the_floors(module):
    assert room_of(module) in FLOOR, f"{module} is in no room"
    assert violations(module, SOURCES[module]) == []


def test_every_room_exists():
    assert {room_of(module) for module in SOURCES if module != "taac"} == set(FLOOR)


def test_no_modules_import_each_other():
    assert circles(graph(SOURCES)) == []


def test_no_folders_import_each_other():
    assert circles(folders(graph(SOURCES), PACKAGES)) == []


@pytest.mark.parametrize(
    "module, source",
    [
        ("taac.ops.losses", "import gin"),
        ("taac.ops.losses", "from taac.networks import ActorNetwork"),
        ("taac.ops.losses", "from taac.machine import products"),
        ("taac.nest", "from taac.ops import losses"),
        ("taac.algorithms.sac", "def f():\n    import gymnasium.spaces"),
        ("taac.algorithms.sac", "from torch.utils.tensorboard import SummaryWriter"),
        ("taac.replay.sum_tree", "from taac.algorithms.sac import SacAlgorithm"),
        ("taac.analysis.curves.plots", "from taac.training import trainer"),
        ("taac.analysis.curves.plots", "from taac import replay"),
        ("taac.analysis.curves.plots", "import torch"),
        ("taac.campaigns.run", "from taac.algorithms import sac"),
        ("taac.configuration.values", "import torch"),
        ("taac.acting.rollout", "from taac.learning.learner import Learner"),
        ("taac.training.trainer", "import taac.commands.train"),
    ],
)
def test_the_check_of_rooms_can_fail(module, source):
    assert violations(module, source)


def upward(modules: Mapping[str, set[str]], order: tuple[str, ...]) -> list[tuple[str, str]]:
    """Imports within `taac.analysis` from an earlier folder of `order` to a later one."""

    def position(module: str) -> int:
        parts = module.split(".")
        return order.index(parts[2]) if len(parts) > 3 and parts[2] in order else -1

    edges = [(a, b) for a, targets in modules.items() for b in targets if a.startswith("taac.analysis.")]
    return sorted((a, b) for a, b in edges if b.startswith("taac.analysis.") and 0 <= position(a) < position(b))


ANALYSIS = ("readers", "statistics", "curves", "report")


def test_analysis_is_built_from_readers_to_report():
    assert upward(graph(SOURCES), ANALYSIS) == []


def test_the_check_of_analysis_can_fail():
    sources = {"taac.analysis.curves.a": "import taac.analysis.report.b", "taac.analysis.report.b": ""}
    assert upward(graph(sources), ANALYSIS) == [("taac.analysis.curves.a", "taac.analysis.report.b")]


def test_the_check_of_circles_can_fail():
    sources = {
        "taac.a": "",
        "taac.a.one": "from taac.a import two",
        "taac.a.two": "def f():\n    from taac.a.three import g",
        "taac.a.three": "import taac.a.one",
        "taac.b": "",
        "taac.b.one": "from taac.a import one",
    }
    assert circles(graph(sources)) == [["taac.a.one", "taac.a.three", "taac.a.two"]]
    assert circles(folders(graph(sources), {"taac.a", "taac.b"})) == []
    # No module reaches itself, yet each folder needs the other.
    sources.update({"taac.a.one": "from taac.b import one", "taac.a.four": "", "taac.b.one": "from taac.a import four"})
    assert circles(graph(sources)) == []
    assert circles(folders(graph(sources), {"taac.a", "taac.b"})) == [["taac.a", "taac.b"]]


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


def test_worker_processes_of_asynchronous_environments_stay_light():
    """`environments.single` is what every worker imports: it must not bring torch along."""
    run("import sys, taac.environments.single; assert 'torch' not in sys.modules and 'gin' not in sys.modules")
    run("import sys, taac.environments.wrappers; assert 'torch' not in sys.modules")


def test_analysis_loads_no_training_code():
    run(
        "import sys, taac.analysis.curves.plots, taac.analysis.report.files\n"
        "assert not {'torch', 'gymnasium', 'gin', 'taac.training'} & set(sys.modules)"
    )


def test_what_a_run_folder_holds_is_known_without_torch():
    run("import sys, taac.runs.layout; assert not {'torch', 'gin'} & set(sys.modules)")
