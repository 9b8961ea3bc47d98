"""Extending the package from outside, in a few lines each: what a user writes in a file of their own, with a shipped method."""

from __future__ import annotations

import gin
import pytest
import torch
import torch.nn as nn

from taac import configuration
from taac.errors import TaacError
from taac.training import experiment

TASK = "gin/tasks/simple_control.gin"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 200", "initial_collect_steps = 60", "batch_size = 8",
    "hidden_layers = (16,)", "replay_length = 300",
]  # fmt: skip


def build(method, *params):
    loaded = configuration.load([TASK, f"gin/methods/{method}.gin"], [*SMALL, *params])
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    return trainer


def trained(method, *params, updates=3):
    """After some updates with a shipped method's gin file and bindings of the user's."""
    trainer = build(method, *params)
    before = {name: p.clone() for name, p in trainer.agent.named_parameters()}
    while trainer.learner.num_updates < updates:
        trainer.collect()
        trainer.learn()
    trainer.close()
    trainer.moved = {name for name, p in trainer.agent.named_parameters() if not torch.equal(p, before[name])}
    return trainer


# An explorer that sees the policy's distribution ----------------------------------------------------------------------


@gin.configurable
class Widened:
    """Samples from the policy with its standard deviation multiplied by `factor`."""

    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def check(self, action_spec):
        pass

    def initial_state(self, action):
        return ()

    def step(self, time_step, alg_step, state, env_steps, uniform):
        mean, log_std = alg_step.policy
        return alg_step._replace(output=torch.tanh(mean + self.factor * log_std.exp() * torch.randn_like(mean))), ()


@pytest.mark.parametrize("method", ["sac", "sac_recurrent"])
def test_an_explorer_sees_the_distribution(method):
    trainer = build(method, "Trainer.explorer = @Widened()", "Widened.factor = 0.0")
    while trainer.learner.num_updates < 2:
        trainer.collect()
        trainer.learn()
    time_step, alg_step = trainer.rollout.time_step, trainer._explore(trainer.rollout.time_step, trainer.rollout.state)
    greedy = trainer.agent.predict_step(time_step, trainer.rollout.state).output
    trainer.close()
    torch.testing.assert_close(alg_step.output, greedy)  # no deviation: the mode


@pytest.mark.parametrize(
    "method, env_name, names",
    [
        ("taac", "Pendulum-v1", "normal"), ("sac_ntd", "Pendulum-v1", "normal"), ("sdar", "Pendulum-v1", "normal"),
        ("temporl", "Pendulum-v1", "normal"), ("sac_discrete", "CartPole-v1", "choices"),
        ("sac_discrete_recurrent", "CartPole-v1", "choices"), ("sac_krep", "Pendulum-v1", "both"),
    ],
)  # fmt: skip
def test_every_rollout_reports_the_distribution_that_it_drew_from(method, env_name, names):
    trainer = build(method, f"create_environment.env_name = '{env_name}'", "num_envs = 2")
    trainer.collect()
    drawn = [trainer.agent.rollout_step(trainer.rollout.time_step, trainer.rollout.state) for _ in range(400)]
    policy = drawn[0].policy
    trainer.close()
    assert trainer.agent.random_step(trainer.rollout.time_step, trainer.rollout.state).policy == ()
    if names in ("choices", "both"):
        probs = policy if names == "choices" else policy[0].unsqueeze(1)
        torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
        assert probs.shape[0] == 2 and probs.shape[-1] == (2 if names == "choices" else 3)
    if names in ("normal", "both") and method not in ("taac", "sdar", "temporl"):  # these may hold an old action
        mean, log_std = policy if names == "normal" else policy[1]
        actions = torch.stack([step.output if names == "normal" else step.output[1] for step in drawn]).reshape(
            400, 2, -1
        )
        within = ((torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6)) - mean).abs() < log_std.exp()).float().mean()
        assert 0.6 < within < 0.76  # one standard deviation: 0.683


# Critics and actors that derive from none of ours ---------------------------------------------------------------------


@gin.configurable
class OneLayerCritics(nn.Module):
    def __init__(self, input_size, reward_dim=None, num_choices=None):
        super().__init__()
        self.layer, self.shape = nn.Linear(input_size, 2 * (num_choices or 1)), [num_choices] if num_choices else []

    def forward(self, features, *action):
        q = self.layer(torch.cat([features, *action], -1)).unflatten(-1, (2, *self.shape))
        return q.movedim(-1 - len(self.shape), 0)


@gin.configurable
class OneLayerActor(nn.Module):
    def __init__(self, input_size, action_size):
        super().__init__()
        self.layer = nn.Linear(input_size, 2 * action_size)

    def forward(self, features):
        mean, log_std = self.layer(features).chunk(2, -1)
        return mean, log_std.clamp(-5.0, 1.0)


@gin.configurable
class OneLayerChoices(nn.Linear):
    def __init__(self, input_size, num_choices):
        super().__init__(input_size, num_choices)


CONTINUOUS = ["taac", "taac_1td", "taac_l", "taac_ntd", "taac_q", "sac_hybrid"]
OF_SAC = ["sac", "sac_ez", "sac_krep", "sac_nrep", "sac_ntd", "sac_recurrent", "sac_value", "sdar", "temporl"]
OWN_NETWORKS = [
    *((method, "TaacAlgorithm", "OneLayerActor") for method in CONTINUOUS),
    *((method, "SacAlgorithm", "OneLayerActor") for method in OF_SAC),
    *((method, "DiscreteSacAlgorithm", "OneLayerChoices") for method in ("sac_discrete", "sac_discrete_recurrent")),
]


@pytest.mark.parametrize("method, algorithm, actor", OWN_NETWORKS)
def test_no_shipped_method_needs_our_critics_or_actors(method, algorithm, actor):
    own = [f"{algorithm}.critic_ctor = @OneLayerCritics", f"{algorithm}.actor_ctor = @{actor}"]
    own += {
        "sac_value": ["SacValueAlgorithm.value_ctor = @OneLayerValue"],
        "temporl": ["TempoRLAlgorithm.skip_critic_ctor = @OneLayerValue"],
        "sac_krep": ["MixedSacAlgorithm.critic_ctor = @OneLayerCritics"],
    }.get(method, [])
    if method == "sac_krep":
        own.remove("SacAlgorithm.critic_ctor = @OneLayerCritics")
    if actor == "OneLayerChoices":
        own.append("create_environment.env_name = 'CartPole-v1'")
    moved = trained(method, *own).moved
    assert {"algorithm.critics.layer.weight"} <= moved
    assert {"algorithm.actor.layer.weight", "algorithm.actor.weight"} & moved


@gin.configurable
class OneLayerValue(OneLayerCritics):
    def __init__(self, input_size, reward_dim=None, num_choices=None, num_critics=1):
        super().__init__(input_size, reward_dim, num_choices)

    def forward(self, features, *action):
        return super().forward(features, *action)[:1]


def test_bindings_of_the_user_that_nothing_uses_are_refused_all_the_same():
    own = "TaacAlgorithm.critic_ctor = @OneLayerCritics"
    trained("taac", own)  # the shipped file's CriticEnsemble.hidden_layers = %hidden_layers has nothing to bind to
    for unused in ("CriticEnsemble.hidden_layers = %hidden_layers", "CriticEnsemble.num_critics = 3"):
        with pytest.raises(TaacError, match=r"--gin_param: CriticEnsemble\..*nothing in this experiment uses"):
            build("taac", own, unused)


def test_a_file_of_the_user_is_checked_where_it_binds_macros_too(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text("include 'gin/methods/taac.gin'\nOneLayerCritics.input_size = %batch_size\n")
    with pytest.raises(TaacError, match=r"own\.gin:2: OneLayerCritics\.input_size.*nothing in this experiment uses"):
        loaded = configuration.load([TASK, str(own)], SMALL)
        trainer = configuration.build(experiment.create_experiment)
        trainer.close()
        loaded.check_used()
