"""What reward signals sum to over whole episodes."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import torch

from taac import nest
from taac.algorithms.reward_signals import RewardSignal
from taac.data_structures import Experience, StepType, TimeStep
from taac.replay import ReplayBuffer
from taac.runs.run_folder import RunFolder
from taac.specs import TensorSpec
from tests.environments.team import TEAM
from tests.environments.toys import env_id
from tests.training.runs import build, curves, run

LEDGER = (
    f"create_environment.env_name = '{env_id('Ledger')}'", "num_envs = 2", "num_env_steps = 420", "evaluation_interval = 420",
    "evaluation_episodes = 1", "Intervals.summary_interval = 60", "create_agent.reward_signals = (@Doubled,)",
    "create_agent.normalize_observations = True", "normalize_rewards = False",
)  # fmt: skip


@gin.configurable(module="tests.signals")
class Doubled(RewardSignal):
    """Twice the task's reward, divided by 1 where `normalize` would divide; its model learns nothing."""

    name = "doubled"

    def __init__(self, observation_spec, action_spec):
        super().__init__(0.5, None, 1e-3, 1, False)
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        reward = time_step.reward if time_step.reward.dim() == 2 else time_step.reward[..., 0]
        return 2.0 * reward[1:] + 100.0 * time_step.is_first()[1:]  # never read where an episode begins

    def loss(self, time_step, demonstrations):
        return self.unused.square()


def test_returns_of_a_signal_are_those_of_the_episodes_and_come_back_on_resuming(tmp_path):
    params = (*LEDGER, "Learner.diagnostics = 'scalars'")
    seen = []
    trainer, folder = build(*params), RunFolder(tmp_path / "run")
    folder.begin("x", {})
    collector = trainer.collector
    trainer.train(folder, lambda *_: seen.append((len(collector.ended), [2.0 * e.ret for e in collector.ended],
                                                  [r["doubled"] for r in collector.signal_returns])))  # fmt: skip
    trainer.close()
    assert max(count for count, *_ in seen) >= 4
    for _, expected, found in seen:
        assert found == pytest.approx(expected, abs=1e-4)
    whole = curves(tmp_path / "run")
    steps, values = whole["signal/doubled_return"]
    task = dict(zip(*whole["rollout/return"]))
    assert len(steps) >= 5 and values == pytest.approx([2.0 * task[s] for s in steps], abs=1e-4)
    run(tmp_path / "stopped", *params, stop=330)  # in the middle of an interval
    run(tmp_path / "stopped", *params)
    assert curves(tmp_path / "stopped")["signal/doubled_return"] == whole["signal/doubled_return"]


@pytest.mark.slow
def test_without_diagnostics_nothing_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(RewardSignal, "total", lambda *_: pytest.fail("asked"))
    run(tmp_path, *LEDGER)
    assert "signal/doubled_return" not in curves(tmp_path)


def test_a_total_is_divided_as_rewards_are_and_moves_no_statistics():
    signal = Doubled(None, None)
    signal.normalize = True
    signal.mean_square.fill_(4.0)
    kinds = [StepType.FIRST, StepType.MID, StepType.MID, StepType.LAST]
    reward = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
    frames = TimeStep(torch.tensor(kinds, dtype=torch.uint8)[:, None], reward, reward, (), (), reward)
    assert signal.total(frames).tolist() == pytest.approx([7.0])  # 2 (1 + 2 + 4) / sqrt(4)
    assert signal.mean_square == 4.0 and signal.num_batches == 0
    signal.mean_square.fill_(0.0)  # before the first update
    assert signal.total(frames).tolist() == [14.0]


def test_the_newest_episode_is_found_while_its_first_frame_is_held():
    buffer = ReplayBuffer(Experience(TimeStep(*[TensorSpec((), torch.uint8)] + [TensorSpec(())] * 5), ()), 2, length=12)
    generator, history = np.random.default_rng(0), [[], []]
    for number in range(300):
        kinds = [int(generator.choice(3, p=(0.15, 0.7, 0.15))) for _ in range(2)]
        value = torch.tensor([float(number), -float(number)])
        time_step = TimeStep(torch.tensor(kinds, dtype=torch.uint8), *[value] * 5)
        buffer.add(Experience(time_step, ()))
        for i in range(2):
            history[i].append((kinds[i], value[i].item()))
            held = history[i][-12:]
            begins = [k for k, (kind, _) in enumerate(held) if kind == StepType.FIRST]
            with torch.device("meta"):  # where everything is made that does not say it is made beside the frames
                found = buffer.newest_episode(i)
            ended = begins and any(kind == StepType.LAST for kind, _ in held[begins[-1] : -1])  # as in demonstrations before it
            if not begins or ended:
                assert found is None
            else:
                assert nest.flatten(found)[1].shape[1:] == (1,)
                assert found.time_step.reward[:, 0].tolist() == [v for _, v in held[begins[-1] :]]


@gin.configurable(module="tests.signals")
class Seen(Doubled):
    """The first number of the observation at each arrival."""

    name = "seen"

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        return time_step.observation[1:, :, 0]


def test_returns_of_a_signal_are_of_the_observations_that_its_model_sees():
    params = (*LEDGER[:-3], "create_agent.reward_signals = (@Seen,)", *LEDGER[-2:], "Learner.diagnostics = 'scalars'")
    trainer = build(*params)
    agent, collector = trainer.agent, trainer.collector
    while not collector.signal_returns:
        collector.step()
    trainer.close()
    (signal,) = agent.signals
    frames = [trainer.replay_buffer.newest_episode(i) for i in range(2)]
    frames = next(found for found in frames if found is not None)
    seen, raw = (signal.total(shown.time_step).sum().item() for shown in (agent.prepare_observations(frames), frames))
    assert seen != pytest.approx(raw) and collector.signal_returns[-1]["seen"] == pytest.approx(seen, rel=1e-4)


def test_returns_of_a_signal_are_summed_over_agents():
    params = (f"create_environment.env_name = '{TEAM}'", "create_environment.env_kwargs = {'own_reward': True}",
              "create_agent.shared_policy = True", "create_agent.reward_signals = (@Doubled,)", "normalize_rewards = False",
              "Learner.diagnostics = 'scalars'")  # fmt: skip
    trainer = build(*params, method="sac")
    collector = trainer.collector
    while not collector.signal_returns:
        collector.step()
    trainer.close()
    ended, returns = collector.pop_episodes()
    assert [r["doubled"] for r in returns] == pytest.approx([2 * float(np.sum(e.ret)) for e in ended], rel=1e-4)
