"""Discrete SAC with several branches of one action: against enumeration of all joint actions, masks, targets, refusals."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from taac import nest
from taac.algorithms import DiscreteSacAlgorithm, OneStepTDLoss
from taac.data_structures import AlgStep, Experience
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork, CriticEnsemble
from taac.specs import ACTION_MASK, TensorSpec, bounded
from tests.algorithms import reference
from tests.algorithms.reference import BATCH, IS_LAST, STEPS, VECTOR_SPEC
from tests.algorithms.test_sac_discrete import acting, losses_of

COUNTS = (2, 4, 3)
TOTAL = sum(COUNTS)
SPEC = TensorSpec((3,), torch.int64, np.zeros(3, dtype=np.int64), np.array(COUNTS) - 1)
EQUAL = bounded((2,), 0, 2, torch.int64)
MASK = bounded((TOTAL,), 0, 1, torch.bool)
GAMMA = 0.875


def branched(action_spec=SPEC, mask=None, reward_weights=None, **options):
    torch.manual_seed(4)
    spec = VECTOR_SPEC if mask is None else {"observation": VECTOR_SPEC, ACTION_MASK: mask}
    return reference.scrambled(
        DiscreteSacAlgorithm(
            spec, action_spec, reward_dim=len(reward_weights) if reward_weights else None,
            reward_weights=reward_weights, td_loss=OneStepTDLoss(GAMMA), encoder_ctor=reference.Encoder,
            actor_ctor=functools.partial(CategoricalActorNetwork, hidden_layers=(5, 4)),
            critic_ctor=functools.partial(CriticEnsemble, hidden_layers=(6, 5)),
            **options,
        )
    )  # fmt: skip


def frames(mask=None, reward_dim=None, counts=COUNTS):
    """Executed choices are valid; those before the first action are out of range, and must not be read."""
    time_step = reference.replayed(VECTOR_SPEC, reward_dim)
    everything = torch.ones(STEPS, BATCH, sum(counts), dtype=torch.bool) if mask is None else mask
    parts = everything.reshape(STEPS * BATCH, -1).float().split(counts, -1)
    choice = torch.stack([torch.multinomial(part, 1).reshape(STEPS, BATCH) for part in parts], -1).roll(1, 0)
    choice[0] = 99
    if mask is not None:
        time_step = time_step._replace(observation={"observation": time_step.observation, ACTION_MASK: mask})
    return time_step._replace(prev_action=choice)


def observed(time_step):
    return time_step.observation["observation"] if isinstance(time_step.observation, dict) else time_step.observation


def log_policy(algorithm, features, valid, counts=COUNTS):
    """log pi_b(a|s) of one frame: for each branch a list over its choices, None where one is not valid."""
    logits = algorithm.actor(features).split(counts)
    result = []
    for values, allowed in zip(logits, valid.split(counts)):
        normalizer = torch.logsumexp(values[allowed], 0)
        result.append([values[a] - normalizer if allowed[a] else None for a in range(len(values))])
    return result


def joint(logs):
    """Every joint action that is valid, with the log-probability of each branch's choice."""
    for choices in itertools.product(*(range(len(branch)) for branch in logs)):
        each = [branch[a] for branch, a in zip(logs, choices)]
        if all(x is not None for x in each):
            yield choices, each


def of_action(q, choices, counts=COUNTS):
    """`1/K sum_b Q_b(s, a_b)` of values `[..., sum_b C_b]`."""
    starts = np.cumsum([0, *counts[:-1]])
    return sum(q[..., start + a] for start, a in zip(starts, choices)) / len(counts)


@pytest.mark.parametrize("masked", [False, True])
def test_expectations_are_those_over_all_joint_actions(masked):
    """Losses, target values, entropies and their gradients against sums over each of the 24 joint actions of a frame."""
    algorithm = branched(mask=MASK if masked else None)
    mask = reference.random_mask(STEPS, BATCH, counts=COUNTS) if masked else None
    time_step = frames(mask)
    loss, info = losses_of(algorithm, time_step)
    valid = torch.ones(STEPS, BATCH, TOTAL, dtype=torch.bool) if mask is None else mask
    with torch.no_grad():
        q = algorithm.critics(algorithm.encoder(observed(time_step))).amin(0)
        q_target = algorithm.target_critics(algorithm.target_encoder(observed(time_step))).amin(0)
    alphas = [temperature.alpha().item() for temperature in algorithm.temperature]
    assert len(set(alphas)) == 3
    expected_loss = torch.zeros(STEPS, BATCH, dtype=torch.float64)
    value, entropy = torch.zeros_like(expected_loss), torch.zeros_like(expected_loss)
    for t, b in itertools.product(range(STEPS), range(BATCH)):
        features = algorithm.encoder(observed(time_step))[t, b].detach()
        logs = log_policy(algorithm, features, valid[t, b])
        assert abs(sum(sum(each).exp() for _, each in joint(logs)).item() - 1) < 1e-12
        for choices, each in joint(logs):
            log_pi = sum(each)  # of independent choices
            bonus = sum(alpha * x for alpha, x in zip(alphas, each)) / len(COUNTS)
            expected_loss[t, b] += log_pi.exp() * (bonus - of_action(q[t, b], choices))
            value[t, b] += (log_pi.exp() * (of_action(q_target[t, b], choices) - bonus)).item()
            entropy[t, b] -= (log_pi.exp() * log_pi).item()
    torch.testing.assert_close(info.actor_loss, expected_loss)
    torch.testing.assert_close(info.value[1:], value[1:])
    torch.testing.assert_close(-info.log_pi, entropy)
    torch.testing.assert_close(info.own[1].sum(-1), entropy)
    ours, theirs = (
        torch.autograd.grad(x.sum(), list(algorithm.actor.parameters()), retain_graph=True)
        for x in (info.actor_loss, expected_loss)
    )
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)
    # Critics: (Q_i(s, a) - r - gamma d V(s'))^2, Q_i the mean over branches at the executed choices
    both = algorithm.critics(algorithm.encoder(observed(time_step)))
    for t, b in itertools.product(range(STEPS - 1), range(BATCH)):
        target = time_step.reward[t + 1, b] + GAMMA * time_step.discount[t + 1, b] * value[t + 1, b]
        executed = of_action(both[:, t, b], time_step.prev_action[t + 1, b].tolist())
        torch.testing.assert_close(info.q[:, t, b], executed)
        if not IS_LAST[t, b]:
            critic_loss = (executed - target).square().sum()
            rest = info.actor_loss[t, b] + info.own[0][t, b]
            torch.testing.assert_close(loss.loss[t, b], rest + critic_loss)


def test_one_branch_is_the_choice_itself():
    """A vector of one branch learns as the scalar choice does, with the same networks and to the bit."""
    scalar, vector = branched(bounded((), 0, 3, torch.int64)), branched(bounded((1,), 0, 3, torch.int64))
    time_step = frames(counts=(4,))
    losses = []
    for algorithm, action in ((scalar, time_step.prev_action.squeeze(-1)), (vector, time_step.prev_action)):
        loss, _ = losses_of(algorithm, time_step._replace(prev_action=action))
        loss.loss.mean().backward()
        losses.append(loss)
    assert torch.equal(losses[0].loss, losses[1].loss) and torch.equal(losses[0].segment_error, losses[1].segment_error)
    assert all(torch.equal(losses[0].extra[tag], losses[1].extra[tag]) for tag in losses[0].extra)
    gradients = [[p.grad for p in a.parameters() if p.grad is not None] for a in (scalar, vector)]
    assert len(gradients[0]) > 10 and all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_each_part_of_a_vector_reward_has_a_value_for_each_choice():
    algorithm = branched(reward_weights=(1.0, -0.5))
    time_step = frames(reward_dim=2)
    loss, info = losses_of(algorithm, time_step)
    assert info.q.shape == (2, STEPS - 1, BATCH, 2) and info.value.shape == (STEPS, BATCH, 2)
    both = algorithm.critics(algorithm.encoder(time_step.observation))  # [N, T, B, sum C, D]
    executed = of_action(both.movedim(-1, 0)[:, :, 0, 0], time_step.prev_action[1, 0].tolist())
    torch.testing.assert_close(info.q[:, 0, 0], executed.T)
    assert torch.isfinite(loss.loss).all()


@pytest.mark.parametrize("step", ["random_step", "rollout_step", "epsilon", "predict_step"])
@pytest.mark.parametrize("spec, counts", [(SPEC, COUNTS), (EQUAL, (3, 3))], ids=["unequal", "equal"])
def test_an_invalid_choice_is_never_made(step, spec, counts):
    count = 5_000
    mask = reference.random_mask(count, counts=counts)
    algorithm = branched(spec, bounded((sum(counts),), 0, 1, torch.bool))
    frame = acting(count, mask)
    result = algorithm.predict_step(frame, (), 0.5) if step == "epsilon" else getattr(algorithm, step)(frame, ())
    assert result.output.shape == (count, len(counts)) and result.output.dtype == torch.int64
    assert result.decided.shape == (count,) and result.decided.all()
    for branch, (choice, allowed) in enumerate(zip(result.output.T, mask.split(counts, -1))):
        assert allowed.gather(-1, choice.unsqueeze(-1)).all()
        assert set(choice.tolist()) == set(range(counts[branch]))  # each choice is made somewhere


def test_values_of_joint_actions_are_means_over_branches():
    """Of a vector reward whose second part has a negative weight, so of which the greatest critic counts."""
    algorithm, time_step = branched(reward_weights=(1.0, -0.5)), nest.index(frames(reward_dim=2), 1)
    with torch.no_grad():
        each = algorithm.critics(algorithm.encoder(time_step.observation)).movedim(-1, 0)  # [2, N, B, sum_b C_b]
        for choices in itertools.product(*map(range, COUNTS)):
            step = AlgStep(torch.tensor(choices).expand(BATCH, -1), (), (), ())
            q, of_choices = algorithm.action_values(time_step, (), step)
            first, second = of_action(each, choices)
            torch.testing.assert_close(q, first.amin(0) - 0.5 * second.amax(0))
    assert not torch.allclose(q, of_choices[:, range(3), choices].mean(1))  # which are each the least of their own
    expected = each[0].amin(0) - 0.5 * each[1].amax(0)
    for branch, alone in enumerate(expected.split(COUNTS, -1)):
        torch.testing.assert_close(of_choices[:, branch, : COUNTS[branch]], alone)


def test_branches_are_drawn_each_from_its_own_distribution():
    count = 40_000
    algorithm = branched()
    with torch.no_grad():
        algorithm.actor.head.weight.zero_()
        algorithm.actor.head.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0, 0.5, -1.0, 0.0, 1.0]))
    drawn = algorithm.rollout_step(acting(count), ()).output
    for branch, bias in enumerate(algorithm.actor.head.bias.split(COUNTS)):
        found = torch.bincount(drawn[:, branch], minlength=COUNTS[branch]) / count
        torch.testing.assert_close(found.double(), bias.softmax(-1), atol=4 * 0.5 / math.sqrt(count), rtol=0)
    together = ((drawn[:, 0] == 1) & (drawn[:, 1] == 2)).double().mean().item()
    independent = ((drawn[:, 0] == 1).double().mean() * (drawn[:, 1] == 2).double().mean()).item()
    assert together == pytest.approx(independent, abs=4 * 0.5 / math.sqrt(count))
    assert algorithm.predict_step(acting(3), ()).output.tolist() == [[1, 2, 2]] * 3
    other = (algorithm.predict_step(acting(count), (), 0.5).output != torch.tensor([1, 2, 2])).double()  # than the mode
    assert torch.corrcoef(other.T).triu(1).abs().max() < 5 / math.sqrt(count), "each branch explores for itself"


def test_what_a_masked_branch_holds_is_as_if_it_were_not_there():
    mask = reference.random_mask(STEPS, BATCH, counts=COUNTS)
    mask[..., 3] = False  # choice 1 of branch 1; choice 0 of it is valid
    mask[..., 2] = True
    time_step = frames(mask)
    results = []
    for logit, value in ((0.0, 0.0), (50.0, 1e4)):
        algorithm = branched(mask=MASK)
        with torch.no_grad():
            algorithm.actor.head.bias[3] = logit
            algorithm.critics.last.bias[..., 3] = algorithm.target_critics.last.bias[..., 3] = value
        loss, _ = losses_of(algorithm, time_step)
        loss.loss.mean().backward()
        assert not algorithm.actor.head.weight.grad[3].any()
        results.append([loss.loss.detach()] + [p.grad for p in algorithm.parameters() if p.grad is not None])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)


def test_a_mask_with_a_row_for_each_branch_is_the_flat_one():
    flat, rows = (branched(EQUAL, bounded(shape, 0, 1, torch.bool)) for shape in ((6,), (2, 3)))
    mask = reference.random_mask(STEPS, BATCH, counts=(3, 3))
    time_step = frames(mask, counts=(3, 3))
    loss, _ = losses_of(flat, time_step)
    observation = {**time_step.observation, ACTION_MASK: mask.unflatten(-1, (2, 3))}
    assert torch.equal(loss.loss, losses_of(rows, time_step._replace(observation=observation))[0].loss)


def test_each_branch_has_a_temperature_and_a_target_entropy_of_its_own():
    algorithm = branched(target_entropy=(0.3, 1.0, 0.5), mask=MASK)
    assert len(reference.check_groups(algorithm, ("actor.",))["temperature"]) == 3
    with torch.no_grad():
        for temperature, alpha in zip(algorithm.temperature, (0.5, 1.0, 2.0)):
            temperature.value.fill_(math.log(alpha))
    mask = torch.ones(STEPS, BATCH, TOTAL, dtype=torch.bool)
    mask[..., -1] = False  # two of three choices of the last branch
    loss, info = losses_of(algorithm, frames(mask))
    targets = torch.tensor([0.3, 1.0, 0.5 * math.log(2) / math.log(3)])
    scale = torch.tensor([0.5, 1.0, 2.0]).log()
    torch.testing.assert_close(info.own[0], (scale * (info.own[1] - targets)).mean(-1), rtol=1e-5, atol=1e-6)
    tags = algorithm.summary_tags()
    acted = ~IS_LAST
    for b, alpha in enumerate((0.5, 1.0, 2.0)):
        assert loss.extra[f"branch_{b}/alpha"].item() == pytest.approx(alpha)
        torch.testing.assert_close(loss.extra[f"branch_{b}/entropy"], info.own[1][..., b][acted].mean())
        assert f"branch_{b}/alpha" in tags and f"branch_{b}/entropy" in tags
    assert loss.extra["policy/alpha"].item() == pytest.approx(3.5 / 3)
    torch.testing.assert_close(loss.extra["policy/entropy"], info.own[1].sum(-1)[acted].mean())
    lines = algorithm.describe()
    assert len(lines) == 3 and lines[1].startswith("branch 1: target entropy 1.0000 nats")


def test_the_default_target_is_that_of_each_branchs_choices():
    targets = [t.target_entropy for t in branched(action_min_prob=0.1).temperature]
    # 0.1 (log(C - 1) - log 0.1) - 0.9 log 0.9
    expected = [0.1 * (math.log(c - 1) - math.log(0.1)) - 0.9 * math.log(0.9) for c in COUNTS]
    assert targets == pytest.approx(expected)


def test_cloning_is_minus_the_log_probability_of_the_joint_action():
    algorithm, time_step = branched(), frames()
    cloned = algorithm.cloning_loss(Experience(time_step, ()))
    everything = torch.ones(TOTAL, dtype=torch.bool)
    for t, b in itertools.product(range(STEPS - 1), range(BATCH)):
        logs = log_policy(algorithm, algorithm.encoder(time_step.observation)[t, b], everything)
        expected = -sum(branch[a] for branch, a in zip(logs, time_step.prev_action[t + 1, b].tolist()))
        assert cloned[t, b].item() == pytest.approx(0.0 if IS_LAST[t, b] else expected.item())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mask": bounded((TOTAL + 1,), 0, 1, torch.bool)}, r"\[9\], one entry a choice, branch after branch; got bool\[10\]"),
        ({"mask": bounded((3, 4), 0, 1, torch.bool)}, r"shape \[9\]"),
        ({"action_spec": EQUAL, "mask": bounded((3, 2), 0, 1, torch.bool)}, r"shape \[6\] or \[2, 3\]"),
        ({"target_entropy": (0.1, 0.2)}, r"target_entropy must be one number or 3, one a branch, got \(0\.1, 0\.2\)"),
        ({"target_entropy": 1.0}, r"1\.0 nats cannot be reached: the uniform policy over 2 choices"),
        ({"action_min_prob": (0.1, 0.1)}, "action_min_prob must be one number or 3"),
        ({"action_min_prob": (0.6, 0.1, 0.1)}, r"min_prob must be in \(0, 0\.5\] for 2 choices"),
        ({"action_spec": TensorSpec((2,), torch.int64, np.array([0, 0]), np.array([2, 0]))}, r"2 or more choices.*\[3, 1\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(TaacError, match=message):
        branched(**options)
