"""Networks that read the mode: in evaluation mode when they act, in training mode when they learn."""

from __future__ import annotations

import gin
import pytest
import torch

from taac import nest
from taac.machine.products import using
from taac.networks import ActorNetwork, CriticEnsemble
from tests.learning.test_compiled_update import COMPILE
from tests.training.runs import assert_same_parameters, build, learn_until, run


@gin.configurable
class NormalizedCritics(CriticEnsemble):
    """Critics of inputs that a batch norm has normalised."""

    def __init__(self, input_size, reward_dim=None):
        super().__init__(input_size, reward_dim, hidden_layers=(8,))
        self.norm = torch.nn.BatchNorm1d(input_size, momentum=0.5)

    def forward(self, features, *action):
        x = torch.cat([features, *action], dim=-1)
        return super().forward(self.norm(x.flatten(0, -2)).view_as(x))


@gin.configurable
class DroppingActor(ActorNetwork):
    """An actor some of whose inputs are dropped."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training))


MODES = ("num_env_steps = 120", "initial_collect_steps = 60", "batch_size = 4", "num_envs = 2", "evaluation_episodes = 1",
         "ActorCriticAlgorithm.critic_ctor = @NormalizedCritics", "TaacAlgorithm.actor_ctor = @DroppingActor",
         "create_environment.max_episode_steps = 20")  # fmt: skip


@pytest.mark.parametrize(
    "compile", [(), pytest.param((COMPILE,), marks=pytest.mark.slow)], ids=["uncompiled", "compiled"]
)
def test_neither_evaluations_nor_neighbours_change_networks_with_statistics(compile, traced_only, tmp_path):
    trainers = [run(tmp_path / str(interval), *MODES, *compile, f"evaluation_interval = {interval}") for interval in (20, 120)]
    assert_same_parameters(*trainers)
    agent = trainers[0].agent
    statistics = {name: value.clone() for name, value in agent.named_buffers()}
    assert statistics["algorithm.critics.norm.num_batches_tracked"] > 0  # it learns by them
    frames = nest.map_structure(lambda leaf: leaf.repeat(6, *[1] * (leaf.dim() - 1)), trainers[0].collector.rollout.time_step)
    frames = frames._replace(observation=torch.randn_like(frames.observation))
    state = agent.initial_state(12)
    state = state._replace(tau=nest.map_structure(torch.rand_like, state.tau))
    alone, rows = nest.index((frames, state), slice(1)), (frames, state)
    for step in (agent.predict_step, agent.rollout_step):
        torch.manual_seed(0)
        probability = step(*alone).switch_probability
        torch.manual_seed(0)  # a rollout's proposal is drawn, and that of the first row first
        torch.testing.assert_close(probability, step(*rows).switch_probability[:1])
    for step in (agent.predict_step, agent.rollout_step, agent.random_step):
        step(*rows)
    assert all(torch.equal(value, statistics[name]) for name, value in agent.named_buffers())


def test_a_gradient_step_computes_its_loss_in_training_mode_and_all_else_in_evaluation_mode():
    trainer, seen = build(*MODES, "create_agent.reward_signals = (@RND,)", "RND.update_period = 0.5"), {}
    agent = trainer.agent
    learn_until(trainer, 1)
    signal, algorithm = agent.signals[0], agent.algorithm
    for part in (*algorithm.children(), *signal.children()):
        part.register_forward_pre_hook(lambda part, *_: seen.setdefault(part, set()).add(part.training))
    learning, loss = [], signal.loss
    state = lambda: (signal.predictor.training, torch.backends.mkldnn.matmul.fp32_precision)  # noqa: E731
    signal.loss = lambda *given: learning.append(state()) or loss(*given)
    assert not any(part.training for part in agent.modules())
    trainer.learner.update(trainer.replay_buffer.sample(4, trainer.segment_length), replay=trainer.replay_buffer)
    trainer.close()
    with using(trainer.learner.products):
        precision = torch.backends.mkldnn.matmul.fp32_precision
    assert not any(part.training for part in agent.modules()) and learning == [(True, precision)] * 2
    for part in (algorithm.actor, algorithm.encoder, algorithm.tau_embedding):
        assert seen[part] == {True}
    assert seen[algorithm.critics] == {False, True}  # to compare candidates, and for their loss
    for part in (algorithm.target_critics, algorithm.target_encoder, signal.fixed):
        assert seen[part] == {False}
    assert seen[signal.predictor] == {False, True}  # for its reward, and for its loss
