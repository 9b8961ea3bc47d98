"""One discrete and any continuous actions, split and joined."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taac import nest
from taac.algorithms.action_specs import DiscreteActionSpec, MixedActionSpec
from taac.errors import TaacError
from taac.specs import ACTION_MASK, TensorSpec, bounded, check_unit_box

GEAR = bounded((), 0, 4, torch.int64)
NESTED = {"legs": (bounded((2,), -1, 1), {"tail": bounded((), -1, 1), "gear": GEAR}), "arm": bounded((2, 1), -1, 1)}


def test_a_mixed_action_is_split_in_the_order_of_its_leaves():
    mixed = MixedActionSpec(NESTED, "Mixed")
    assert mixed.num_choices == 5
    assert mixed.continuous.shape == (5,)
    check_unit_box(mixed.continuous, "Mixed")
    action = {
        "legs": (torch.tensor([[0.1, 0.2]]), {"tail": torch.tensor([0.3]), "gear": torch.tensor([4])}),
        "arm": torch.tensor([[[0.4], [0.5]]]),
    }
    choice, vector = mixed.split(action)
    assert choice.tolist() == [4] and choice.dtype == torch.int64
    torch.testing.assert_close(vector, torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]]))
    for leaf, joined in zip(nest.flatten(action), nest.flatten(mixed.join(choice, vector)), strict=True):
        assert torch.equal(leaf, joined)


@st.composite
def mixed_specs(draw):
    """A flat or nested action space whose discrete part is anywhere."""
    shapes = draw(st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4))
    boxes = [bounded(shape, -1, 1) for shape in shapes]
    shape = draw(st.sampled_from([(), (1,), (1, 1)]))
    parts = list(boxes)
    parts.insert(draw(st.integers(0, len(boxes))), bounded(shape, 0, draw(st.integers(0, 6)), torch.int64))
    kind = draw(st.sampled_from(["tuple", "dict", "nested"]))
    if kind == "tuple":
        return tuple(parts)
    if kind == "dict":
        return {f"part {9 - i}": part for i, part in enumerate(parts)}
    return (tuple(parts[:1]), {"rest": tuple(parts[1:])})


@given(mixed_specs(), st.sampled_from([(), (3,), (2, 3), (4, 2, 3)]))
def test_split_and_join_are_inverse(spec, batch):
    mixed = MixedActionSpec(spec, "Mixed")
    sizes = [leaf.numel for leaf in nest.flatten(spec) if not leaf.is_categorical]
    assert mixed.continuous.shape == (sum(sizes),)
    choice = torch.randint(mixed.num_choices, batch)
    vector = torch.rand(*batch, sum(sizes)) * 2 - 1
    action = mixed.join(choice, vector)
    nest.map_structure(lambda leaf, s: None, action, spec)  # of one structure
    for leaf, leaf_spec in zip(nest.flatten(action), nest.flatten(spec), strict=True):
        assert leaf.shape == (*batch, *leaf_spec.shape) and leaf.dtype == leaf_spec.dtype
    again_choice, again_vector = mixed.split(action)
    assert torch.equal(again_choice, choice) and torch.equal(again_vector, vector)
    # and the other way round
    for leaf, joined in zip(nest.flatten(action), nest.flatten(mixed.join(*mixed.split(action))), strict=True):
        assert torch.equal(leaf, joined)


@pytest.mark.parametrize(
    "spec, words",
    [
        (bounded((2,), -1, 1), "one discrete action and at least one continuous"),
        (GEAR, "one discrete action and at least one continuous"),
        ((GEAR, GEAR, bounded((2,), -1, 1)), "one discrete action and at least one continuous"),
        ((bounded((2,), 0, 4, torch.int64), bounded((2,), -1, 1)), "one discrete action"),  # two choices in one leaf
        ((), "one discrete action"),
        ((GEAR, bounded((2,), -1, 2)), "acts in"),
        ((GEAR, TensorSpec((2, 1), minimum=-np.ones((2, 1)), maximum=np.array([[1], [0.5]]))), "acts in"),
        ((GEAR, bounded((3,), -1, 1, torch.uint8)), "discrete"),
        ((GEAR, bounded((0,), -1, 1)), "at least one dimension"),
    ],
    ids=str,
)
def test_specs_other_than_a_mixed_action_are_refused(spec, words):
    with pytest.raises(TaacError, match=words) as error:
        MixedActionSpec(spec, "MixedSac")
    assert "MixedSac" in str(error.value)


def test_choices_count_from_0():
    shifted = TensorSpec((), torch.int64, np.asarray(1), np.asarray(3))
    with pytest.raises(TaacError, match="counts choices from 0"):
        MixedActionSpec((shifted, bounded((2,), -1, 1)), "Mine")


def test_valid_choices_by_hand():
    """Branches of two and three choices: what is padded is never valid, even where a branch may choose nothing."""
    action = TensorSpec((2,), torch.int64, np.zeros(2, dtype=np.int64), np.array([1, 2]))
    discrete = DiscreteActionSpec(action, {"x": bounded((1,), -1, 1), ACTION_MASK: bounded((5,), 0, 1, torch.bool)}, "Mine")
    mask = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    valid = discrete.valid({ACTION_MASK: mask}, torch.Size([2]), torch.device("cpu"))
    assert valid.int().tolist() == [[[0, 1, 0], [1, 0, 1]], [[1, 1, 0], [1, 1, 1]]]
