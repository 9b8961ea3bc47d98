"""Every command in the pages: its words are understood; and, as slow tests, it runs as it stands, but with less to do.

Each page's commands run in their order, in one empty folder a page, each in a fork. `smaller` and `STANDS_FOR` are all that
changes in them. `NOT_RUN` lists those that are not run, with the reason. Of a comparison, the plan is made and its first run
trained: tests/campaigns/ has whole ones. Of scripts that take minutes, the flags are looked up. Of make, `-n`.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from absl import flags

from taac.commands.main import COMMANDS
from taac.configuration.run_request import method_files
from tests import forked
from tests.analysis.campaigns import make_campaign
from tests.test_docs import OF_PRESENT, ROOT, names, text_of

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "shell", "bash", "console")  # languages of fences that may hold commands
PROGRAMS = ("taac", "python", "python3", "pip", "make", "tensorboard", "jupyter", "source", ".", "cd", "git", "ray", "sbatch",
            "squeue", "optuna", "mlflow", "wandb", "pre-commit", "npm", "docker", "conda", "uv", "export")  # fmt: skip

# The beginning of a command -> why no test runs it.
NOT_RUN = {
    "pip install": "changes the environment; the files and extras that it names are looked up instead",
    ". .venv/bin/activate": "changes the caller's shell",
    "tensorboard --logdir": "a server that does not end; tests/training/test_tensorboard.py reads what it would show",
}

# What a command needs and not every environment has: a word in it -> the package. It is then left out, and the test says so.
OPTIONAL = {".onnx": "onnxruntime", "@Wandb": "wandb", "taac sweep": "optuna",
            "best.gin": "optuna", "engine=envpool": "envpool"}  # fmt: skip
OFFLINE = {"WANDB_MODE": "offline"}

# Words that stand for something of the reader's -> what the test puts there.
STANDS_FOR = {"PENDULUM": "", "DIR": "D"}
TINY = (
    "initial_collect_steps = 40", "evaluation_interval = 100000", "evaluation_episodes = 1", "batch_size = 4",
    "hidden_layers = (8,)", "replay_length = 1000", "Evaluator.initial_evaluation = False", "Intervals.summary_interval = 20",
    "create_environment.max_episode_steps = 20", "create_agent.compile = False",
)  # fmt: skip
STEPS = 300  # environment steps of the pages for each that the test takes
OWN_MODULE = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv


class MyEnv(PendulumEnv):
    pass


gymnasium.register("MyEnv-v0", MyEnv, max_episode_steps=20)
"""


def commands(text: str) -> list[str]:
    """The commands in the fences of a page, without comments and redirections."""
    found = []
    for language, body in FENCE.findall(text):
        for line in re.sub(r"\\\n\s*", "", body).splitlines() if language in SHELL else ():
            line = line.strip().removeprefix("$ ")
            line = re.sub(r"^source <\((.*)\)", r"\1", re.sub(r"(^|\s)#.*", "", line)).strip()
            line = re.sub(r"^([A-Z_]+=\S+ +)+", "", re.sub(r" +(>|\|) .*", "", line))
            if line.split(" ")[0] in PROGRAMS:
                found.append(line)
    return found


PAGES = [page for page in OF_PRESENT if commands(text_of(page))]


def smaller(words: list[str]) -> list[str]:
    """The words of a `taac` command that does the same with fewer steps and episodes and smaller networks."""
    command, words = words[0], [STANDS_FOR.get(word, word) for word in words]
    given = {word for word in words if word.startswith("--")}
    if command == "train" and "--num_env_steps" in given:
        words[words.index("--num_env_steps") + 1] = str(max(60, int(float(words[words.index("--num_env_steps") + 1])) // STEPS))
    if command in ("play", "evaluate"):
        words += ["--num_episodes", "1"]  # the last one counts
    if command == "export":
        words += ["--check_steps", "20"]
    if command == "compare":
        words += ["--dry_run", "--gin_param", "create_agent.compile = False"]  # True tries the compiler, for seconds
    if command == "sweep":
        words += ["--num_env_steps", "60", "--trials", "1", "--seeds", "1", "--jobs", "1"]
    if command in ("train", "sweep") and not {"--extend", "--resume_with"} & set(given):
        words += [word for param in TINY for word in ("--gin_param", param)]
        words += [] if "--num_env_steps" in given else ["--num_env_steps", "60"]
    return [word for word in words if word]


class Reader:
    """Somebody who calls the commands of a page, in order, in a folder of their own beside the files of the repository."""

    def __init__(self, folder: Path, trained: Path, campaign: Path):
        self.folder, self.trained, self.campaign, self.provided = folder, trained, campaign, set()
        self.left_out: list[str] = []
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **OFFLINE}
        for name in ("experiments", "gin", "constraints.txt"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "my_module.py").write_text(OWN_MODULE)

    def call(self, command: str) -> None:
        words = shlex.split(command)
        missing = [name for word, name in OPTIONAL.items() if word in command and not find_spec(name)]
        if missing:
            self.left_out.append(f"{command}: no {missing[0]} here")
        elif any(command.startswith(start) for start in NOT_RUN):
            look_up(command)
        elif words[0] == "taac":
            self.taac(words[1:])
        elif words[0] == "make":
            for line in dry_run(words[1:]).splitlines():
                if " -m taac " in line:
                    self.taac(shlex.split(line)[3:])
        elif words[:2] == ["python", "-m"] and words[2] == "taac":
            self.taac(words[3:])
        elif words[:2] == ["python", "-m"]:
            code = f"import runpy, sys; sys.argv[0] = {words[2]!r}; runpy.run_module({words[2]!r}, run_name='__main__')"
            told = ends_well(forked.run(["--help"], cwd=self.folder, code=code))
            assert all(re.search(rf"{word}\b", told) for word in words if word.startswith("--")), f"{command}: {told}"
        elif words[0] == "python":
            code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
            ends_well(forked.run(words[1:], cwd=self.folder, code=code))
        else:
            pytest.fail(f"no test runs `{command}`: run it here, or list it in NOT_RUN with the reason")

    def taac(self, words: list[str]) -> None:
        words = smaller(words)
        if "--root_dir" in words:
            self.provide(words[0], self.folder / words[words.index("--root_dir") + 1])
        if "--resume_with" in words:  # of a run that is not finished yet
            run = self.folder / words[words.index("--root_dir") + 1] / "run.json"
            run.write_text(run.read_text().replace('"status": "finished"', '"status": "interrupted"'))
        told = ends_well(forked.run(words, cwd=self.folder, env=self.environment))
        if words[0] == "compare" and "--launcher" not in words:
            run = shlex.split(told.splitlines()[0])  # its first run, which the others are like
            assert run[1:4] == ["-m", "taac", "train"]
            run[run.index("--root_dir") + 1] = str(self.folder / f"first_{len(list(self.folder.iterdir()))}")
            self.taac(run[3:])

    def provide(self, command: str, folder: Path) -> None:
        """Leaves a run, or a comparison, where the page takes one for granted: trained earlier, or on another page."""
        if command in ("play", "evaluate", "export", "plot", "report") and not folder.exists():
            shutil.copytree(self.campaign if command == "report" else self.trained, folder)
            self.provided.add(folder)
        elif command == "train" and folder in self.provided:  # a name that stands for any folder, used again
            shutil.rmtree(folder)
            self.provided.remove(folder)


def ends_well(done) -> str:
    assert done.returncode == 0, f"{shlex.join(map(str, done.args))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def dry_run(words: list[str]) -> str:
    """What make would do, without the set-up."""
    call = ["make", "-n", "-o", ".venv/.installed", "-o", ".venv-peers/.installed", *words]
    return ends_well(subprocess.run(call, cwd=ROOT, capture_output=True, text=True))


def understand(command: str) -> None:
    """Checks a command without running it: its program, its flags and their values, methods, targets, files to install."""
    words = shlex.split(command)
    words = words[2:] if words[:3] == ["python", "-m", "taac"] else words
    if any(command.startswith(start) for start in NOT_RUN):
        look_up(command)
    elif words[0] == "make":
        dry_run(words[1:])
    elif words[:2] == ["python", "-m"]:
        path = ROOT / words[2].replace(".", "/")
        source = text_of(path / "__main__.py" if path.is_dir() else path.with_suffix(".py"))
        assert all(f'"{word}"' in source for word in words if word.startswith("--")), command
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), command
    else:
        assert words[0] == "taac", f"no test runs `{command}`: run it here, or list it in NOT_RUN with the reason"
        parse(words[1], words[2:])


def parse(name: str, words: list[str]) -> None:
    """Has a command of `taac` read its flags."""
    assert name in COMMANDS or name.startswith("--"), name
    before = set(flags.FLAGS)
    try:
        if name in COMMANDS:
            importlib.import_module(f"taac.commands.{name}").define_flags()
        flags.FLAGS(["taac", *words])
        given = flags.FLAGS["method"].value if "method" in flags.FLAGS else None  # of compare another name of --methods
        for method in given if isinstance(given, list) else [given] if given else ():
            assert method.endswith(".gin") or method_files(method)
    finally:
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)
        flags.FLAGS.unparse_flags()


def look_up(command: str) -> None:
    """Checks what `pip install` names: files, and extras of this package."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for extra in re.findall(r"\[([\w,]+)\]", command):
        assert all(f'"{name}": ' in setup for name in extra.split(",")), command
    for file in re.findall(r"-c (\S+)", command):
        assert (ROOT / file).exists(), command


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run, which pages play, draw and export."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", "--root_dir", str(folder), "--task", "Pendulum-v1", "--method", "taac"]
    done = forked.run(smaller(words), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def campaign(tmp_path_factory) -> Path:
    """A finished comparison, which pages report."""
    methods = {"sac": "null", "taac": "better"}
    root = make_campaign(tmp_path_factory.mktemp("campaign") / "D", methods=tuple(methods.values()))
    for path in root.rglob("run.json"):
        text = path.read_text()
        for method, planted in methods.items():
            text = text.replace(f'"{planted}"', f'"{method}"')
        path.write_text(text)
    return root


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_commands_of_a_page_are_understood(page):
    found = list(dict.fromkeys(commands(text_of(page))))
    spelt = subprocess.run(["bash", "-n"], input="\n".join(found), capture_output=True, text=True)
    assert spelt.returncode == 0, f"a shell does not understand a command: {spelt.stderr}"
    for command in found:
        understand(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_commands_of_a_page_run(page, tmp_path, trained, campaign):
    reader = Reader(tmp_path, trained, campaign)
    for command in dict.fromkeys(commands(text_of(page))):
        reader.call(command)
    if reader.left_out:
        pytest.skip("; ".join(reader.left_out))  # all others were run
