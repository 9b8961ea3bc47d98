"""Encoders: nests, one-hot leaves, images."""

from __future__ import annotations

import functools
import math
import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers

from taac.environments import spaces
from taac.errors import TaacError
from taac.networks import ImageEncoder, ObservationEncoder
from taac.specs import TensorSpec, bounded
from tests.environments.toys import Probe

SMALL = {"channels": (3, 4), "kernels": (3, 2), "strides": (2, 1), "output_size": 5}
small_images = functools.partial(ObservationEncoder, image_encoder_ctor=functools.partial(ImageEncoder, **SMALL))


def choices(minimum, maximum):
    minimum, maximum = np.asarray(minimum), np.asarray(maximum)
    return TensorSpec(minimum.shape, torch.int64, minimum, maximum)


# --- Vectors and choices ----------------------------------------------------------------------------------------------


def test_a_vector_passes_as_it_is():
    encoder, x = ObservationEncoder(TensorSpec((3,))), torch.randn(7, 4, 3)
    assert encoder.output_size == 3
    assert torch.equal(encoder(x), x)
    assert list(encoder.parameters()) == []


def test_matrices_and_scalars_are_flattened():
    encoder = ObservationEncoder({"matrix": TensorSpec((2, 3)), "scalar": TensorSpec(())})
    x = {"matrix": torch.arange(12.0).reshape(2, 2, 3), "scalar": torch.tensor([-1.0, -2.0])}
    assert encoder.output_size == 7
    assert encoder(x).tolist() == [[0, 1, 2, 3, 4, 5, -1], [6, 7, 8, 9, 10, 11, -2]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_other_numbers_become_float32(dtype):
    encoder = ObservationEncoder(TensorSpec((2,), dtype))
    out = encoder(torch.tensor([[1, 200]]).to(dtype))
    assert out.dtype == torch.float32 and out.tolist() == [[1.0, 200.0]]


@pytest.mark.parametrize(
    "spec, expected",
    [
        (bounded((2,), 0, 255, torch.uint8), [0.2, 1.0]),
        (TensorSpec((2,), torch.uint8), [0.2, 1.0]),  # bounds unknown: those of a byte
        (
            TensorSpec((2,), torch.uint8, np.array([0, 0]), np.array([51, 0])),
            [1.0, 255.0],
        ),  # each by its own; 0 is no divisor
    ],
)
def test_bytes_are_scaled_by_their_upper_bounds(spec, expected):
    encoder = ObservationEncoder({"ram": spec})
    assert encoder.output_size == 2 and encoder.state_dict() == {}
    for batch in ((), (3, 4)):
        out = encoder({"ram": torch.tensor([51, 255], dtype=torch.uint8).expand(*batch, 2)})
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, torch.tensor(expected).expand(*batch, 2))
    one = ObservationEncoder(bounded((), 0, 255, torch.uint8))
    assert one(torch.tensor([255], dtype=torch.uint8)).tolist() == [[1.0]]


@pytest.mark.parametrize(
    "shape, told",
    [
        ((84, 84), r"ReshapeObservation\(env, \(84, 84, 1\)\).*FlattenObservation.*do the same to this part alone"),
        ((4, 84, 84, 3), "TransformObservation.*FlattenObservation"),
        ((2, 4, 84, 84, 3), "TransformObservation; .*FlattenObservation"),
    ],
)
def test_bytes_that_may_be_pictures_are_refused(shape, told):
    with pytest.raises(TaacError, match=rf"the observation 'eye' is uint8 of shape \[{shape[0]}, .*{told}"):
        ObservationEncoder({"eye": bounded(shape, 0, 255, torch.uint8), "arm": TensorSpec((2,))})
    ObservationEncoder(bounded(shape, 0, 1))  # floats are taken as numbers


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 84, 96), (4, 84, 84)])
def test_channels_first_are_refused(shape, dtype):
    with pytest.raises(TaacError, match=r"channels first.*TransformObservation.*FlattenObservation"):
        ObservationEncoder(bounded(shape, 0, 255, dtype))


def test_a_board_may_have_more_planes_than_rows():
    ObservationEncoder(
        bounded((6, 7, 8), 0, 1, torch.uint8), functools.partial(ImageEncoder, kernels=(2,), channels=(2,), strides=(1,))
    )


@pytest.mark.parametrize(
    "space, stack, expected",
    [
        (gymnasium.spaces.Box(0, 255, (3, 8, 6), np.uint8), None, (8, 6, 3)),
        (gymnasium.spaces.Box(-0.5, 1.5, (3, 8, 6)), None, (8, 6, 3)),
        (gymnasium.spaces.Box(0, 255, (8, 6), np.uint8), 4, (8, 6, 4)),
        (gymnasium.spaces.Box(0, 9, (8, 6, 3), np.uint8), 4, (8, 6, 12)),
    ],
)
def test_the_wrapper_of_the_message_makes_an_image_of_the_same_kind(space, stack, expected):
    """A box of floats around bytes would quadruple the replay buffer, and bytes as floats are not scaled."""
    env = Probe(space) if stack is None else wrappers.FrameStackObservation(Probe(space), stack)
    given = env.observation_space
    with pytest.raises(TaacError) as refused:
        small_images(spaces.observation_spec(given))
    expression = re.search(r"gymnasium\.wrappers\.TransformObservation\(.*\)\)(?=;)", str(refused.value)).group()
    wrapped = eval(expression, {"env": env, "numpy": np, "gymnasium": gymnasium})
    made = wrapped.observation_space
    assert (made.shape, made.dtype) == (expected, given.dtype)
    assert (made.low.min(), made.high.max()) == (given.low.min(), given.high.max())
    assert small_images(spaces.observation_spec(made)).images
    before, after = env.reset(seed=0)[0], wrapped.reset(seed=0)[0]
    assert after.shape == expected and after.dtype == given.dtype
    for y, x in np.ndindex(8, 6):  # frame after frame, each with its channels
        assert after[y, x].tolist() == (before[:, y, x].ravel() if before.shape[1:3] == (8, 6) else before[..., y, x]).tolist()


@pytest.mark.parametrize("shape", [(84, 96, 3), (8, 8, 111), (9, 12, 9)])
def test_channels_last_are_taken(shape):
    assert ObservationEncoder(bounded(shape, 0, 255, torch.uint8), functools.partial(ImageEncoder, **SMALL)).images


@pytest.mark.parametrize("start", [0, 5, -2])
def test_a_choice_becomes_one_hot_from_its_start(start):
    encoder = ObservationEncoder(choices(start, start + 3))
    assert encoder.output_size == 4
    out = encoder(torch.tensor([[start, start + 3], [start + 1, start + 2]]))  # [T, B]
    assert out.dtype == torch.float32
    assert out.tolist() == [[[1, 0, 0, 0], [0, 0, 0, 1]], [[0, 1, 0, 0], [0, 0, 1, 0]]]


def test_a_matrix_of_choices():
    encoder = ObservationEncoder(choices([[0, 0], [0, 10]], [[1, 2], [1, 11]]))
    assert encoder.output_size == 2 + 3 + 2 + 2
    out = encoder(torch.tensor([[[[1, 2], [0, 11]]]]))
    assert out.shape == (1, 1, 9)
    assert out.flatten().tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 1]


NESTED = {
    "sensors": (TensorSpec((2,)), {"gear": choices(1, 3), "camera": bounded((8, 6, 2), 0, 255, torch.uint8)}),
    "empty": (),
    "goal": TensorSpec((1,)),
}


def nested_observation(*batch):
    return {
        "sensors": (
            torch.randn(*batch, 2),
            {
                "gear": torch.randint(1, 4, batch),
                "camera": torch.randint(0, 256, (*batch, 8, 6, 2), dtype=torch.uint8),
            },
        ),
        "empty": (),
        "goal": torch.randn(*batch, 1),
    }


@pytest.mark.parametrize("batch", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_a_nest_is_its_leaves_in_order(batch):
    encoder = small_images(NESTED)
    x = nested_observation(*batch)
    out = encoder(x)
    assert encoder.output_size == 2 + 3 + 5 + 1
    assert out.shape == (*batch, 11) and out.dtype == torch.float32
    assert torch.equal(out[..., :2], x["sensors"][0])
    assert torch.equal(out[..., 2:5].argmax(-1) + 1, x["sensors"][1]["gear"])
    assert torch.all(out[..., 2:5].sum(-1) == 1)
    assert torch.equal(out[..., 10:], x["goal"])
    (image_encoder,) = encoder.images.values()
    flat = x["sensors"][1]["camera"].reshape(-1, 8, 6, 2)
    torch.testing.assert_close(out[..., 5:10].reshape(-1, 5), image_encoder(flat))


# --- Images -----------------------------------------------------------------------------------------------------------


def naive_image_encoder(encoder, image):
    """One image `[H, W, C]` in float64: convolutions by loops over pixels, channel-first where it is flattened."""
    x = image.astype(np.float64).transpose(2, 0, 1)
    convolutions = [m for m in encoder.convolutions if isinstance(m, torch.nn.Conv2d)]
    for layer, stride in zip(convolutions, SMALL["strides"]):
        weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
        size = weight.shape[-1]
        height, width = ((n - size) // stride + 1 for n in x.shape[1:])
        y = np.zeros((len(weight), height, width))
        for c in range(len(weight)):
            for i in range(height):
                for j in range(width):
                    patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
                    y[c, i, j] = max(0.0, (patch * weight[c]).sum() + bias[c])
        x = y
    weight, bias = (p.detach().double().numpy() for p in (encoder.projection.weight, encoder.projection.bias))
    return np.maximum(0.0, weight @ x.reshape(-1) + bias)


@pytest.mark.parametrize(
    "spec, scale",
    [
        (bounded((9, 6, 2), 0, 255, torch.uint8), 1 / 255),
        (TensorSpec((9, 6, 2), torch.uint8), 1 / 255),  # bounds unknown: those of a byte
        (TensorSpec((9, 6, 2), torch.uint8, np.array(0), np.array([4, 10])), 1 / 10),  # such as the kinds of things on a board
        (bounded((9, 6, 2), 0, 0, torch.uint8), 1.0),
        (bounded((9, 6, 2), 0, 255), 1.0),
    ],
)
def test_an_image_against_loops(spec, scale):
    """uint8 is scaled to [0, 1], floats are taken as they are; height and width differ."""
    dtype = spec.dtype
    encoder = ImageEncoder(spec, **SMALL)
    for parameter in encoder.parameters():
        parameter.data.normal_(0.0, 0.4)
    image = torch.randint(0, 256, (4, 9, 6, 2)).to(dtype) if dtype == torch.uint8 else torch.randn(4, 9, 6, 2)
    out = encoder(image)
    assert out.shape == (4, 5) and out.dtype == torch.float32
    expected = np.stack([naive_image_encoder(encoder, x.numpy() * scale) for x in image])
    assert (expected > 0).any()
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-4, atol=1e-5 * max(1.0, 255 * scale))


@pytest.mark.parametrize(
    "spec, expected",
    [
        (bounded((8, 6, 3), 0, 255, torch.uint8), True),
        (TensorSpec((8, 6, 3), torch.uint8), True),
        (bounded((8, 6, 3), 0.0, 1.0), True),
        (bounded((8, 6, 3), -np.inf, np.inf), False),
        (bounded((8, 6, 3), 0.0, np.inf), False),
        (TensorSpec((8, 6, 3)), False),
        (bounded((8, 6), 0.0, 1.0), False),
        (choices(np.zeros((8, 6, 3)), np.ones((8, 6, 3))), False),
    ],
)
def test_what_an_image_is(spec, expected):
    assert bool(small_images(spec).images) is expected


def test_a_grid_without_bounds_is_flattened():
    encoder = ObservationEncoder(bounded((2, 3, 4), -np.inf, np.inf))  # too small for a picture, too
    x = torch.randn(5, 7, 2, 3, 4)
    assert encoder.output_size == 24 and list(encoder.parameters()) == []
    assert torch.equal(encoder(x), x.flatten(2))


def test_initialisation_of_images():
    encoder = ImageEncoder(bounded((84, 84, 3), 0, 255, torch.uint8))
    assert encoder.output_size == 256
    sizes = [tuple(m.weight.shape) for m in encoder.convolutions if isinstance(m, torch.nn.Conv2d)]
    assert sizes == [(32, 3, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert encoder.projection.weight.shape == (256, 64 * 7 * 7)  # Mnih et al.: 20x20, 9x9, 7x7
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            area = math.prod(parameter.shape[2:])
            bound = math.sqrt(6 / ((parameter.shape[0] + parameter.shape[1]) * area))
            assert 0.98 * bound < parameter.abs().max() <= bound * (1 + 1e-6), name
    assert encoder(torch.full((2, 84, 84, 3), 255, dtype=torch.uint8)).abs().max() < 10


def test_each_image_has_a_network_of_its_own():
    image = bounded((6, 6, 1), 0, 255, torch.uint8)
    encoder = small_images((image, image))
    first, second = encoder.images.values()
    assert not torch.equal(first.projection.weight, second.projection.weight)
    assert encoder.output_size == 10
    x = torch.randint(0, 256, (3, 6, 6, 1), dtype=torch.uint8)
    torch.testing.assert_close(encoder((x, x)), torch.cat([first(x), second(x)], -1))


@pytest.mark.parametrize(
    "shape, at",
    [
        ((2, 6, 1), "2x6 before convolution 0, of kernel 3"),
        ((6, 2, 1), "6x2 before convolution 0, of kernel 3"),
        ((4, 6, 1), "1x2 before convolution 1, of kernel 2"),
    ],
)
def test_too_small_an_image_is_refused(shape, at):
    with pytest.raises(TaacError, match=f"too small .* it is {at}"):
        small_images({"camera": bounded(shape, 0, 255, torch.uint8)})


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(TaacError, match="as many"):
        ImageEncoder(bounded((9, 9, 1), 0, 255, torch.uint8), channels=(3,), kernels=(3, 2), strides=(1, 1))
