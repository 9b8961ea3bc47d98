"""The rooms of the house: an import only ever points up the list, and a room keeps to the libraries it may use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "taac"

# Room -> (rooms it may import from, libraries it may not import). A room may always import from itself.
VOCABULARY = {"data_structures", "specs", "nest", "errors", "files", "processes"}
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    **{name: (VOCABULARY, {"gin", "tensorboard", "gymnasium"}) for name in VOCABULARY},
    "ops": (VOCABULARY, {"gin", "tensorboard", "gymnasium"}),
    "networks": (VOCABULARY | {"ops"}, {"tensorboard", "gymnasium"}),
    "algorithms": (VOCABULARY | {"ops", "networks"}, {"tensorboard", "gymnasium"}),
    "environments": (VOCABULARY | {"ops", "networks", "replay"}, {"tensorboard"}),
    "replay": (VOCABULARY | {"ops", "networks", "environments"}, {"tensorboard"}),
    "training": (VOCABULARY | {"ops", "networks", "algorithms", "environments", "replay"}, set()),
    "analysis": (VOCABULARY, set()),
    "commands": (
        VOCABULARY | {"ops", "networks", "algorithms", "environments", "replay", "training", "analysis"},
        set(),
    ),
    "__init__": (set(), {"gin", "tensorboard", "gymnasium", "torch"}),
    "__main__": ({"commands"}, set()),
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str) -> set[str]:
    """Full names of the modules that a source imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(room: str, source: str) -> list[str]:
    rooms, forbidden = ROOMS[room]
    wrong = []
    for name in imports(source):
        top, *rest = name.split(".")
        if top == "taac":
            target = rest[0] if rest and rest[0] in ROOMS else "__init__"
            if target not in rooms | {room, "__init__"}:
                wrong.append(name)
        elif top in forbidden or any(f".{library}." in f".{name}." for library in forbidden):
            wrong.append(name)
    return wrong


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_up(path):
    assert room_of(path) in ROOMS, f"{path} is in no room"
    assert violations(room_of(path), path.read_text(encoding="utf-8")) == []


def test_there_are_files_to_check():
    assert {room_of(path) for path in FILES} == set(ROOMS)


@pytest.mark.parametrize(
    "room, source",
    [
        ("ops", "import gin"),
        ("ops", "from taac.networks import ActorNetwork"),
        ("nest", "from taac.ops import losses"),
        ("algorithms", "def f():\n    import gymnasium.spaces"),
        ("algorithms", "from torch.utils.tensorboard import SummaryWriter"),
        ("replay", "from taac.algorithms.sac import SacAlgorithm"),
        ("analysis", "from taac.training import trainer"),
        ("training", "import taac.commands.train"),
    ],
)
def test_the_check_itself_can_fail(room, source):
    assert violations(room, source)


def test_worker_processes_of_asynchronous_environments_stay_light():
    """`environments.single` is what every worker imports: it must not bring torch along."""
    import subprocess
    import sys

    code = "import sys, taac.environments.single; assert 'torch' not in sys.modules and 'gin' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


def test_analysis_loads_no_training_code():
    import subprocess
    import sys

    code = (
        "import sys, taac.analysis.plots, taac.analysis.report_files\n"
        "assert not {'torch', 'gymnasium', 'gin', 'taac.training'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
