"""Returns of every skip in a segment: hand-derived tables, a slow forward sum, identities, refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.data_structures import StepType
from taac.errors import TaacError
from taac.ops.value_ops import compare_through_return, n_step_return, one_step_return, skip_returns
from tests.ops.test_value_ops import INSIDE, NAN, across, column
from tests.ops.test_value_ops import switches as decisions

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def table(x):
    """`[J, T-1, 1]` as rows of numbers."""
    return x.squeeze(-1).tolist()


# --- Tables -----------------------------------------------------------------------------------------------------------
# Inside one episode, gamma = 1/2; what came before the first frame's action is NaN, so that reading it shows.
#   t         0     1     2     3
#   reward    -     1     2     4
#   value     -    10    20     8
# G_1: 1 + 10/2, 2 + 20/2, 4 + 8/2.  G_2: 1 + 2/2 + 20/4, 2 + 4/2 + 8/4.  G_3: 1 + 2/2 + 4/4 + 8/8.
RETURNS = [[6, 12, 8], [7, 6, 0], [4, 0, 0]]


@pytest.mark.parametrize(
    "decided, happened",
    [
        ((), [[1, 1, 1], [1, 1, 0], [1, 0, 0]]),
        ((0,), [[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # the decision at 0 is the one that is held
        ((1,), [[1, 1, 1], [0, 1, 0], [0, 0, 0]]),  # 0's action was held for one step; that of 1 until 3
        ((2,), [[1, 1, 1], [1, 0, 0], [0, 0, 0]]),  # 0's until 2, and 1 is an example of one step of it
        ((3,), [[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # held until 3: what is chosen there is the next skip's
        ((0, 1, 2, 3), [[1, 1, 1], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_inside_an_episode(decided, happened):
    returns, did = skip_returns(**INSIDE, decided=decisions(4, *decided), max_skip=3)
    assert did.dtype == torch.bool and table(did) == happened
    # A return is that of its rewards whether or not the skip happened; only the end of the segment leaves none.
    assert table(returns) == RETURNS


@pytest.mark.parametrize("max_skip", [1, 2, 3, 5])
def test_fewer_and_more_durations_than_steps(max_skip):
    returns, happened = skip_returns(**INSIDE, decided=decisions(4), max_skip=max_skip)
    assert returns.shape == happened.shape == (max_skip, 3, 1)
    assert table(returns) == (RETURNS + [[0, 0, 0]] * 2)[:max_skip]
    assert table(happened) == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]][:max_skip]


# One episode ends and the next begins, gamma = 1/2; the discount at 2 is 0 (terminated) or 1/2 (truncated).
#   t         0     1     2     3     4     5
#   type      F     M     L     F     M     M
#   reward    -     1     2     0     4     6
#   value     -    10    20    40    12     8
# Up to LAST: G_1[0] = 1 + 10/2 = 6, G_1[1] = 2 (+ 20/2), G_2[0] = 1 + G_1[1]/2.  The next episode: G_1[3] = 4 + 12/2 = 10,
# G_1[4] = 6 + 8/2 = 10, G_2[3] = 4 + 10/2 = 9.  Whatever is longer goes through LAST, or beyond the segment.
@pytest.mark.parametrize("discount_at_last, before", [(0.0, {(1, 0): 6, (1, 1): 2, (2, 0): 2}),
                                                      (0.5, {(1, 0): 6, (1, 1): 12, (2, 0): 7})])  # fmt: skip
@pytest.mark.parametrize("decided", [(), (0,), (3,), (0, 3)])
def test_no_skip_goes_through_the_end_of_an_episode(discount_at_last, before, decided):
    returns, happened = skip_returns(
        **across(discount_at_last), decided=decisions(6, *decided), max_skip=5
    )
    expected = {**before, (1, 3): 10, (1, 4): 10, (2, 3): 9}
    found = {(j + 1, t): returns[j, t, 0].item() for j, t, _ in happened.nonzero().tolist()}
    assert found == expected


def test_a_vector_reward_with_a_discount_for_each_part():
    """gamma = (1/2, 1): the second part's returns are plain sums. 1 + 2 + 20 = 23, 2 + 4 + 8 = 14, 1 + 2 + 4 + 8 = 15."""
    two = {name: INSIDE[name].unsqueeze(-1).expand(-1, -1, 2) for name in ("reward", "value")}
    discount = torch.stack([INSIDE["discount"], column(NAN, 1, 1, 1)], -1)
    returns, happened = skip_returns(**two, step_type=INSIDE["step_type"], discount=discount, decided=decisions(4),
                                     max_skip=3)  # fmt: skip
    assert returns.shape == (3, 3, 1, 2) and happened.shape == (3, 3, 1)
    assert table(returns[..., 0]) == RETURNS
    assert table(returns[..., 1]) == [[11, 22, 12], [23, 14, 0], [15, 0, 0]]


# A bonus of (-, 2, 4, -), which `value` contains: G_1 as above; G_2 = 1 + (2 + 12)/2 = 8 and 2 + (4 + 8)/2 = 8;
# G_3 = 1 + (2 + 2 + (4 + 8)/2)/2 = 6.
def test_the_steps_in_between_pay_their_entropy():
    returns, _ = skip_returns(**INSIDE, decided=decisions(4), max_skip=3, bonus=column(NAN, 2, 4, NAN))
    assert table(returns) == [[6, 12, 8], [8, 8, 0], [6, 0, 0]]


@pytest.mark.parametrize("bonus", [-1.5, 0.0, 3.0])
def test_where_holding_costs_nothing_all_durations_are_worth_the_same(bonus):
    """Reward 1 and entropy h at every state, whatever is done: Q = (1 + gamma h) / (1 - gamma), V = Q + h. If long skips missed
    the entropy of a step, one duration would be worth more than another by it."""
    q = (1.0 + 0.5 * bonus) / (1 - 0.5)
    everywhere = torch.full((6, 2), 1.0)
    returns, happened = skip_returns(
        everywhere, everywhere * (q + bonus), torch.full((6, 2), int(M), dtype=torch.uint8), everywhere * 0.5,
        torch.zeros(6, 2, dtype=torch.bool), 5, everywhere * bonus,
    )  # fmt: skip
    assert happened.sum() == 2 * (5 + 4 + 3 + 2 + 1)
    torch.testing.assert_close(returns[happened], torch.full((30,), q))


# --- Against a slow reference -----------------------------------------------------------------------------------------


@st.composite
def segments(draw):
    """Frames of several environments: legal sequences of step types, random decisions, any shapes."""
    length, batch = draw(st.integers(2, 7)), draw(st.integers(1, 3))
    parts = draw(st.sampled_from([None, 1, 3]))
    step_type = torch.zeros(length, batch, dtype=torch.uint8)
    for b in range(batch):
        kind = draw(st.sampled_from([F, M, L]))
        for t in range(length):
            step_type[t, b] = kind
            kind = F if kind == L else draw(st.sampled_from([M, M, M, L]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (length, batch) if parts is None else (length, batch, parts)
    real = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)  # noqa: E731
    discount = torch.rand(shape if draw(st.booleans()) else (length, batch), dtype=torch.float64, generator=generator)
    decided = torch.rand(length, batch, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return {
        "reward": real(*shape), "value": real(*shape), "step_type": step_type, "discount": discount,
        "decided": decided,
    }, draw(st.integers(1, 8))  # fmt: skip


@PROPERTY
@given(segments())
def test_against_a_forward_sum(segment):
    data, max_skip = segment
    data = {name: x.clone() for name, x in data.items()}
    for name in ("reward", "value", "discount"):
        data[name][0] = NAN
    bonus = torch.randn_like(data["reward"])
    returns, happened = skip_returns(**data, max_skip=max_skip, bonus=bonus)
    without, _ = skip_returns(**data, max_skip=max_skip)
    torch.testing.assert_close(without, skip_returns(**data, max_skip=max_skip, bonus=0 * bonus)[0])
    length, batch = data["step_type"].shape
    assert returns.shape == (max_skip, *data["reward"][1:].shape) and not returns.requires_grad
    assert happened.shape == (max_skip, length - 1, batch)
    discount = data["discount"] if data["discount"].dim() == data["reward"].dim() else data["discount"].unsqueeze(-1)
    for j in range(1, max_skip + 1):
        for t in range(length - 1):
            for b in range(batch):
                inside = t + j < length
                # An action was taken at each of t..t+j-1 (none is LAST), and from t+1 on it was the one of before.
                acted = all(data["step_type"][k, b] != L for k in range(t, min(t + j, length)))
                held = not any(data["decided"][k, b] for k in range(t + 1, min(t + j, length)))
                assert happened[j - 1, t, b] == (inside and acted and held), (j, t, b)
                total, factor = 0.0, 1.0
                if inside:
                    for k in range(t + 1, t + j + 1):
                        total = total + factor * data["reward"][k, b]
                        factor = factor * discount[k, b]
                        total = total + factor * bonus[k, b] if k < t + j else total
                    total = total + factor * data["value"][t + j, b]
                torch.testing.assert_close(returns[j - 1, t, b], torch.zeros_like(data["reward"][1, b]) + total)


@PROPERTY
@given(segments())
def test_one_step_and_n_step_returns_are_among_them(segment):
    """J = 1 is the one-step return. A frame's longest skip that happened is the compare-through return, whose `switch` is
    `decided`: both stop at the first new decision, at LAST and at the segment's end."""
    data, _ = segment
    decided = data.pop("decided")
    acts = data["step_type"][:-1] != L
    returns, happened = skip_returns(**data, decided=decided, max_skip=1)
    torch.testing.assert_close(returns[0], one_step_return(**data))
    assert torch.equal(happened[0], acts)
    for chosen, expected in [
        (decided, compare_through_return(**data, switch=decided)),
        (torch.zeros_like(decided), n_step_return(**data)),
    ]:
        returns, happened = skip_returns(**data, decided=chosen, max_skip=len(decided) + 1)
        longest = happened.sum(0)
        # if a skip happened, so did every shorter one
        assert torch.equal(happened, torch.arange(len(happened))[:, None, None] < longest)
        index = (longest - 1).clamp(min=0).reshape(1, *longest.shape, *(1,) * (returns.dim() - 3))
        last = returns.take_along_dim(index, 0)[0]
        torch.testing.assert_close(last[acts], expected[acts])


def test_no_gradient_flows():
    data = {k: x.clone().requires_grad_() if x.is_floating_point() else x for k, x in INSIDE.items()}
    assert not skip_returns(**data, decided=decisions(4), max_skip=2)[0].requires_grad


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_skip": 0}, "max_skip must be 1 or more, got 0"),
        ({"decided": decisions(3)}, r"decided must .*\[4, 1\].*\[3, 1\]"),
        ({"decided": decisions(4).float()}, "decided must be bool"),
        ({"value": column(1, 2, 3)}, "value must have"),
        ({"step_type": column(F, M, M, dtype=torch.uint8)}, "step_type"),
        ({"discount": column(1, 1)}, "discount"),
        ({"bonus": column(1, 1, 1)}, r"bonus must have reward's shape \[4, 1\], got \[3, 1\]"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(TaacError, match=message):
        skip_returns(**{**INSIDE, "decided": decisions(4), "max_skip": 2, **changes})


def test_a_single_step_is_refused():
    with pytest.raises(TaacError, match="at least two steps"):
        one = {name: x[:1] for name, x in INSIDE.items()}
        skip_returns(**one, decided=decisions(1), max_skip=1)
