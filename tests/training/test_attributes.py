"""Numbers that are read and set while a trainer trains."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import torch

from taac import configuration
from taac.errors import TaacError
from taac.machine.compiled import CompiledFunction
from taac.playing.saved_agent import load_saved
from taac.runs.run_folder import RunFolder
from taac.training.attributes import set_strengths
from tests.training.runs import assert_resumes_exactly, build, recorded, trained

SHORT = ("num_env_steps = 330", "evaluation_interval = 330", "evaluation_episodes = 1", "checkpoint_interval = 1000",
         "create_experiment.evaluation_envs = 1", "create_environment.max_episode_steps = 20")  # fmt: skip


@gin.configurable(module="tests.attributes")
def at_310(trainer):
    """Halves what may be halved when the run has 310 environment steps; before and after it, nothing changes."""
    if trainer.env_steps == 310:
        for name in ("learning_rate/critic", "batch_size", "max_grad_norm"):
            trainer.attributes.set(name, trainer.attributes.get(name) / 2)
        trainer.attributes.set("target_entropy/beta", 0.1)
        trainer.attributes.set("gamma", 0.5)
        trainer.attributes.set("target_tau", 0.5)
        trainer.attributes.set("alpha/action", 0.01)


def test_both_policies_of_tla_have_the_gamma_and_the_weights_that_are_set():
    trainer = build(
        "TlaAlgorithm.slow_steps = 2", "Trainer.segment_length = 5", "create_agent.reward_signals = (@RND,)", method="tla"
    )
    algorithm = trainer.agent.algorithm
    trainer.attributes.set("gamma", 0.5)
    trainer.attributes.set("strength/rnd", 0.25)
    for part in algorithm, algorithm.slow:
        assert part.td_loss.gamma_of(0) == 0.5 and part.weights[1].item() == 0.25
    trainer.close()


@pytest.mark.parametrize("backbone, tau", [("crossq", 0.5), ("xqc", 1.0)])
def test_whether_targets_of_batch_statistics_are_copies_stays(backbone, tau):
    """Compiled updates hold it."""
    trainer = build(method="sac", files=[f"gin/backbones/{backbone}.gin"])
    with pytest.raises(TaacError, match=r"'target_tau' (cannot be set: the targets are|must be a number)"):
        trainer.attributes.set("target_tau", tau)
    trainer.close()


def test_the_gamma_of_repeated_actions_stays():
    """Their rewards are stored as sums that were discounted by it. A checkpoint of earlier code, which allowed it, goes on."""
    trainer = build("create_environment.action_repeat = 3", method="sac")
    with pytest.raises(TaacError, match="'gamma' cannot be set: rewards of repeated actions"):
        trainer.attributes.set("gamma", 0.5)
    trainer.attributes.load_state_dict({"gamma": 0.5})
    assert trainer.attributes.get("gamma") == 0.5 and trainer.attributes.state_dict() == {"gamma": 0.5}
    trainer.close()


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("method", ["taac", "sac_krep"])
def test_a_loaded_agent_has_the_strengths_that_were_set(tmp_path, method, best):
    """They weigh the critics, by which it switches or chooses durations."""
    trainer = build("create_agent.reward_signals = (@ICM, @RND)", *SHORT, method=method)
    folder = RunFolder(tmp_path)
    folder.begin(configuration.operative_config(), {"seed": 0, "environment": trainer.environment.name})
    trainer.attributes.set("strength/icm", 50.0)
    trainer.train(folder)
    loaded = load_saved(tmp_path, best=best, trusted=True)
    loaded.environment.close()
    assert loaded.agent.algorithm.weights.tolist() == trainer.agent.algorithm.weights.tolist() == [1.0, 50.0, pytest.approx(0.1)]


def test_what_there_is_can_be_read_and_set():
    trainer = build("Learner.max_grad_norm = 5.0", "Temperature.initial_value = 0.5")
    attributes, algorithm = trainer.attributes, trainer.agent.algorithm
    assert attributes.names() == [
        "learning_rate/actor", "learning_rate/critic", "learning_rate/temperature",
        "alpha/action", "target_entropy/action", "alpha/beta", "target_entropy/beta", "gamma", "target_tau", "max_grad_norm",
        "batch_size",
    ]  # fmt: skip
    assert attributes.get("alpha/action") == pytest.approx(0.5)
    values = {name: 1.0 + i for i, name in enumerate(attributes.names())} | {"gamma": 0.75, "target_tau": 0.25}
    for name, value in values.items():
        attributes.set(name, value)
    assert {name: attributes.get(name) for name in values} == pytest.approx(values)
    assert [g["lr"] for g in trainer.learner.optimizer.param_groups] == [1.0, 2.0, 3.0]
    assert algorithm.action_temperature.alpha().item() == pytest.approx(4.0)
    assert algorithm.beta_temperature.target_entropy == 7.0
    assert trainer.learner.max_grad_norm == 10.0 and trainer.batch_size == 11 and isinstance(trainer.batch_size, int)
    trainer.close()


def test_an_explorers_epsilon():
    trainer = build("ZetaExplorer.epsilon = 0.3", method="sac_ez")
    assert trainer.attributes.get("epsilon") == 0.3
    for probability in (0.1, 0.0, 1.0):
        trainer.attributes.set("epsilon", probability)
        assert trainer.collector.explorer.epsilon == probability
    for value in (-0.1, 1.1):
        with pytest.raises(TaacError, match="'epsilon' must be a number from 0 to 1, got"):
            trainer.attributes.set("epsilon", value)
    trainer.close()


def test_a_temperature_tuned_directly():
    trainer = build("Temperature.tuning = 'direct'", method="sac")
    trainer.attributes.set("alpha/action", 0.25)
    assert torch.equal(trainer.agent.algorithm.temperature.value, torch.tensor(0.25))
    trainer.close()


def test_what_was_set_is_there_after_a_resume(tmp_path):
    params = (*SHORT, "Learner.max_grad_norm = 5.0", "Trainer.hooks = {'after_collect': @at_310}")
    whole, resumed = assert_resumes_exactly(tmp_path, *params, stop=[320])
    names = whole.attributes.names()
    assert [whole.attributes.get(name) for name in names] == [resumed.attributes.get(name) for name in names]
    assert whole.attributes.get("gamma") == whole.attributes.get("target_tau") == 0.5
    assert whole.attributes.get("max_grad_norm") == 2.5 and whole.attributes.get("target_entropy/beta") == 0.1


SCHEDULED = (
    "Learner.actor_learning_rate = @lr/LinearSchedule()", "lr/LinearSchedule.start = 1e-3", "lr/LinearSchedule.end = 1e-4",
    "lr/LinearSchedule.updates = 10", "TaacAlgorithm.beta_target_entropy = @beta/LinearSchedule()",
    "beta/LinearSchedule.start = 0.3", "beta/LinearSchedule.end = 0.1", "beta/LinearSchedule.updates = 10",
)  # fmt: skip


REFUSED = [
    ("learning_rate/critics", 1.0, "no attribute 'learning_rate/critics'; did you mean 'learning_rate/critic'.; there are: "),
    ("learning_rate/critic", 0.0, "'learning_rate/critic' must be a number above 0, got 0.0"),
    ("learning_rate/critic", float("nan"), "must be a number above 0, got nan"),
    ("alpha/action", -1.0, "must be a number above 0"),
    ("batch_size", 0, "must be a number from 1 to inf"),
    ("batch_size", float("inf"), "got inf"),
    ("batch_size", True, "got True"),
    ("target_entropy/action", "much", "got 'much'"),
    ("learning_rate/actor", 1.0, "Learner.actor_learning_rate follows a schedule"),
    ("target_entropy/beta", 0.1, "follows a schedule"),
]


@pytest.mark.parametrize("schedules", [(), SCHEDULED], ids=["plain", "scheduled"])
def test_what_cannot_be_set_is_refused(schedules):
    trainer = build(*schedules)
    before = [trainer.attributes.get(n) for n in trainer.attributes.names()]
    for name, value, message in REFUSED:
        if bool(schedules) != ("schedule" in message):
            continue
        with pytest.raises(TaacError, match=message):
            trainer.attributes.set(name, value)
        assert [trainer.attributes.get(n) for n in trainer.attributes.names()] == before
    assert trainer.attributes.state_dict() == {}  # a checkpoint does not ask for it again
    trainer.close()


def test_what_follows_no_schedule_can_be_set_beside_what_does():
    trainer = build(*SCHEDULED)
    for name, value in (("learning_rate/critic", 2e-3), ("learning_rate/temperature", 3e-3), ("target_entropy/action", -2.0)):
        trainer.attributes.set(name, value)
        trainer._follow_schedules()
        assert trainer.attributes.get(name) == value
    trainer.close()


@pytest.mark.parametrize("kind", [int, np.float64, np.float32])
def test_any_kind_of_number_can_be_set_and_saved(tmp_path, kind):
    """A learning rate that is an integer was taken for another optimizer's on resuming; numpy's could not be saved."""
    trainer = build(*SHORT)
    trainer.attributes.set("learning_rate/critic", kind(1))
    trainer.attributes.set("batch_size", kind(16))
    folder = RunFolder(tmp_path)
    folder.begin(configuration.operative_config(), {})
    trainer.save(folder)
    trainer.close()
    resumed = build(*SHORT)
    resumed.resume(folder)
    assert resumed.attributes.get("learning_rate/critic") == 1.0 and resumed.batch_size == 16
    resumed.close()


def test_what_a_compiled_program_was_traced_with_is_traced_again(traced_only):
    trainer = build(method="sac")
    learner, algorithm = trainer.learner, trainer.agent.algorithm
    trained(trainer, 1)
    program = learner._program = CompiledFunction(learner.uncompiled, trainer.agent)
    prepared = trainer.agent.prepare(trainer.replay_buffer.sample(16, 2))

    def losses():
        found = []
        for compute in (program, learner.uncompiled):
            torch.manual_seed(0)
            extra = compute(prepared, ()).extra
            found.append((extra["critic/target"].item(), compute(prepared, ()).loss.item()))
        assert found[0] == pytest.approx(found[1], rel=1e-6)
        return found[0]

    before = losses()
    trainer.attributes.set("target_entropy/action", 5.0)
    between = losses()
    assert between[0] == before[0] and between[1] != before[1]
    trainer.attributes.set("gamma", 0.0)
    learnt = ~prepared.time_step.is_last()[:-1]
    assert losses()[0] == pytest.approx(prepared.time_step.reward[1:][learnt].mean().item(), rel=1e-5)
    assert program.retraced == 2 and algorithm.gamma == learner.growth.gamma == trainer.attributes.get("gamma") == 0.0


def test_each_part_of_the_reward_has_its_discount_and_each_signal_its_strength():
    trainer = build("create_agent.reward_signals = (@ICM, @RND)", "ICM.gamma = 0.5", "RND.strength = -0.5")
    attributes, algorithm = trainer.attributes, trainer.agent.algorithm
    values = {"gamma/part_0": 0.9, "gamma/icm": 0.25, "gamma/rnd": 1.0, "strength/icm": 3.0, "strength/rnd": -2.0}
    values["target_tau"] = 0.5
    assert [attributes.get(name) for name in values] == pytest.approx([0.99, 0.5, 0.99, 0.1, -0.5, 0.005])
    for name, value in values.items():
        attributes.set(name, value)
    assert [attributes.get(name) for name in values] == pytest.approx([*values.values()])
    assert algorithm.td_loss.gamma.tolist() == pytest.approx([0.9, 0.25, 1.0]) and algorithm.target_update.tau == 0.5
    assert algorithm.weights.tolist() == [1.0, 3.0, -2.0] and algorithm.signs.tolist() == [1.0, 1.0, -1.0]
    attributes.set("strength/rnd", 0.0)  # which keeps the sign
    for name, value in {"strength/icm": -1.0, "strength/rnd": 1.0, "gamma/icm": 1.5, "target_tau": 0.0}.items():
        with pytest.raises(TaacError, match=f"'{name}' must be a number"):
            attributes.set(name, value)
    trainer.close()


def test_values_of_a_checkpoint_that_could_not_be_restored_are_taken_back():
    trainer = build()
    attributes = trainer.attributes
    attributes.load_state_dict({"gamma": 0.5, "max_grad_norm": 2.0} if "max_grad_norm" in attributes.names() else {"gamma": 0.5})
    attributes.load_state_dict({})  # of an older one
    assert attributes.get("gamma") == pytest.approx(0.99) and attributes.state_dict() == {}
    trainer.close()


def test_rewards_are_scaled_by_the_tasks_discount_whatever_a_signals_is():
    trainer = build("create_agent.reward_signals = (@RND,)", "RND.gamma = 0.999", "gamma = 0.9", "normalize_rewards = 'scale'")
    scaler = trainer.agent.reward_normalizer
    assert scaler.gamma == pytest.approx(0.9) and trainer.agent.algorithm.gamma == pytest.approx(0.999)
    trainer.attributes.set("gamma/part_0", 0.5)
    assert scaler.gamma == 0.5
    trainer.close()


def test_the_weight_of_cloning(tmp_path):
    actor = build(*SHORT, method="sac")
    recorded(actor, tmp_path / "e.npz", 2, lambda i: actor.agent.random_step)
    given = [*SHORT, f"create_experiment.demonstrations = '{tmp_path / 'e.npz'}'", "Learner.cloning = @Cloning()"]
    trainer = build(*given, "Cloning.weight = 0.25", method="sac")
    assert trainer.attributes.get("cloning_weight") == 0.25
    trainer.attributes.set("cloning_weight", 0.5)
    assert trained(trainer, 1).learner.losses["cloning/weight"] == 0.5
    falling = build(*given, "Cloning.initial_weight = 1.0", method="sac")
    with pytest.raises(TaacError, match=r"Cloning\.weight follows a schedule"):
        falling.attributes.set("cloning_weight", 0.5)
    falling.close()


def test_strengths_that_were_set_are_of_signals_after_the_parts_of_the_task():
    two = "create_environment.env_name = 'tests.toy_tasks:taac-test/TwoRewards-v0'"
    trainer = build(two, "create_agent.reward_signals = (@ICM, @RND)", *SHORT)
    trainer.close()
    set_strengths(trainer.agent, {"strength/icm": 50.0})
    assert trainer.agent.algorithm.weights.tolist() == [1.0, 1.0, 50.0, pytest.approx(0.1)]
