"""What a comparison is made of: gin files, flags over them, and the runs that follow."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from taac import configuration
from taac.campaigns import comparison
from taac.campaigns.comparison import Comparison
from taac.campaigns.launchers.slurm import SlurmArray
from taac.campaigns.run import ATTEMPT, Run
from taac.checking.trial import check_buildable
from taac.configuration import RunRequest
from taac.configuration.binding import OF_COMPARE
from taac.errors import TaacError
from taac.training import experiment
from tests.campaigns.launched import POINT, SMALL, compared

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(p for p in (ROOT / "experiments").glob("*.gin") if "Comparison." in p.read_text())


def words_after(run, flag):
    return [run.command[i + 1] for i, word in enumerate(run.command) if word == flag]


def bound(run):
    """What a run's flags bind in the end."""
    loaded = run.request.load()
    return {
        b.scope if b.selector == "gin.macro" else f"{b.selector.rsplit('.', 1)[-1]}.{b.name}": b.value
        for b in loaded.bindings.values()
    }


def test_a_plan_goes_seed_by_seed_and_every_command_is_a_configuration():
    asked = Comparison(("sac", "taac"), ("Pendulum-v1", "Hopper-v5"), seeds=2, first_seed=3)
    runs = asked.plan("R", RunRequest(gin_params=("gamma = 0.9",)))
    assert [(r.seed, r.task, r.method) for r in runs[:5]] == [
        (3, "Pendulum-v1", "sac"), (3, "Pendulum-v1", "taac"), (3, "Hopper-v5", "sac"), (3, "Hopper-v5", "taac"),
        (4, "Pendulum-v1", "sac"),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == len(runs) == 8
    held = bound(runs[3])
    assert held["create_environment.env_name"] == "Hopper-v5" and held["create_experiment.seed"] == 3
    assert held["gamma"] == 0.9
    assert [words_after(runs[3], f"--{flag}") for flag in ("task", "method", "gin_param", "seed")] == [
        ["Hopper-v5"], ["taac"], ["gamma = 0.9"], ["3"]
    ]  # fmt: skip


def test_the_nearer_setting_wins(tmp_path):
    """Published < the file's, of every run < of the task < of the method < --gin_param."""
    file = tmp_path / "mine.gin"
    file.write_text("gamma = 0.1\nbatch_size = 11\nlearning_rate = 0.01\ntarget_tau = 0.1\n")
    asked = Comparison(
        ("sac", "taac"),
        ("Pendulum-v1", "Hopper-v5"),
        seeds=1,
        task_params={"Pendulum-v1": ("batch_size = 22", "learning_rate = 0.02", "target_tau = 0.2")},
        method_params={"taac": ("learning_rate = 0.03", "target_tau = 0.3", "TaacAlgorithm.max_repeat_steps = 7")},
    )
    plan = asked.plan("R", RunRequest(gin_files=(str(file),), gin_params=("target_tau = 0.4",)))
    names = ("gamma", "batch_size", "learning_rate", "target_tau", "TaacAlgorithm.max_repeat_steps")
    found = {(r.task, r.method): tuple(bound(r).get(name) for name in names) for r in plan}
    assert found == {
        ("Pendulum-v1", "sac"): (0.1, 22, 0.02, 0.4, None), ("Pendulum-v1", "taac"): (0.1, 22, 0.03, 0.4, 7),
        ("Hopper-v5", "sac"): (0.1, 11, 0.01, 0.4, None), ("Hopper-v5", "taac"): (0.1, 11, 0.03, 0.4, 7),
    }  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_comparison_is_without_mistakes(path):
    configuration.load([str(path)])
    held = configuration.build(Comparison)
    held.check(held, RunRequest(gin_files=(str(path),)))
    for run in held.plan("R", RunRequest(gin_files=(str(path),))):
        assert bound(run)["create_environment.env_name"] == run.task


def test_the_comparison_of_simple_control_is_the_published_one():
    path = ROOT / "experiments" / "simple_control.gin"
    assert path in SHIPPED
    configuration.load([str(path)])
    held = configuration.build(Comparison)
    assert held.methods == ("sac", "taac") and len(held.seeds) >= 5
    assert held.tasks == ("MountainCarContinuous-v0", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5")
    for run in held.plan("R", RunRequest(gin_files=(str(path),))):
        plain = RunRequest(task=run.task, method=run.method, seed=run.seed).load().bindings
        own = run.request.load().bindings
        assert {k: b.value for k, b in own.items() if not k[1].startswith(OF_COMPARE)} == {k: b.value for k, b in plain.items()}


@pytest.mark.parametrize(
    "text, words",
    [
        ("Comparison.metods = ('sac',)", ["metods", "did you mean 'methods'"]),
        ("Comparison.methods = 'sac'", ["Comparison.methods", "wrong type"]),
        ("Comparison.seeds = 'five'", ["Comparison.seeds", "wrong type"]),
        ("Comparison.seeds = 0", ["at least one, got 0"]),
        ("Comparison.methods = ('sac', 'tac')", ["no method 'tac'", "did you mean 'taac'", "sac_ntd"]),
        ("Comparison.tasks = ('Pendulm-v1',)", ["Pendulm", "Pendulum"]),
        ("Comparison.task_params = {'Pendulum-v2': ('gamma = 0.9',)}", ["Pendulum-v2", "did you mean 'Pendulum-v1'"]),
        ("Comparison.task_params = {'Pendulum-v1': 'gamma = 0.9'}", ["Comparison.task_params", "wrong type"]),
        ("Comparison.method_params = {'tac': ('gamma = 0.9',)}", ["'tac'", "did you mean 'taac'"]),
        ("Comparison.task_params = {'Pendulum-v1': ('gama = 0.9',)}", ["gama", "did you mean 'gamma'"]),
        ("num_env_stepz = 5", ["mine.gin:3", "num_env_stepz", "did you mean 'num_env_steps'"]),
        ("TaacAlgoritm.max_repeat_steps = 5", ["mine.gin:3", "did you mean 'TaacAlgorithm'"]),
        ("SlurmArray.tme = '1:00:00'", ["tme", "did you mean 'time'"]),
        ("SlurmArray.cpus = '2'", ["SlurmArray.cpus", "wrong type"]),
        ("SlurmArray.options = ('account=me',)", ["--account=me", "'account=me'"]),
    ],
)
def test_mistakes_in_a_gin_file_are_found(tmp_path, text, words):
    file = tmp_path / "mine.gin"
    file.write_text(f"Comparison.methods = ('sac', 'taac')\nComparison.tasks = ('Pendulum-v1',)\n{text}\n")
    with pytest.raises(TaacError) as caught:
        configuration.load([str(file)])
        held = configuration.build(Comparison)
        configuration.build(SlurmArray)
        held.check(held, RunRequest(gin_files=(str(file),)))
    assert all(word in str(caught.value) for word in words), caught.value


def test_flags_win_over_the_file(tmp_path):
    file = "experiments/quick_compare.gin"  # has settings for InvertedPendulum-v5, which is not compared here
    code, out, err = compared(
        tmp_path, "--gin_file", file, "--dry_run", "--first_seed", "4",
        methods="taac", tasks="Pendulum-v1", seeds=3,
    )  # fmt: skip
    assert code == 0, err
    lines = out.splitlines()
    assert len(lines) == 3 and all(f"/Pendulum-v1/taac/seed_{s} " in line for s, line in zip((4, 5, 6), lines))
    assert all(f"--gin_file {file}" in line and "gamma" not in line for line in lines)
    (tmp_path / "mine.gin").write_text("Comparison.first_seed = 3\n")
    code, out, err = compared(
        tmp_path, "--gin_file", str(tmp_path / "mine.gin"), "--dry_run", methods="taac", tasks="Pendulum-v1", seeds="0,7"
    )
    assert code == 0, err
    assert [line.split("/seed_")[1].split()[0] for line in out.splitlines()] == ["0", "7"]


def test_the_error_of_a_run_is_of_its_last_attempt(tmp_path):
    run = Run("T", "m", 0, tmp_path / "seed_0", ())
    assert run.error() == "it printed nothing"
    run.log.write_text(f"{ATTEMPT}then\ntaac train: refused of old\n{ATTEMPT}now\nbar 1%\rbar 2%\nKeyError: 'x'\n\n")
    assert run.error() == "KeyError: 'x'"
    run.log.write_text(f"{ATTEMPT}now\ntaac train: no such thing\n  a detail\n")
    assert run.error() == "taac train: no such thing"
    run.log.write_text(f"{ATTEMPT}now\n" + "x" * 10_000 + "\n")
    assert run.error() == "x" * 1000


# Folders that are there already --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operative():
    """The config.gin that the first run of `planned` leaves."""
    run = planned(Path("R"), ["gamma = 0.9"])[0]
    run.request.load()
    trainer = configuration.build(experiment.create_experiment)
    text = configuration.operative_config()
    trainer.close()
    return text


def planned(root, params, files=(), extend=False):
    own = {"taac": ("TaacAlgorithm.max_repeat_steps = 7",)}
    asked = Comparison(("taac", "sac"), (POINT,), seeds=1, method_params=own)
    return asked.plan(root, RunRequest(gin_files=tuple(map(str, files)), gin_params=(*SMALL, *params)), extend)


def leave(run, operative, status):
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text(f'{{"status": "{status}"}}')
    if operative is not None:
        (run.folder / "config.gin").write_text(operative)


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_folders_of_the_same_settings_are_accepted(tmp_path, monkeypatch, operative, status):
    """However the settings are given, and from wherever."""
    leave(planned(tmp_path, [])[0], operative, status)
    (tmp_path / "mine.gin").write_text("gamma = 0.9\n")
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    comparison.check_folders(planned(tmp_path, ["gamma = 9e-1"]))
    comparison.check_folders(planned(tmp_path, ["create_collector.uniform_initial_collect = True", "gamma = 0.9"]))  # a default
    comparison.check_folders(planned(tmp_path, [], [tmp_path / "mine.gin"]))
    monkeypatch.chdir(tmp_path)
    comparison.check_folders(planned(".", [], ["mine.gin"]))
    (planned(tmp_path, [])[0].folder / "config.gin").unlink()
    if status == "interrupted":  # it was killed in the making
        comparison.check_folders(planned(tmp_path, []))
    else:
        with pytest.raises(TaacError, match=r"config\.gin"):
            comparison.check_folders(planned(tmp_path, []))


@pytest.mark.parametrize(
    "params, told",
    [
        ([], "gamma = 0.9, not 0.99"),
        (["gamma = 0.9", "num_env_steps = 500"], "num_env_steps = 400, not 500"),
        (
            ["gamma = 0.9", "create_collector.uniform_initial_collect = False"],
            "create_collector.uniform_initial_collect = True, not False",
        ),
        (["gamma = 0.9", "TaacAlgorithm.max_repeat_steps = 8"], "TaacAlgorithm.max_repeat_steps = 7, not 8"),
        (["gamma = 0.9", "RND.strength = 0.5"], "no RND.strength = 0.5"),
    ],
)
def test_folders_of_other_settings_are_refused(tmp_path, operative, params, told):
    run, *_ = planned(tmp_path, [])
    leave(run, operative, "interrupted")
    with pytest.raises(TaacError) as caught:
        comparison.check_folders(planned(tmp_path, params))
    lines = str(caught.value).splitlines()
    assert str(run.folder) in lines[0] and "another --root_dir" in lines[0] and "remove" in lines[0]
    assert lines[1:] == [f"  {told}"]


def test_ten_differences_are_shown_and_more_are_counted():
    ten = [f"setting {number}" for number in range(10)]
    assert comparison.shown(ten) == "\n  ".join(ten)
    assert comparison.shown([*ten, "another", "a third"]).splitlines()[9:] == ["  setting 9", "  and 2 more"]


def test_the_order_of_a_dict_is_no_difference(tmp_path, operative):
    """Operative configurations have the keys in alphabetical order."""
    held = "create_environment.env_kwargs = {'a': {'c': 1, 'd': 2}, 'b': 3}"
    text, count = re.subn(r"^create_environment.env_kwargs = .*$", held, operative, flags=re.MULTILINE)
    assert count == 1
    leave(planned(tmp_path, [])[0], text, "finished")
    ask = "create_environment.env_kwargs = {'b': 3, 'a': {'d': %s, 'c': 1}}"
    comparison.check_folders(planned(tmp_path, ["gamma = 0.9", ask % 2]))
    with pytest.raises(TaacError, match=r"\{'a': \{'c': 1, 'd': 2\}, 'b': 3\}, not \{'a': \{'c': 1, 'd': 5\}, 'b': 3\}$"):
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9", ask % 5]))


def test_runs_of_fewer_steps_are_extended_when_asked(tmp_path, operative):
    leave(planned(tmp_path, [])[0], operative, "finished")
    with pytest.raises(TaacError, match=r"or give --extend to train it on.*\n  num_env_steps = 400, not 500$"):
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9", "num_env_steps = 500"]))
    begun, new = planned(tmp_path, ["gamma = 0.9", "num_env_steps = 500"], extend=True)
    comparison.check_folders([begun, new])
    assert "--extend" in begun.command and not begun.finished() and "--extend" not in new.command
    assert new.steps is None and begun.steps == 500
    for steps, told in ((400, "gamma = 0.9, not 0.8"), (500, "gamma = 0.9, not 0.8")):
        with pytest.raises(TaacError, match=rf"again\. It has:\n  {told}$"):
            comparison.check_folders(planned(tmp_path, ["gamma = 0.8", f"num_env_steps = {steps}"], extend=True))
    with pytest.raises(TaacError, match=r"again\. It has:\n  num_env_steps = 400, not 350$"):
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9", "num_env_steps = 350"], extend=True))
    (begun.folder / "config.gin").write_text(operative.replace("num_env_steps = 400", "num_env_steps = 500"))
    assert begun.finished()
    (again, _) = planned(tmp_path, ["gamma = 0.9", "num_env_steps = 500"], extend=True)
    assert again.steps is None and "--extend" not in again.command and again.finished()


def test_the_name_of_a_method_is_no_setting(tmp_path, operative):
    """Earlier versions did not write it."""
    run, *_ = planned(tmp_path, [])
    named = "create_experiment.method = 'taac'\n"
    assert named in operative
    for text in (operative.replace(named, ""), operative.replace(named, "create_experiment.method = 'mine'\n")):
        leave(run, text, "finished")
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9"]))
        (run.folder / "config.gin").unlink(), (run.folder / "run.json").unlink(), run.folder.rmdir()


def test_what_is_no_longer_asked_for_differs_too(tmp_path, operative):
    run, *_ = planned(tmp_path, [])
    leave(
        run,
        operative.replace("max_repeat_steps = 7", "max_repeat_steps = 7\nTaacAlgorithm.b1_advantage = 3"),
        "finished",
    )
    with pytest.raises(TaacError, match="b1_advantage"):
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9"]))
    (run.folder / "config.gin").write_text(operative.replace("initial_collect = True", "initial_collect = False"))
    with pytest.raises(TaacError, match="uniform_initial_collect = False, not True"):
        comparison.check_folders(planned(tmp_path, ["gamma = 0.9"]))


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A module that leaves a file behind when it is imported."""
    code = f"with open({str(tmp_path / 'imported')!r}, 'a') as file:\n    file.write('x')\n"
    (tmp_path / "taac_test_marker.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    sys.modules.pop("taac_test_marker", None)


@pytest.mark.parametrize("statement", ["import taac_test_marker", "from taac_test_marker import x", "include 'other.gin'"])
def test_a_folder_in_the_place_of_a_run_imports_nothing(tmp_path, operative, marker, statement):
    (tmp_path / "other.gin").write_text("import taac_test_marker\n")
    run, *_ = planned(tmp_path, ["gamma = 0.9"])
    leave(run, f"{statement}\n{operative}", "finished")
    with pytest.raises(TaacError, match=r"config\.gin:1: (imports|includes) '.*'\. The configuration that is asked for"):
        comparison.check_folders([run])
    assert not marker.exists()


def test_a_run_may_import_what_is_asked_for_too(tmp_path, operative, marker):
    (tmp_path / "mine.gin").write_text("import taac_test_marker\ngamma = 0.9\n")
    leave(planned(tmp_path, [])[0], f"import taac_test_marker\n{operative}", "finished")
    comparison.check_folders(planned(tmp_path, [], [tmp_path / "mine.gin"]))
    assert marker.read_text() == "x"


def test_links_in_the_place_of_folders_and_logs_are_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bashrc").write_text("mine")
    for number, part in enumerate(("task", "method", "seed", "log")):
        run, *_ = planned(tmp_path / f"R{number}", [])
        path = {"task": run.folder.parents[1], "method": run.folder.parent, "seed": run.folder, "log": run.log}[part]
        path.parent.mkdir(parents=True)
        path.symlink_to(tmp_path / "mine" / ("bashrc" if part == "log" else ""))
        with pytest.raises(TaacError, match=rf"{path.name} is not a .* but a symbolic link"):
            comparison.check_folders([run])
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["bashrc"]


def test_compare_refuses_before_anything_is_run(tmp_path, operative):
    leave(planned(tmp_path, [])[0], operative, "finished")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = compared(tmp_path)
    assert code == 1 and "gamma = 0.9, not 0.99" in err and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before


def test_seeds_that_are_given_twice_are_refused():
    with pytest.raises(TaacError, match="seeds must differ, got 0 2 times"):
        Comparison(("sac",), ("Pendulum-v1",), seeds=(0, 0, 1))


def test_a_comparison_may_use_macros_of_its_own(tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text("count = 2\nComparison.seeds = %count\nComparison.methods = ('sac',)\n")
    check_buildable(RunRequest("Pendulum-v1", "sac", (str(file),)), here=False)
    file.write_text("count = 2\nother = 3\nComparison.seeds = %count\n")
    with pytest.raises(TaacError, match="other = 3: nothing uses this macro"):
        check_buildable(RunRequest("Pendulum-v1", "sac", (str(file),)), here=False)


def test_settings_of_a_method_hold_however_its_file_is_named():
    made = Comparison(
        ("gin/methods/taac.gin", "taac+layer_norm"), ("Pendulum-v1",), method_params={"taac": ("gamma = 0.9",)},
    )  # fmt: skip
    made.check(made)
    assert [made.request("Pendulum-v1", method, 0, RunRequest()).gin_params for method in made.methods] == [("gamma = 0.9",), ()]


def test_one_method_is_compared_with_several_settings_in_folders_of_their_own(tmp_path):
    made = Comparison(("taac", "taac+decision_price=0.01", "taac+decision_price=0.1"), ("Pendulum-v1",), seeds=1)
    made.check(made)
    runs = made.plan(tmp_path)
    assert [run.folder.parent.name for run in runs] == ["taac", "taac_decision_price_0.01", "taac_decision_price_0.1"]
    prices = [run.request.load().bound("TaacAlgorithm.decision_price") for run in runs]
    assert prices == [None, 0.01, 0.1] and runs[1].request.method_name == "taac+decision_price=0.01"
