"""Specs: zeros of them, what a continuous policy refuses, how they read."""

import numpy as np
import pytest
import torch

from taac.errors import TaacError
from taac.specs import TensorSpec, blank, bounded, check_unit_box, spec_of, zeros


def test_zeros_of_a_spec():
    tensor = TensorSpec((2, 3)).zeros(5, 4)
    assert tensor.shape == (5, 4, 2, 3) and tensor.dtype == torch.float32 and not tensor.any()
    assert TensorSpec((2, 3)).zeros().shape == (2, 3)
    assert TensorSpec(()).zeros(7).shape == (7,)
    assert TensorSpec((), torch.int64).zeros(7).dtype == torch.int64
    assert TensorSpec((2,)).zeros(3, device="meta").device.type == "meta"


def test_zeros_of_a_nest_of_specs():
    rest = (TensorSpec((2,)), (), TensorSpec((), torch.int64))
    spec = {"image": TensorSpec((3, 8, 8), torch.uint8), "rest": rest}
    result = zeros(spec, 5)
    assert list(result) == ["image", "rest"] and result["rest"][1] == ()
    tensors = [result["image"], result["rest"][0], result["rest"][2]]
    assert [tuple(tensor.shape) for tensor in tensors] == [(5, 3, 8, 8), (5, 2), (5,)]
    assert [tensor.dtype for tensor in tensors] == [torch.uint8, torch.float32, torch.int64]
    assert not any(tensor.any() for tensor in tensors)
    assert zeros(spec, 2, 5, device="meta")["rest"][0].device.type == "meta"
    assert zeros(spec, 2, 5)["rest"][2].shape == (2, 5)
    assert zeros((), 5) == ()


def test_blank_values_are_the_least_choices_and_otherwise_0():
    start = TensorSpec((2,), torch.int64, np.array([5, -1]), np.array([7, 1]))
    found = blank({"choice": start, "image": bounded((1,), 3, 9, torch.uint8), "unknown": TensorSpec((), torch.int64)}, 2)
    assert [leaf.tolist() for leaf in found.values()] == [[[5, -1], [5, -1]], [[0], [0]], [0, 0]]
    assert [leaf.dtype for leaf in found.values()] == [torch.int64, torch.uint8, torch.int64]
    assert start.blank(device="meta").device.type == "meta"


def test_spec_of_a_tensor():
    tensor = torch.zeros(7, 5, 3, 2, dtype=torch.float64)
    assert spec_of(tensor).shape == (5, 3, 2)
    assert type(spec_of(tensor).shape) is tuple
    spec = spec_of(tensor)
    assert spec.dtype == torch.float64 and spec.minimum is None and spec.maximum is None
    assert spec.zeros(7).shape == tensor.shape


def test_size():
    assert TensorSpec((3, 4)).numel == 12 and TensorSpec((3, 4)).num_bytes == 48
    assert TensorSpec((3, 4), torch.uint8).num_bytes == 12
    assert TensorSpec((), torch.int64).numel == 1 and TensorSpec((), torch.int64).num_bytes == 8
    assert TensorSpec((0, 4)).numel == 0


def test_bounded():
    spec = bounded((2, 3), -2, 5)
    assert spec.shape == (2, 3) and spec.dtype == torch.float32
    np.testing.assert_array_equal(spec.minimum, [[-2, -2, -2]] * 2)
    np.testing.assert_array_equal(spec.maximum, [[5, 5, 5]] * 2)


def test_categorical_specs():
    # From 1 to 4 there are four choices, from 0 to 1 two.
    spec = TensorSpec((2,), torch.int64, np.array([1, 0]), np.array([4, 1]))
    assert spec.is_categorical
    assert spec.num_choices.tolist() == [4, 2] and spec.num_choices.dtype == np.int64
    assert bounded((), 0, 2, torch.int64).num_choices == 3
    assert not bounded((), 0, 255, torch.uint8).is_categorical
    assert not bounded((), 0, 1).is_categorical


@pytest.mark.parametrize(
    "spec, text",
    [
        (bounded((3,), -1, 1), "float32[3], in [-1, 1]"),
        (TensorSpec((2, 3), torch.uint8), "uint8[2, 3]"),
        (TensorSpec(()), "float32[]"),
        (bounded((), 0, 4, torch.int64), "int64[], in [0, 4]"),
        (TensorSpec((2,), torch.float32, np.array([-1.5, 0]), np.array([1, 2])), "float32[2], in [-1.5, 2]"),
        (bounded((2,), -np.inf, np.inf), "float32[2], in [-inf, inf]"),
        (TensorSpec((2,), minimum=np.zeros(2)), "float32[2]"),
    ],
)
def test_how_a_spec_reads(spec, text):
    assert str(spec) == text


@pytest.mark.parametrize(
    "spec",
    [
        bounded((3,), -1, 1),
        bounded((1,), -1.0, 1.0, torch.float64),
        TensorSpec((2,), torch.float32, -np.ones(2, np.float32), np.ones(2, np.float32)),
    ],
)
def test_a_unit_box_is_let_through(spec):
    check_unit_box(spec, "SAC")


@pytest.mark.parametrize(
    "spec, words",
    [
        # nested
        ((bounded((3,), -1, 1),), "nested"),
        ((), "nested"),
        # discrete
        (bounded((), 0, 3, torch.int64), "discrete"),
        (bounded((3,), -1, 1, torch.int64), "discrete"),
        # not a vector
        (bounded((), -1, 1), "rank 1"),
        (bounded((2, 3), -1, 1), "rank 1"),
        # other bounds
        (bounded((3,), -2, 2), "rescale"),
        (bounded((3,), -1, 2), "rescale"),
        (bounded((3,), -np.inf, np.inf), "rescale"),
        (bounded((3,), np.nan, np.nan), "rescale"),
        (TensorSpec((3,)), "rescale"),
        (TensorSpec((3,), minimum=-np.ones(3)), "rescale"),
        # one element is enough
        (TensorSpec((2,), torch.float32, np.array([-1, -2]), np.array([1, 1])), "rescale"),
        (TensorSpec((2,), torch.float32, np.array([-1, -1]), np.array([1, 0.5])), "rescale"),
    ],
)
def test_specs_other_than_a_unit_box_are_refused(spec, words):
    with pytest.raises(TaacError, match=words) as error:
        check_unit_box(spec, "TaacAlgorithm")
    assert "TaacAlgorithm" in str(error.value)


def test_specs_compare_by_identity_and_cannot_be_changed():
    """Arrays have no truth value, so specs are not compared; they are hashable and frozen."""
    one, other = bounded((2,), -1, 1), bounded((2,), -1, 1)
    assert one != other and one == one and len({one, other}) == 2
    with pytest.raises(AttributeError):
        one.shape = (3,)
