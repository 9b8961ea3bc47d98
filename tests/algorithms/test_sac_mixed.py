"""Mixed SAC: one update against a slow reference, continuous SAC as the case of one choice, acting, refusals."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from taac.algorithms import MixedSacAlgorithm, OneStepTDLoss, SacAlgorithm, TDLoss, Temperature
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble
from taac.specs import bounded
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, COST, IMAGE_SPEC, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC

CHOICES = 3
# The discrete part is neither first nor last, and one continuous part is no vector.
SPEC = {
    "arm": bounded((1,), -1.0, 1.0),
    "gear": bounded((), 0, CHOICES - 1, torch.int64),
    "leg": bounded((1, 1), -1, 1),
}
MIXED = {
    "num_critics": 2, "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875, "ignore_done": False,
    "entropy_in_target": True, "dqda_clipping": None, "tuning": "log", "min_prob": 0.1, "choice_min_prob": 0.2,
    "price": 0.0, "rate": None,
}  # fmt: skip


def mixed(config, **changes):
    c = SimpleNamespace(**(config | changes))
    return reference.scrambled(
        MixedSacAlgorithm(
            c.spec, SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, td_loss=OneStepTDLoss(c.gamma, c.ignore_done),
            action_min_prob=c.min_prob, choice_min_prob=c.choice_min_prob, entropy_in_target=c.entropy_in_target,
            temperature_ctor=functools.partial(Temperature, initial_value=0.7, tuning=c.tuning),
            dqda_clipping=c.dqda_clipping, decision_price=c.price, target_decision_rate=c.rate,
            **reference.networks(c.num_critics),
        )
    )  # fmt: skip


def nested(choice, vector):
    return {"arm": vector[..., :1], "gear": choice, "leg": vector[..., 1:].unsqueeze(-1)}


def replayed_mixed(spec=VECTOR_SPEC, reward_dim=None):
    """Frames whose previous actions are nested, and the choices and vectors in them; what is never read is out of range."""
    time_step = reference.replayed(spec, reward_dim)
    choice = torch.randint(CHOICES, (STEPS, BATCH))
    choice[0] = 99
    return time_step._replace(prev_action=nested(choice, time_step.prev_action)), choice, time_step.prev_action


# --- The reference ----------------------------------------------------------------------------------------------------


def heads(w, name, *inputs):
    """Of each critic the values of each choice: a list of C lists of `[D]`."""
    return list(zip(*[v.reshape(CHOICES, -1).unbind(0) for v in reference.critics(w, name, *inputs)]))


def softmax(q, alpha):
    weights = [math.exp((x - max(q)) / alpha) for x in q]
    return [x / sum(weights) for x in weights]


def entropy_of(p):
    return -sum(x * math.log(x) for x in p)


def mixed_reference(w, config, time_step, choice, vector, noise):
    """One frame at a time: the loss `[T][B]`. Equations: docstrings of `sac_mixed`, docs/equations.md#the-sac-family."""
    c = SimpleNamespace(**config)
    alpha, scale = reference.temperature(w, "temperature.value", c.tuning)
    alpha_d, scale_d = reference.temperature(w, "choice_temperature.value", c.tuning)
    target_entropy = NUM_ACTIONS * math.log(2 * c.min_prob)
    p = c.choice_min_prob  # of the choices that are not the likeliest, together
    target_entropy_d = entropy_of([1 - p] + [p / (CHOICES - 1)] * (CHOICES - 1))
    gamma = reference.gammas(c)
    _, share, scale_c = reference.price(w, config)
    loss = [[0.0] * BATCH for _ in range(STEPS)]
    value = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", time_step.observation, t, b).detach()
            a, log_pi = reference.act(w, obs, noise[t, b])

            def q(action, obs=obs):
                values = [reference.worst(v, c.reward_weights) for v in heads(w, "critics", obs, action)]
                return [reference.total(v, c.reward_weights) for v in values]

            probs = softmax([x.item() for x in q(a)], alpha_d)
            dq_da = reference.numeric_gradient(lambda x: sum(p * v for p, v in zip(probs, q(x))), a, c.dqda_clipping)  # noqa: B023
            loss[t][b] = 0.5 * ((a - (a + dq_da).detach()) ** 2).sum() + alpha * log_pi
            if scale is not None:
                loss[t][b] = loss[t][b] + scale * (-log_pi.item() - target_entropy)
                loss[t][b] = loss[t][b] + scale_d * (entropy_of(probs) - target_entropy_d)
            if scale_c is not None:
                loss[t][b] = loss[t][b] + scale_c * (c.rate - reference.RATE)
            target_obs = reference.encode(w, "target_encoder", time_step.observation, t, b)
            of_choices = [reference.worst(v, c.reward_weights).detach() for v in heads(w, "target_critics", target_obs, a)]
            value[t][b] = sum(p * v for p, v in zip(probs, of_choices)) - share
            if c.entropy_in_target:
                value[t][b] = value[t][b] + alpha_d * entropy_of(probs) - alpha * log_pi.item()

    def predicted(t, b):
        obs = reference.encode(w, "encoder", time_step.observation, t, b)
        return heads(w, "critics", obs, vector[t + 1, b])[choice[t + 1, b]]

    return reference.with_critics(loss, time_step, value, gamma, predicted, c.ignore_done)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"num_critics": 3, "entropy_in_target": False}, id="three-critics-no-entropy-in-target"),
        pytest.param({"tuning": "direct", "num_critics": 1, "choice_min_prob": 0.5}, id="direct-temperatures"),
        pytest.param({"tuning": "fixed", "dqda_clipping": 0.05}, id="fixed-temperatures-dqda-clipping"),
        pytest.param(COST, id="vector-reward-vector-gamma"),
        pytest.param({"price": 0.5, **COST}, id="price-vector-reward"),
        pytest.param({"rate": 0.4, "entropy_in_target": False}, id="learnt-price"),
        pytest.param({"spec": IMAGE_SPEC}, id="image"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = MIXED | changes
    algorithm = mixed(config)
    reward_weights = config["reward_weights"]
    time_step, choice, vector = replayed_mixed(config["spec"], len(reward_weights) if reward_weights else None)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    weights = reference.weights_of(algorithm)
    expected = mixed_reference(weights, config, time_step, choice, vector, noise)
    drawn = reference.record_draws(monkeypatch, noise)
    experience = Experience(time_step, ())
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience)).loss
    assert drawn == {"noise": 1, "uniform": 0}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {"rtol": 1e-5, "atol": 1e-7}
    reference.check_update(algorithm, loss, weights, expected, **tolerance)


@pytest.mark.parametrize("reward_weights", [(1.0, -0.5, 2.0), (-1.0, 1e-3, 0.5)], ids=str)
def test_the_entropy_bonus_of_a_vector_reward_adds_up(reward_weights):
    """What the policy maximises gets alpha_d H(p) - alpha log pi, whatever part of the reward it is booked under."""
    algorithm = mixed(MIXED | COST, reward_weights=reward_weights)
    time_step, *_ = replayed_mixed(reward_dim=3)
    values = {}
    for algorithm.entropy_in_target in (False, True):
        torch.manual_seed(3)
        info = algorithm.train_step(Experience(time_step, ()))
        values[algorithm.entropy_in_target] = info.value @ torch.tensor(reward_weights, dtype=torch.float64)
    p = info.own
    bonus = algorithm.choice_temperature.value.exp() * -(p * p.log()).sum(-1)
    bonus = bonus - algorithm.temperature.value.exp() * info.log_pi
    torch.testing.assert_close((values[True] - values[False])[1:], bonus[1:].detach())


def test_with_one_choice_it_is_continuous_sac():
    one = {"choice": bounded((), 0, 0, torch.int64), "rest": ACTION_SPEC}
    options = {"td_loss": OneStepTDLoss(0.875), "reward_dim": 2, "reward_weights": (1.0, -2.0), **reference.networks()}
    torch.manual_seed(5)
    tested = reference.scrambled(MixedSacAlgorithm(VECTOR_SPEC, one, **options))
    torch.manual_seed(5)
    plain = reference.scrambled(SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, **options))
    parameters = dict(tested.named_parameters())
    for name, parameter in plain.named_parameters():  # one choice more or less, the critics' last layer has one shape
        parameters[name].data.copy_(parameter.data)
    time_step = reference.replayed(VECTOR_SPEC, 2)
    nested_step = time_step._replace(
        prev_action={"choice": torch.zeros(STEPS, BATCH, dtype=torch.int64), "rest": time_step.prev_action}
    )
    losses = []
    for algorithm, frames in ((plain, time_step), (tested, nested_step)):
        torch.manual_seed(6)
        experience = Experience(frames, ())
        losses.append(algorithm.calc_loss(experience, algorithm.train_step(experience)).loss)
        losses[-1].mean().backward()
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
    for name, parameter in plain.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameters[name].grad, parameter.grad, rtol=1e-10, atol=1e-12)
    assert parameters["choice_temperature.value"].grad == 0  # there is nothing to tune
    to_act = reference.frame(50)._replace(observation=torch.randn(50, 3))
    for step in ("rollout_step", "predict_step"):
        outputs = []
        for algorithm in (plain, tested):
            torch.manual_seed(7)
            outputs.append(getattr(algorithm, step)(to_act, ()).output)
        torch.testing.assert_close(outputs[1]["rest"], outputs[0])
        assert not outputs[1]["choice"].any()


def test_what_an_update_reports():
    algorithm = mixed(MIXED)
    time_step = replayed_mixed()[0]
    experience = Experience(time_step._replace(reward=torch.zeros(STEPS, BATCH).double()), ())
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert all(x.dim() == 0 and not x.requires_grad for x in extra.values())
    assert extra["choice/alpha"].item() == pytest.approx(math.exp(algorithm.choice_temperature.value.item()))
    entropies = [entropy_of(p) for p in info.own[~IS_LAST].tolist()]
    assert extra["choice/entropy"].item() == pytest.approx(sum(entropies) / len(entropies))
    assert {"choice/entropy", "choice/alpha"} == set(algorithm.summary_tags())


# --- Acting -----------------------------------------------------------------------------------------------------------


def to_act(**critic):
    """A float32 algorithm with an actor of spread, and critics whose choices differ with the action."""
    algorithm = MixedSacAlgorithm(
        VECTOR_SPEC, SPEC,
        actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)),
        critic_ctor=functools.partial(CriticEnsemble, hidden_layers=(16,), last_init_range=1.5),
        temperature_ctor=functools.partial(Temperature, initial_value=0.5), **critic,
    )  # fmt: skip
    algorithm.choice_temperature.value.data.fill_(math.log(0.8))
    return algorithm


def join_vector(output):
    return torch.cat([output["arm"], output["leg"].squeeze(-1)], -1)


def choice_probabilities(algorithm, observation, output):
    """softmax(min_i Q_i / alpha) at the actions that were executed, from the raw weights."""
    w = reference.weights_of(algorithm)
    x = torch.cat([observation, join_vector(output)], -1).double()
    q = [
        torch.relu(x @ w["critics.hidden.0.weight"][i] + w["critics.hidden.0.bias"][i]) @ w["critics.last.weight"][i]
        + w["critics.last.bias"][i]
        for i in range(2)
    ]
    q = torch.minimum(*q).detach()
    weights = torch.exp(q / 0.8)
    return weights / weights.sum(-1, keepdim=True), q


def check_structure(output, batch):
    assert list(output) == list(SPEC)
    for name, spec in SPEC.items():
        assert output[name].shape == (batch, *spec.shape) and output[name].dtype == spec.dtype


@pytest.mark.parametrize("how", ["rollout", "epsilon 1"])
def test_the_choice_is_drawn_from_the_values_given_the_sampled_action(how):
    algorithm, count = to_act(), 20_000
    time_step = reference.frame(count)._replace(observation=torch.randn(1, 3).expand(count, 3))
    step = algorithm.rollout_step(time_step, ()) if how == "rollout" else algorithm.predict_step(time_step, (), 1.0)
    check_structure(step.output, count)
    assert step.decided.all() and step.state == () and step.info == ()
    p, _ = choice_probabilities(algorithm, time_step.observation, step.output)
    assert p.std(0).min() > 0.02, "the action matters"
    chosen = torch.nn.functional.one_hot(step.output["gear"], CHOICES).double()
    actions = join_vector(step.output).double()
    # Of any function of the action, the choice's residual has mean 0 and variance p (1 - p) f^2.
    for f in (torch.ones(count).double(), actions[:, 0], actions[:, 1], p[:, 0], (p[:, 2] > p[:, 2].median()).double()):
        residual = ((chosen - p) * f[:, None]).sum(0)
        assert torch.all(residual.abs() < 4 * (p * (1 - p) * f[:, None] ** 2).sum(0).sqrt())
    # and the continuous action is the actor's own: the mode has half of the samples on each side
    mode = join_vector(algorithm.predict_step(time_step, ()).output)
    assert torch.all(((actions > mode).double().mean(0) - 0.5).abs() < 2 / math.sqrt(count))


def test_greedy_is_the_mode_and_the_best_choice_given_it():
    algorithm = to_act()
    time_step = reference.frame(200)
    torch.manual_seed(1)
    output = algorithm.predict_step(time_step, ()).output
    torch.manual_seed(2)
    again = algorithm.predict_step(time_step, ()).output
    for name in SPEC:
        assert torch.equal(output[name], again[name])
    mean, _ = algorithm.actor(time_step.observation)
    torch.testing.assert_close(join_vector(output), torch.tanh(mean))
    _, q = choice_probabilities(algorithm, time_step.observation, output)
    assert torch.equal(output["gear"], q.argmax(-1)) and len(output["gear"].unique()) > 1


def test_a_tie_takes_the_first_of_the_best():
    """With durations for choices: the shortest."""
    algorithm = to_act()
    with torch.no_grad():
        algorithm.critics.last.weight.zero_()
        for values, best in (([0.0, 0.0, 0.0], 0), ([0.0, 2.0, 2.0], 1), ([-1.0, -2.0, 3.0], 2)):
            algorithm.critics.last.bias.copy_(torch.tensor(values))
            assert (algorithm.predict_step(reference.frame(5), ()).output["gear"] == best).all()


def test_the_choice_is_by_the_least_favourable_critic_and_the_weighted_sum():
    """Weights (1, -1): the first part's minimum over critics and the second's maximum.

    Choice 0: min(3, 1) - max(0, 1) = 0; choice 1: min(1, 2) - max(-1, 0) = 1; choice 2: min(9, 0) - max(0, 0) = 0. The mean
    over critics would give 1.5, 2 and 4.5, the minimum of both parts 1, 2 and 0, critics' own sums 3 and 0, 2 and 2, 9 and 0.
    """
    algorithm = to_act(reward_dim=2, reward_weights=(1.0, -1.0))
    with torch.no_grad():
        algorithm.critics.last.weight.zero_()
        values = torch.tensor([[[3.0, 0], [1, -1], [9, 0]], [[1, 1], [2, 0], [0, 0]]])
        algorithm.critics.last.bias.copy_(values.movedim(-1, 1).reshape(4, 1, 3))  # critic, part, choice
        algorithm.choice_temperature.value.fill_(math.log(0.5))
    assert (algorithm.predict_step(reference.frame(5), ()).output["gear"] == 1).all()
    chosen = algorithm.rollout_step(reference.frame(20_000), ()).output["gear"]
    weights = [1.0, math.exp(1 / 0.5), 1.0]
    for d in range(CHOICES):
        p = weights[d] / sum(weights)
        assert (chosen == d).double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20_000))


def test_epsilon_is_the_probability_of_sampling_each_stage():
    algorithm, count = to_act(), 20_000
    with torch.no_grad():  # a fair choice of three, whose mode is the first
        algorithm.critics.last.weight.zero_()
    time_step = reference.frame(count)
    mode = join_vector(algorithm.predict_step(time_step, ()).output)
    output = algorithm.predict_step(time_step, (), 0.3).output
    action = (join_vector(output) != mode).any(-1).double()
    choice = (output["gear"] != 0).double()
    assert action.mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))
    assert choice.mean().item() == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / count))  # 0.3 * 2/3
    assert abs(torch.corrcoef(torch.stack([action, choice]))[0, 1]) < 4 / math.sqrt(count)


def test_random_step_is_uniform_in_both_parts():
    count = 20_000
    step = to_act().random_step(reference.frame(count), ())
    check_structure(step.output, count)
    reference.check_uniform(join_vector(step.output), count)
    for d in range(CHOICES):
        share = (step.output["gear"] == d).double().mean().item()
        assert share == pytest.approx(1 / 3, abs=4 * math.sqrt(2 / 9 / count))
    assert step.decided.all()


# --- Groups, targets, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning, temperatures", [("log", 2), ("direct", 2), ("fixed", 0)])
def test_groups_hold_every_trainable_parameter_once(tuning, temperatures):
    found = reference.check_groups(mixed(MIXED, tuning=tuning, spec=IMAGE_SPEC), ("actor.",))
    assert len(found["temperature"]) == temperatures


@pytest.mark.parametrize("num_choices, min_prob", [(3, 0.2), (5, 0.05)])
def test_target_entropy_of_the_choice(num_choices, min_prob):
    """That of a choice whose likeliest has 1 - p, and whose others share p."""
    spec = (bounded((), 0, num_choices - 1, torch.int64), ACTION_SPEC)
    algorithm = MixedSacAlgorithm(VECTOR_SPEC, spec, choice_min_prob=min_prob, action_min_prob=0.1)
    expected = entropy_of([1 - min_prob] + [min_prob / (num_choices - 1)] * (num_choices - 1))
    assert algorithm.choice_temperature.target_entropy == pytest.approx(expected)
    assert algorithm.temperature.target_entropy == pytest.approx(2 * math.log(0.2))
    lines = algorithm.describe()
    assert len(lines) == 2
    assert f"choice: target entropy {expected:.4f} nats" in lines[1] and f"C = {num_choices}" in lines[1]


def test_other_actions_and_a_mask_of_valid_choices_are_refused():
    """It would not be respected, and the networks would see it."""
    with pytest.raises(TaacError, match="MixedSacAlgorithm needs one discrete action and at least one continuous"):
        MixedSacAlgorithm(VECTOR_SPEC, ACTION_SPEC)
    spec = {"x": VECTOR_SPEC, "action_mask": bounded((CHOICES,), 0, 1, torch.bool)}
    with pytest.raises(TaacError, match=r"MixedSacAlgorithm does not support masks, .* 'action_mask'"):
        MixedSacAlgorithm(spec, SPEC)


def test_a_return_pays_for_the_decisions_that_it_passes():
    options = {"td_loss": TDLoss(0.9), "entropy_in_target": False, **reference.networks()}
    free, priced = (
        reference.scrambled(MixedSacAlgorithm(VECTOR_SPEC, SPEC, decision_price=price, **options)) for price in (0.0, 0.3)
    )
    priced.load_state_dict(free.state_dict(), strict=False)
    experience, found = Experience(replayed_mixed()[0], ()), []
    for algorithm in (free, priced):
        torch.manual_seed(0)
        info = algorithm.train_step(experience)
        found.append(algorithm.targets(experience, info))
    torch.testing.assert_close(info.bonus[1:], torch.full_like(info.bonus[1:], -0.3), rtol=1e-5, atol=0)
    assert ((found[0] - found[1]) > 0.31).any()
