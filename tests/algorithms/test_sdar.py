"""SDAR: dimensions that act or repeat by themselves; one update against a slow reference."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from taac.algorithms import OneStepTDLoss, SdarAlgorithm, Temperature
from taac.data_structures import AlgStep, Experience
from taac.errors import TaacError
from taac.networks import ActorNetwork
from tests.algorithms import reference
from tests.algorithms.reference import BATCH, IS_FIRST, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC, F, M

SDAR = {
    "num_critics": 2, "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875, "entropy_in_target": True,
    "dqda_clipping": None, "tuning": "log", "min_prob": 0.1, "beta_min_prob": 0.05,
    "price": 0.0, "rate": None,
}  # fmt: skip
POLICY = ("actor.", "actor_embedding.", "selection.", "selection_embedding.")


def sdar(config, **changes):
    c = SimpleNamespace(**(config | changes))
    return reference.scrambled(
        SdarAlgorithm(
            c.spec, reference.ACTION_SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, td_loss=OneStepTDLoss(c.gamma), action_min_prob=c.min_prob,
            beta_min_prob=c.beta_min_prob, entropy_in_target=c.entropy_in_target, selection_hidden_layers=(5,),
            temperature_ctor=functools.partial(Temperature, initial_value=0.7, tuning=c.tuning),
            dqda_clipping=c.dqda_clipping, decision_price=c.price, target_decision_rate=c.rate,
            **reference.networks(c.num_critics),
        )
    )  # fmt: skip


def replayed_all(spec=VECTOR_SPEC, reward_dim=None):
    """Frames whose first one has its previous action too: the policy reads it."""
    time_step = reference.replayed(spec, reward_dim)
    time_step.prev_action[0] = torch.rand(BATCH, NUM_ACTIONS, dtype=torch.float64) * 2 - 1
    time_step.prev_action[IS_FIRST] = 0.0
    return time_step


# --- The reference ----------------------------------------------------------------------------------------------------


def linear(w, name, x):
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def selection_probability(w, obs, before):
    """beta_i(act | s, a-) of every dimension, in the middle of an episode."""
    x = torch.cat([obs, linear(w, "selection_embedding.parts.0", before)])
    return 1 / (1 + torch.exp(-linear(w, "selection.head", torch.relu(linear(w, "selection.hidden.0", x)))))


def propose(w, obs, before, acts):
    """Mean and standard deviation of pi(a_hat | s, repeated values, b)."""
    repeated = torch.tensor([0.0 if b else x for b, x in zip(acts, before.tolist())]).to(obs)
    x = torch.cat([
        obs, linear(w, "actor_embedding.parts.0", repeated),
        linear(w, "actor_embedding.parts.1", torch.tensor(acts).to(obs)),
    ])  # fmt: skip
    for layer in reference.hidden(w, "actor"):
        x = torch.relu(linear(w, layer, x))
    out = linear(w, "actor.head", x)
    return out[:NUM_ACTIONS], out[NUM_ACTIONS:].clamp(reference.LOG_STD_MIN, reference.LOG_STD_MAX).exp()


def binary_entropy(p):
    return -(p * p.log() + (1 - p) * (1 - p).log())


def sdar_reference(w, config, time_step, noise, uniform):
    """One frame at a time: the loss `[T][B]`, whose gradient is the closed form of the docstring.

    With b drawn, a_i = b_i a_hat_i + (1 - b_i) a-_i and J = Q(s, a) - alpha sum_i b_i log pi_i + alpha_b H(beta):
    dJ/dphi = sum_i dQ/da_i b_i da_hat_i/dphi - alpha sum_i b_i dlog pi_i/dphi for what proposes actions, and straight
    through, dJ/dp_i = dQ/da_i (a_hat_i - a-_i) - alpha log pi_i + alpha_b dH/dp_i - c / A for what selects.
    """
    c = SimpleNamespace(**config)
    alpha, scale = reference.temperature(w, "temperature.value", c.tuning)
    alpha_b, scale_b = reference.temperature(w, "beta_temperature.value", c.tuning)
    each = math.log(2 * c.min_prob)  # the target entropies, of a dimension
    p = c.beta_min_prob
    each_b = -p * math.log(p) - (1 - p) * math.log(1 - p)
    gamma = reference.gammas(c)
    cost, share, scale_c = reference.price(w, config)
    loss = [[0.0] * BATCH for _ in range(STEPS)]
    value = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", time_step.observation, t, b).detach()
            before = time_step.prev_action[t, b]
            if IS_FIRST[t, b]:
                probability = torch.ones(NUM_ACTIONS, dtype=torch.float64)
                # 1.5e-5 nats a dimension, not 0: the package keeps probabilities 1e-6 away from 0 and 1 here
                entropy = binary_entropy(torch.full((NUM_ACTIONS,), 1e-6, dtype=torch.float64)).sum()
            else:
                probability = selection_probability(w, obs, before)
                entropy = binary_entropy(probability).sum()
            acts = [float(u < p) for u, p in zip(uniform[t, b].tolist(), probability.tolist())]
            mean, std = propose(w, obs, before, acts)
            a_hat = torch.tanh(mean + std * noise[t, b])
            density = torch.exp(-0.5 * noise[t, b] ** 2) / (std * math.sqrt(2 * math.pi)) / (1 - a_hat**2)
            log_pi_each = density.log()
            a = torch.stack([x if acts[i] else before[i] for i, x in enumerate(a_hat)]).detach()
            log_pi = sum((x for i, x in enumerate(log_pi_each) if acts[i]), torch.zeros(()).double())

            def q(action, obs=obs):
                value = reference.worst(reference.critics(w, "critics", obs, action), c.reward_weights)
                return reference.total(value, c.reward_weights)

            dq_da = reference.numeric_gradient(q, a, c.dqda_clipping)
            frame_loss = 0.5 * (dq_da**2).sum() + alpha * log_pi - alpha_b * entropy + cost * probability.mean().item()
            for i in range(NUM_ACTIONS):  # terms of value 0 that carry the gradients
                moves = probability[i] - probability[i].detach()
                frame_loss = frame_loss - acts[i] * dq_da[i] * (a_hat[i] - a_hat[i].detach())
                frame_loss = frame_loss - dq_da[i] * (a_hat[i] - before[i]).item() * moves
                frame_loss = frame_loss + (alpha * log_pi_each[i].item() + cost / NUM_ACTIONS) * moves
            if scale is not None:
                frame_loss = frame_loss + scale * (-log_pi.item() - each * sum(acts))
                target_b = 0.0 if IS_FIRST[t, b] else NUM_ACTIONS * each_b
                frame_loss = frame_loss + scale_b * (entropy.item() - target_b)
            if scale_c is not None:
                frame_loss = frame_loss + scale_c * (c.rate - reference.RATE)
            loss[t][b] = frame_loss
            target_obs = reference.encode(w, "target_encoder", time_step.observation, t, b)
            value[t][b] = reference.worst(reference.critics(w, "target_critics", target_obs, a), c.reward_weights).detach()
            value[t][b] = value[t][b] - share * probability.mean().item()
            if c.entropy_in_target:
                value[t][b] = value[t][b] + alpha_b * entropy.item() - alpha * log_pi.item()
    return reference.with_critics(loss, time_step, value, gamma, reference.at_executed(w, time_step, time_step.prev_action))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"num_critics": 3, "entropy_in_target": False, "beta_min_prob": 0.3}, id="no-entropy-in-target"),
        pytest.param({"tuning": "direct", "min_prob": 0.25}, id="direct-temperatures"),
        pytest.param({"tuning": "fixed", "dqda_clipping": 0.05}, id="fixed-temperatures-dqda-clipping"),
        pytest.param(reference.COST, id="vector-reward-vector-gamma"),
        pytest.param({"price": 0.5, **reference.COST}, id="price-vector-reward"),
        pytest.param({"rate": 0.3, "entropy_in_target": False}, id="learnt-price"),
        pytest.param({"spec": reference.IMAGE_SPEC}, id="image"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = SDAR | changes
    algorithm = sdar(config)
    reward_weights = config["reward_weights"]
    time_step = replayed_all(config["spec"], len(reward_weights) if reward_weights else None)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    uniform = torch.rand(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    weights = reference.weights_of(algorithm)
    expected = sdar_reference(weights, config, time_step, noise, uniform)
    drawn = reference.record_draws(monkeypatch, noise.unsqueeze(-1), uniform)
    experience = Experience(time_step, ())
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience)).loss
    assert drawn == {"noise": 1, "uniform": 1}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is reference.IMAGE_SPEC else {"rtol": 1e-5, "atol": 1e-7}
    reference.check_update(algorithm, loss, weights, expected, **tolerance)


@pytest.mark.parametrize("reward_weights", [(1.0, -0.5, 2.0), (-1.0, 1e-3, 0.5)], ids=str)
def test_the_entropy_bonus_of_a_vector_reward_adds_up(reward_weights):
    algorithm = sdar(SDAR | reference.COST, reward_weights=reward_weights)
    values = {}
    time_step = replayed_all(reward_dim=3)
    for algorithm.entropy_in_target in (False, True):
        torch.manual_seed(3)
        info = algorithm.train_step(Experience(time_step, ()))
        values[algorithm.entropy_in_target] = info.value @ torch.tensor(reward_weights, dtype=torch.float64)
    bonus = algorithm.beta_temperature.value.exp() * info.own[1] - algorithm.temperature.value.exp() * info.log_pi
    torch.testing.assert_close((values[True] - values[False])[1:], bonus[1:].detach())


def test_a_return_pays_for_the_dimensions_that_acted_and_a_value_for_those_that_will():
    """An N-step return passes a frame whose action was executed: there the fraction that changed counts, all at FIRST."""
    algorithm = sdar(SDAR, price=0.25, entropy_in_target=False)
    time_step = replayed_all()
    before = time_step.prev_action
    before[2:, :, 0] = before[1:2, :, 0]  # which dimension 0 repeats but at FIRST, whose previous action is 0
    before[IS_FIRST] = 0.0
    changed = torch.cat([(before[1:] != before[:-1]) | IS_FIRST[:-1].unsqueeze(-1), torch.ones_like(before[:1]).bool()])
    torch.manual_seed(3)
    info = algorithm.train_step(Experience(time_step, ()))
    algorithm.decision_price = None
    torch.manual_seed(3)
    free = algorithm.train_step(Experience(time_step, ()))
    torch.testing.assert_close(info.bonus[1:-1], -0.25 * changed.double().mean(-1)[1:-1])
    paid = (free.value - info.value)[1:]
    torch.testing.assert_close(paid[IS_FIRST[1:]], torch.full_like(paid[IS_FIRST[1:]], 0.25))
    assert ((paid > 0) & (paid < 0.2501)).all() and len(paid.unique()) > 3


def test_at_first_the_selection_learns_nothing():
    """There is nothing to select: no gradient, no entropy, and no pull of its temperature."""
    algorithm = sdar(SDAR, entropy_in_target=False)
    time_step = replayed_all()
    time_step = type(time_step)(*[x[:2] for x in time_step])._replace(
        step_type=torch.full((2, BATCH), int(F), dtype=torch.uint8), reward=torch.zeros(2, BATCH).double()
    )
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    assert (info.own[0] == 1).all() and info.own[1].abs().max() < 1e-4
    algorithm.calc_loss(experience, info).loss.mean().backward()
    for name, parameter in algorithm.named_parameters():
        if name.startswith("selection"):
            assert parameter.grad is None or not parameter.grad.any(), name
    assert algorithm.beta_temperature.value.grad.abs().item() < 1e-4
    # The action's temperature: all dimensions act, so the whole target counts.
    expected = (-info.log_pi - NUM_ACTIONS * math.log(0.2)).mean()
    assert algorithm.temperature.value.grad.item() == pytest.approx(expected.item())


def set_logits(algorithm, *logits):
    """The same selection everywhere in the middle of an episode."""
    with torch.no_grad():
        algorithm.selection.head.weight.zero_()
        algorithm.selection.head.bias.copy_(torch.tensor(logits))
    return algorithm


@pytest.mark.parametrize("threshold, acts", [(0.5, [True, True]), (0.7, [True, False]), (0.95, [False, False])])
def test_a_dimension_acts_greedily_where_beta_is_above_the_threshold(threshold, acts):
    algorithm = set_logits(sdar(SDAR), math.log(9.0), math.log(1.5))  # beta of 0.9 and 0.6
    algorithm.set_switch_threshold(threshold)
    frame = reference.frame(1)._replace(prev_action=torch.zeros(1, NUM_ACTIONS, dtype=torch.float64))
    assert algorithm.predict_step(frame, ()).decided.tolist() == [acts]


@pytest.mark.parametrize("logit, acts", [(40.0, True), (-40.0, False)])
def test_the_target_entropy_counts_for_the_dimensions_that_act(logit, acts):
    """Dimension 0 always acts, dimension 1 always or never: log pi and its target are those of one or two dimensions."""
    algorithm = set_logits(sdar(SDAR), 40.0, logit)
    time_step = replayed_all()._replace(step_type=torch.full((STEPS, BATCH), int(M), dtype=torch.uint8))
    zeros = torch.zeros(STEPS, BATCH).double()
    time_step = time_step._replace(reward=zeros, discount=zeros + 1)
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    assert (info.own[0] == (1.0 if acts else 0.5)).all()
    algorithm.calc_loss(experience, info).loss.mean().backward()
    dimensions = 2 if acts else 1
    expected = (-info.log_pi).mean().item() - dimensions * math.log(0.2)
    assert algorithm.temperature.value.grad.item() == pytest.approx(expected)
    # A selection that is certain has no entropy, 2 h(0.05) below its target; saturated logits give no NaN.
    assert algorithm.beta_temperature.value.grad.item() == pytest.approx(-2 * 0.198515, abs=1e-4)
    for parameter in algorithm.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_where_every_dimension_repeats_there_is_no_action_to_pay_for():
    algorithm = set_logits(sdar(SDAR), -40.0, -40.0)
    time_step = replayed_all()._replace(step_type=torch.full((STEPS, BATCH), int(M), dtype=torch.uint8))
    info = algorithm.train_step(Experience(time_step, ()))
    assert not info.log_pi.any() and not info.own[0].any()
    # V is the target critics' of going on with the action before
    q = algorithm.target_critics(time_step.observation.double(), time_step.prev_action).amin(0)
    bonus = algorithm.beta_temperature.value.exp() * info.own[1]
    torch.testing.assert_close(info.value[1:], (q + bonus)[1:].detach())


def test_what_an_update_reports():
    algorithm = sdar(SDAR)
    experience = Experience(replayed_all()._replace(reward=torch.zeros(STEPS, BATCH).double()), ())
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert all(x.dim() == 0 and not x.requires_grad for x in extra.values())
    assert extra["beta/alpha"].item() == pytest.approx(math.exp(algorithm.beta_temperature.value.item()))
    acted = ~IS_LAST
    selected = acted & ~IS_FIRST  # at FIRST every dimension acts, and nothing is selected
    assert info.own[0][IS_FIRST].eq(1).all()
    assert extra["beta/switch_probability"].item() == pytest.approx(info.own[0][selected].mean().item())
    assert extra["beta/entropy"].item() == pytest.approx(info.own[1][selected].mean().item())
    assert extra["policy/entropy"].item() == pytest.approx(-info.log_pi[acted].mean().item())


# --- Acting -----------------------------------------------------------------------------------------------------------


def to_act(*logits, log_std=None):
    algorithm = SdarAlgorithm(
        VECTOR_SPEC, reference.ACTION_SPEC, selection_hidden_layers=(8,),
        actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)),
    )  # fmt: skip
    torch.nn.init.normal_(algorithm.actor.hidden[0].bias, 0.0, 0.5)
    if log_std is not None:
        algorithm.actor.head.weight.data[NUM_ACTIONS:] = 0.0
        algorithm.actor.head.bias.data[NUM_ACTIONS:] = log_std
    return set_logits(algorithm, *logits) if logits else algorithm


def in_the_middle(count):
    return reference.frame(count)._replace(prev_action=torch.rand(count, NUM_ACTIONS) * 2 - 1)


@pytest.mark.parametrize("how", ["rollout", "epsilon 1"])
def test_dimensions_repeat_by_themselves(how):
    count, logits = 20_000, (0.5, -1.0)
    algorithm, time_step = to_act(*logits), in_the_middle(count)
    step = algorithm.rollout_step(time_step, ()) if how == "rollout" else algorithm.predict_step(time_step, (), 1.0)
    assert step.state == () and step.info == () and step.decided.dtype == torch.bool
    acts = step.decided.double()
    for i, logit in enumerate(logits):
        p = 1 / (1 + math.exp(-logit))
        assert acts[:, i].mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count))
    assert abs(torch.corrcoef(acts.T)[0, 1]) < 4 / math.sqrt(count)
    # A repeated value is exactly the one before; a value that acts is new.
    assert torch.equal(step.output[~step.decided], time_step.prev_action[~step.decided])
    assert (step.output[step.decided] != time_step.prev_action[step.decided]).all()


@pytest.mark.parametrize("how", ["rollout", "predict"])
def test_what_acts_sees_what_repeats(how):
    """With hardly any noise, the new values are tanh of the mean at (s, repeated values, b), from the raw weights."""
    algorithm = to_act(*((0.3, -0.3) if how == "rollout" else ()), log_std=-18.0)
    time_step = in_the_middle(60)
    if how == "predict":  # selections that differ from state to state
        torch.nn.init.normal_(algorithm.selection.head.weight, 0.0, 1.0)
    step = getattr(algorithm, f"{how}_step")(time_step, ())
    assert 0 < step.decided.sum() < step.decided.numel()
    w = reference.weights_of(algorithm)
    for row in range(60):
        obs, before = time_step.observation[row].double(), time_step.prev_action[row].double()
        acts = step.decided[row].tolist()
        if how == "predict":
            assert acts == (selection_probability(w, obs, before) > 0.5).tolist()
        mean, _ = propose(w, obs, before, [float(b) for b in acts])
        for i in range(NUM_ACTIONS):
            expected = torch.tanh(mean[i]) if acts[i] else before[i]
            assert step.output[row, i].item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_selection_of_a_rollout_follows_state_and_action_before():
    """Its frequency at one frame is sigmoid(logit), from the raw weights."""
    algorithm, count = to_act(), 8000
    torch.nn.init.normal_(algorithm.selection.head.weight, 0.0, 1.0)
    w = reference.weights_of(algorithm)
    for _ in range(3):
        one = in_the_middle(1)
        time_step = type(one)(*[x.expand(count, *x.shape[1:]) for x in one])
        p = selection_probability(w, one.observation[0].double(), one.prev_action[0].double()).detach()
        share = algorithm.rollout_step(time_step, ()).decided.double().mean(0)
        assert torch.all((share - p).abs() < 4 * (p * (1 - p) / count).sqrt())


def test_greedy_selection_is_the_mode_and_a_tie_repeats():
    for logits, expected in (((0.1, -0.1), [True, False]), ((0.0, 2.0), [False, True]), ((0.0, 0.0), [False, False])):
        algorithm, time_step = to_act(*logits), in_the_middle(6)
        outputs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            step = algorithm.predict_step(time_step, ())
            assert (step.decided == torch.tensor(expected)).all()
            outputs.append(step.output)
        assert torch.equal(*outputs)


def test_epsilon_is_the_probability_of_sampling_a_dimensions_selection():
    """Acting with probability 1/4, never the mode: with epsilon 0.4, a tenth acts."""
    count = 20_000
    algorithm, time_step = to_act(-math.log(3), -math.log(3)), in_the_middle(count)
    acts = algorithm.predict_step(time_step, (), 0.4).decided.double()
    for i in range(NUM_ACTIONS):
        assert acts[:, i].mean().item() == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / count))
    assert abs(torch.corrcoef(acts.T)[0, 1]) < 4 / math.sqrt(count)


def test_epsilon_is_the_probability_of_sampling_an_action():
    """Every dimension acts; a row's action is its mode's, or a sample."""
    count = 20_000
    algorithm, time_step = to_act(40.0, 40.0), in_the_middle(count)
    mode = algorithm.predict_step(time_step, ()).output
    sampled = (algorithm.predict_step(time_step, (), 0.3).output != mode).any(-1)
    assert sampled.double().mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))


@pytest.mark.parametrize("how", ["rollout", "predict", "predict, epsilon 1", "random"])
def test_at_first_every_dimension_acts(how):
    algorithm = to_act(-40.0, -40.0)
    time_step = in_the_middle(20)._replace(step_type=torch.tensor([F, M] * 10, dtype=torch.uint8))
    step = {
        "rollout": lambda: algorithm.rollout_step(time_step, ()),
        "predict": lambda: algorithm.predict_step(time_step, ()),
        "predict, epsilon 1": lambda: algorithm.predict_step(time_step, (), 1.0),
        "random": lambda: algorithm.random_step(time_step, ()),
    }[how]()
    assert step.decided[::2].all() and (step.output[::2] != time_step.prev_action[::2]).all()
    if how != "random":
        assert not step.decided[1::2].any() and torch.equal(step.output[1::2], time_step.prev_action[1::2])


def test_random_step_is_a_fair_coin_a_dimension_and_uniform():
    count = 20_000
    algorithm, time_step = to_act(), in_the_middle(count)
    step = algorithm.random_step(time_step, ())
    acts = step.decided.double()
    assert torch.all((acts.mean(0) - 0.5).abs() < 2 / math.sqrt(count))
    assert abs(torch.corrcoef(acts.T)[0, 1]) < 4 / math.sqrt(count)
    assert torch.equal(step.output[~step.decided], time_step.prev_action[~step.decided])
    reference.check_uniform(algorithm.random_step(reference.frame(count, F), ()).output, count)
    assert step.info == () and step.state == () and algorithm.initial_state(3) == ()


# --- Groups, targets, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning, temperatures", [("log", 2), ("direct", 2), ("fixed", 0)])
def test_groups_hold_every_trainable_parameter_once(tuning, temperatures):
    found = reference.check_groups(sdar(SDAR, tuning=tuning, spec=reference.IMAGE_SPEC), POLICY)
    assert len(found["temperature"]) == temperatures


def test_target_entropies():
    """h(0.05) = 0.198515 nats a dimension (docs/equations.md#entropies-and-temperatures), log(2 * 0.1) a dimension that acts."""
    algorithm = SdarAlgorithm(VECTOR_SPEC, reference.ACTION_SPEC, beta_min_prob=0.05, action_min_prob=0.1)
    assert algorithm.beta_temperature.target_entropy == pytest.approx(2 * 0.198515, abs=1e-5)
    assert algorithm.temperature.target_entropy == pytest.approx(2 * math.log(0.2))
    lines = algorithm.describe()
    assert len(lines) == 2 and "beta: target entropy 0.3970 nats = 2 x" in lines[1]
    even = SdarAlgorithm(VECTOR_SPEC, reference.ACTION_SPEC, beta_min_prob=0.5)
    assert even.beta_temperature.target_entropy == pytest.approx(2 * math.log(2))
    for min_prob in (0.0, 0.51):
        with pytest.raises(TaacError, match="min_prob"):
            SdarAlgorithm(VECTOR_SPEC, reference.ACTION_SPEC, beta_min_prob=min_prob)


def test_the_actor_is_asked_where_any_dimension_acts():
    algorithm = SdarAlgorithm(VECTOR_SPEC, reference.ACTION_SPEC)
    decided = torch.tensor([[True, False], [False, False], [True, True]])
    needed = algorithm.needed_modules(AlgStep((), (), (), decided))
    assert set(needed) == {"actor_embedding", "actor"}
    assert all(asked.tolist() == [True, False, True] for asked in needed.values())
