"""Every method with every backbone of gin/backbones, and what must hold of critics that predict distributions."""

from __future__ import annotations

import copy

import pytest
import torch

from taac import nest
from taac.configuration import shipped
from taac.errors import TaacError
from taac.networks import CategoricalReturns, CriticEnsemble, QuantileReturns
from taac.networks.batch_statistics import batch_statistics
from taac.networks.bodies import projections
from taac.ops import distributions
from taac.ops.value_distributions import ValueDistribution, project
from tests.learning.test_compiled_update import COMPILE, PRIORITIZED, assert_close, traced_only  # noqa: F401
from tests.methods import DISCRETE_METHODS, METHODS, fitting
from tests.training.runs import SMALL, TASK, assert_same_parameters, build, built, learn_until, run

BACKBONES = [name for name in shipped.files("backbones") if name != "held_noise"]  # which is no network
# Narrow, and what keeps a test's run short; each is bound only where it is used.
NARROW = {
    "categorical": ["CriticEnsemble.hidden_layers = (16, 16)"], "tqc": ["CriticEnsemble.hidden_layers = (16, 16)"],
    "simba": ["critic/SimbaBody.width = 16", "actor/SimbaBody.width = 16"],
    "flash": ["critic/FlashBody.width = 16", "actor/FlashBody.width = 16", "batch_size = 32"],
    "flash_small": ["critic/FlashBody.width = 16", "actor/FlashBody.width = 16", "batch_size = 32"],
    "crossq": ["critic/MlpBody.hidden_layers = (16, 16)", "actor/MlpBody.hidden_layers = (16,)"],
    "xqc": ["critic/MlpBody.hidden_layers = (16, 16)", "actor/MlpBody.hidden_layers = (16,)"],
    "droq": ["critic/MlpBody.hidden_layers = (16, 16)", "ActorCriticAlgorithm.policy_delay = 2"],
    "redq": ["CriticEnsemble.hidden_layers = (16, 16)", "ActorCriticAlgorithm.policy_delay = 2"], "layer_norm": [],
}  # fmt: skip
GATHER = {"flash", "flash_small", "crossq", "xqc"}
CATEGORICAL = "CriticEnsemble.returns = @CategoricalReturns()"


def with_backbone(method, backbone, *params):
    files = [TASK, f"gin/methods/{method}.gin", f"gin/backbones/{backbone}.gin"]
    return built(files, [*SMALL, *NARROW[backbone], *fitting(method), *params])


def pairs():
    """Each backbone with each method; by default SAC and TAAC with each, and all with CrossQ."""
    return [
        pytest.param(method, backbone, marks=() if method in ("sac", "taac") or backbone == "crossq" else pytest.mark.slow)
        for method in METHODS for backbone in BACKBONES
    ]  # fmt: skip


@pytest.mark.parametrize("method, backbone", pairs())
def test_every_method_learns_with_every_backbone(method, backbone):
    if method in DISCRETE_METHODS and backbone in GATHER:
        with pytest.raises(TaacError, match="no joint forward of executed and next actions, which BatchNorm needs"):
            with_backbone(method, backbone)
        return
    trainer = with_backbone(method, backbone)
    algorithm = trainer.agent.algorithm
    learnt = {name: p for name, p in algorithm.named_parameters() if p.requires_grad and name.startswith(("critics.", "actor."))}
    moved = {name: b for name, b in algorithm.named_buffers() if name.endswith((".mean", ".variance"))}
    before = {name: p.clone() for name, p in {**learnt, **moved}.items()}
    learn_until(trainer, 2 * algorithm.policy_delay)
    assert [name for name, p in learnt.items() if torch.equal(before[name], p)] == []
    assert [name for name, b in moved.items() if torch.equal(before[name], b)] == []
    assert bool(moved) == (backbone in GATHER)
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
    features, target = algorithm.target_encoder(observation), algorithm.target_critics
    apart = [algorithm.over_predictions(target, target(features, tau.a)) for tau in (tau_0, tau_1)]
    critics = algorithm.critic_step(batch.time_step, features, tau.a[1:])
    beta_1 = torch.rand_like(batch.time_step.reward)
    mixed = algorithm._target_value(critics, observation, tau_0, tau_1, torch.stack([1 - beta_1, beta_1], -1))
    expected = (1 - beta_1).unsqueeze(-1) * apart[0].probs + beta_1.unsqueeze(-1) * apart[1].probs
    torch.testing.assert_close(mixed.probs, expected)
    one_hot = torch.stack([torch.ones_like(beta_1), torch.zeros_like(beta_1)], -1)
    torch.testing.assert_close(algorithm._target_value(critics, observation, tau_0, tau_1, one_hot).probs, apart[0].probs)
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
    critics = without.critic_step(batch.time_step, without.encoder(observation), tau.a[1:])
    both = without.trajectory.advance(tau), without.trajectory.start(a_hat, tau)
    value = without._target_value(critics, observation, *both, found[1].beta).mean()
    torch.testing.assert_close(found[1].value.mean()[1:], (value - 0.3 * beta_1)[1:], rtol=1e-4, atol=1e-5)
    for trainer in (free, priced):
        trainer.close()


def compiled():
    quick = (("sac", "crossq"), ("sac", "tqc"))
    pairs = [(method, backbone) for method in ("sac", "taac_q") for backbone in BACKBONES]
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize("method, backbone", compiled())
def test_compiled_as_eager(method, backbone, traced_only):  # noqa: F811
    found = []
    for more in ((COMPILE,), ()):
        trainer = with_backbone(method, backbone, PRIORITIZED, *more)
        told, update = [], trainer.learner.update
        trainer.learner.update = lambda *args, update=update, told=told: told.append(update(*args)) or told[-1]
        learn_until(trainer, 3)
        found.append((trainer, told))
        trainer.close()
    # A bias before a normalisation has a gradient of rounding errors alone, of which Adam makes steps.
    assert_close(*found, rtol=1e-4, atol=5e-4 if backbone in GATHER else 1e-5)


def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    """Statistics of batches, the largest return so far, and noise that is held."""
    params = (
        "CriticEnsemble.body = @FlashBody", "ActorNetwork.body = @FlashBody", "FlashBody.width = 16", "FlashBody.blocks = 1",
        CATEGORICAL, "normalize_rewards = 'bounded'", "create_collector.explorer = @HeldNoise()", "num_env_steps = 340",
        "evaluation_interval = 1000", "Intervals.checkpoint_interval = 310", "Evaluator.initial_evaluation = False",
        "evaluation_episodes = 1",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    run(tmp_path / "killed", *params, until=330)
    again = run(tmp_path / "killed", *params)
    assert_same_parameters(whole, again)
    for name, buffer in whole.agent.named_buffers():
        assert torch.equal(buffer, again.agent.get_buffer(name)), name


@pytest.mark.parametrize("head", [CategoricalReturns(num_atoms=3), QuantileReturns(num_quantiles=3, dropped=0)])
def test_losses_are_summed_over_critics(head):
    prediction, target = torch.randn(2, 4, 5, 3), torch.randn(4, 5)
    apart = [head.loss(one.unsqueeze(0), target) for one in prediction]
    torch.testing.assert_close(head.loss(prediction, target), apart[0] + apart[1])


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


def test_a_subset_of_critics_is_drawn_in_each_update_for_targets_alone():
    trainer = build("ActorCriticAlgorithm.target_subset = 2", "ActorCriticAlgorithm.combine_critics = 'mean'",
                    "CriticEnsemble.num_critics = 3", method="sac")  # fmt: skip
    algorithm, q = trainer.agent.algorithm, torch.tensor([[1.0, 4.0], [3.0, 2.0], [5.0, 0.0]])
    assert algorithm.over_critics(q).tolist() == [3.0, 2.0]
    found = [tuple(algorithm.over_predictions(algorithm.critics, q).tolist()) for _ in range(300)]
    assert {x: found.count(x) > 60 for x in set(found)} == {(1.0, 2.0): True, (1.0, 0.0): True, (3.0, 0.0): True}
    algorithm.target_subset = 3  # all: the least of them
    assert algorithm.over_predictions(algorithm.critics, q).tolist() == [1.0, 0.0]
    trainer.close()
    for wrong in (0, 4):
        with pytest.raises(TaacError, match=r"target_subset must be in \[1, the number of critics, 3\], got"):
            build(f"ActorCriticAlgorithm.target_subset = {wrong}", "CriticEnsemble.num_critics = 3", method="sac")


def test_there_are_backbones():
    assert set(BACKBONES) == set(NARROW) and not DISCRETE_METHODS - set(METHODS)


# The joint forward -----------------------------------------------------------------------------------------------------

PLAIN_BN = (
    "CriticEnsemble.body = @MlpBody", "MlpBody.norm = @BatchNorm", "MlpBody.hidden_layers = (16,)", "MlpBody.norm_input = True",
)  # fmt: skip


@pytest.fixture
def joint():
    """A TAAC whose critics have batch statistics, a batch, and the halves of its update."""
    trainer = build(*PLAIN_BN)
    learn_until(trainer, 2)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    tau = batch.rollout_info.tau_prev.a
    features = algorithm.encoder(batch.time_step.observation)
    yield algorithm, batch.time_step, features, tau[1:]
    trainer.close()


def critics_in_batch(critics, rows, weights):
    """The critics' predictions in one batch, and how it moves their statistics."""
    copied = copy.deepcopy(critics)
    with batch_statistics(weights):
        found = copied(*rows)
    return found, dict(copied.named_buffers())


def test_halves_share_their_statistics_and_a_candidate_counts_with_its_probability(joint):
    algorithm, time_step, features, tau = joint
    candidates, acted = torch.rand(2, *tau.shape), ~time_step.is_last()[:-1]
    beta_1 = torch.rand_like(acted.float())
    weights = torch.stack([1 - beta_1, beta_1])
    step = algorithm.critic_step(time_step, features, tau)
    rows = [features[:-1], features[1:], features[1:]]
    everything = [torch.cat([x.flatten(0, 1) for x in rows]), torch.cat([x.flatten(0, 1) for x in (tau, *candidates)])]
    counted = torch.cat([acted.flatten().float(), (acted * weights).flatten()])
    online, moved = critics_in_batch(algorithm.critics, everything, counted)
    target, _ = critics_in_batch(algorithm.target_critics, everything, counted)
    kept = {name: buffer.clone() for name, buffer in algorithm.target_critics.named_buffers()}
    value = step.bootstrap(features[1:].expand(2, *features[1:].shape), candidates, weights=weights)
    count = acted.numel()
    torch.testing.assert_close(value, target[:, count:].amin(0).unflatten(0, candidates.shape[:3]))
    torch.testing.assert_close(step.prediction(), online[:, :count].unflatten(1, acted.shape))
    for name, buffer in algorithm.critics.named_buffers():
        torch.testing.assert_close(buffer, moved[name])
    assert all(torch.equal(buffer, kept[name]) for name, buffer in algorithm.target_critics.named_buffers())


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_certain_switch_is_a_stack_of_the_chosen_candidate_alone(joint, chosen):
    algorithm, time_step, features, tau = joint
    candidates, acted = torch.rand(2, *tau.shape), ~time_step.is_last()[:-1]
    weights = torch.zeros(2, *acted.shape)
    weights[chosen] = 1.0
    both, alone = (algorithm.critic_step(time_step, features, tau) for _ in range(2))
    state = copy.deepcopy(algorithm.critics.state_dict())
    of_both = both.bootstrap(features[1:].expand(2, *features[1:].shape), candidates, weights=weights)[chosen]
    predicted = both.prediction()
    algorithm.critics.load_state_dict(state)
    torch.testing.assert_close(of_both, alone.bootstrap(features[1:], candidates[chosen]))
    torch.testing.assert_close(predicted, alone.prediction())


def test_equal_weights_are_the_plain_stack(joint):
    """Of both candidates, where each half of the switch is as likely: the executed pairs count twice as much as one of them."""
    algorithm, time_step, features, tau = joint
    same = torch.rand(tau.shape)
    half = torch.full((2, *tau.shape[:2]), 0.5)
    twice, once = (algorithm.critic_step(time_step, features, tau) for _ in range(2))
    found = twice.bootstrap(features[1:].expand(2, *features[1:].shape), torch.stack([same, same]), weights=half)
    torch.testing.assert_close(found[0], once.bootstrap(features[1:], same))
    torch.testing.assert_close(found[0], found[1])


def test_targets_that_are_copies_need_one_forward(joint, monkeypatch):
    algorithm, time_step, features, tau = joint
    algorithm.target_critics.load_state_dict(algorithm.critics.state_dict())
    slow = algorithm.critic_step(time_step, features, tau)
    state, candidate = copy.deepcopy(algorithm.critics.state_dict()), torch.rand(tau.shape)
    with torch.no_grad():
        expected = slow.bootstrap(features[1:], candidate)
    predicted = slow.prediction()
    moved = copy.deepcopy(algorithm.critics.state_dict())
    algorithm.critics.load_state_dict(state)
    monkeypatch.setattr(algorithm.target_update, "tau", 1.0)
    monkeypatch.setattr(algorithm.target_critics, "forward", None)  # is not asked
    copied = algorithm.critic_step(time_step, features, tau)
    with torch.no_grad():
        found = copied.bootstrap(features[1:], candidate)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(copied.prediction(), predicted)
    assert not found.requires_grad and copied.prediction().requires_grad
    torch.testing.assert_close(algorithm.critics.state_dict(), moved)


def test_frames_at_the_end_of_an_episode_count_for_no_statistics(joint):
    algorithm, time_step, features, tau = joint
    last = time_step._replace(step_type=time_step.step_type.clone())
    last.step_type[0, 0] = 2
    other = features.clone()
    other[0, 0] += 100.0
    found = []
    for seen in (features, other):
        state = copy.deepcopy(algorithm.critics.state_dict())
        step = algorithm.critic_step(last, seen, tau)
        step.bootstrap(features[1:], tau)
        step.prediction()
        found.append(copy.deepcopy(algorithm.critics.state_dict()))
        algorithm.critics.load_state_dict(state)
    torch.testing.assert_close(*found)


def test_what_acts_and_what_compares_uses_running_statistics():
    """An actor's gradient, beta and greedy steps do not depend on who else is in the batch."""
    trainer = with_backbone("taac", "flash")
    learn_until(trainer, 4)
    agent, batch = trainer.agent, trainer.replay_buffer.sample(8, trainer.segment_length)
    time_step = nest.index(batch.time_step, 0)
    state = agent.initial_state(8)
    buffers = {name: b.clone() for name, b in agent.algorithm.named_buffers()}
    together = agent.predict_step(time_step, state)
    one = agent.predict_step(nest.index(time_step, slice(1)), agent.initial_state(1))
    torch.testing.assert_close(one.output, together.output[:1])
    torch.testing.assert_close(one.switch_probability, together.switch_probability[:1])
    agent.algorithm.rollout_step(time_step, state)
    assert all(torch.equal(b, buffers[name]) for name, b in agent.algorithm.named_buffers())
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_targets_are_those_of_an_actor_that_acts(method):
    """Not those of the action that its gradient step sees, whose statistics are the batch's."""
    trainer = with_backbone(method, "flash")
    learn_until(trainer, 4)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    seen, called = [], algorithm.actor.forward
    algorithm.actor.forward = lambda x: seen.append(called(x)) or seen[-1]
    algorithm.train_step(batch)
    assert len(seen) == 2 and not torch.allclose(seen[0][0][-1], seen[1][0][-1]) and not seen[1][0].requires_grad
    trainer.close()


def test_weights_and_scales_keep_their_norms():
    trainer = with_backbone("sac", "flash")
    learn_until(trainer, 4)
    algorithm = trainer.agent.algorithm
    for network in (algorithm.critics, algorithm.actor):
        for part in projections(network):
            if hasattr(part, "weight"):
                norms = torch.linalg.vector_norm(part.weight, dim=1)
                torch.testing.assert_close(norms, torch.ones_like(norms))
            else:
                both = torch.cat([part.scale, part.bias] if hasattr(part, "bias") else [part.scale], -1)
                norm = torch.linalg.vector_norm(both, dim=-1)
                torch.testing.assert_close(norm, torch.full_like(norm, part.scale.shape[-1] ** 0.5))
    assert len(projections(algorithm.critics)) == 1 + 1 + 2 * 4 + 1 + 1  # input, embedding, blocks, RMSNorm, head
    trainer.close()
