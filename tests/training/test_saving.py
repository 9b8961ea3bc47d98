"""Checkpoints: parts with states of their own, and a saver that knows their names alone."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.random_numbers import RandomNumbers
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.runs.files import Damaged
from taac.runs.run_folder import RunFolder
from taac.training.saving import Saver
from tests.training.runs import build, run

SHORT = ("num_env_steps = 330", "evaluation_interval = 330", "evaluation_episodes = 1", "checkpoint_interval = 1000",
         "create_experiment.evaluation_envs = 1", "create_environment.max_episode_steps = 20")  # fmt: skip


@gin.configurable(module="tests.saving")
class FrameCounter(Learner):
    """A learner that counts what it has learnt from: one more counter in a checkpoint, in the file of its part."""

    frames = 0

    def update(self, experience, *more):
        self.frames += experience.time_step.step_type.numel()
        return super().update(experience, *more)

    def state_dict(self):
        return {**super().state_dict(), "frames": self.frames}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.frames = state["frames"]


def test_one_more_counter_in_a_checkpoint_is_a_change_in_its_part_alone(tmp_path):
    params = (*SHORT, "create_experiment.learner_ctor = @FrameCounter")
    run(tmp_path, *params, stop=315)
    resumed = run(tmp_path, *params)
    assert resumed.learner.frames == 30 * 32 * resumed.segment_length
    assert RunFolder(tmp_path).checkpoints.newest().part("learner")["frames"] == resumed.learner.frames


class Remembered:
    """A part with a plain value."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def saved(folder, **parts):
    folder.begin("x", {})
    saver = Saver({name: Remembered(value) for name, value in {"learner": 0, **parts}.items()})
    saver.save(folder, 7)
    return saver


def test_parts_are_saved_and_restored_by_name_in_the_order_given(tmp_path):
    folder, order = RunFolder(tmp_path), []
    saver = saved(folder, one=[1.5, "a"], two=torch.arange(3))

    class Ordered(Remembered):
        def load_state_dict(self, state):
            order.append(state["value"])
            super().load_state_dict(state)

    others = {name: Ordered(None) for name in ("two", "learner", "one")}
    Saver(others).restore(folder)
    assert others["one"].value == [1.5, "a"] and torch.equal(others["two"].value, torch.arange(3))
    assert [type(value) for value in order] == [torch.Tensor, int, list]
    assert set(folder.checkpoints.newest().state) >= set(saver.parts)


@pytest.mark.parametrize(
    "error, expected, message",
    [
        (KeyError("x"), TaacError, r"the part 'one' of the checkpoint .*7\.json cannot be restored; another version .*KeyError"),
        (RuntimeError("sizes"), TaacError, "the part 'one' of the checkpoint .* cannot be restored"),
        (TaacError("of another optimizer"), TaacError, r"7\.json cannot be used: of another optimizer"),
        (Damaged("cut"), Damaged, "^cut$"),
        (ZeroDivisionError(), ZeroDivisionError, "^$"),  # a mistake in the program is not the checkpoint's
    ],
)
def test_a_part_that_does_not_fit_is_named(tmp_path, error, expected, message):
    folder = RunFolder(tmp_path)
    saver = saved(folder, one=1)

    def fails(state):
        raise error

    saver.parts["one"].load_state_dict = fails
    with pytest.raises(expected, match=message) as raised:
        saver.load(folder.checkpoints.newest())
    assert type(raised.value) is expected


def test_a_part_that_the_checkpoint_does_not_hold_is_named(tmp_path):
    saver = saved(RunFolder(tmp_path))
    saver.parts["new"] = Remembered(1)
    with pytest.raises(TaacError, match="holds no 'new'; it holds: "):
        saver.restore(RunFolder(tmp_path))


def test_parts_are_not_restored_from_a_run_of_another_configuration(tmp_path):
    folder = RunFolder(tmp_path)
    saver = saved(folder, one=1)
    folder.config.write_text("y")
    saver.parts["one"].value = 2
    with pytest.raises(TaacError, match=r"another configuration than .*; nothing was changed"):
        saver.restore(folder)
    assert saver.parts["one"].value == 2


# Each part alone ------------------------------------------------------------------------------------------------------


def test_random_numbers_go_on_and_other_states_are_refused():
    part = RandomNumbers(torch.device("cpu"))
    np.random.randn()  # leaves half a pair of normals behind
    state = part.state_dict()
    expected = np.random.randn(3).tolist(), torch.rand(3).tolist()
    np.random.seed(9), torch.manual_seed(9)
    part.load_state_dict(state)
    assert (np.random.randn(3).tolist(), torch.rand(3).tolist()) == expected
    with pytest.raises(Damaged, match="no state of numpy's generator"):
        part.load_state_dict({**state, "numpy": {**state["numpy"], "pos": 625}})


def test_random_numbers_of_a_gpu_are_those_of_the_agents_own(monkeypatch):
    states = {torch.device("cuda:0"): torch.tensor([1]), torch.device("cuda:1"): torch.tensor([2])}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda:0": states[torch.device(device)])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device="cuda:0": states.update({torch.device(device): state})
    )
    part = RandomNumbers(torch.device("cuda:1"))
    saved = part.state_dict()
    states[torch.device("cuda:1")] = torch.tensor([7])
    part.load_state_dict(saved)
    assert [state.item() for state in states.values()] == [1, 2]


@pytest.mark.parametrize("method", ["taac_q", "sac_ez"])
def test_a_collector_that_is_restored_alone_goes_on_alike(method):
    """Into an environment, an agent, and an explorer that have done nothing yet."""
    params = ("num_envs = 2", "create_environment.max_episode_steps = 7", "initial_collect_steps = 10")
    first, second = build(*params, method=method), build(*params, method=method)
    for _ in range(20):
        first.collector.step()
    state, numbers = first.collector.state_dict(), RandomNumbers(first.agent.device)
    second.agent.load_state_dict(first.agent.state_dict())
    torch.rand(5)  # wherever the generators are, replaying leaves them there
    before = numbers.state_dict()
    second.collector.load_state_dict(state)
    assert torch.equal(numbers.state_dict()["cpu"], before["cpu"])
    for collector in (first.collector, second.collector):
        numbers.load_state_dict(before)
        for _ in range(20):
            collector.step()
    held = [trainer.replay_buffer for trainer in (first, second)]
    for name, frames in held[0].frames(20, 40).items():
        assert torch.equal(frames, held[1].frames(0, 20)[name]), name
    assert str(first.collector.state_dict()) == str(second.collector.state_dict())
    first.close(), second.close()


def test_an_evaluator_that_is_restored_alone_knows_the_best():
    first, second = build(*SHORT), build(*SHORT)
    found = first.evaluator.run(100)
    assert found.is_best and not first.evaluator.run(100).is_best  # the same seed, the same episodes
    second.evaluator.load_state_dict(first.evaluator.state_dict())
    assert second.evaluation == found.summary and second.evaluator.best_return == found.summary.return_mean
    second.agent.load_state_dict(first.agent.state_dict())
    again = second.evaluator.run(100)
    assert not again.is_best and again.summary == found.summary
    first.close(), second.close()


def test_a_run_that_stops_before_its_first_step_has_no_checkpoint(tmp_path, monkeypatch):
    """As where environments only restarted: what begins anew loads and pre-trains once."""
    trainer, folder = build(), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": trainer.seed}, trainer.environment.info)
    signals = []
    monkeypatch.setattr(trainer, "collect", lambda: signals.append("SIGTERM"))
    trainer.train(folder, stop=lambda: bool(signals))
    trainer.close()
    assert trainer.interrupted and not folder.has_checkpoints()
