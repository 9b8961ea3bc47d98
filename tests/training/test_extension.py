"""Runs that are trained on to more environment steps than they were begun with."""

from __future__ import annotations

import contextlib
import functools
import json

import pytest

from taac import configuration
from taac.analysis.readers import run_records
from taac.errors import TaacError
from taac.runs import extension, history
from taac.runs.run_folder import RunFolder
from taac.training import conduct
from tests.analysis.campaigns import make_run
from tests.training.runs import Killed, assert_same_parameters, build, rows, run
from tests.training.test_loggers import Notes  # noqa: F401

SHORT = ("initial_collect_steps = 40", "evaluation_interval = 40", "evaluation_episodes = 1", "checkpoint_interval = 1000",
         "create_experiment.evaluation_envs = 1", "create_environment.max_episode_steps = 20")  # fmt: skip
OTHER = "gamma = 0.99\nLearner.epsilon = 1e-08\n"


def config(steps, more="", total="%num_env_steps"):
    return f"# Macros:\n# ===\nnum_env_steps = {steps}\n{OTHER}{more}Intervals.num_env_steps = {total}\n"


def extended(path, *params):
    """Trains the run in a folder on, as `taac train --extend` does."""
    trainer, folder = build(*params), RunFolder(path)
    asked = configuration.operative_config()
    assert folder.open(asked, extend=True) == "shorter"
    trainer.resume(folder)
    folder.extend(asked, trainer.env_steps)
    trainer.train(folder)
    trainer.close()
    return trainer


def test_an_extended_run_is_the_run_that_was_asked_for_from_the_start(tmp_path, capsys):
    whole = run(tmp_path / "whole", *SHORT, "num_env_steps = 120")
    run(tmp_path / "run", *SHORT, "num_env_steps = 70")
    RunFolder(tmp_path / "run").update_run(status="finished", end="then", env_steps=70, updates=30)
    longer = extended(tmp_path / "run", *SHORT, "num_env_steps = 120")
    assert_same_parameters(whole, longer)
    assert longer.learner.num_updates == whole.learner.num_updates == 80
    assert [r["env_steps"] for r in rows(tmp_path / "run")] == ["0", "40", "70", "80", "120"]
    assert [r for r in rows(tmp_path / "run") if r["env_steps"] != "70"] == rows(tmp_path / "whole")
    assert (tmp_path / "run" / "config.gin").read_text() == (tmp_path / "whole" / "config.gin").read_text()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (entry,) = about["extended"]
    assert (entry["from"], entry["to"], entry["env_steps"], entry["follow_length"]) == (70, 120, 70, [])
    assert about["status"] == "running" and about["end"] is None and "env_steps" not in about
    assert "had been changed" not in capsys.readouterr().err  # what a finished run adds to run.json is no damage


def test_a_longer_run_needs_extend_and_a_shorter_one_is_refused(tmp_path):
    folder = RunFolder(make_run(tmp_path / "run"))
    folder.config.write_text(config(70))
    before = {p: p.read_bytes() for p in folder.path.iterdir()}
    with pytest.raises(TaacError, match=r"run with 70 environment steps, and 120 are asked for.* Add --extend"):
        folder.open(config(120))
    with pytest.raises(TaacError, match="70 environment steps, and 60 are asked for: no run can be shortened"):
        folder.open(config(60), extend=True)
    with pytest.raises(TaacError, match="another configuration"):
        folder.open(config(120).replace("0.99", "0.98"), extend=True)
    assert folder.open(config(70), extend=True) == "finished"
    assert {p: p.read_bytes() for p in folder.path.iterdir()} == before


def test_a_run_killed_while_it_is_extended_is_extended_by_the_same_command(tmp_path, monkeypatch):
    folder = RunFolder(make_run(tmp_path / "run"))
    folder.config.write_text(config(70))
    with monkeypatch.context() as killed:
        write = RunFolder._write
        only_run = staticmethod(lambda path, text: None if path == folder.config else write(path, text))
        killed.setattr(RunFolder, "_write", only_run)
        folder.extend(config(120), 70)
    assert folder.open(config(120), extend=True) == "shorter" and folder.open(config(70)) == "unfinished"
    folder.extend(config(120), 70)
    folder.extend(config(200), 120)
    assert [(e["from"], e["to"]) for e in folder.read_run()["extended"]] == [(70, 120), (120, 200)]
    assert folder.config.read_text() == config(200)


@pytest.mark.parametrize(
    "held, asked, expected",
    [
        (config(70), config(120), (70, 120)),
        (config(70), config(70), None),
        (config(70, total="70"), config(120, total="120"), (70, 120)),
        (config(70), config(120, more="Learner.extra = 1\n"), None),
        (config("%steps"), config(120), None),
        (config("%steps", "steps = 70\n"), config("%steps", "steps = 120\n"), (70, 120)),
        (config("%steps", "steps = 70\n"), config(120), (70, 120)),
        (config("%steps", "steps = 70\nE.steps = %steps\n"), config(120, "steps = 70\nE.steps = %steps\n"), None),
        (config("%num_env_steps"), config(120), None),
        (config(10**30), config(120), None),
    ],
)
def test_lengths_are_told_if_nothing_else_differs(held, asked, expected):
    assert extension.lengths(held, asked) == expected
    assert extension.continues(held, asked) == (expected is not None or held == asked)
    assert extension.continues(asked, held) == (held == asked)


@pytest.mark.parametrize("total, expected", [("%num_env_steps", 70), ("80", 80), ("9" * 5000, None), ("'x'", None)])
def test_the_length_of_a_run_is_read_from_its_folder(tmp_path, total, expected):
    assert extension.held_steps(tmp_path) is None
    (tmp_path / "config.gin").write_text(config(70, total=total))
    assert extension.held_steps(tmp_path) == expected


@pytest.mark.parametrize(
    "entries, expected",
    [([{"env_steps": 70}, {"env_steps": 120}], 120), ([], -1), (None, -1), ("x", -1), ([3], -1), ([{"env_steps": "70"}], -1)],
)
def test_of_several_extensions_the_last_counts(entries, expected):
    assert extension.extended_at({"extended": entries}) == expected


SCHEDULE = "a/LinearSchedule.env_steps = %num_env_steps\nLearner.learning_rate = @a/LinearSchedule()\n"


@pytest.mark.parametrize(
    "more, expected",
    [
        ("", []),
        (SCHEDULE, ["a/LinearSchedule.env_steps"]),
        ("horizon = %num_env_steps\nE.steps = %horizon\nF.steps = %num_env_steps_2\n", ["E.steps", "horizon"]),
        ("PrioritizedReplayBuffer.beta = 0.4\n", ["PrioritizedReplayBuffer.beta"]),
        ("PrioritizedReplayBuffer.beta = 0.0\n", []),
    ],
)
def test_settings_that_follow_the_length_are_told(more, expected):
    assert extension.following_length(config(70, more)) == expected


def test_settings_that_follow_a_macro_of_the_length_are_told(tmp_path):
    held = config("%steps", "steps = 70\nE.steps = %steps\nF.steps = %num_env_steps\nG.steps = %others\nothers = 3\n")
    assert extension.following_length(held) == ["E.steps", "F.steps"]
    (tmp_path / "config.gin").write_text(held)
    told = ["steps = 70, not 120", "num_env_steps = 70, not 120", "others = 70, not 120", "steps = 70, not 60"]
    assert [extension.is_longer(difference, tmp_path) for difference in told] == [True, True, False, False]


def test_a_ratio_of_updates_that_follows_the_length_is_refused():
    extension.refuse_ratio(config(70, SCHEDULE + "UpdateRatio.updates_per_env_step = @b/LinearSchedule()\n"))
    with pytest.raises(TaacError, match=r"a/LinearSchedule\.env_steps = %num_env_steps, so a longer run"):
        extension.refuse_ratio(config(70, SCHEDULE + "UpdateRatio.updates_per_env_step = @a/LinearSchedule()\n"))


def test_reports_say_that_a_run_was_extended_and_believe_nothing_else(tmp_path):
    folder = RunFolder(make_run(tmp_path / "run"))
    entry = {"from": 500, "to": 1000, "env_steps": 500, "time": "today", "follow_length": ["a.b", "\x1b", 3]}
    hostile = [None, 3, {}, {**entry, "to": "1000"}, {**entry, "from": -1}, {**entry, "env_steps": 10**40}, {**entry, "to": True}]
    folder.update_run(extended=[*hostile, entry])
    (record,) = run_records.find(tmp_path)
    assert record.problems == () and record.notes == (
        "it was extended from 500 to 1000 environment steps when it stood at 500 (today); a.b followed the shorter length "
        "until then",
    )
    for value in (None, 3, "x", {"from": 1}):
        assert history.describe_changes({"extended": value}) == []
    assert len(history.describe_changes({"extended": [entry] * 1000})) == 100


# Other settings --------------------------------------------------------------------------------------------------------

RATE, CLIP = "Learner.learning_rate = 0.01", "Learner.max_grad_norm = 0.5"


def resumed_with(path, *params, method="taac"):
    """Goes on with the run in a folder with other settings, as `taac train --resume_with` does."""
    trainer, folder, told = build(*SHORT, *params, method=method), RunFolder(path), []
    asked = configuration.operative_config()
    assert folder.open(asked, change=True) == "other"
    conduct._check_changes(trainer, folder, asked)
    folder.update_run(resumed=[{"env_steps": 1, "forgot_replay": True}])  # which is not told again
    conduct._change(trainer, folder, asked, told.append)
    assert all(text.startswith("note: it went on with other settings at ") for text in told)
    return trainer, folder


def end(trainer, folder, **more):
    with contextlib.suppress(Killed):
        trainer.train(folder, **more)
    trainer.close()
    return trainer


@pytest.mark.slow
def test_a_run_goes_on_with_other_settings_as_if_they_had_been_set_there(tmp_path):
    """Also after a kill before the next checkpoint, from one of the former settings, and after a stop."""
    own = ("num_env_steps = 120", "Learner.max_grad_norm = 40.0")
    reference = run(tmp_path / "reference", *SHORT, *own, stop=80)
    reference = build(*SHORT, *own)
    reference.resume(RunFolder(tmp_path / "reference"))
    for name in reference.attributes.names():
        if name.startswith("learning_rate/"):
            reference.attributes.set(name, 0.01)
    reference.attributes.set("max_grad_norm", 0.5)
    end(reference, RunFolder(tmp_path / "reference"))
    run(tmp_path / "run", *SHORT, *own, stop=80)

    def dies(env_steps, *_):
        if env_steps >= 100:
            raise Killed

    end(*resumed_with(tmp_path / "run", *own[:1], RATE, CLIP), progress=dies)
    new = (*SHORT, own[0], RATE, CLIP)
    stopped = run(tmp_path / "run", *new, stop=90)
    changed = run(tmp_path / "run", *new)
    assert_same_parameters(reference, changed)
    assert stopped.env_steps == 90 and changed.learner.num_updates == reference.learner.num_updates == 80
    assert rows(tmp_path / "run") == rows(tmp_path / "reference")
    unchanged = run(tmp_path / "unchanged", *SHORT, *own)
    with pytest.raises(AssertionError):
        assert_same_parameters(unchanged, changed)
    (entry,) = json.loads((tmp_path / "run" / "run.json").read_text())["changed"]
    settings = {"Learner.learning_rate": ["0.0001", "0.01"], "Learner.max_grad_norm": ["40.0", "0.5"]}
    assert (entry["env_steps"], entry["settings"]) == (80, settings)
    (note,) = [note for note in run_records.find(tmp_path / "run")[0].notes if "other settings" in note]
    assert note.startswith("it went on with other settings at 80 environment steps: Learner.learning_rate = 0.01, before 0.0001;")


@pytest.mark.parametrize(
    "method, own, change, why",
    [
        ("tla", (), "TlaAlgorithm.slow_steps = 5", r"TlaAlgorithm\.slow_steps = 5, not \d"),
        ("sac", ("create_environment.action_repeat = 2", "create_environment.action_repeat_gamma = 0.99"), "gamma = 0.9", ""),
    ],
)
def test_what_stored_frames_were_made_by_cannot_change(tmp_path, method, own, change, why):
    own = ("num_env_steps = 120", *own)
    folder = RunFolder(tmp_path / "run")
    begun = build(*SHORT, *own, method=method)
    folder.begin(configuration.operative_config(), {"seed": 0})
    begun.train(folder, stop=lambda: begun.env_steps >= 80)
    begun.close()
    with pytest.raises(TaacError, match=rf"--resume_with.*{why}.* nothing was changed"):
        resumed_with(folder.path, *own, change, method=method)


def test_the_same_change_made_twice_is_told_twice(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin("x = 1", {})
    for env_steps, old, new in ((10, 1, 2), (10, 1, 2), (20, 2, 1), (30, 1, 2)):  # the second, after a kill, replaces the first
        folder._go_on(folder.read_run(), "changed", {"env_steps": env_steps, "settings": {"x": [old, new]}}, "settings", "x = 1")
    assert [entry["env_steps"] for entry in folder.read_run()["changed"]] == [10, 20, 30]


@functools.cache
def config_of_short_runs():
    build(*SHORT, "num_env_steps = 120").close()
    return configuration.operative_config()


@pytest.mark.parametrize(
    "param, names",
    [
        ("gamma = 0.9", None),
        ("batch_size = 16", None),
        ("Learner.learning_rate = @LinearSchedule()\nLinearSchedule.start = 0.01\nLinearSchedule.end = 0.0\n"
         "LinearSchedule.env_steps = 120", None),
        ("create_environment.max_episode_steps = 30", ["create_environment.max_episode_steps = 30, not 20"]),
        ("replay_length = 500", ["ReplayBuffer.length = 500, not 1000"]),
        ("create_experiment.seed = 7", ["create_experiment.seed"]),
        ("num_env_steps = 200", ["Intervals.num_env_steps = 200, not 120"]),
        ("initial_collect_steps = 50", ["UpdateRatio.initial_collect_steps"]),
        ("UpdateRatio.updates_per_iteration = 2", ["UpdateRatio.updates_per_iteration = 2"]),
        ("Learner.optimizer_ctor = @SGD", ["Learner.optimizer_ctor = @", "SGD, not None"]),
        ("hidden_layers = (8,)", ["hidden_layers = (8,), not (32, 32)"]),
        ("Learner.matmul = 'plain'", ["Learner.matmul"]),
        ("Reporter.loggers = (@Notes(),)", None),  # which also records its own settings
        ("Temperature.initial_value = 0.5", ["Temperature.initial_value"]),  # of which only a new run begins
    ],
)  # fmt: skip
def test_which_settings_can_change(tmp_path, param, names):
    held = config_of_short_runs()
    build(*SHORT, "num_env_steps = 120", *param.split("\n")).close()
    changes_made = extension.changes(held, configuration.operative_config())
    assert changes_made and not (names is None and extension.continues(held, configuration.operative_config()))
    if names is None:
        return conduct._refuse_fixed(changes_made, configuration.operative_config())
    with pytest.raises(TaacError, match="nothing was changed") as error:
        conduct._refuse_fixed(changes_made, configuration.operative_config())
    assert all(name in str(error.value) for name in names)


@pytest.mark.parametrize(
    "ctor, constructor", [("{'critic': @critic/AdamW}", "critic/AdamW"), ("@AdamW", "AdamW"), ("@new/AdamW", "new/AdamW")]
)
def test_a_setting_of_an_optimizer_reaches_its_groups_and_leaves_the_rates_that_were_set(tmp_path, ctor, constructor):
    own = ("num_env_steps = 120", f"Learner.optimizer_ctor = {ctor}")
    begun, folder = build(*SHORT, *own), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0})
    begun.attributes.set("learning_rate/critic", 0.25)
    begun.train(folder, stop=lambda: begun.env_steps >= 80)
    begun.close()
    trainer, _ = resumed_with(folder.path, *own, f"{constructor}.betas = (0.5, 0.75)", "Learner.weight_decay = {'critic': 0.125}")
    trainer.close()
    group = trainer.learner.optimizer.param_groups[trainer.learner.group_names.index("critic")]
    assert (group["betas"], group["weight_decay"], group["lr"]) == ((0.5, 0.75), 0.125, 0.25)


@pytest.mark.parametrize(
    "ctor, setting", [("None", "Learner.weight_decay = {'critic': 0.125}"), ("@Adam", "Adam.weight_decay = 0.125")]
)
def test_an_optimizer_without_weight_decay_takes_one(tmp_path, ctor, setting):
    own = ("num_env_steps = 120", f"Learner.optimizer_ctor = {ctor}")
    begun, folder = build(*SHORT, *own), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0})
    begun.train(folder, stop=lambda: begun.env_steps >= 80)
    begun.close()
    trainer, _ = resumed_with(folder.path, *own, setting)
    trainer.close()
    decay = [group["weight_decay"] for group in trainer.learner.optimizer.param_groups]
    assert decay[trainer.learner.group_names.index("critic")] == 0.125


def test_a_changed_setting_ends_what_a_hook_had_set_of_it_and_nothing_else(tmp_path):
    own = ("num_env_steps = 120", "Learner.max_grad_norm = 40.0", "create_agent.normalize_rewards = 'scale'")
    begun, folder = build(*SHORT, *own, method="sac"), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0})
    for name in ("gamma", "target_tau", "target_entropy/action", "max_grad_norm"):
        begun.attributes.set(name, 0.5)
    begun.train(folder, stop=lambda: begun.env_steps >= 80)
    begun.close()
    assert begun.agent.reward_normalizer.gamma == 0.5
    trainer, _ = resumed_with(
        folder.path, *own, "gamma = 0.75", "target_tau = 0.125", "SacAlgorithm.target_entropy = -3.0", method="sac"
    )
    trainer.close()
    assert trainer.attributes.get("target_entropy/action") == -3 and trainer.attributes.state_dict() == {"max_grad_norm": 0.5}
    assert (trainer.attributes.get("gamma"), trainer.attributes.get("target_tau")) == (0.75, 0.125)
    assert trainer.agent.reward_normalizer.gamma == 0.75


@pytest.mark.parametrize(
    "name, setting, reset",
    [
        ("target_entropy/action", "TaacAlgorithm.beta_min_prob", False),
        ("target_entropy/beta", "TaacAlgorithm.beta_min_prob", True),
        ("target_entropy/beta", "TaacAlgorithm.action_min_prob", False), ("gamma/part_0", "x/ICM.gamma", False),
        ("target_entropy/action", "TaacAlgorithm.action_target_entropy", True), ("gamma/icm", "x/ICM.gamma", True),
        ("target_entropy/action", "TaacAlgorithm.action_min_prob", True), ("gamma/part_0", "TAACTDLoss.gamma", True),
        ("gamma/icm", "TAACTDLoss.gamma", False), ("gamma/rnd", "TAACTDLoss.gamma", True),
        ("target_tau", "TaacAlgorithm.target_update_tau", True),
    ],
)  # fmt: skip
def test_which_attributes_start_from_a_setting(name, setting, reset):
    trainer = build(*SHORT, "create_agent.reward_signals = (@ICM, @RND)", "ICM.gamma = 0.5", method="taac")
    trainer.close()
    assert trainer.attributes._is_of(name, setting.rpartition("/")[2]) == reset


def test_the_schedule_of_the_ratio_of_updates_cannot_change():
    held = config(70, "UpdateRatio.updates_per_env_step = @a/LinearSchedule()\na/LinearSchedule.end = 1.0\n")
    asked = held.replace("1.0", "4.0")
    with pytest.raises(TaacError, match=r"a/LinearSchedule\.end = 4\.0, not 1\.0; nothing was changed"):
        conduct._refuse_fixed(extension.changes(held, asked), asked)


@pytest.mark.parametrize("changed", ["Learner.critic_learning_rate", "Learner.value_learning_rate", "x/Learner.learning_rate"])
def test_a_rate_that_a_group_falls_back_on_has_changed_for_it(changed):
    trainer = build(*SHORT, "create_agent.reward_signals = (@x/RND,)", "x/RND.learning_rate = 0.25", method="sac_value")
    built = trainer.attributes.as_built()
    for name in ("value", "rnd"):
        trainer.attributes.set(f"learning_rate/{name}", 0.5)
    trainer.attributes.renew(built, [changed])
    assert trainer.attributes.get("learning_rate/value") == 1e-4 and trainer.attributes.get("learning_rate/rnd") == 0.5
    trainer.attributes.renew(built, ["x/RND.learning_rate"])
    assert trainer.attributes.get("learning_rate/rnd") == 0.25
    trainer.close()


def test_a_run_may_be_longer_and_have_changed():
    """As after an extension that diverged before its first checkpoint."""
    other = config(120, "Learner.extra = 1\n")
    assert extension.continues(config(70), other, ["Learner.extra"]) and not extension.continues(config(70), other, ["Learner.b"])
    assert not extension.continues(config(200), other, ["Learner.extra"])


def test_a_change_may_lead_back_to_what_the_checkpoint_has():
    """It has the value by a macro, which the command replaced by the value."""
    held, asked = (config(70, f"rate = 0.5\nLearner.rate = {value}\n") for value in ("%rate", "0.5"))
    assert extension.continues(held, asked, ["Learner.rate"]) and not extension.continues(held, asked)


def test_a_learnt_price_has_begun(tmp_path):
    own = ("num_env_steps = 120", "TaacAlgorithm.target_decision_rate = 0.3")
    run(tmp_path / "run", *SHORT, *own, stop=80)
    with pytest.raises(TaacError, match=r"decision_price is where the price .* began"):
        resumed_with(tmp_path / "run", *own, "TaacAlgorithm.decision_price = 5.0")


def test_a_change_leaves_other_rates_and_may_put_a_schedule_where_a_hook_had_set_a_number(tmp_path, monkeypatch):
    own = ("num_env_steps = 120", "Learner.max_grad_norm = 40.0")
    begun, folder = build(*SHORT, *own), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0})
    for name, value in (("learning_rate/actor", 0.25), ("max_grad_norm", 0.5), ("batch_size", 8), ("target_entropy/beta", 0.5)):
        begun.attributes.set(name, value)
    begun.train(folder, stop=lambda: begun.env_steps >= 80)
    begun.close()
    sizes = []
    monkeypatch.setattr("taac.training.trainer.check_sizes", lambda size, agent: sizes.append(size.bounds))
    norm = ["Learner.max_grad_norm = @n/LinearSchedule()", "n/LinearSchedule.start = 3.0", "n/LinearSchedule.end = 1.0",
            "n/LinearSchedule.env_steps = 120"]  # fmt: skip
    entropy = ["TaacAlgorithm.beta_target_entropy = @e/LinearSchedule()", "e/LinearSchedule.start = 0.5",
               "e/LinearSchedule.end = 0.25", "e/LinearSchedule.env_steps = 120"]  # fmt: skip
    batch = ["batch_size = @b/LinearSchedule()", "b/LinearSchedule.start = 16", "b/LinearSchedule.end = 32",
             "b/LinearSchedule.env_steps = 120"]  # fmt: skip
    trainer, _ = resumed_with(folder.path, *own[:1], *norm, *batch, *entropy, "Learner.critic_learning_rate = 0.125")
    trainer.close()
    rates = {name: trainer.attributes.get(f"learning_rate/{name}") for name in ("actor", "critic")}
    assert rates == {"actor": 0.25, "critic": 0.125} and sizes == [(16, 32)] and trainer.attributes.state_dict() == {}


def test_a_change_that_the_checkpoint_does_not_fit_leaves_the_run_as_it_is(tmp_path):
    own = ("num_env_steps = 120", "create_agent.reward_signals = (@RND,)")
    run(tmp_path / "run", *SHORT, *own, stop=80)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.gin")}
    with pytest.raises(TaacError, match="holds another network"):
        resumed_with(tmp_path / "run", *own, "RND.feature_size = 8")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.gin")} == before
    with pytest.raises(TaacError, match=r"changes nothing: the run in .* has these values already"):
        resumed_with(tmp_path / "run", *own, "Intervals.num_env_steps = 120")
    RunFolder(tmp_path / "run").update_run(status="finished")
    with pytest.raises(TaacError, match="is finished; nothing was changed"):
        resumed_with(tmp_path / "run", *own, RATE)


@pytest.mark.parametrize("held", [7, "x", {"a": 1}, [3, None, []]])
@pytest.mark.parametrize("made, name", [("extend", "extended"), ("change", "changed")])
def test_entries_that_no_run_writes_are_no_obstacle(tmp_path, made, name, held):
    folder = RunFolder(make_run(tmp_path / "run"))
    folder.config.write_text(config(70))
    folder.update_run(**{name: held})
    getattr(folder, made)(config(100), 70)
    assert len(folder.read_run()[name]) == 1 and folder.config.read_text() == config(100)
