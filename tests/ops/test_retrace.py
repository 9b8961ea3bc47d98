"""Retrace: a hand-worked table, a slow reference from the sum in the paper, identities, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac.data_structures import StepType
from taac.errors import TaacError
from taac.ops.value_ops import n_step_return, one_step_return, retrace_return
from tests.ops.test_value_ops import NAN, column

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST


def test_a_table_worked_by_hand():
    """gamma = 1/2. delta[t] = r[t+1] + d[t+1] V[t+1] - Q[t]; G[t] = Q[t] + delta[t] + d[t+1] c[t+1] (delta[t+1] + ...).

    t      0    1    2    3
    r      -    1    2    4
    d      -   .5   .5   .5
    V      -   10   20   40
    Q      3    6    8
    c      -  .25   .5

    delta[2] = 4 + 20 - 8 = 16            G[2] = 8 + 16 = 24
    delta[1] = 2 + 10 - 6 = 6             G[1] = 6 + 6 + .5 * .5 * 16 = 16
    delta[0] = 1 + 5 - 3 = 3              G[0] = 3 + 3 + .5 * .25 * 6 + .5 * .25 * .5 * .5 * 16 = 7.25
    """
    result = retrace_return(
        column(NAN, 1, 2, 4), column(NAN, 10, 20, 40), column(F, M, M, M, dtype=torch.uint8),
        column(NAN, 0.5, 0.5, 0.5), column(3, 6, 8), column(1, 0.25, 0.5),
    )  # fmt: skip
    assert result[:, 0].tolist() == [7.25, 16, 24]


def test_no_trace_leads_through_last():
    """t = 1 is LAST, truncated: G[0] = r[1] + d[1] V[1] = 1 + 5, whatever comes after; frame 1 itself is masked."""
    result = retrace_return(
        column(NAN, 1, 0, 4), column(NAN, 10, 20, 40), column(F, L, F, M, dtype=torch.uint8),
        column(NAN, 0.5, 0.5, 0.5), column(3, 100, 8), column(1, 1, 1),
    )  # fmt: skip
    assert result[0, 0] == 6
    assert result[2, 0] == 24


def random_segment(seed, parts=()):
    torch.manual_seed(seed)
    steps, batch = 6, 50
    step_type = torch.randint(0, 3, (steps, batch), dtype=torch.uint8)
    reward, value = torch.randn(2, steps, batch, *parts, dtype=torch.float64)
    discount = 0.9 * torch.randint(0, 2, (steps, batch)).double()
    q, trace = torch.randn(steps - 1, batch, *parts, dtype=torch.float64), torch.rand(steps - 1, batch).double()
    return reward, value, step_type, discount, q, trace


def reference(reward, value, step_type, discount, q, trace):
    """The sum in the paper, term by term."""
    steps, batch = step_type.shape
    result = np.zeros(reward[1:].shape)
    for b in range(batch):
        for t in range(steps - 1):
            weight, total = 1.0, q[t, b].copy()
            for s in range(t, steps - 1):
                if s > t:
                    if step_type[s, b] == L:
                        break
                    weight *= discount[s, b] * trace[s, b]
                total = total + weight * (reward[s + 1, b] + discount[s + 1, b] * value[s + 1, b] - q[s, b])
            result[t, b] = total
    return result


@pytest.mark.parametrize("parts", [(), (3,)])
@pytest.mark.parametrize("seed", range(5))
def test_against_the_sum_in_the_paper(seed, parts):
    segment = random_segment(seed, parts)
    np.testing.assert_allclose(retrace_return(*segment), reference(*(x.numpy() for x in segment)), atol=1e-12)


def test_without_traces_it_is_the_one_step_return():
    *segment, q, trace = random_segment(7)
    torch.testing.assert_close(retrace_return(*segment, q, 0 * trace), one_step_return(*segment))


def test_on_policy_with_lambda_one_it_is_the_n_step_return():
    """A deterministic policy that took the executed actions: c = 1 and V = Q."""
    reward, value, step_type, discount, _, trace = random_segment(8)
    on_policy = retrace_return(reward, value, step_type, discount, value[:-1], torch.ones_like(trace))
    torch.testing.assert_close(on_policy, n_step_return(reward, value, step_type, discount))


@pytest.mark.parametrize("parts", [(), (3,)])
def test_on_policy_with_a_soft_value_it_is_the_soft_n_step_return(parts):
    """V = Q + bonus: what the trace passes on is `V - Q`, the entropy of each step, beside the TD errors."""
    reward, q, step_type, discount, _, trace = random_segment(8, parts)
    bonus = torch.randn_like(q)
    on_policy = retrace_return(reward, q + bonus, step_type, discount, q[:-1], torch.ones_like(trace))
    expected = n_step_return(reward, q + bonus, step_type, discount, bonus)
    torch.testing.assert_close(on_policy, expected)
    assert not torch.allclose(expected, n_step_return(reward, q + bonus, step_type, discount))


def test_nothing_flows_back_and_shapes_are_checked():
    reward, value, step_type, discount, q, trace = random_segment(9)
    value.requires_grad_(), q.requires_grad_()
    assert not retrace_return(reward, value, step_type, discount, q, trace).requires_grad
    with pytest.raises(TaacError, match="q and trace"):
        retrace_return(reward, value, step_type, discount, value, trace)
    with pytest.raises(TaacError, match="q and trace"):
        retrace_return(reward, value, step_type, discount, q, trace[1:])
