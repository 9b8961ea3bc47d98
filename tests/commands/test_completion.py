"""What the Tab key completes, asked of the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from experiments import docs_tables
from taac.commands import completion, shells
from taac.commands.main import COMMANDS
from taac.configuration import TASK_MACROS, shipped

ROOT = Path(__file__).resolve().parents[2]
METHODS = list(shipped.files("methods"))
# The line up to the cursor, as bash divides it into words, and what it must propose: all of it, or (with ...) at least that.
LINES = [
    (["taac", "tr"], {"train"}),
    (["taac", ""], set(COMMANDS)),
    (["taac", "train", "--ex"], {"--extend"}),
    (["taac", "play", "--ex"], set()),
    (["taac", "train", "--root_dir", "x", "--num_e"], {"--num_env_steps"}),
    (["taac", "train", "--method", ""], set(METHODS)),
    (["taac", "train", "--method", "=", "sac_m"], {name for name in METHODS if name.startswith("sac_m")}),
    (["taac", "train", "--method", "="], set(METHODS)),
    (["taac", "compare", "--methods", "sac,tempo"], {"sac,temporl"}),
    (["taac", "train", "--task", "Walker"], {"Walker2d-v5"}),
    (["taac", "train", "--task", "simple"], {"simple_control"}),
    (["taac", "train", "--set", "target_"], {"target_tau=", "target_period=", ...}),
    (["taac", "train", "--set", "Learner.eps"], {"Learner.epsilon="}),
    (["taac", "train", "--set", "learning_rate", "=", "1"], set()),
    (["taac", "sweep", "--search", "gam"], {"gamma="}),
    (["taac", "train", "--seed", "1"], set()),
    (["taac", "compare", "--launcher", ""], {"local", "ray", "slurm"}),
    (["taac", "play", "--noo"], {"--nooverlay"}),
    (["taac", "play", "--root_dir", "my"], {"my runs"}),
    (["taac", "train", "--gin_file", "my"], {"my runs", "my.gin"}),
    (["taac", "completion", ""], {"bash", "zsh", "fish"}),
    (["taac", "list", ""], set()),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a script for each shell, a folder and a file."""
    path = tmp_path_factory.mktemp("shells")
    for shell, script in shells.SCRIPTS.items():
        (path / shell).write_text(script(completion.words()))
    (path / "my runs").mkdir()
    (path / "my.gin").touch()
    return path


@pytest.fixture(scope="module")
def proposed(folder):
    """What bash proposes for each of `LINES`."""
    lines = ["source ./bash || exit 1", "complete -p taac"]
    for words, _ in LINES:
        lines += [f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=()",
                  "_taac 2>&1", r'for one in "${COMPREPLY[@]}"; do echo "$one"; done; echo ---']  # fmt: skip
    found = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and found.stderr == ""
    first, _, rest = found.stdout.partition("\n")
    assert first == "complete -F _taac taac"
    return [part.splitlines() for part in rest.split("---\n")[:-1]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda n: " ".join(LINES[n][0]))
def test_bash_completes(proposed, number):
    words, expected = LINES[number]
    found = set(proposed[number])
    assert expected - {...} <= found if ... in expected else found == expected
    assert all(word.startswith(words[-1]) or words[-1] == "=" for word in found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(folder):
    subprocess.run(["zsh", "-f", "-n", "zsh"], cwd=folder, check=True, timeout=60)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(folder):
    for line, expected in (("taac tr", "train"), ("taac train --method temp", "temporl"), ("taac train --set gamm", "gamma=")):
        call = ["fish", "--no-config", "-c", f"source ./fish; complete -C {line!r}"]
        found = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
        assert found.stdout.split("\t")[0].split("\n")[0] == expected


def test_the_words_are_those_of_the_commands_and_leave_the_flags_of_this_process_alone(monkeypatch):
    before = set(flags.FLAGS)
    from taac.commands import train

    define = train.define_flags
    monkeypatch.setattr(train, "define_flags", lambda: (define(), flags.DEFINE_bool("brand_new", True, ""))[0])
    found = completion.words()
    assert set(flags.FLAGS) == before and list(found.commands) == list(COMMANDS)
    assert {"brand_new", "nobrand_new"} < set(found.flags["train"]) & found.switches
    assert {*shells.FILES, *shells.FOLDERS} <= {name for names in found.flags.values() for name in names}
    settings = found.choices["set"]
    assert set(TASK_MACROS) < set(settings) and "Learner.learning_rate" in settings and "save_best" in settings
    assert "epsilon" not in settings  # of several constructors
    for script in shells.SCRIPTS.values():
        assert "brand_new" in script(found)


def test_names_that_are_more_than_a_word_are_left_out(monkeypatch):
    monkeypatch.setattr(shipped, "files", lambda kind: {"good": None, "$(touch x)": None, "a b": None, "`id`": None})
    monkeypatch.setattr(shipped, "environments", lambda task: ("Fine-v0", '"; id'))
    choices = completion.words().choices
    assert choices["method"] == ["good"] and choices["task"] == ["Fine-v0", "good"]


def test_the_settings_are_those_of_the_constructors():
    assert completion.SETTINGS.read_text() == docs_tables.settings(), "run python -m experiments.docs_tables"


HEAVY = """
import sys
from taac.commands.main import main
for words in (["list"], ["completion", "bash"]):
    try:
        main(["taac", *words])
    except SystemExit as ended:
        assert not ended.code, ended.code
print("\\nloaded", *sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "matplotlib", "numpy", "gymnasium"}))
"""


def test_lists_and_scripts_load_nothing_heavy(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", HEAVY]
    found = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "loaded" and "complete -F _taac taac" in found.stdout
