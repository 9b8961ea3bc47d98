"""Extending the package from outside, in a few lines each: what a user writes in a file of their own, with a shipped method."""

from __future__ import annotations

import math
from typing import NamedTuple

import gin
import pytest
import torch
import torch.nn as nn

from taac import configuration, nest
from taac.algorithms import TaacAlgorithm
from taac.algorithms.algorithm import check_acting
from taac.algorithms.reward_signals import RewardSignal
from taac.algorithms.td_losses import BaseTDLoss
from taac.errors import TaacError
from taac.networks.layers import EnsembleLinear
from taac.ops import value_ops
from taac.training import experiment
from tests.training.runs import built, learn_until

TASK = "gin/tasks/simple_control.gin"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 200", "initial_collect_steps = 60", "batch_size = 8",
    "hidden_layers = (16,)", "replay_length = 300",
]  # fmt: skip


def build(method, *params):
    return built([TASK, f"gin/methods/{method}.gin"], [*SMALL, *params])


def trained(method, *params, updates=3):
    """After some updates with a shipped method's gin file and bindings of the user's."""
    trainer = build(method, *params)
    before = {name: p.clone() for name, p in trainer.agent.named_parameters()}
    learn_until(trainer, updates)
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


@gin.configurable
class Unclamped(Widened):
    """Adds noise to actions, and forgets that they have bounds."""

    def step(self, time_step, alg_step, state, env_steps, uniform):
        return alg_step._replace(output=alg_step.output + self.factor), ()


def test_an_explorer_that_leaves_the_range_of_actions_is_refused():
    """The environment would get an action outside of its space, or another one than is replayed."""
    trainer = build("sac", "create_collector.explorer = @Unclamped()", "Unclamped.factor = 3.0")
    with pytest.raises(TaacError, match=r"explorer Unclamped returned the action \[.*\], outside \[-1, 1\].*: clamp it"):
        learn_until(trainer, 2)
    assert trainer.env_steps == trainer.update_ratio.initial_collect_steps  # nothing of it was executed
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "sac_recurrent"])
def test_an_explorer_sees_the_distribution(method):
    trainer = build(method, "create_collector.explorer = @Widened()", "Widened.factor = 0.0")
    learn_until(trainer, 2)
    rollout = trainer.collector.rollout
    alg_step = trainer.collector.explore(rollout.time_step, rollout.state)
    greedy = trainer.agent.predict_step(rollout.time_step, rollout.state).output
    trainer.close()
    torch.testing.assert_close(alg_step.output, greedy)  # no deviation: the mode


@pytest.mark.parametrize(
    "method, env_name, names",
    [
        ("taac", "Pendulum-v1", "normal"), ("sac_ntd", "Pendulum-v1", "normal"), ("sdar", "Pendulum-v1", "normal"),
        ("temporl", "Pendulum-v1", "normal"), ("sac_discrete_recurrent", "CartPole-v1", "choices"),
        ("sac_krep", "Pendulum-v1", "both"),
    ],
)  # fmt: skip
def test_every_rollout_reports_the_distribution_that_it_drew_from(method, env_name, names):
    trainer = build(method, f"create_environment.env_name = '{env_name}'", "num_envs = 2")
    trainer.collect()
    drawn = [trainer.agent.rollout_step(trainer.collector.rollout.time_step, trainer.collector.rollout.state) for _ in range(400)]
    policy = drawn[0].policy
    trainer.close()
    assert trainer.agent.random_step(trainer.collector.rollout.time_step, trainer.collector.rollout.state).policy == ()
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


@pytest.mark.parametrize(
    "method, algorithm, actor",
    [
        ("taac_q", "TaacAlgorithm", "OneLayerActor"), ("sac", "SacAlgorithm", "OneLayerActor"),
        ("sac_value", "SacAlgorithm", "OneLayerActor"), ("sac_krep", "SacAlgorithm", "OneLayerActor"),
        ("temporl", "SacAlgorithm", "OneLayerActor"), ("sac_discrete_recurrent", "DiscreteSacAlgorithm", "OneLayerChoices"),
    ],
)  # fmt: skip
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


# A trajectory with slots of its own -----------------------------------------------------------------------------------


class Swing(NamedTuple):
    a: torch.Tensor  # [..., A] the action
    middle: torch.Tensor  # [..., A] what it swings about
    phase: torch.Tensor  # [..., 2] cosine and sine


@gin.configurable
class Swinging:
    """`a <- middle + 0.2 cos(phase)`, the phase a quarter turn a step; the actor proposes the middle."""

    def zeros(self, action):
        zero = torch.zeros_like(action)
        return Swing(zero, zero.clone(), zero[..., :1].expand(*action.shape[:-1], 2).clone())

    def advance(self, tau):
        phase = torch.stack([-tau.phase[..., 1], tau.phase[..., 0]], -1)
        return Swing((tau.middle + 0.2 * phase[..., :1]).clamp(-1, 1), tau.middle, phase)

    def start(self, a_hat, tau):
        phase = torch.zeros_like(tau.phase) + torch.tensor([1.0, 0.0])
        return Swing((a_hat + 0.2).clamp(-1, 1), a_hat, phase)

    def output_for(self, action, tau):
        return (action - 0.2).clamp(-1, 1)


@pytest.mark.parametrize("method", ["taac", "sac_hybrid"])
def test_a_trajectory_with_slots_of_its_own(method):
    trainer = trained(method, "TaacAlgorithm.trajectory = @Swinging()", "TaacAlgorithm.randomize_first_state_tau = True")
    replayed = trainer.replay_buffer.sample(60, 2)
    tau, b = replayed.rollout_info.tau_prev, replayed.rollout_info.switch
    assert tau._fields == ("a", "middle", "phase") and tau.phase.shape == (2, 60, 2)
    algorithm, goes_on = trainer.agent.algorithm, ~b[0] & ~replayed.time_step.is_last()[0]
    assert goes_on.any()
    torch.testing.assert_close(
        replayed.time_step.prev_action[1][goes_on],
        algorithm.trajectory.advance(nest.index(tau, 0)).a[goes_on], atol=1e-6, rtol=0,
    )  # fmt: skip
    assert algorithm.tau_embedding.parts[2].in_features == 2
    assert {f"algorithm.tau_embedding.parts.{part}.weight" for part in range(3)} <= trainer.moved
    info = algorithm.demonstrated_info(replayed.time_step)  # actions of another: explained by its own record
    assert info.tau_prev.phase.shape == (2, 60, 2)


@gin.configurable
class Nameless(Swinging):
    def zeros(self, action):
        return (torch.zeros_like(action),)


def test_a_trajectory_without_an_action_is_refused():
    with pytest.raises(TaacError, match=r"Nameless.zeros must return a NamedTuple .* whose field 'a' is the action"):
        build("taac", "TaacAlgorithm.trajectory = @Nameless()")


# Critics whose prediction is a distribution ---------------------------------------------------------------------------


@gin.configurable
class Categorical(nn.Module):
    """Two critics that predict the logits of 21 values in [-1, 1] * `limit`; targets are shared out between the nearest two.

    Source: Farebrother et al., Stop Regressing (arXiv:2403.03950), the two-hot loss of section 3.1.
    """

    def __init__(self, input_size, reward_dim=None, num_choices=None, num_critics=2, limit=8.0):
        super().__init__()
        self.shape = [size for size in (num_choices, reward_dim) if size is not None]
        self.num_critics, self.limit = num_critics, limit
        self.hidden = nn.Linear(input_size, 64)
        self.logits = nn.Linear(64, num_critics * math.prod(self.shape) * 21)
        self.register_buffer("values", torch.linspace(-limit, limit, 21))

    def forward(self, features, *action):
        logits = self.logits(torch.relu(self.hidden(torch.cat([features, *action], -1))))
        return logits.unflatten(-1, (self.num_critics, *self.shape, 21)).movedim(-2 - len(self.shape), 0)

    def value(self, logits):
        return (logits.softmax(-1) * self.values).sum(-1)

    def loss(self, logits, target):
        place = (target.clamp(-self.limit, self.limit).unsqueeze(-1) + self.limit) / (2 * self.limit) * 20
        near = (1 - (place - torch.arange(21, device=target.device)).abs()).clamp(min=0)  # two-hot, its mean the target
        error = -(near * logits.log_softmax(-1)).sum(-1).sum(0)
        return error if error.dim() == 2 else error.mean(-1)


OWN_DISTRIBUTION = [
    ("taac", "ActorCriticAlgorithm.critic_ctor = @Categorical"), ("sac_ntd", "SacNtdAlgorithm.critic_ctor = @Categorical"),
    ("sac_krep", "MixedSacAlgorithm.critic_ctor = @Categorical"), ("sac_recurrent", "SacAlgorithm.critic_ctor = @Categorical"),
    ("sac_value", "SacValueAlgorithm.value_ctor = @Categorical"),
    ("temporl", "TempoRLAlgorithm.skip_critic_ctor = @Categorical"),
    ("sac_discrete", "DiscreteSacAlgorithm.critic_ctor = @Categorical"),
]  # fmt: skip


@pytest.mark.parametrize("method, own", OWN_DISTRIBUTION)
def test_methods_learn_with_critics_that_predict_a_distribution(method, own):
    discrete = ["create_environment.env_name = 'CartPole-v1'"] if method == "sac_discrete" else []
    two_rewards = ["create_agent.reward_signals = (@Constant,)"] if method in ("taac", "sac_krep", "sac_value") else []
    trainer = trained(method, own, "Learner.diagnostics = 'histograms'", *discrete, *two_rewards)
    assert any(name.endswith("logits.weight") for name in trainer.moved)
    summary = trainer.learner.summary()
    assert all(math.isfinite(x) for x in summary.values()) and summary["loss/critic"] > 0


@pytest.mark.slow
def test_critics_that_predict_a_distribution_learn_the_value():
    """One state, reward 1 and no end: Q = 1/(1 - gamma) = 5."""
    trainer = trained(
        "sac", "SacAlgorithm.critic_ctor = @Categorical", "SacAlgorithm.entropy_in_target = False",
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Countdown-v0'",
        "create_environment.env_kwargs = {'length': 5, 'truncate': True, 'one_state': True}", "gamma = 0.8",
        "normalize_rewards = False", "reward_clip = None", "learning_rate = 3e-3", "target_tau = 0.1", "batch_size = 32",
        "num_env_steps = 2000", "initial_collect_steps = 100", "replay_length = 2000", updates=700,
    )  # fmt: skip
    algorithm, frames = trainer.agent.algorithm, trainer.replay_buffer.sample(100, 2).time_step
    with torch.no_grad():
        q = algorithm.q_values(algorithm.critics, algorithm.encoder(frames.observation[0]), frames.prev_action[1])
    assert q[:, ~frames.is_last()[0]].mean() == pytest.approx(5.0, rel=0.05)


@gin.configurable
class Hundredfold(nn.Module):
    """One number, a hundredth of the value."""

    size = 1

    def value(self, prediction):
        return 100 * prediction.squeeze(-1)

    def loss(self, prediction, target):
        return (self.value(prediction) - target).square().sum(0)


@gin.configurable
class OneLayerBody(nn.Module):
    output_size = 16

    def __init__(self, input_size, networks):
        super().__init__()
        self.networks, self.layer = networks, EnsembleLinear(networks, input_size, self.output_size)

    def forward(self, x):
        return torch.tanh(self.layer(x))

    def head(self, outputs):
        return EnsembleLinear(self.networks, self.output_size, outputs)


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_a_body_and_what_critics_predict(method):
    bodies = ("CriticEnsemble.body = @OneLayerBody", "ActorNetwork.body = @OneLayerBody")
    trainer = trained(method, "CriticEnsemble.returns = @Hundredfold()", *bodies)
    assert {"algorithm.critics.body.layer.weight", "algorithm.critics.last.weight"} <= trainer.moved
    assert math.isfinite(trainer.learner.summary()["loss/critic"])


@gin.configurable
class HalfOfIt(OneLayerCritics):
    def value(self, prediction):
        return prediction


def test_critics_need_both_value_and_loss_and_no_setting_of_another_loss():
    with pytest.raises(TaacError, match=r"HalfOfIt defines value\(\) alone"):
        build("sac", "SacAlgorithm.critic_ctor = @HalfOfIt")
    with pytest.raises(TaacError, match=r"Categorical computes its own loss, so OneStepTDLoss\.huber_delta has no effect"):
        build("sac", "SacAlgorithm.critic_ctor = @Categorical", "OneStepTDLoss.huber_delta = 1.0")


# A switching head -----------------------------------------------------------------------------------------------------


@gin.configurable
class Restless(TaacAlgorithm):
    """TAAC whose switch is a policy of its own."""

    def __init__(self, observation_spec, action_spec, **taac):
        super().__init__(observation_spec, action_spec, **taac)
        self.head = nn.Linear(self.tau_embedding.output_size, 1)

    def _log_pi(self, embedded):
        logit = self.head(embedded)
        return nn.functional.logsigmoid(torch.cat([-logit, logit], -1))

    def switching_probability(self, features, embedded, tau_prev, a_hat):
        return self._log_pi(embedded)[..., 1].exp()

    def learn_switch(self, embedded, q_0, q_1):
        log_pi = self._log_pi(embedded)
        loss = (log_pi.exp() * (self.beta_temperature.alpha() * log_pi - torch.stack([q_0, q_1], -1).detach())).sum(-1)
        return log_pi.exp().detach(), loss

    def acting_modules(self):
        return [*super().acting_modules(), "head"]

    def parameter_groups(self):
        groups = super().parameter_groups()
        return {**groups, "actor": [*groups["actor"], *self.head.parameters()]}


def test_a_switching_head():
    trainer = trained("taac", "create_agent.algorithm_ctor = @Restless", "TaacAlgorithm.max_repeat_steps = 5")
    assert "algorithm.head.weight" in trainer.moved
    actor = configuration.build(lambda: experiment.create_agent(trainer.environment, torch.device("cpu"), role="act"))
    actor.load_state_dict(actor.own_state(trainer.agent.state_dict()))
    time_step = trainer.collector.rollout.time_step
    beta_1, expected = (a.predict_step(time_step, a.initial_state(1)).switch_probability for a in (actor, trainer.agent))
    assert torch.equal(beta_1, expected)


# What is forgotten is an error that names it --------------------------------------------------------------------------


@gin.configurable
class NeverLearns(Restless):
    def parameter_groups(self):
        return TaacAlgorithm.parameter_groups(self)


@gin.configurable
class LearnsTwice(Restless):
    def parameter_groups(self):
        groups = super().parameter_groups()
        return {**groups, "critic": [*groups["critic"], self.head.bias]}


@gin.configurable
class CannotAct(Restless):
    def acting_modules(self):
        return TaacAlgorithm.acting_modules(self)


@gin.configurable
class ActsWithout(Restless):
    def acting_modules(self):
        return [*super().acting_modules(), "haed"]


@pytest.mark.parametrize(
    "algorithm, message",
    [
        ("NeverLearns", r"NeverLearns.parameter_groups leaves out head.weight, head.bias, so nothing would train them"),
        ("LearnsTwice", r"LearnsTwice.parameter_groups has parameters twice: head.bias \(actor, critic\)"),
        ("CannotAct", r"CannotAct.acting_modules leaves out 'head', which acting needs"),
        ("ActsWithout", r"ActsWithout.acting_modules names haed, but there are encoder, .*head"),
    ],
)
def test_what_is_forgotten_is_named_at_build_time(algorithm, message):
    with pytest.raises(TaacError, match=message):
        build("taac", f"create_agent.algorithm_ctor = @{algorithm}")


def test_looking_for_what_is_forgotten_draws_none_of_the_runs_random_numbers():
    trainer = build("taac")
    algorithm, environment = trainer.agent.algorithm, trainer.environment
    before, modules = torch.get_rng_state(), list(algorithm.named_children())
    check_acting(algorithm, environment.observation_spec, environment.action_spec, None)
    assert torch.equal(torch.get_rng_state(), before) and list(algorithm.named_children()) == modules
    trainer.close()


# A TD loss and a reward signal ----------------------------------------------------------------------------------------


@gin.configurable
class Halfway(BaseTDLoss):
    """The mean of the one-step and the n-step return."""

    def returns(self, time_step, value, switch, bonus=None):
        frames = time_step.reward, value, time_step.step_type, self.discount(time_step)
        return (value_ops.one_step_return(*frames) + value_ops.n_step_return(*frames, bonus)) / 2


def test_a_td_loss():
    trainer = trained("taac", "TaacAlgorithm.td_loss = @Halfway()", "gamma = 0.5", "Trainer.segment_length = 3")
    td_loss = trainer.agent.algorithm.td_loss
    assert isinstance(td_loss, Halfway) and td_loss.gamma == 0.5  # the task's, which its file need not bind


def test_the_operative_configuration_of_classes_without_a_constructor_builds_the_same(tmp_path):
    params = ["TaacAlgorithm.td_loss = @Halfway()", "gamma = 0.5", "create_agent.algorithm_ctor = @NoConstructor"]
    build("taac", *params, "beta_min_prob = 0.1").close()
    again = tmp_path / "config.gin"
    again.write_text(configuration.operative_config())
    loaded = configuration.load([str(again)])
    trainer = configuration.build(experiment.create_experiment)
    trainer.close()
    loaded.check_used()
    algorithm = trainer.agent.algorithm
    assert algorithm.td_loss.gamma == 0.5 and "p = 0.1" in algorithm.beta_temperature.formula


@gin.configurable
class NoConstructor(TaacAlgorithm):
    pass


@gin.configurable
class Constant(RewardSignal):
    """A reward of 1 for being alive."""

    name = "alive"

    def __init__(self, observation_spec, action_spec, strength=0.5, update_period=1):
        super().__init__(strength, 0.9, update_period=update_period, normalize=False)

    def reward(self, time_step):
        return torch.ones_like(time_step.reward[1:]).reshape(*time_step.step_type[1:].shape, -1)[..., 0]

@pytest.mark.parametrize("period", [1, 0.5])
def test_a_reward_signal(period):
    """Without a model, however often it would learn."""
    trainer = trained(
        "taac", "create_agent.reward_signals = (@Constant,)", "gamma = 0.5", f"Constant.update_period = {period}"
    )
    algorithm = trainer.agent.algorithm
    assert algorithm.reward_weights == (1.0, 0.5) and algorithm.td_loss.gamma.tolist() == pytest.approx([0.5, 0.9])
    assert trainer.learner.summary()["signal/alive_reward"] == pytest.approx(1.0)


# Names that shared settings had before --------------------------------------------------------------------------------


HALF = "TDLoss.gamma = 0.5"


@pytest.mark.parametrize(
    "method, before",
    [
        ("taac", ["TaacAlgorithm.target_update_tau = 0.25", "TAACTDLoss.gamma = 0.5"]),
        ("sac", ["SacAlgorithm.target_update_tau = 0.25", "OneStepTDLoss.gamma = 0.5"]),
        ("sac_hybrid", ["TaacAlgorithm.target_update_tau = 0.25", "SacHybridAlgorithm.td_loss = @TDLoss()", HALF]),
    ],
)
def test_what_was_bound_for_each_algorithm_still_can_be(method, before):
    trainer = build(method, *before)
    trainer.close()
    assert trainer.agent.algorithm.target_update.tau == 0.25 and trainer.agent.algorithm.gamma == 0.5
    kind = "SacAlgorithm" if method == "sac" else "TaacAlgorithm" if method.startswith("taac") else None
    if kind:
        with pytest.raises(TaacError, match=r"target_update_tau.*wrong type: expected float"):
            build(method, f"{kind}.target_update_tau = 'fast'")
        with pytest.raises(TaacError, match="has no parameter 'target_update_tua'; did you mean 'target_update_tau'"):
            build(method, f"{kind}.target_update_tua = 0.5")
