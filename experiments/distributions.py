"""Builds the source distribution and the wheel, and tries the wheel in an empty environment, away from the repository.

    python -m experiments.distributions --out dist                    # build both, and compare what is in them
    python -m experiments.distributions --out dist --try              # then install the wheel in a new environment, and use it
    python -m experiments.distributions --out dist --try --parent     # the same with the packages of this Python, in seconds

Building needs setuptools 77 or later in the Python that runs this, and no network. The wheel is built from the source
distribution, as an installer does that gets no wheel.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SMALL = "--num_env_steps 60 --set initial_collect_steps=40 --set evaluation_interval=60 --set evaluation_episodes=1 " \
        "--set batch_size=4 --set hidden_layers=8,"  # fmt: skip
OWN = "include 'gin/tasks/simple_control.gin'\ninclude 'gin/methods/taac_l.gin'\ncreate_environment.env_name = 'Pendulum-v1'\n"
API = """
import taac

run = taac.train("Pendulum-v1", "taac", num_env_steps=60, initial_collect_steps=40, evaluation_interval=60, evaluation_episodes=1,
                 batch_size=4, hidden_layers=(8,), root_dir="runs/api")
agent = taac.load("runs/api")
action, state = agent.act([1.0, 0.0, 0.0], agent.initial_state())
assert action.shape == (1,) and run.evaluate(1), action
"""
# What a user does with the wheel, in an empty folder; `mine.gin` has the text of OWN, `api.py` that of API.
COMMANDS = [
    """python -c "import taac, sys; assert taac.__file__.startswith(sys.prefix), taac.__file__" """,
    "taac --version",
    "taac list",
    f"taac check --task Pendulum-v1 --method taac {SMALL}",
    "taac train --root_dir runs/files --gin_file gin/tasks/simple_control.gin --gin_file gin/methods/taac.gin "
    f"--set env_name=Pendulum-v1 {SMALL}",
    f"taac train --root_dir runs/short --task Pendulum-v1 --method sac {SMALL}",
    f"taac train --root_dir runs/own --gin_file mine.gin {SMALL}",
    f"taac train --root_dir runs/shipped --gin_file experiments/smoke.gin {SMALL}",
    "taac train --root_dir runs/again --gin_file runs/files/config.gin",
    "taac play --root_dir runs/files --num_episodes 1 --record_file play.gif --film_strip strip.png --timeline time.png",
    "taac plot --root_dir runs/files",
    f"taac compare --root_dir compared --methods sac,taac --tasks Pendulum-v1 --seeds 1 {SMALL}",
    "taac report --root_dir compared",
    "python api.py",
]
ONNX = "taac export --root_dir runs/files --output policy.onnx"


def sdist_of(source: Path, out: Path) -> Path:
    """Builds a source distribution from a folder into `out`; writes nothing into the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        setup(source, "-q", "egg_info", "--egg-base", scratch, "sdist", "--dist-dir", str(out.resolve()))
    (sdist,) = out.glob("taac-*.tar.gz")
    return sdist


def build(out: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Builds both in `out`; writes nothing into the sources. Returns the source distribution and the wheel built from it."""
    sdist = sdist_of(source, out)
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (unpacked,) = Path(scratch).glob("taac-*/")
        setup(unpacked, "-q", "bdist_wheel", "--dist-dir", str(out.resolve()))
    (wheel,) = out.glob("taac-*.whl")
    return sdist, wheel


def wheel_of(source: Path, out: Path) -> Path:
    """Builds a wheel from a folder as it stands, into `out`; writes nothing into the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        words = "-q", "egg_info", "--egg-base", scratch, "build", "--build-base", scratch, "bdist_wheel"
        setup(source, *words, "--dist-dir", str(out.resolve()), "--bdist-dir", f"{scratch}/wheel")
    (wheel,) = out.glob("taac-*.whl")
    return wheel


def setup(folder: Path, *words: str) -> None:
    """Calls `setup.py` in a folder.

    Raises:
        RuntimeError: it failed; the message is what it printed.
    """
    done = subprocess.run([sys.executable, "setup.py", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"setup.py {shlex.join(words)}: {done.stderr}")


def contents(wheel: Path) -> dict[str, bytes]:
    """Returns name -> content of all files in a wheel but its RECORD, which names them in their order."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.endswith(("/", "/RECORD"))]
        return {name: archive.read(name) for name in names}


def expected(source: Path = ROOT) -> dict[str, bytes]:
    """Returns name -> content of all files of the package and of the gin files, as a wheel has to have them.

    Gin files that import examples are left out with these.
    """
    package = [
        path for path in (source / "taac").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "configs" not in path.relative_to(source).parts[:2]
    ]  # fmt: skip
    found = {str(path.relative_to(source)): path.read_bytes() for path in package}
    for folder in ("gin", "experiments"):
        for path in (source / folder).rglob("*.gin"):
            if b"import experiments." not in path.read_bytes():
                found[f"taac/configs/{path.relative_to(source)}"] = path.read_bytes()
    return found


def install(wheel: Path, folder: Path, parent: bool, extras: str = "") -> Path:
    """Makes an environment with the wheel in it; returns its folder of programs.

    Args:
        parent: whether all other packages are those of this Python; otherwise pip installs those that the wheel asks for, and
            the versions of constraints.txt.
    """
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    asked = f"{wheel}[{extras}]" if extras else str(wheel)
    if parent:
        purelib = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
        (Path(purelib.strip()) / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        more = ["--no-deps", "--force-reinstall"]
    else:
        more = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *more, asked], check=True)
    return programs


def use(programs: Path, folder: Path, commands: list[str], environment: Mapping[str, str] = os.environ) -> None:
    """Runs commands in a folder, with the programs of an environment.

    Raises:
        RuntimeError: a command failed; the message is what it printed.
    """
    (folder / "mine.gin").write_text(OWN, encoding="utf-8")
    (folder / "api.py").write_text(API, encoding="utf-8")
    clean = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    for command in commands:
        program, *words = shlex.split(command)
        words = [str(programs / program), *words]
        done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command}: ended with {done.returncode}: {done.stdout}{done.stderr}")
        print(f"works: {command}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="a folder for the two files, without earlier ones")
    parser.add_argument("--try", action="store_true", dest="tried", help="install the wheel in a new environment, and use it")
    parser.add_argument("--parent", action="store_true", help="with the other packages of this Python instead of new ones")
    parser.add_argument("--extras", default="onnx", help="optional packages to install; with onnx, export is tried")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sdist, wheel = build(given.out)
    found = contents(wheel)
    with tempfile.TemporaryDirectory() as scratch:
        same = contents(wheel_of(ROOT, Path(scratch))) == found
    missing = sorted(name for name, content in expected().items() if found.get(name) != content)
    print(f"{sdist.name}\n{wheel.name}: {len(found)} files; missing: {missing}; the same from the repository: {same}")
    if missing or not same:
        sys.exit(1)
    if given.tried:
        with tempfile.TemporaryDirectory() as scratch:
            programs, folder = install(wheel, Path(scratch, "venv"), given.parent, given.extras), Path(scratch, "empty")
            folder.mkdir()
            use(programs, folder, [*COMMANDS, *([ONNX] if "onnx" in given.extras else [])])


if __name__ == "__main__":
    main()
