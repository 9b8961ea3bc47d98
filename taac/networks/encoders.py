"""Encoders from a nested observation to one feature vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gin
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.networks.layers import activation_module
from taac.specs import GLOBAL_STATE, TensorSpec

# The wrappers that errors name would get the whole observation.
_OF_A_PART = "in a Dict or Tuple, do the same to this part alone"


@gin.configurable
class ImageEncoder(nn.Module):
    """Convolutions and one linear layer, each followed by an activation, over an image of shape `[H, W, C]`.

    uint8 images are scaled to [0, 1] by the greatest upper bound of their space; float images are not scaled.

    Args:
        spec: the image's spec.
        channels, kernels, strides: of the convolutions, in order (default: those of Mnih et al., Nature 2015).
        output_size: width of the features.
        activation: called without arguments, once for each layer; see `HeadNetwork`.

    Raises:
        TaacError: lists of different lengths; an image that is too small, or that has its channels first.
    """

    def __init__(
        self,
        spec: TensorSpec,
        channels: Sequence[int] = (32, 64, 64),
        kernels: Sequence[int] = (8, 4, 3),
        strides: Sequence[int] = (4, 2, 1),
        output_size: int = 256,
        activation: Callable[..., nn.Module] = nn.ReLU,
    ):
        super().__init__()
        if not len(channels) == len(kernels) == len(strides):
            raise TaacError(
                f"ImageEncoder needs as many channels as kernels and strides, got {channels}, {kernels}, {strides}"
            )
        height, width, depth = spec.shape
        least = min(width, depth)  # in [84, 84, 3] the last is smallest; a board may have more planes than rows
        if height < least and height <= max(4, least // 2):
            raise TaacError(
                f"an image of shape {list(spec.shape)} seems to have its channels first, or to be a stack of frames: the first "
                "dimension is by far the least. ImageEncoder reads [height, width, channels]: "
                + ("for bytes bind create_environment.wrappers = (@Pictures,), or " if height <= 4 else "")
                + "move the first dimension to the end with "
                + _transformed(spec, "numpy.moveaxis(image, 0, -1)", (width, depth, height))
                + f"; if it is no picture, flatten it with gymnasium.wrappers.FlattenObservation(env); {_OF_A_PART}"
            )
        layers: list[nn.Module] = []
        for number, (channel, kernel, stride) in enumerate(zip(channels, kernels, strides)):
            if min(height, width) < kernel:
                raise TaacError(
                    f"an image of shape {list(spec.shape)} (height, width, channels) is too small for ImageEncoder: it is "
                    f"{height}x{width} before convolution {number}, of kernel {kernel}; bind fewer or smaller "
                    "ImageEncoder.kernels, ImageEncoder.strides and ImageEncoder.channels"
                )
            layers += [nn.Conv2d(depth, channel, kernel, stride), activation_module(activation)]
            height, width, depth = (height - kernel) // stride + 1, (width - kernel) // stride + 1, channel
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        greatest = 255.0 if spec.maximum is None else float(spec.maximum.max())
        self.scale = 1.0 / max(greatest, 1.0) if spec.dtype == torch.uint8 else 1.0
        self.convolutions = nn.Sequential(*layers)
        self.projection = nn.Linear(height * width * depth, output_size)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)
        self.activation = activation_module(activation)
        self.output_size = output_size

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Maps images `[M, H, W, C]` to features `[M, output_size]`."""
        x = image.movedim(-1, -3).to(torch.float32) * self.scale
        return self.activation(self.projection(self.convolutions(x).flatten(1)))


def is_image(spec: TensorSpec) -> bool:
    """Returns whether a leaf is an image `[H, W, C]`: not categorical, of rank 3, and uint8 or a number with finite bounds."""
    if len(spec.shape) != 3 or spec.is_categorical:
        return False
    bounds = (spec.minimum, spec.maximum)
    return spec.dtype == torch.uint8 or all(b is not None and bool(np.isfinite(b).all()) for b in bounds)


@gin.configurable
class ObservationEncoder(nn.Module):
    """Concatenates the encoded leaves of an observation nest of any depth.

    Each image is encoded by a network of its own, a categorical leaf becomes one-hot, and everything else is flattened.
    Without images there are no parameters. An image has rank 3, and is uint8 or bounded. A grid of floats without bounds is
    not an image (highway-env's occupancy grids `[features, 12, 12]` do not even have channels last).

    A vector of bytes (uint8 of rank 0 or 1, such as the memory of a console) is divided by its space's upper bounds, or by
    255 if it has none, so that it lies in [0, 1]. Bytes of rank 2, or of rank 4 and more, are refused, because they may be
    images.

    Args:
        observation_spec: nest of `TensorSpec`.
        image_encoder_ctor: called with an image's spec; returns a module with `output_size` that maps `[M, H, W, C]` to
            `[M, output_size]`.

    Raises:
        TaacError: bytes that are neither an image nor a vector.
    """

    def __init__(self, observation_spec: Nest, image_encoder_ctor: Callable[..., nn.Module] = ImageEncoder):
        super().__init__()
        for path, spec in nest.flatten_with_path(observation_spec):
            _check_bytes(path, spec)
        self._specs: list[tuple[str, TensorSpec]] = list(nest.flatten_with_path(observation_spec))
        self.images = nn.ModuleDict()
        self.output_size = 0
        for number, (_, spec) in enumerate(self._specs):
            if is_image(spec):
                encoder = image_encoder_ctor(spec)
                self.images[str(number)] = encoder
                self.output_size += int(encoder.output_size)  # type: ignore[arg-type]
            elif spec.is_categorical:
                self.output_size += int(spec.num_choices.sum())
                assert spec.minimum is not None
                self.register_buffer(f"least_{number}", torch.tensor(spec.minimum.reshape(-1)), persistent=False)
            else:
                self.output_size += spec.numel
                if spec.dtype == torch.uint8:
                    greatest = 255.0 if spec.maximum is None else np.broadcast_to(spec.maximum, spec.shape).reshape(-1)
                    scale = torch.as_tensor(1.0 / np.maximum(greatest, 1.0), dtype=torch.float32)
                    self.register_buffer(f"scale_{number}", scale, persistent=False)

    def forward(self, observation: Nest) -> torch.Tensor:
        """Maps leaves `[..., *shape]` to features `[..., output_size]`, float32."""
        leaves = nest.flatten(observation)
        parts = [self._encode(i, leaf, spec) for i, (leaf, (_, spec)) in enumerate(zip(leaves, self._specs))]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _encode(self, number: int, leaf: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
        batch = leaf.shape[: leaf.dim() - len(spec.shape)]
        if str(number) in self.images:
            return self.images[str(number)](leaf.reshape(-1, *spec.shape)).unflatten(0, batch)
        if spec.is_categorical:
            flat = leaf.reshape(*batch, spec.numel) - getattr(self, f"least_{number}")
            hot = [F.one_hot(flat[..., i], int(n)) for i, n in enumerate(spec.num_choices.reshape(-1))]
            return torch.cat(hot, dim=-1).to(torch.float32)
        if len(spec.shape) == 1 and leaf.dtype == torch.float32:
            return leaf
        flat = leaf.reshape(*batch, spec.numel).to(torch.float32)
        return flat * getattr(self, f"scale_{number}") if spec.dtype == torch.uint8 else flat


def _transformed(spec: TensorSpec, image: str, shape: tuple[int, ...]) -> str:
    """Returns the Python expression of a wrapper that turns `image` into one of another shape, of the same type and bounds."""
    low, high = (0, 255) if spec.minimum is None or spec.maximum is None else (spec.minimum.min(), spec.maximum.max())
    box = f"{low:g}, {high:g}, {shape}, numpy.{str(spec.dtype).removeprefix('torch.')}"
    return f"gymnasium.wrappers.TransformObservation(env, lambda image: {image}, gymnasium.spaces.Box({box}))"


def _check_bytes(path: str, spec: TensorSpec) -> None:
    """Refuses uint8 leaves that are neither images `[H, W, C]`, nor vectors, nor scalars."""
    if spec.dtype != torch.uint8 or len(spec.shape) in (0, 1, 3):
        return
    name, shape = f"the observation '{path}'" if path else "the observation", list(spec.shape)
    mend = (
        "for a grey picture bind create_environment.wrappers = (@Pictures,), or add a dimension with "
        f"gymnasium.wrappers.ReshapeObservation(env, {(*spec.shape, 1)}), or make it "
        "with GrayscaleObservation(env, keep_dim=True)"
    )
    if len(shape) == 4:  # as FrameStackObservation makes it of pictures
        stack, height, width, channels = shape
        wrapper = _transformed(spec, "numpy.concatenate(image, axis=-1)", (height, width, stack * channels))
        mend = f"for a stack of frames bind create_environment.frame_stack, or put them into the channels with {wrapper}"
    elif len(shape) > 4:
        mend = "for a stack of frames put them into the channels with gymnasium.wrappers.TransformObservation"
    raise TaacError(
        f"{name} is uint8 of shape {shape}; expected a picture [height, width, channels] or a vector: {mend}; if it is no "
        "picture, make a vector of it with gymnasium.wrappers.FlattenObservation(env), which is scaled to [0, 1]; "
        f"{_OF_A_PART}"
    )


@gin.configurable
class LocalEncoder(nn.Module):
    """Encodes a Dict observation without some of its keys, for actors that see less than the critics.

    It is an algorithm's `actor_encoder_ctor`. Critics are trained on everything, such as masses and frictions that a simulator
    knows and a robot does not. Acting does not need it where critics have no part in it (they have one in TAAC,
    TempoRL, TLA, MixedSAC, and SAC on chunks with `best_of`).

    Args:
        observation_spec: a dict with the privileged keys and others.
        privileged: the keys that only critics see; of several agents `global_state` alone, which is that of all.
        encoder_ctor: called with the spec of the other keys; see `ObservationEncoder`.

    Raises:
        TaacError: no privileged keys; an observation without them, or without others.

    Source: Pinto et al., Asymmetric Actor Critic for Image-Based Robot Learning (arXiv:1710.06542). Lowe et al.,
    Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments (arXiv:1706.02275), section 4.1.
    """

    def __init__(
        self,
        observation_spec: Nest,
        encoder_ctor: Callable[..., nn.Module] = ObservationEncoder,
        privileged: Sequence[str] = (GLOBAL_STATE,),
    ):
        super().__init__()
        self.privileged = (privileged,) if isinstance(privileged, str) else tuple(privileged)
        if not self.privileged:
            raise TaacError("LocalEncoder.privileged names no key that only critics see: name one, or do not use it")
        named = ", ".join(f"'{key}'" for key in self.privileged)
        if not isinstance(observation_spec, dict) or not set(observation_spec) - set(self.privileged):
            raise TaacError(f"LocalEncoder leaves {named} out of a Dict observation with other keys, got {observation_spec}")
        if missing := [key for key in self.privileged if key not in observation_spec]:
            raise TaacError(
                f"LocalEncoder leaves '{missing[0]}' out of the observation, which has only {', '.join(observation_spec)}; bind "
                "what only critics see to LocalEncoder.privileged"
            )
        self.encoder = encoder_ctor(self._local(observation_spec))
        self.output_size = int(self.encoder.output_size)  # type: ignore[arg-type]

    def forward(self, observation: Nest) -> torch.Tensor:
        """Maps leaves `[..., *shape]` to features `[..., output_size]`."""
        return self.encoder(self._local(observation))

    def _local(self, observation: Nest) -> Nest:
        return {key: part for key, part in observation.items() if key not in self.privileged}
