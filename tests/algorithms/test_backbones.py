"""Every method with every backbone of gin/backbones, and what must hold of critics that predict distributions."""

from __future__ import annotations

import pathlib

import pytest
import torch

from taac.errors import TaacError
from taac.networks import CategoricalReturns, CriticEnsemble, QuantileReturns
from taac.ops import distributions
from taac.ops.value_distributions import ValueDistribution, project
from tests.learning.test_compiled_update import COMPILE, PRIORITIZED, assert_close, traced_only  # noqa: F401
from tests.methods import DISCRETE_METHODS, METHODS, REPRESENTATIVES, fitting
from tests.training.runs import SMALL, TASK, assert_same_parameters, build, built, learn_until, run

BACKBONES = sorted(path.stem for path in pathlib.Path(__file__).resolve().parents[2].glob("gin/backbones/*.gin"))
NARROW = "CriticEnsemble.hidden_layers = (16, 16)"
CATEGORICAL = "CriticEnsemble.returns = @CategoricalReturns()"


def with_backbone(method, backbone, *params):
    files = [TASK, f"gin/methods/{method}.gin", f"gin/backbones/{backbone}.gin"]
    return built(files, [*SMALL, NARROW, *fitting(method), *params])


def pairs():
    """Each backbone with each method; by default the five that stand for the others, and TAAC."""
    quick = {*REPRESENTATIVES, "taac"}
    return [
        pytest.param(method, backbone, marks=() if method in quick else pytest.mark.slow)
        for method in METHODS for backbone in BACKBONES
    ]  # fmt: skip


@pytest.mark.parametrize("method, backbone", pairs())
def test_every_method_learns_with_every_backbone(method, backbone):
    trainer = with_backbone(method, backbone)
    before = {name: p.clone() for name, p in trainer.agent.algorithm.critics.named_parameters()}
    learn_until(trainer, 2)
    after = dict(trainer.agent.algorithm.critics.named_parameters())
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(p).all() for p in trainer.agent.parameters())
    trainer.close()


def test_the_least_of_two_critics_is_the_whole_distribution_of_the_one_with_the_lower_mean():
    head = CategoricalReturns(num_atoms=3, low=-1.0, high=1.0)
    probs = torch.tensor([[[0.6, 0.0, 0.4]], [[0.1, 0.8, 0.1]]]) + 1e-9  # means -0.2 and 0
    found = head.distribution(probs.log(), "min")
    torch.testing.assert_close(found.probs, torch.tensor([[0.6, 0.0, 0.4]]))
    torch.testing.assert_close(head.distribution(probs.log(), "mean").probs, torch.tensor([[0.35, 0.4, 0.25]]))
    torch.testing.assert_close(head.value(probs.log()), torch.tensor([[-0.2], [0.0]]))


def test_truncated_quantiles_are_the_lowest_of_all_critics():
    quantiles = torch.tensor([[[3.0, 1.0, 9.0]], [[2.0, 8.0, 7.0]]])
    found = QuantileReturns(num_quantiles=3, dropped=1).distribution(quantiles, "min")
    assert found.points.tolist() == [[1.0, 2.0, 3.0, 7.0]] and found.probs.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("head", [CategoricalReturns(), CategoricalReturns(sigma=0.75), QuantileReturns()])
def test_what_is_learnt_has_the_targets_mean(head):
    """By gradient steps on one prediction."""
    prediction = torch.zeros(2, 1, 1, head.size, requires_grad=True)
    target = ValueDistribution(torch.tensor([[[-1.0, 1.6]]]), torch.tensor([[[0.25, 0.75]]]))
    for of, mean in ((target, 0.95), (torch.tensor([[0.55]]), 0.55)):
        optimizer = torch.optim.Adam([prediction], 0.05)
        for _ in range(600):
            optimizer.zero_grad()
            head.loss(prediction, of).sum().backward()
            optimizer.step()
        # A median that leans to the mean: the quantile loss is a Huber loss
        within = 0.25 if isinstance(head, QuantileReturns) and isinstance(of, ValueDistribution) else 0.02
        assert head.value(prediction).flatten().tolist() == pytest.approx([mean] * 2, abs=within)


@pytest.mark.parametrize("method", ["sac", "td3", "taac"])
def test_the_targets_are_projected_distributions(method):
    """Against the critics' targets taken apart: their mean is the return of the mean values."""
    trainer = build(CATEGORICAL, method=method)
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    info = algorithm.train_step(batch)
    assert isinstance(info.value, ValueDistribution)
    switch = info.switch if info.switch is not None else torch.ones_like(batch.time_step.is_last())
    found = algorithm.td_loss.targets(batch.time_step, info.value, switch, info.bonus)
    expected = algorithm.td_loss.returns(batch.time_step, info.value.mean(), switch, info.bonus)
    torch.testing.assert_close(found.mean(), expected)
    head = algorithm.critics.returns
    torch.testing.assert_close(project(found, head.support).sum(-1), torch.ones_like(expected))
    trainer.close()


def test_taac_bootstraps_from_the_mixture_of_both_candidates():
    trainer = build(CATEGORICAL)
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    tau = batch.rollout_info.tau_prev
    tau_0, tau_1 = algorithm.trajectory.advance(tau), algorithm.trajectory.start(torch.rand_like(tau.a), tau)
    observation = batch.time_step.observation
    features = algorithm.target_encoder(observation)
    apart = [algorithm.bootstrap_value(algorithm.target_critics, features, tau.a) for tau in (tau_0, tau_1)]
    beta_1 = torch.rand_like(batch.time_step.reward)
    mixed = algorithm._target_value(observation, tau_0, tau_1, torch.stack([1 - beta_1, beta_1], -1))
    expected = (1 - beta_1).unsqueeze(-1) * apart[0].probs + beta_1.unsqueeze(-1) * apart[1].probs
    torch.testing.assert_close(mixed.probs, expected)
    one_hot = torch.stack([torch.ones_like(beta_1), torch.zeros_like(beta_1)], -1)
    torch.testing.assert_close(algorithm._target_value(observation, tau_0, tau_1, one_hot).probs, apart[0].probs)
    trainer.close()


def test_a_price_moves_the_distribution_as_it_moves_the_value():
    free, priced = (build(CATEGORICAL, f"TaacAlgorithm.decision_price = {price}") for price in (0.0, 0.3))
    for trainer in (free, priced):
        learn_until(trainer, 1)
    priced.agent.algorithm.load_state_dict(free.agent.algorithm.state_dict(), strict=False)
    batch = free.agent.prepare(free.replay_buffer.sample(8, free.segment_length))
    found = []
    for trainer in (free, priced):
        torch.manual_seed(1)
        found.append(trainer.agent.algorithm.train_step(batch))
    beta_1 = found[1].beta[..., 1]
    observation = batch.time_step.observation
    tau = batch.rollout_info.tau_prev
    torch.manual_seed(1)
    without = free.agent.algorithm
    mean, log_std = without.actor(without.tau_embedding(without.encode(observation)[1], tau))
    a_hat, _ = distributions.squashed_normal_sample(mean, log_std)
    both = without.trajectory.advance(tau), without.trajectory.start(a_hat, tau)
    value = without._target_value(observation, *both, found[1].beta).mean()
    torch.testing.assert_close(found[1].value.mean()[1:], (value - 0.3 * beta_1)[1:], rtol=1e-4, atol=1e-5)
    for trainer in (free, priced):
        trainer.close()


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", ["sac", "taac_q"])
def test_compiled_as_eager(method, backbone, traced_only):  # noqa: F811
    found = []
    for more in ((COMPILE,), ()):
        trainer = with_backbone(method, backbone, PRIORITIZED, *more)
        told, update = [], trainer.learner.update
        trainer.learner.update = lambda *args, update=update, told=told: told.append(update(*args)) or told[-1]
        learn_until(trainer, 3)
        found.append((trainer, told))
        trainer.close()
    assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method, params", [("taac", (CATEGORICAL, "normalize_rewards = 'bounded'")),
                                            ("sac", ("CriticEnsemble.returns = @QuantileReturns()",))])  # fmt: skip
def test_a_killed_run_ends_as_the_run_that_was_never_killed(method, params, tmp_path):
    params = (*params, "num_env_steps = 340", "evaluation_interval = 1000", "Intervals.checkpoint_interval = 310",
              "Evaluator.initial_evaluation = False", "evaluation_episodes = 1")  # fmt: skip
    whole = run(tmp_path / "whole", *params, method=method)
    run(tmp_path / "killed", *params, method=method, until=330)
    assert_same_parameters(whole, run(tmp_path / "killed", *params, method=method))


def test_a_vector_reward_is_refused():
    with pytest.raises(TaacError, match=r"CategoricalReturns predicts the distribution of one return, .* has 2 parts"):
        CriticEnsemble(3, reward_dim=2, returns=CategoricalReturns())


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: CategoricalReturns(num_atoms=1), "2 atoms or more.*num_atoms = 1"),
        (lambda: CategoricalReturns(low=1.0, high=1.0), "low < high"),
        (lambda: CategoricalReturns(sigma=-1.0), "sigma >= 0"),
        (lambda: QuantileReturns(dropped=25), r"dropped must be in \[0, num_quantiles = 25\), got 25"),
    ],
)
def test_settings_out_of_range(make, told):
    with pytest.raises(TaacError, match=told):
        make()


def test_the_mean_of_critics():
    trainer = build("ActorCriticAlgorithm.combine_critics = 'mean'", method="sac")
    assert trainer.agent.algorithm.over_critics(torch.tensor([[1.0, 4.0], [3.0, 2.0]])).tolist() == [2.0, 3.0]
    trainer.close()


def test_there_are_backbones():
    assert {"categorical", "tqc"} <= set(BACKBONES) and not DISCRETE_METHODS - set(METHODS)
