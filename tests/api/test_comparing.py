"""`taac.compare`, `taac.report` and `taac.check`: what the commands do, with environments as objects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import matplotlib
import numpy as np
import pytest

import taac
from taac.analysis.report.scores import Options
from taac.api import comparing
from taac.campaigns.launchers import local
from taac.errors import TaacError
from tests.api.launcher import InThisProcess
from tests.api.small import SMALL
from tests.environments.toys import Counter

EXAMPLES = Path(__file__).resolve().parents[2] / "experiments" / "examples"
TINY = {name: value for name, value in SMALL.items() if name != "progress"} | {"num_env_steps": 305}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(local, "LocalProcesses", InThisProcess)


@pytest.mark.slow
def test_the_example_of_an_own_environment_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    import own_environment

    own_environment.main("cart", seeds=1, **{**TINY, "max_episode_steps": 60, "hidden_layers": (8,), "batch_size": 8})
    said = capsys.readouterr().out
    assert "ok  the same seed and actions repeat the episode" in said and "10 episodes: return -" in said
    assert "own_environment:Cart: taac - sac = " in said and (tmp_path / "cart/compared/report.html").exists()
    source = (EXAMPLES / "own_environment.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in source.partition('"""\n\n')[2].splitlines()) <= 35  # 30 lines and a few


def test_objects_are_compared_by_name_with_their_arguments(tmp_path, capsys):
    heavy = gymnasium.make("Pendulum-v1", g=20.0, max_episode_steps=20)
    settings = {name: value for name, value in TINY.items() if name != "max_episode_steps"}
    backend = matplotlib.rcParams["backend"]
    compared = taac.compare("sac", [heavy], root_dir=tmp_path, seeds=[4], progress=False, **settings)
    assert [run.root_dir for run in compared.runs] == [tmp_path / "Pendulum-v1" / "sac" / "seed_4"]
    assert "'g': 20.0" in compared.runs[0].config and repr(compared).endswith("1 runs)")
    assert capsys.readouterr().err.count("finished") == 0
    report = compared.report(last_evaluations=1, bounds={"Pendulum-v1": (-2000, 0)})
    assert report.content["tasks"][0]["bounds"] == [-2000, 0] and report.verdicts == []
    assert json.loads((tmp_path / "report.json").read_text())["methods"] == ["sac"]
    assert report.markdown.startswith("# Comparison") and any("fewer than" in text for text in report.warnings)
    assert matplotlib.rcParams["backend"] == backend
    again = taac.compare("sac", [heavy], root_dir=tmp_path, seeds=[4], progress=False, **settings)
    assert again.runs[0].about == compared.runs[0].about and (compared.runs[0]._trust, again.runs[0]._trust) == (True, False)
    with pytest.raises(TaacError, match="holds a run of other settings"):
        taac.compare("sac", "Pendulum-v1", root_dir=tmp_path, seeds=[4], progress=False, **settings)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"environments": Counter()}, "python/Counter is known to this program only.*'module:Class'"),
        ({"environments": []}, "tasks is missing"), ({"environments": None}, "environments are missing: give ids"),
        ({"methods": []}, "methods is missing"),
        ({"methods": ["sac", 1]}, r"methods must be names, such as \['sac', 'taac'\], or .gin files, got \['sac', 1\]"),
        ({"methods": ["sac", "tac"]}, "there is no method 'tac'"),
        ({"seeds": 0}, "at least one, got 0"),
        ({"jobs": -1}, "jobs must be an integer, 0 or more"), ({"jobs": None}, "jobs must be an integer, 0 or more, got None"),
        ({"seeds": "12"}, "seeds must be a number of seeds, or the seeds themselves, integers, got '12'"),
        ({"seeds": [0, 1.5]}, "seeds must be a number"), ({"seeds": 2.0}, "seeds must be a number"),
        ({"settings": ["gamma=1"]}, "settings must be a dict of values by name.*got .'gamma=1'."),
        (
            {"environments": [gymnasium.make("Pendulum-v1", g=5.0), gymnasium.make("Pendulum-v1", g=10.0, max_episode_steps=9)]},
            "two of the environments are Pendulum-v1 with different settings",
        ),
        (
            {"environments": ["Pendulum-v1", gymnasium.make("Pendulum-v1", g=3.0)]},
            "two of the environments are Pendulum-v1 with different settings",
        ),
        ({"settings": {"Learner.epsilon": "x"}}, "Learner.epsilon = 'x' has the wrong type"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(tmp_path, arguments, message):
    with pytest.raises(TaacError, match=message):
        taac.compare(**{"methods": ["sac"], "environments": "Pendulum-v1", "root_dir": tmp_path / "x", **arguments})
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bounds": [0, 1, 2]}, r"bounds must be \(lowest, highest\), or these by task, or 'none', got \[0, 1, 2\]"),
        ({"bounds": {"Pendulum-v1": 3}}, "bounds must be"),
        ({"at_step": "20000"}, "at_step must be an integer, 1 or more, got '20000'"),
        ({"output_dir": __file__}, "output_dir must be a folder, got the file"),
        ({"last_evaluations": None}, "last_evaluations must be an integer, 1 or more, got None"),
        ({"at_step": 0}, "at_step must be an integer, 1 or more, got 0"),
        ({"last_evaluations": 0}, "last_evaluations must be an integer, 1 or more, got 0"),
    ],
)  # fmt: skip
def test_options_of_a_report_that_cannot_be_are_refused(tmp_path, options, message):
    with pytest.raises(TaacError, match=message):
        taac.report(tmp_path, **options)


def test_every_option_reaches_the_report(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(comparing, "make_report", lambda path, options: asked.append(options) or {})
    monkeypatch.setattr(comparing, "write_report", lambda content, folder: [folder])
    plain = {"paired": True, "baseline": "sac", "at_step": 5, "allow_mixed": True}
    files = {"anchors": tmp_path / "a.json", "published": tmp_path / "p.json"}
    taac.report(tmp_path, bounds="none")
    assert asked.pop().bounds == ("none",)
    taac.report(tmp_path, bounds=np.array([0, 1]))
    assert asked.pop().bounds == ("0,1",)
    taac.report(tmp_path, last_evaluations=1, bounds=(-1, 2), group_by="gamma", **plain, **files)
    assert asked == [Options(last=1, bounds=("-1,2",), group_by=("gamma",), **plain, **files)]
    assert asked[0] != Options() and all(asked[0]._asdict()[name] != Options()._asdict()[name] for name in Options._fields)


def test_one_setting_may_be_named_without_a_list(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(comparing, "make_report", lambda path, options: asked.append(options.group_by) or {})
    monkeypatch.setattr(comparing, "write_report", lambda *_: [tmp_path])
    for given in ("gamma", ["gamma"], ()):
        taac.report(tmp_path, group_by=given)
    assert asked == [("gamma",)] * 2 + [()]


def test_the_gin_file_of_a_comparison_sets_its_seeds_and_settings_as_for_the_command(tmp_path, monkeypatch):
    """What the arguments say wins: methods, tasks, seeds, and what an environment was made with."""
    file = tmp_path / "compare.gin"
    file.write_text(
        "Comparison.methods = ('sac', 'taac')\nComparison.tasks = ('Pendulum-v1', 'Acrobot-v1')\nComparison.seeds = (4, 7)\n"
        "Comparison.task_params = {'Pendulum-v1': ('gamma = 0.5',)}\nComparison.method_params = {'sac': ('reward_clip = 3.0',)}\n"
    )
    planned = []
    monkeypatch.setattr(comparing, "check_new", lambda runs, here: planned.extend(runs))
    monkeypatch.setattr(comparing, "Campaign", lambda *_: (_ for _ in ()).throw(TaacError("planned")))

    def plan(**more):
        planned.clear()
        with pytest.raises(TaacError, match=r"^planned$"):
            taac.compare("sac", gymnasium.make("Pendulum-v1", g=20.0), root_dir=tmp_path, gin_files=str(file), **more)
        return [(run.seed, run.task, run.method) for run in planned]

    assert plan() == [(4, "Pendulum-v1", "sac"), (7, "Pendulum-v1", "sac")]
    loaded = planned[0].request.load()
    assert loaded.macros["gamma"] == 0.5 and loaded.macros["reward_clip"] == 3.0
    assert loaded.bound("create_environment.env_kwargs") == {"g": 20.0}
    assert plan(seeds=[1]) == [(1, "Pendulum-v1", "sac")]
    file.write_text("Comparison.seeds = 2\nComparison.first_seed = 3\n")
    assert [seed for seed, *_ in plan()] == [3, 4] and [seed for seed, *_ in plan(seeds=1)] == [3]
    assert [seed for seed, *_ in plan(seeds=(0, 7))] == [0, 7]


def test_failed_runs_are_named(tmp_path, monkeypatch):
    class Failing(InThisProcess):
        def begin(self, run):
            self._over.append((run, comparing.local.Outcome(1)))

    monkeypatch.setattr(local, "LocalProcesses", Failing)
    with pytest.raises(TaacError, match=r"1 of 1 runs failed.*it printed nothing"):
        taac.compare("sac", "Pendulum-v1", root_dir=tmp_path, seeds=1, progress=False, **TINY)


def test_the_processes_of_runs_import_what_the_program_can(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    process = local.start([sys.executable, "-c", "import only_here"], tmp_path / "log", environment=comparing._search_path())
    assert process.wait(60) == 0, (tmp_path / "log").read_text()


def test_check_describes_what_train_would_do(tmp_path):
    found = taac.check("Pendulum-v1", "taac", learning_rate=2e-3, **{**TINY, "evaluation_envs": 1})
    assert any(line.startswith("learning_rate = 0.002") and line.endswith("# settings") for line in found.lines)
    assert any(line.startswith("what looks wrong:") for line in found.lines) and found.faults == []
    with pytest.raises(TaacError, match="nothing to check"):
        taac.check()
    with pytest.raises(TaacError, match="settings need an experiment: give a method, too"):
        taac.check("Pendulum-v1", gamma=0.9)


def test_check_tries_an_object_with_its_arguments():
    found = taac.check(gymnasium.make("Pendulum-v1", max_episode_steps=30))
    assert "after 30 to 30 steps" in repr(found) and found.faults == []


def test_check_tries_an_environment():
    class Biased(Counter):
        def step(self, action):
            observation, *rest = super().step(action)
            return observation.astype(str), *rest

    found = taac.check(Biased)
    assert found.faults and found.lines[-1].startswith("FIX") and repr(found) == "\n".join(found.lines)
