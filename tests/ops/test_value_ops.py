"""Returns: hand-derived tables, a slow forward-sum reference, identities, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.data_structures import StepType
from taac.errors import TaacError
from taac.ops.value_ops import bootstraps, compare_through_return, n_step_return, one_step_return

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
NAN = float("nan")


def column(*values, dtype=torch.float32):
    """`[T, 1]` of one environment's values in time."""
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def steps(*step_types):
    return column(*step_types, dtype=torch.uint8)


def switches(length, *at):
    return column(*(t in at for t in range(length)), dtype=torch.bool)


# --- Tables ---------------------------------------------------------------------------------------
# reward[0], discount[0] and value[0] come before every target: they are NaN, so that reading them shows.
#
# Inside one episode, gamma = 1/2:
#   t         0     1     2     3
#   type      F     M     M     M
#   reward    -     1     2     4
#   discount  -    1/2   1/2   1/2
#   value     -    10    20     8
INSIDE = {
    "reward": column(NAN, 1, 2, 4),
    "value": column(NAN, 10, 20, 8),
    "step_type": steps(F, M, M, M),
    "discount": column(NAN, 0.5, 0.5, 0.5),
}


def test_one_step_inside_an_episode():
    # 1 + 10/2 = 6,  2 + 20/2 = 12,  4 + 8/2 = 8
    assert one_step_return(**INSIDE).flatten().tolist() == [6, 12, 8]


def test_n_step_inside_an_episode():
    # G2 = 4 + 8/2 = 8,  G1 = 2 + G2/2 = 6,  G0 = 1 + G1/2 = 4.  Forward: 1 + 2/2 + 4/4 + 8/8 = 4.
    assert n_step_return(**INSIDE).flatten().tolist() == [4, 6, 8]


@pytest.mark.parametrize(
    "at, expected",
    [
        ((), [4, 6, 8]),  # no switch: n-step, above
        ((0,), [4, 6, 8]),  # the switch at 0 chose the action whose value is asked for: it stops nothing
        ((1,), [6, 6, 8]),  # G0 = 1 + V1/2 = 6; G1 looks at 2 and 3 only
        ((2,), [7, 12, 8]),  # G1 = 2 + V2/2 = 12; G0 = 1 + G1/2 = 7
        ((3,), [4, 6, 8]),  # G2 ends in V3 in any case
        ((1, 2), [6, 12, 8]),  # one-step
        ((1, 3), [6, 6, 8]),
        ((2, 3), [7, 12, 8]),
        ((0, 1, 2, 3), [6, 12, 8]),
    ],
)
def test_compare_through_with_switches_at_each_place(at, expected):
    assert compare_through_return(**INSIDE, switch=switches(4, *at)).flatten().tolist() == expected


# One episode ends and the next begins, gamma = 1/2. The discount at 2 is 0 (terminated) or 1/2 (truncated).
#   t         0     1     2     3     4     5
#   type      F     M     L     F     M     M
#   reward    -     1     2     0     4     6
#   discount  -    1/2   0|.5  1/2   1/2   1/2
#   value     -    10    20    40    12     8
# Targets 3 and 4 are the next episode's: G4 = 6 + 8/2 = 10; G3 = 4 + G4/2 = 9 (one-step: 4 + 12/2 = 10).
# Target 2 is at LAST, belongs to no action, and is not looked at.
def across(discount_at_last):
    return {
        "reward": column(NAN, 1, 2, 0, 4, 6),
        "value": column(NAN, 10, 20, 40, 12, 8),
        "step_type": steps(F, M, L, F, M, M),
        "discount": column(NAN, 0.5, discount_at_last, 0.5, 0.5, 0.5),
    }


def without_last(returns):
    return returns.flatten()[[0, 1, 3, 4]].tolist()


@pytest.mark.parametrize(
    "discount_at_last, one_step, n_step",
    [
        # Termination: G1 = 2 + 0 * V2 = 2.  One-step G0 = 1 + 10/2 = 6; n-step G0 = 1 + G1/2 = 2.
        (0.0, [6, 2, 10, 10], [2, 2, 9, 10]),
        # Truncation: G1 = 2 + V2/2 = 12, the value of the state at LAST.  n-step G0 = 1 + G1/2 = 7.
        (0.5, [6, 12, 10, 10], [7, 12, 9, 10]),
    ],
)
def test_end_of_an_episode_inside_the_segment(discount_at_last, one_step, n_step):
    data = across(discount_at_last)
    assert without_last(one_step_return(**data)) == one_step
    assert without_last(n_step_return(**data)) == n_step
    assert without_last(compare_through_return(**data, switch=switches(6))) == n_step


@pytest.mark.parametrize(
    "at, terminated, truncated",
    [
        ((1,), [6, 2, 9, 10], [6, 12, 9, 10]),  # G0 = 1 + V1/2 = 6
        ((2,), [2, 2, 9, 10], [7, 12, 9, 10]),  # at LAST: it stops there anyway
        ((3,), [2, 2, 9, 10], [7, 12, 9, 10]),  # at FIRST: only the target at LAST reaches it
        ((4,), [2, 2, 10, 10], [7, 12, 10, 10]),  # G3 = 4 + V4/2 = 10
    ],
)
def test_switches_around_the_end_of_an_episode(at, terminated, truncated):
    switch = switches(6, *at)
    assert without_last(compare_through_return(**across(0.0), switch=switch)) == terminated
    assert without_last(compare_through_return(**across(0.5), switch=switch)) == truncated


def test_segment_that_begins_in_the_middle_and_ends_at_last():
    # M M L: G1 = 2 + V2/4 = 4, G0 = 1 + G1/2 = 3: the value at LAST counts, by the discount at LAST alone.
    returns = n_step_return(column(NAN, 1, 2), column(NAN, 10, 8), steps(M, M, L), column(NAN, 0.5, 0.25))
    assert returns.flatten().tolist() == [3, 4]


def test_shortest_segment():
    # T = 2: all three are r1 + d1 V1 = 3 + 8/4 = 5.
    args = (column(NAN, 3), column(NAN, 8), steps(M, M), column(NAN, 0.25))
    for switch in (switches(2), switches(2, 0), switches(2, 1)):
        assert compare_through_return(*args, switch).tolist() == [[5]]
    assert one_step_return(*args).tolist() == n_step_return(*args).tolist() == [[5]]


def test_columns_do_not_mix():
    """Environments of one batch with ends and switches in different places."""
    one, two, three = across(0.0), across(0.5), across(0.5)
    three["step_type"] = steps(F, M, M, M, M, M)
    data = {key: torch.cat([one[key], two[key], three[key]], dim=1) for key in one}
    switch = torch.cat([switches(6, 4), switches(6, 1), switches(6, 2)], dim=1)
    returns = compare_through_return(**data, switch=switch)
    assert returns.shape == (5, 3)
    assert without_last(returns[:, 0]) == [2, 2, 10, 10]
    assert without_last(returns[:, 1]) == [6, 12, 9, 10]
    # No LAST, switch at 2: G4 = 10, G3 = 4 + 10/2 = 9, G2 = 0 + 9/2 = 4.5
    # G1 = 2 + 20/2 = 12, G0 = 1 + 12/2 = 7.
    assert returns[:, 2].tolist() == [7, 12, 4.5, 9, 10]


# Two rewards, [T, B, D] = [3, 1, 2], no end inside:
#   t              1         2
#   reward      (1, 10)   (2, 20)
#   value       (8, 40)   (4, 80)
VECTOR_REWARD = torch.tensor([[[NAN, NAN]], [[1.0, 10.0]], [[2.0, 20.0]]])
VECTOR_VALUE = torch.tensor([[[NAN, NAN]], [[8.0, 40.0]], [[4.0, 80.0]]])


def test_vector_reward_with_one_discount():
    # gamma = 1/2: G1 = (2 + 4/2, 20 + 80/2) = (4, 60)
    # n-step G0 = (1 + 4/2, 10 + 60/2) = (3, 40); one-step G0 = (1 + 8/2, 10 + 40/2) = (5, 30)
    args = (VECTOR_REWARD, VECTOR_VALUE, steps(F, M, M), column(NAN, 0.5, 0.5))
    assert n_step_return(*args).tolist() == [[[3, 40]], [[4, 60]]]
    assert one_step_return(*args).tolist() == [[[5, 30]], [[4, 60]]]
    assert compare_through_return(*args, switches(3, 1)).tolist() == [[[5, 30]], [[4, 60]]]
    assert compare_through_return(*args, switches(3, 2)).tolist() == [[[3, 40]], [[4, 60]]]


def test_vector_reward_with_a_discount_each():
    # gamma = (1/2, 1/4): G1 = (2 + 4/2, 20 + 80/4) = (4, 40)
    # n-step G0 = (1 + 4/2, 10 + 40/4) = (3, 20); one-step G0 = (1 + 8/2, 10 + 40/4) = (5, 20)
    discount = torch.tensor([0.5, 0.25]).expand(3, 1, 2)
    args = (VECTOR_REWARD, VECTOR_VALUE, steps(F, M, M), discount)
    assert n_step_return(*args).tolist() == [[[3, 20]], [[4, 40]]]
    assert one_step_return(*args).tolist() == [[[5, 20]], [[4, 40]]]
    assert compare_through_return(*args, switches(3, 1)).tolist() == [[[5, 20]], [[4, 40]]]


def test_square_shapes_are_not_confused():
    """T = B = D: a discount or a stop broadcast along the wrong dimension would go unnoticed by shapes."""
    generator = np.random.default_rng(5)
    data = random_batch(generator, length=3, batch=3, dims=3, vector_discount=False)
    data["step_type"] = np.array([[F, L, M], [M, F, L], [L, M, F]], dtype=np.uint8)
    check_against_reference(data)


# --- Soft returns -------------------------------------------------------------------------------------------------------
# INSIDE with a bonus of (-, 2, 4, -), which `value` contains: n-step G2 = 4 + 8/2 = 8, G1 = 2 + (4 + G2)/2 = 8,
# G0 = 1 + (2 + G1)/2 = 6. With a switch at 2: G1 = 2 + 20/2 = 12, G0 = 1 + (2 + 12)/2 = 8. At 1: G0 = 1 + 10/2 = 6.
BONUS = column(NAN, 2, 4, NAN)


def test_a_soft_return_pays_the_entropy_of_every_step_that_it_goes_through():
    assert n_step_return(**INSIDE, bonus=BONUS).flatten().tolist() == [6, 8, 8]
    for at, expected in [((), [6, 8, 8]), ((2,), [8, 12, 8]), ((1,), [6, 8, 8]), ((1, 2), [6, 12, 8])]:
        assert compare_through_return(**INSIDE, switch=switches(4, *at), bonus=BONUS).flatten().tolist() == expected


def test_no_entropy_is_paid_after_a_termination_and_a_truncation_pays_it_in_its_value():
    # Bonus 2 everywhere. Terminated: G1 = 2, G0 = 1 + (2 + 2)/2 = 3. Truncated: G1 = 2 + 20/2 = 12, G0 = 1 + (2 + 12)/2 = 8.
    # The next episode: G4 = 6 + 8/2 = 10, G3 = 4 + (2 + 10)/2 = 10.
    bonus = column(NAN, 2, 2, 2, 2, NAN)
    assert without_last(n_step_return(**across(0.0), bonus=bonus)) == [3, 2, 10, 10]
    assert without_last(n_step_return(**across(0.5), bonus=bonus)) == [8, 12, 10, 10]


@pytest.mark.parametrize("dims, vector_discount", [(None, False), (3, False), (3, True)])
@pytest.mark.parametrize("seed", range(8))
def test_a_soft_return_is_the_hard_one_of_rewards_with_their_discounted_entropy(seed, dims, vector_discount):
    """reward[t] + discount[t] * bonus[t] with the value less its bonus: `forward_sum` of the slow reference, one stream each."""
    generator = np.random.default_rng(seed)
    data = random_batch(generator, generator.integers(2, 8), 4, dims, vector_discount)
    bonus = generator.normal(size=data["reward"].shape)
    discount = np.broadcast_to(
        data["discount"] if dims is None or vector_discount else data["discount"][..., None], bonus.shape
    )
    paid, hard = data["reward"] + discount * bonus, data["value"] - bonus
    bonus[0] = bonus[-1] = NAN  # never read
    bonus = torch.from_numpy(bonus)
    results = [
        (n_step_return(**tensors(data, "switch"), bonus=bonus), data["step_type"] == L),
        (compare_through_return(**tensors(data), bonus=bonus), (data["step_type"] == L) | data["switch"]),
    ]
    for returns, stop in results:
        for index in np.ndindex(*data["reward"].shape[1:]):
            stream = (slice(None), *index)
            expected = forward_sum(paid[stream], hard[stream], discount[stream], stop[:, index[0]])
            acted = data["step_type"][:-1, index[0]] != L
            np.testing.assert_allclose(returns[stream].numpy()[acted], np.array(expected)[acted], atol=1e-12)


def test_a_bonus_of_another_shape_is_refused():
    with pytest.raises(TaacError, match=r"bonus must have reward's shape \[4, 1\], got \[3, 1\]"):
        n_step_return(**INSIDE, bonus=BONUS[1:])
    with pytest.raises(TaacError, match=r"bonus must have reward's shape \[4, 1\], got \[4, 1, 1\]"):
        compare_through_return(**INSIDE, switch=switches(4), bonus=BONUS.unsqueeze(-1))


# --- Slow reference -------------------------------------------------------------------------------
def forward_sum(reward, value, discount, stop):
    """One stream's `G[t]`, by walking forward from t to a step that stops, or the segment's end; floats."""
    end = len(reward) - 1
    returns = []
    for t in range(end):
        total, weight, k = 0.0, 1.0, t
        while True:
            k += 1
            total += weight * reward[k]
            weight *= discount[k]
            if k == end or stop[k]:
                break
        returns.append(total + weight * value[k])
    return returns


def random_batch(generator, length, batch, dims, vector_discount):
    """Episodes of random length (down to a single transition), terminated or truncated, entered anywhere."""
    step_type = np.zeros((length, batch), np.uint8)
    terminated = np.zeros((length, batch), bool)
    for b in range(batch):
        kind = generator.choice([F, M, L])
        for t in range(length):
            step_type[t, b] = kind
            terminated[t, b] = kind == L and generator.random() < 0.5
            kind = F if kind == L else generator.choice([M, L], p=[0.6, 0.4])
    shape = (length, batch) if dims is None else (length, batch, dims)
    alive = ~terminated if dims is None or not vector_discount else ~terminated[..., None]
    gamma = generator.uniform(0.5, 1.0, size=dims) if vector_discount else 0.9
    return {
        "reward": generator.normal(size=shape),
        "value": generator.normal(size=shape) * 10,
        "step_type": step_type,
        "discount": gamma * alive,
        "switch": generator.random((length, batch)) < generator.choice([0.1, 0.5]),
    }


def tensors(data, *without):
    return {key: torch.from_numpy(np.asarray(array)) for key, array in data.items() if key not in without}


def check_against_reference(data):
    step_type, switch, reward = data["step_type"], data["switch"], data["reward"]
    results = [
        (one_step_return(**tensors(data, "switch")), np.ones_like(switch)),
        (n_step_return(**tensors(data, "switch")), step_type == L),
        (compare_through_return(**tensors(data)), (step_type == L) | switch),
    ]
    for returns, stop in results:
        assert returns.shape == (reward.shape[0] - 1, *reward.shape[1:])
        assert returns.dtype == torch.float64
        for index in np.ndindex(*reward.shape[1:]):
            b, stream = index[0], (slice(None), *index)
            discount = data["discount"]
            discount = discount[:, b] if discount.ndim == 2 else discount[stream]
            expected = forward_sum(reward[stream], data["value"][stream], discount, stop[:, b])
            np.testing.assert_allclose(returns[stream].numpy(), expected, rtol=1e-12, atol=1e-12)


BATCHES = st.builds(
    lambda seed, length, batch, dims, vector: random_batch(
        np.random.default_rng(seed), length, batch, dims, vector and dims is not None
    ),
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(2, 9),
    batch=st.integers(1, 4),
    dims=st.sampled_from([None, 1, 2, 3]),
    vector=st.booleans(),
)


@PROPERTY
@given(BATCHES)
def test_every_return_is_the_forward_sum(data):
    check_against_reference(data)


# --- Identities and properties --------------------------------------------------------------------
@PROPERTY
@given(BATCHES)
def test_compare_through_lies_between_one_step_and_n_step(data):
    shared = tensors(data, "switch")
    everywhere = torch.ones(data["switch"].shape, dtype=torch.bool)
    assert torch.equal(compare_through_return(**shared, switch=everywhere), one_step_return(**shared))
    assert torch.equal(compare_through_return(**shared, switch=~everywhere), n_step_return(**shared))


@PROPERTY
@given(BATCHES)
def test_nothing_after_an_end_or_a_switch_reaches_targets_before_it(data):
    """Poison all that comes after: no earlier target may change, let alone be NaN, nor any of another environment."""
    clean = compare_through_return(**tensors(data))
    for t, b in np.argwhere(((data["step_type"] == L) | data["switch"])[1:]) + (1, 0):
        poisoned = {key: array.copy() for key, array in data.items()}
        for key in ("reward", "value", "discount"):
            poisoned[key][t + 1 :, b] = NAN
        poisoned["switch"][t + 1 :, b] ^= True
        returns = compare_through_return(**tensors(poisoned))
        assert torch.equal(returns[:t, b], clean[:t, b])
        others = [i for i in range(clean.shape[1]) if i != b]
        assert torch.equal(returns[:, others], clean[:, others])


def test_constant_reward_and_its_value_are_a_fixed_point():
    """With reward 1 and value 1/(1-gamma), every return is 1/(1-gamma), truncations included."""
    gamma, length = 0.9, 8
    reward = torch.ones(length, 1, dtype=torch.float64)
    value = torch.full((length, 1), 1 / (1 - gamma), dtype=torch.float64)
    step_type = steps(F, M, M, L, F, L, F, M)
    args = (reward, value, step_type, gamma * reward)
    for returns in (
        one_step_return(*args),
        n_step_return(*args),
        compare_through_return(*args, switches(length, 2, 5)),
    ):
        torch.testing.assert_close(returns, value[1:], rtol=1e-14, atol=0)


def call_all(reward, value, step_type, discount, switch):
    yield one_step_return(reward, value, step_type, discount)
    yield n_step_return(reward, value, step_type, discount)
    yield compare_through_return(reward, value, step_type, discount, switch)


def test_no_gradient_flows():
    data = across(0.5)
    for key in ("reward", "value", "discount"):
        data[key] = data[key].requires_grad_() * 1  # with a graph, as values of networks have one
    for returns in call_all(**data, switch=switches(6, 1)):
        assert not returns.requires_grad
        assert returns.grad_fn is None


def test_inputs_are_left_alone():
    data = {**across(0.5), "switch": switches(6, 1)}
    copies = {key: tensor.clone() for key, tensor in data.items()}
    for _ in call_all(**data):
        for key, tensor in data.items():
            torch.testing.assert_close(tensor, copies[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(dtype):
    # 1 + 2^-40 is a float64 but no float32; r + d V = 1 + 2^-40 * 1.
    tiny = 2.0**-40
    reward, value = column(0, 1, 1, dtype=dtype), column(1, 1, 1, dtype=dtype)
    discount = column(1, tiny, tiny, dtype=dtype)
    for returns in call_all(reward, value, steps(M, M, M), discount, switches(3)):
        assert returns.dtype == dtype
        assert (returns[1].item() - 1 == tiny) == (dtype == torch.float64)


# --- Refusals -------------------------------------------------------------------------------------
T, B, D = 3, 2, 4
INPUTS = ("reward", "value", "step_type", "discount", "switch")
MISTAKES = [
    ("reward", {"reward": (T,), "value": (T,), "step_type": (T,), "discount": (T,), "switch": (T,)}),
    ("reward", {"reward": (T, B, D, 1), "value": (T, B, D, 1)}),
    ("value", {"value": (T - 1, B)}),
    ("value", {"reward": (T, B, D), "value": (T, B)}),
    ("step_type", {"step_type": (T, 1)}),
    ("step_type", {"reward": (T, B, D), "value": (T, B, D), "step_type": (T, B, D)}),
    ("discount", {"discount": ()}),
    ("discount", {"discount": (T, 1)}),
    ("discount", {"reward": (T, B, D), "value": (T, B, D), "discount": (T, B, 1)}),
]
RETURNS = [one_step_return, n_step_return, compare_through_return]


def inputs_of(shapes):
    shapes = dict.fromkeys(INPUTS, (T, B)) | shapes
    dtypes = {"step_type": torch.uint8, "switch": torch.bool}
    return {key: torch.zeros(shape, dtype=dtypes.get(key, torch.float32)) for key, shape in shapes.items()}


@pytest.mark.parametrize("fn", RETURNS)
@pytest.mark.parametrize("culprit, shapes", MISTAKES)
def test_wrong_shapes_are_refused_by_name(fn, culprit, shapes):
    inputs = inputs_of(shapes)
    given_shape = list(inputs[culprit].shape)
    if fn is not compare_through_return:
        del inputs["switch"]
    with pytest.raises(TaacError) as error:
        fn(**inputs)
    assert str(error.value).startswith(culprit)
    assert str(given_shape) in str(error.value)


@pytest.mark.parametrize("fn", RETURNS)
@pytest.mark.parametrize("length", [0, 1])
def test_fewer_than_two_steps_are_refused(fn, length):
    inputs = inputs_of(dict.fromkeys(INPUTS, (length, B)))
    if fn is not compare_through_return:
        del inputs["switch"]
    with pytest.raises(TaacError, match="two steps"):
        fn(**inputs)


@pytest.mark.parametrize("shape", [(T - 1, B), (T, 1), (T,), (T, B, 1)])
def test_a_switch_of_the_wrong_shape_is_refused(shape):
    with pytest.raises(TaacError, match="switch must be bool"):
        compare_through_return(**inputs_of({"switch": shape}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_switch_that_is_not_bool_is_refused(dtype):
    """`LAST | 2` and `LAST | 1.0` are not what they look like."""
    inputs = inputs_of({})
    inputs["switch"] = inputs["switch"].to(dtype)
    with pytest.raises(TaacError, match="switch must be bool"):
        compare_through_return(**inputs)


@pytest.mark.parametrize("beta_1", [0.0, 0.3, 0.5, 1.0])
def test_what_compare_through_expects_where_the_rollout_went_on(beta_1):
    """V + beta_0 beta_1 (Q_0 - Q_1), as docs/equations.md says: V counts both choices, and b~ has already decided between them.

    Frame 1 of three: going on is worth Q_0 = 3 + 0.5 * 4 = 5 from there, a new trajectory Q_1 = 2. The reward before is 0.
    """
    beta_0, q_0, q_1 = 1 - beta_1, 5.0, 2.0
    value = beta_0 * q_0 + beta_1 * q_1
    columns = [torch.tensor(x).unsqueeze(1) for x in ([0.0, 0.0, 3.0], [9.0, value, 4.0], [1, 1, 1], [1.0, 1.0, 0.5])]
    passed, stopped = (
        compare_through_return(*columns, torch.tensor([[False], [drawn], [False]]))[0].item() for drawn in (False, True)
    )
    assert (passed, stopped) == (pytest.approx(q_0), pytest.approx(value))
    assert beta_0 * passed + beta_1 * stopped == pytest.approx(value + beta_0 * beta_1 * (q_0 - q_1))
    columns[1][1] = q_1  # `exact_compare_through`
    exact = compare_through_return(*columns, torch.tensor([[False], [True], [False]]))[0].item()
    assert beta_0 * passed + beta_1 * exact == pytest.approx(value)


@pytest.mark.parametrize("parts", [None, 2, 5])
def test_a_return_taken_apart_is_the_return(parts):
    """Of a vector reward too, also where it has as many parts as the batch has environments (5)."""
    torch.manual_seed(0)
    shape = (7, 5) if parts is None else (7, 5, parts)
    reward, value, bonus = torch.randn(3, *shape)
    step_type = torch.randint(0, 3, (7, 5), dtype=torch.uint8)
    discount, switch = 0.9 * torch.rand(7, 5), torch.rand(7, 5) < 0.4
    discount = discount if parts is None else discount.unsqueeze(-1) * torch.linspace(0.5, 1.0, parts)
    found = bootstraps(reward, step_type, discount, (step_type == L) | switch, bonus)
    expected = compare_through_return(reward, value, step_type, discount, switch, bonus)
    torch.testing.assert_close(found.reward + found.discount * value.gather(0, found.frame), expected)
