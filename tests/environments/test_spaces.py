"""Gymnasium spaces to specs and tensors, against what each space itself says."""

from __future__ import annotations

import copy
import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import assume, given, settings

from taac import nest
from taac.environments.spaces import action_adapter, describe, observation_spec, to_arrays, to_unit
from taac.errors import TaacError
from taac.specs import TensorSpec

SETTINGS = settings(max_examples=30, deadline=None, database=None)

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "body": spaces.Tuple(
            (
                spaces.Box(-np.inf, np.inf, (2,), np.float64),
                spaces.Dict({"mode": spaces.Discrete(3, start=-1), "keys": spaces.MultiBinary((2, 2))}),
            )
        ),
        "choice": spaces.MultiDiscrete([2, 5], start=[0, 10]),
        "cells": spaces.Box(-7, 9, (3,), np.int64),
    }
)


def batched(space: spaces.Space, samples: list[Any]) -> Any:
    """The samples as a vector environment hands them out."""
    return concatenate(space, samples, create_empty_array(space, len(samples)))


def test_a_nested_space_keeps_its_structure():
    spec = observation_spec(NESTED)
    table = {path: (leaf.shape, leaf.dtype) for path, leaf in nest.flatten_with_path(spec)}
    assert table == {
        "camera": ((4, 5, 3), torch.uint8),
        "body/0": ((2,), torch.float32),
        "body/1/mode": ((), torch.int64),
        "body/1/keys": ((2, 2), torch.float32),
        "choice": ((2,), torch.int64),
        "cells": ((3,), torch.float32),
    }
    categorical = {path for path, leaf in nest.flatten_with_path(spec) if leaf.is_categorical}
    assert categorical == {"body/1/mode", "choice"}


@pytest.mark.parametrize(
    "space, low, high, choices",
    [
        (spaces.Discrete(4), 0, 3, 4),
        (spaces.Discrete(3, start=-2), -2, 0, 3),
        (spaces.MultiDiscrete([2, 5]), [0, 0], [1, 4], [2, 5]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -9]]), [[1, 0], [0, -9]], [[2, 2], [3, -5]], None),
        (spaces.MultiBinary(3), [0, 0, 0], [1, 1, 1], None),
        (spaces.Box(np.array([-1, 0]), np.array([5, 7]), dtype=np.int32), [-1, 0], [5, 7], None),
        (spaces.Box(0, 255, (2,), np.uint8), [0, 0], [255, 255], None),
        (spaces.Box(-np.inf, 2.0, (2,)), [-np.inf, -np.inf], [2.0, 2.0], None),
    ],
)
def test_bounds_and_choices(space, low, high, choices):
    spec = observation_spec(space)
    np.testing.assert_array_equal(spec.minimum, low)
    np.testing.assert_array_equal(spec.maximum, high)
    assert spec.shape == np.shape(low)
    if choices is not None:
        np.testing.assert_array_equal(spec.num_choices, choices)


@st.composite
def leaf_spaces(draw) -> spaces.Space:
    kind = draw(st.sampled_from(["float", "image", "integers", "discrete", "multi_discrete", "multi_binary"]))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    if kind == "float":
        dtype = draw(st.sampled_from([np.float32, np.float64]))
        return spaces.Box(-draw(st.floats(0.5, 100.0)), draw(st.floats(0.5, 100.0)), shape, dtype)
    if kind == "image":
        return spaces.Box(0, 255, shape, np.uint8)
    if kind == "integers":
        return spaces.Box(-50, 1000, shape, draw(st.sampled_from([np.int16, np.int32, np.int64])))
    if kind == "discrete":
        return spaces.Discrete(draw(st.integers(1, 5)), start=draw(st.integers(-3, 3)))
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    return spaces.MultiBinary(draw(st.integers(1, 4)))


any_space = st.recursive(
    leaf_spaces(),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("zyxab"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
    ),
    max_leaves=6,
)


def follow(value: Any, path: str) -> Any:
    for key in path.split("/") if path else []:
        value = value[int(key)] if isinstance(value, tuple) else value[key]
    return value


@SETTINGS
@given(any_space, st.integers(1, 3), st.integers(0, 100))
def test_tensors_hold_what_each_environment_observed(space, num_envs, seed):
    space = copy.deepcopy(space)
    space.seed(seed)
    samples = [space.sample() for _ in range(num_envs)]
    spec = observation_spec(space)
    tensors = nest.map_structure(torch.from_numpy, to_arrays(spec, batched(space, samples)))
    seen = 0
    for (path, leaf_spec), leaf in zip(nest.flatten_with_path(spec), nest.flatten(tensors), strict=True):
        assert leaf.dtype == leaf_spec.dtype and leaf.shape == (num_envs, *leaf_spec.shape)
        for i, sample in enumerate(samples):
            part = np.asarray(follow(sample, path))
            np.testing.assert_array_equal(leaf[i].numpy(), part.astype(leaf[i].numpy().dtype))
            # float64 bounds are looked at in the float32 that the tensor is in
            low, high = (np.asarray(b).astype(leaf[i].numpy().dtype) for b in (leaf_spec.minimum, leaf_spec.maximum))
            assert (leaf[i].numpy() >= low).all() and (leaf[i].numpy() <= high).all()
            seen += 1
    assert seen == num_envs * len(nest.flatten(spec)) > 0


def test_booleans_of_other_bytes_are_those_that_numpy_takes_them_for():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
    held = {"action_mask": np.frombuffer(b"\xff\x00\x01", dtype=bool)[None]}
    mask = to_arrays(observation_spec(space), held)["action_mask"]
    assert mask.dtype == np.bool_ and mask.tobytes() == b"\x01\x00\x01"


@pytest.mark.parametrize(
    "space, path",
    [
        (spaces.Text(4), "/"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(4)))}), "/a/1"),
        (spaces.Sequence(spaces.Discrete(2)), "/"),
        (spaces.Tuple((spaces.Graph(spaces.Discrete(2), None),)), "/0"),
        (spaces.Dict({"x": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3)))}), "/x"),
    ],
)
def test_spaces_without_a_tensor_form_are_refused_by_path(space, path):
    with pytest.raises(TaacError, match=rf"at '{path}' is (Text|Sequence|Graph|OneOf).*add a wrapper"):
        observation_spec(space)


# Actions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_rescaled_to_asymmetric_bounds(dtype):
    """-1, -0.5, 0, 0.5 and 1 are the quarters of [-1, 3] (by 1) and of [10, 11] (by 0.25)."""
    space = spaces.Box(np.array([-1, 10], dtype), np.array([3, 11], dtype), dtype=dtype)
    spec, rescale = action_adapter(space)
    assert isinstance(spec, TensorSpec) and spec.shape == (2,) and spec.dtype == torch.float32
    np.testing.assert_array_equal(spec.minimum, [-1, -1])
    np.testing.assert_array_equal(spec.maximum, [1, 1])
    actions = rescale(torch.tensor([[-1.0, 1.0], [-0.5, 0.5], [0.0, 0.0], [0.5, -0.5], [1.0, -1.0]]))
    assert actions.dtype == dtype
    np.testing.assert_array_equal(actions, [[-1, 11], [0, 10.75], [1, 10.5], [2, 10.25], [3, 10]])


@SETTINGS
@given(
    st.sampled_from([np.float32, np.float64]),
    st.floats(-1e6, 1e6),
    st.floats(1e-6, 1e6),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=5),
)
def test_actions_never_step_over_the_bounds(dtype, low, span, values):
    low, high = np.array([low], dtype), np.array([low + span], dtype)
    assume(low < high)
    space = spaces.Box(low, high, dtype=dtype)
    low, high = low[0], high[0]
    values = [-1.0, *sorted(values), 1.0, float(np.nextafter(np.float32(1), np.float32(0)))]
    actions = action_adapter(space)[1](torch.tensor(values)[:, None])
    assert actions.dtype == dtype and all(space.contains(action) for action in actions)
    assert (np.diff(actions[:-1, 0]) >= 0).all()
    assert actions[0, 0] == low
    unit = (np.asarray(values) + 1) / 2
    exact = float(low) + unit * (float(high) - float(low))
    # One rounding to the space's dtype, and float32 arithmetic on the action itself.
    tolerance = np.finfo(dtype).eps * max(abs(float(low)), abs(float(high))) + 2e-7 * (float(high) - float(low))
    np.testing.assert_allclose(actions[:, 0], exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("low, high", [(-3.0, -0.9), (-3.0, 0.1), (-3.0, 1.2)])
def test_rounding_does_not_step_over_the_bounds(low, high):
    """For these, low + (high - low) is above high."""
    assert low + (high - low) > high
    action = action_adapter(spaces.Box(low, high, (1,), np.float64))[1](torch.ones(1, 1))
    assert action == high
    beside = spaces.Box(np.array([low, -9.0]), np.array([high, 9.0]), dtype=np.float64)  # each number has bounds of its own
    assert (action_adapter(beside)[1](torch.ones(1, 2)) == beside.high).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_of_a_unit_box_arrive_as_they_are(dtype):
    _, rescale = action_adapter(spaces.Box(-1, 1, (3,), dtype))
    action = torch.tensor([[1e-30, -0.1, 0.7]])  # 1e-30 would not survive adding 1
    assert rescale(action).dtype == dtype
    np.testing.assert_array_equal(rescale(action), action.numpy().astype(dtype))


def test_a_box_with_one_unit_side_is_rescaled_all_the_same():
    low, high = np.array([-1, -1, -1], np.float32), np.array([1, 2, 1], np.float32)
    _, rescale = action_adapter(spaces.Box(low, high))
    np.testing.assert_array_equal(rescale(torch.ones(1, 3)), [[1, 2, 1]])


@pytest.mark.parametrize(
    "low, high",
    [
        (-np.inf, np.inf), (-1.0, np.inf), (-np.inf, 1.0), (np.array([-1, -np.inf], np.float32), 1.0), (-2e38, 2e38),
        (-1e308, 1e308),
    ],
)  # fmt: skip
def test_unbounded_actions_are_refused(low, high):
    with pytest.raises(TaacError, match=r"unbounded .*wrap"):
        action_adapter(spaces.Box(low, high, (2,), np.float64 if abs(np.max(high)) == 1e308 else np.float32))


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=5, dtype=np.int8), spaces.MultiDiscrete([3, 2], np.uint8, start=[0, 1])]
)
def test_choices_arrive_in_the_dtype_of_the_space(space):
    """Which an environment may check, or pass on to a simulator in C."""
    spec, to_env = action_adapter(space)
    actions = to_env(torch.zeros(2, *spec.shape, dtype=torch.int64))
    assert actions.dtype == space.dtype and space.contains(actions[0])


action_leaf = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        lambda sizes, start: spaces.MultiDiscrete(sizes, start=[start + i for i in range(len(sizes))]),
        st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(-3, 3),
    ),
    st.builds(
        lambda low, span, shape: spaces.Box(low, low + span, tuple(shape), np.float64),
        st.floats(-5, 5), st.floats(0.5, 9), st.lists(st.integers(1, 3), min_size=1, max_size=2),
    ),
)  # fmt: skip
any_action_space = st.recursive(
    action_leaf,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("zyxab"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
    ),
    max_leaves=5,
)


def drawn(spec, batch):
    """Random actions as an algorithm returns them, leaves `[batch, ...]`."""

    def leaf(spec):
        if spec.is_categorical:
            return (torch.rand(batch, *spec.shape) * torch.as_tensor(spec.num_choices)).long()
        return torch.rand(batch, *spec.shape) * 2 - 1

    return nest.map_structure(leaf, spec)


@SETTINGS
@given(any_action_space, st.integers(1, 3))
def test_whatever_an_algorithm_says_is_in_the_space(space, batch):
    """And at the bounds of a spec are the bounds of the space."""
    spec, to_env = action_adapter(space)

    vector = iterate(batch_space(space, batch), to_env(drawn(spec, batch)))
    assert all(space.contains(action) for action in vector)
    for bound in ("minimum", "maximum"):
        at_bound = nest.map_structure(lambda leaf: torch.as_tensor(getattr(leaf, bound)).to(leaf.dtype), spec)  # noqa: B023
        sent = to_env(nest.map_structure(lambda x: x.unsqueeze(0), at_bound))
        for path, leaf_space in nest.flatten_with_path(as_nest(space)):
            part = np.asarray(follow(sent, path))[0]
            if isinstance(leaf_space, spaces.Box):
                expected = leaf_space.low if bound == "minimum" else leaf_space.high
            else:
                count = leaf_space.n if isinstance(leaf_space, spaces.Discrete) else leaf_space.nvec
                expected = leaf_space.start + (0 if bound == "minimum" else count - 1)
            np.testing.assert_array_equal(part, expected)


def as_nest(space):
    """The nest of its leaf spaces."""
    if isinstance(space, spaces.Dict):
        return {key: as_nest(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_nest(child) for child in space.spaces)
    return space


@pytest.mark.parametrize(
    "space, message",
    [
        (spaces.Box(0, 5, (2,), np.int64), "box of integers"),
        (spaces.Box(2.0, np.array([3.0, 2.0], np.float32), (2,)), "empty range"),
        (spaces.MultiBinary(2), "not supported; expected a Box, a Discrete or MultiDiscrete space"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(-np.inf, 1, (2,)))), "unbounded"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Box(0, 3, (2,), np.int64),))}), "box of integers"),
        (spaces.Tuple((spaces.MultiBinary(2),)), "not supported"),
    ],
)
def test_other_action_spaces_are_refused(space, message):
    with pytest.raises(TaacError, match=message):
        action_adapter(space)


# Back to the scale of algorithms, and what a space is as plain values ------------------------------------------------


@SETTINGS
@given(any_action_space, st.integers(1, 3))
def test_actions_come_back_from_the_environments_scale(space, batch):
    spec, to_env = action_adapter(space)

    action = drawn(spec, batch)
    back = to_unit("here", space, to_env(action))
    nest.map_structure(lambda x, y: torch.testing.assert_close(y, x, rtol=0, atol=1e-6), action, back)


def test_a_table_of_actions_brought_back():
    box = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
    assert to_unit("here", box, [[-2.0, 0.0], [0.0, 2.5], [2.0, 10.0]]).tolist() == [[-1, -1], [0, -0.5], [1, 1]]
    assert to_unit("here", spaces.Discrete(3, start=5), [5, 7]).tolist() == [0, 2]
    agents = spaces.MultiDiscrete([3, 4], start=[5, -2])
    assert to_unit("here", agents, [[5, 1], [7, -2]]).tolist() == [[0, 3], [2, 0]]
    with pytest.raises(TaacError, match=r"here has an action outside.*at step 1"):
        to_unit("here", agents, [[5, 1], [5, 2]])


@pytest.mark.parametrize(
    "space, action, step",
    [
        (spaces.Box(-2.0, 2.0, (1,)), [[0.0], [2.1]], 1),
        (spaces.Box(-2.0, 2.0, (1,)), [[float("nan")], [0.0]], 0),
        (spaces.Discrete(3, start=5), [5, 6, 8], 2),
        (spaces.Discrete(3, start=5), [4], 0),
    ],
)
def test_actions_outside_the_space_are_refused(space, action, step):
    with pytest.raises(TaacError, match=rf"the file has an action outside .*at step {step}"):
        to_unit("the file", space, action)
    hair = to_unit("the file", spaces.Box(-2.0, 2.0, (1,)), [[2.000001]])  # rounding
    assert hair.tolist() == [[1.0]]


def test_a_space_as_plain_values():
    described = describe(NESTED)
    assert json.loads(json.dumps(described, allow_nan=False)) == described  # infinite bounds too
    assert described["spaces"]["camera"] == {
        "type": "Box", "shape": [4, 5, 3], "dtype": "uint8", "low": "0", "high": "255",
    }  # fmt: skip
    assert described["spaces"]["body"]["spaces"][0]["low"] == "-inf"
    assert describe(spaces.Box(np.array([0.0, 1.0]), np.array([2.0, 2.0]), dtype=np.float64))["low"] == ["0.0", "1.0"]


OTHERS = [
    spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,)), spaces.Box(-1, 2, (2,)), spaces.Box(-2, 1, (2,)),
    spaces.Box(-1, 1, (2,), np.float64), spaces.Box(np.array([-1, -2]), 1, (2,), np.float32), spaces.Discrete(2),
    spaces.Discrete(3), spaces.Discrete(2, start=1), spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 3]),
    spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.MultiBinary(2), spaces.MultiBinary(3),
    spaces.Tuple((spaces.Discrete(2),)), spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2)),
    spaces.Text(3), spaces.Text(4),
]  # fmt: skip


def test_spaces_that_differ_are_described_differently():
    for i, first in enumerate(OTHERS):
        for j, second in enumerate(OTHERS):
            assert (describe(first) == describe(copy.deepcopy(second))) == (i == j), (first, second)
    assert describe(spaces.Box(-0.0, 1.0, (2,))) == describe(spaces.Box(0.0, 1.0, (2,)))
