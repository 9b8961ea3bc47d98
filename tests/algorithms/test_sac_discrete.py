"""Discrete SAC: one update against a slow reference and a table by hand, masks, acting, refusals."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from taac.algorithms import DiscreteSacAlgorithm, OneStepTDLoss, RetraceTDLoss, Temperature
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork, CriticEnsemble
from taac.ops import distributions
from taac.ops.schedules import LinearSchedule
from taac.specs import ACTION_MASK, bounded
from tests.algorithms import reference
from tests.algorithms.reference import BATCH, COST, IMAGE_SPEC, IS_LAST, STEPS, VECTOR_SPEC

CHOICES = 4
SPEC = bounded((), 0, CHOICES - 1, torch.int64)
MASK_SPEC = bounded((CHOICES,), 0, 1, torch.bool)
DISCRETE = {
    "num_critics": 2, "spec": VECTOR_SPEC, "masked": False, "reward_weights": None, "gamma": 0.875, "ignore_done": False,
    "entropy_in_target": True, "tuning": "log", "min_prob": 0.1, "target_entropy": None,
}  # fmt: skip


def networks(num_critics=2):
    return {
        "encoder_ctor": reference.Encoder,
        "actor_ctor": functools.partial(CategoricalActorNetwork, hidden_layers=(5, 4)),
        "critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(6, 5), num_critics=num_critics),
    }


def with_mask(spec):
    return {**(spec if isinstance(spec, dict) else {"observation": spec}), ACTION_MASK: MASK_SPEC}


def discrete(config, action_spec=SPEC, **changes):
    c = SimpleNamespace(**(config | changes))
    torch.manual_seed(4)  # the same weights with a mask and without
    return reference.scrambled(
        DiscreteSacAlgorithm(
            with_mask(c.spec) if c.masked else c.spec, action_spec,
            reward_dim=len(c.reward_weights) if c.reward_weights else None, reward_weights=c.reward_weights,
            td_loss=OneStepTDLoss(c.gamma, c.ignore_done), action_min_prob=c.min_prob, target_entropy=c.target_entropy,
            entropy_in_target=c.entropy_in_target,
            temperature_ctor=functools.partial(Temperature, initial_value=0.7, tuning=c.tuning),
            **networks(c.num_critics),
        )
    )  # fmt: skip


def replayed_discrete(spec=VECTOR_SPEC, reward_dim=None, mask=None):
    """Frames whose actions are valid choices; those before the first action are out of range, and must not be read."""
    time_step = reference.replayed(spec, reward_dim)
    valid = torch.ones(STEPS, BATCH, CHOICES, dtype=torch.bool) if mask is None else mask
    choice = torch.multinomial(valid.reshape(-1, CHOICES).float(), 1).reshape(STEPS, BATCH).roll(1, 0)
    choice[0] = 99
    if mask is not None:
        inside = time_step.observation if isinstance(spec, dict) else {"observation": time_step.observation}
        time_step = time_step._replace(observation={**inside, ACTION_MASK: mask})
    return time_step._replace(prev_action=choice), choice, valid


def losses_of(algorithm, time_step):
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    return algorithm.calc_loss(experience, info), info


def acting(batch, mask=None, observation=None):
    """A frame to act at."""
    observation = torch.randn(batch, 3) if observation is None else observation
    return TimeStep(
        torch.full((batch,), int(StepType.MID), dtype=torch.uint8), torch.zeros(batch), torch.ones(batch),
        observation if mask is None else {"observation": observation, ACTION_MASK: mask},
        torch.zeros(batch, dtype=torch.int64), torch.ones(batch, dtype=torch.int16),
    )  # fmt: skip


# --- One update -------------------------------------------------------------------------------------------------------


def policy(w, x, valid):
    """pi(a|s) of the valid choices of one frame, and their log: lists of scalars, by choice."""
    for layer in reference.hidden(w, "actor"):
        x = torch.relu(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"])
    logits = w["actor.head.weight"] @ x + w["actor.head.bias"]
    weights = {a: torch.exp(logits[a]) for a in range(CHOICES) if valid[a]}
    return {a: weight / sum(weights.values()) for a, weight in weights.items()}


def heads(w, name, *inputs):
    """Of each critic the values of each choice: a list of C lists of `[D]`."""
    return list(zip(*[v.reshape(CHOICES, -1).unbind(0) for v in reference.critics(w, name, *inputs)]))


def discrete_reference(w, config, time_step, observation, choice, valid):
    """One frame at a time: the loss `[T][B]`. Equations of docs/equations.md#the-sac-family, over valid choices alone."""
    c = SimpleNamespace(**config)
    alpha, scale = reference.temperature(w, "temperature.value", c.tuning)
    p = c.min_prob
    greatest = [1 - p] + [p / (CHOICES - 1)] * (CHOICES - 1)
    target_entropy = -sum(x * math.log(x) for x in greatest) if c.target_entropy is None else c.target_entropy
    gamma = reference.gammas(c)
    loss = [[0.0] * BATCH for _ in range(STEPS)]
    value = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", observation, t, b)
            q = [reference.total(reference.worst(v, c.reward_weights), c.reward_weights).item() for v in heads(w, "critics", obs)]
            pi = policy(w, obs.detach(), valid[t, b])
            loss[t][b] = sum(p * (alpha * p.log() - q[a]) for a, p in pi.items())
            entropy = -sum((p * p.log()).item() for p in pi.values())
            if scale is not None:
                reachable = target_entropy * math.log(len(pi)) / math.log(CHOICES)
                loss[t][b] = loss[t][b] + scale * (entropy - reachable)
            of_choices = heads(w, "target_critics", reference.encode(w, "target_encoder", observation, t, b))
            value[t][b] = sum(p * reference.worst(of_choices[a], c.reward_weights) for a, p in pi.items()).detach()
            if c.entropy_in_target:
                value[t][b] = value[t][b] + alpha * entropy

    def predicted(t, b):
        return heads(w, "critics", reference.encode(w, "encoder", observation, t, b))[choice[t + 1, b]]

    return reference.with_critics(loss, time_step, value, gamma, predicted, c.ignore_done)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"masked": True}, id="masked"),
        pytest.param({"masked": True, "tuning": "direct", "num_critics": 3, "target_entropy": 0.9}, id="masked-direct"),
        pytest.param({"num_critics": 1, "entropy_in_target": False, "ignore_done": True}, id="one-critic-ignore-done"),
        pytest.param({"tuning": "fixed", "min_prob": 0.75}, id="fixed-temperature"),
        pytest.param(COST | {"masked": True}, id="masked-vector-reward-vector-gamma"),
        pytest.param({"spec": IMAGE_SPEC, "masked": True}, id="masked-image"),
    ],
)
def test_an_update_is_that_of_the_reference(changes):
    config = DISCRETE | changes
    algorithm = discrete(config)
    weights = reference.weights_of(algorithm)
    mask = reference.random_mask(STEPS, BATCH, counts=(CHOICES,)) if config["masked"] else None
    reward_dim = len(config["reward_weights"]) if config["reward_weights"] else None
    time_step, choice, valid = replayed_discrete(config["spec"], reward_dim, mask)
    observation = time_step.observation
    if mask is not None:
        rest = {k: v for k, v in observation.items() if k != ACTION_MASK}
        observation = rest if isinstance(config["spec"], dict) else rest["observation"]
    expected = discrete_reference(weights, config, time_step, observation, choice, valid)
    loss, _ = losses_of(algorithm, time_step)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {"rtol": 1e-6, "atol": 1e-8}
    reference.check_update(algorithm, loss.loss, weights, expected, **tolerance)


def by_hand():
    """Three choices, of which the last is invalid. pi = (0.8, 0.2), alpha 0.5, Q_1 = (1, 3), Q_2 = (2, 2), Q' = (4, 6)."""
    spec = bounded((), 0, 2, torch.int64)
    observed = {"observation": VECTOR_SPEC, ACTION_MASK: bounded((3,), 0, 1, torch.bool)}
    algorithm = DiscreteSacAlgorithm(
        observed, spec, td_loss=OneStepTDLoss(0.5), target_entropy=0.4,
        temperature_ctor=functools.partial(Temperature, initial_value=0.5), **networks(),
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in algorithm.parameters():
            if parameter.dim():
                parameter.zero_()
        algorithm.actor.head.bias.copy_(torch.tensor([math.log(4.0), 0.0, 100.0]))
        algorithm.critics.last.bias.copy_(torch.tensor([[[1.0, 3.0, 1000.0]], [[2.0, 2.0, 1000.0]]]))
        algorithm.target_critics.last.bias.copy_(torch.tensor([[[4.0, 6.0, 1000.0]], [[5.0, 6.0, 1000.0]]]))
    observation = {"observation": torch.randn(2, 1, 3), ACTION_MASK: torch.tensor([1, 1, 0]).bool().expand(2, 1, 3)}
    time_step = TimeStep(
        torch.tensor([[0], [1]], dtype=torch.uint8), torch.tensor([[0.0], [1.0]]).double(), torch.ones(2, 1).double(),
        observation, torch.tensor([[0], [0]]), torch.ones(2, 1),
    )  # fmt: skip
    return algorithm, time_step


def test_an_update_by_hand():
    algorithm, time_step = by_hand()
    loss, info = losses_of(algorithm, time_step)
    # sum_a pi (alpha log pi - min Q) = 0.8 (0.5 log 0.8 - 1) + 0.2 (0.5 log 0.2 - 2) = -0.8892574 - 0.5609438
    torch.testing.assert_close(info.actor_loss, torch.full((2, 1), -1.4502012).double(), atol=1e-6, rtol=0)
    # H = 0.8 * 0.2231436 + 0.2 * 1.6094379 = 0.5004024; its target is 0.4 log 2 / log 3 = 0.2523719
    torch.testing.assert_close(info.log_pi, torch.full((2, 1), -0.5004024).double(), atol=1e-6, rtol=0)
    # log alpha (H - target) = -0.6931472 * 0.2480305
    torch.testing.assert_close(info.own[0], torch.full((2, 1), -0.1719216).double(), atol=1e-6, rtol=0)
    # V = 0.8 * 4 + 0.2 * 6 + 0.5 H = 4.6502012; G = 1 + 0.5 V = 3.3251006
    assert info.value[1].item() == pytest.approx(4.6502012, abs=1e-6)
    # Q(s, 0) is 1 and 2: (1 - G)^2 + (2 - G)^2 = 5.4060928 + 1.7558916
    expected = -1.4502012 - 0.1719216 + 5.4060928 + 1.7558916
    torch.testing.assert_close(loss.loss, torch.tensor([[expected], [-1.6221228]]).double(), atol=1e-5, rtol=0)
    assert loss.extra["policy/entropy"].item() == pytest.approx(0.5004024, abs=1e-6)
    assert loss.extra["critic/target"].item() == pytest.approx(3.3251006, abs=1e-6)


# --- Masks ------------------------------------------------------------------------------------------------------------


def test_a_mask_that_allows_all_changes_not_one_bit():
    plain, masked = discrete(DISCRETE), discrete(DISCRETE, masked=True)
    mask = torch.ones(STEPS, BATCH, CHOICES, dtype=torch.bool)
    time_step, *_ = replayed_discrete()
    with_it = time_step._replace(observation={"observation": time_step.observation, ACTION_MASK: mask})
    for algorithm, frames in ((plain, time_step), (masked, with_it)):
        losses_of(algorithm, frames)[0].loss.mean().backward()
    for (name, ours), (_, theirs) in zip(plain.named_parameters(), masked.named_parameters()):
        assert torch.equal(ours, theirs), name
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name
    observation = torch.randn(50, 3)
    for step in ("random_step", "rollout_step", "predict_step"):
        outputs = []
        for algorithm, m in ((plain, None), (masked, torch.ones(50, CHOICES, dtype=torch.bool))):
            torch.manual_seed(1)
            outputs.append(getattr(algorithm, step)(acting(50, m, observation), ()).output)
        assert torch.equal(*outputs)


def test_where_there_is_one_choice_there_is_nothing_to_tune():
    algorithm = discrete(DISCRETE, masked=True)
    mask = torch.zeros(STEPS, BATCH, CHOICES, dtype=torch.bool)
    mask[..., 2] = True
    loss, info = losses_of(algorithm, replayed_discrete(mask=mask)[0])
    assert not info.log_pi.any() and not info.own[0].any()
    loss.loss.mean().backward()
    assert algorithm.temperature.value.grad == 0 and not algorithm.actor.head.weight.grad.any()


def test_after_a_termination_nothing_need_be_valid():
    """The environment refuses such a mask everywhere else. What is drawn there is ignored; the loss is finite and the same."""
    algorithm = discrete(DISCRETE, masked=True)
    mask = reference.random_mask(STEPS, BATCH, counts=(CHOICES,))
    time_step, *_ = replayed_discrete(mask=mask)
    terminated = IS_LAST & (time_step.discount == 0)
    assert terminated.any()
    results = []
    for at_the_end in (True, False):
        mask[terminated] = at_the_end
        loss, _ = losses_of(algorithm, time_step)
        algorithm.zero_grad()
        loss.loss.mean().backward()
        results.append([loss.loss.detach()] + [p.grad.clone() for p in algorithm.parameters() if p.grad is not None])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)
        assert torch.isfinite(ours).all()
    nothing = acting(3, torch.zeros(3, CHOICES, dtype=torch.bool))
    for step in (algorithm.random_step, algorithm.rollout_step, algorithm.predict_step):
        assert step(nothing, ()).output.shape == (3,)


# --- Acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["random_step", "rollout_step", "epsilon", "predict_step"])
def test_an_invalid_choice_is_never_made_and_valid_ones_with_their_probabilities(step):
    algorithm, count = discrete(DISCRETE, masked=True), 20_000
    with torch.no_grad():
        algorithm.actor.head.weight.zero_()
        algorithm.actor.head.bias.copy_(torch.tensor([9.0, 1.0, 0.0, 0.5]))
    mask = torch.tensor([False, True, True, False]).expand(count, CHOICES)
    frame = acting(count, mask)
    result = (
        algorithm.predict_step(frame, (), 0.5) if step == "epsilon" else getattr(algorithm, step)(frame, ())
    )  # exp(1) to exp(0)
    p = {"random_step": 0.5, "rollout_step": 0.7310586, "epsilon": 0.5 + 0.5 * 0.7310586, "predict_step": 1.0}[step]
    assert set(result.output.tolist()) <= {1, 2} and result.output.dtype == torch.int64
    assert (result.output == 1).double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count))
    assert result.state == () and result.info == () and result.decided.all()


def test_greedy_is_the_mode_of_the_policy_not_of_the_critics():
    algorithm = discrete(DISCRETE)
    frame = acting(200)
    greedy = algorithm.predict_step(frame, ()).output
    w = reference.weights_of(algorithm)
    for observation, choice in zip(frame.observation, greedy):
        pi = policy(w, observation.double(), [True] * CHOICES)
        assert choice.item() == max(pi, key=lambda a: pi[a].item())
    q = algorithm.critics(frame.observation.double()).amin(0)
    assert (q.argmax(-1) != greedy).any() and len(greedy.unique()) > 1


# --- Groups, targets, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning, temperatures", [("log", 1), ("direct", 1), ("fixed", 0)])
def test_groups_hold_every_trainable_parameter_once(tuning, temperatures):
    found = reference.check_groups(discrete(DISCRETE, tuning=tuning, spec=IMAGE_SPEC), ("actor.",))
    assert len(found["temperature"]) == temperatures


def test_description_tells_the_target_and_its_formula():
    (line,) = discrete(DISCRETE).describe()
    # 0.1 (log 3 - log 0.1) - 0.9 log 0.9
    assert "target entropy 0.4349 nats" in line and "C = 4, p = 0.1" in line and "valid" not in line
    (line,) = discrete(DISCRETE, masked=True, target_entropy=0.5).describe()
    assert "target entropy 0.5000 nats = DiscreteSacAlgorithm.target_entropy, times log n / log C" in line


def test_the_summary_of_a_scheduled_target_has_the_name_of_its_setting():
    target = LinearSchedule(start=0.5, end=0.1, updates=100)
    (scheduled,) = discrete(DISCRETE, masked=True, target_entropy=target).scheduled
    assert scheduled.name == "DiscreteSacAlgorithm.target_entropy"


def build(spec=VECTOR_SPEC, action_spec=SPEC, **options):
    return DiscreteSacAlgorithm(spec, action_spec, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target_entropy": -2.0}, r"-2\.0 nats is negative.*\[0, 1\.3863\]"),
        ({"target_entropy": 1.4}, r"1\.4 nats cannot be reached.*1\.3863 nats = log\(4\)"),
        ({"target_entropy": float("nan")}, "cannot be reached"),
        ({"action_min_prob": 0.8}, r"min_prob must be in \(0, 0\.75\] for 4 choices, got 0\.8"),
        ({"action_spec": bounded((2,), -1.0, 1.0)}, "needs discrete actions.*use sac, taac or another method"),
        ({"action_spec": (SPEC, bounded((2,), -1.0, 1.0))}, "needs discrete actions.*MixedSacAlgorithm"),
        ({"action_spec": bounded((), 0, 0, torch.int64)}, "2 or more choices"),
        ({"action_spec": bounded((), 1, 4, torch.int64)}, "counted from 0"),
        ({"action_spec": bounded((2, 2), 0, 3, torch.int64)}, "a vector of choices.*shared_policy = True"),
        ({"spec": {"observation": VECTOR_SPEC, ACTION_MASK: bounded((5,), 0, 1, torch.bool)}}, r"of shape \[4\].*bool\[5\]"),
        ({"spec": {"observation": VECTOR_SPEC, ACTION_MASK: bounded((4,), 0, 1)}}, "must be binary.*float32"),
        ({"spec": {ACTION_MASK: MASK_SPEC}}, "nothing to observe"),
        ({"td_loss": RetraceTDLoss()}, "RetraceTDLoss needs the rollout's probabilities"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(TaacError, match=message):
        build(**options)


def test_categorical_policy_is_exact_at_extremes():
    logits = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0]]).requires_grad_()
    valid = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 1]]).bool()
    probs, log_probs = distributions.categorical_policy(logits, valid)
    assert probs.tolist() == [[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5]]
    assert log_probs.tolist() == [
        [0, -2e4, -1e4],
        [0, 0, 0],
        [pytest.approx(-math.log(2)), 0, pytest.approx(-math.log(2))],
    ]
    (probs * log_probs).sum().backward()
    assert torch.isfinite(logits.grad).all()
