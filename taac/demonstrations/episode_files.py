"""Recorded episodes in this package's own files and in Minari datasets.

An episode is a `TimeStep` of its frames, FIRST to LAST, with leaves `[N+1, ...]` for N transitions.

A file is numpy's `.npz`. It holds only arrays and text, so reading it cannot run code. The arrays are the frames of all
episodes in sequence, by path (`observation`, `observation/camera`, `reward`...). `meta` is JSON in UTF-8 with the format's
version, the environment's id and spaces, and the number of episodes.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import taac
from taac import nest, specs
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments import spaces
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.machine.memory import available_bytes
from taac.runs import durable, files
from taac.specs import TensorSpec

FORMAT = 1
MINARI = "minari:"  # prefix of a dataset's id
ROUNDING = 1e-5  # tolerance for actions in [-1, 1] and discounts in [0, 1]


def read(source: str, environment: VectorEnvironment) -> list[TimeStep]:
    """Reads the episodes of a file by `EpisodeWriter`, or of the Minari dataset `"minari:ID"`.

    Raises TaacError if it does not exist, is damaged or empty, has a newer format, or does not fit the environment.
    """
    episodes = _read_minari(source, environment) if source.startswith(MINARI) else _read_file(source, environment)
    if not episodes:
        raise TaacError(f"the demonstrations '{source}' hold no episode")
    for number, episode in enumerate(episodes):
        _check(f"the demonstrations '{source}': episode {number}", episode, environment)
    return episodes


def _check(where: str, episode: TimeStep, environment: VectorEnvironment) -> None:
    kinds = episode.step_type.tolist()
    if len(kinds) < 2 or kinds != [StepType.FIRST, *[StepType.MID] * (len(kinds) - 2), StepType.LAST]:
        raise TaacError(f"{where} is not whole: expected the step types FIRST, MID..., LAST")
    shape = () if environment.reward_dim is None else (environment.reward_dim,)
    if episode.reward.shape[1:] != shape:
        raise TaacError(
            f"{where} has rewards of shape {list(episode.reward.shape[1:])}, but those of environment "
            f"'{environment.name}' have shape {list(shape)}"
        )
    low, high = environment.durations
    longest = int(episode.duration.max())
    # The end of an episode may cut its last action short, so a single short action is not an error.
    if longest > high or (longest < low and len(kinds) > 2):
        raise TaacError(
            f"{where} has actions that take {longest} environment steps, but those of '{environment.name}' take "
            f"{high if low == high else f'{low} to {high}'}; record with the same create_environment.action_repeat"
        )
    if bool((others := other_durations(episode, environment)).any()):
        frame = int(others.nonzero()[0])
        raise TaacError(
            f"{where}, frame {frame}: the action takes {int(episode.duration[frame])} environment steps, and here its last "
            "number says otherwise; record with the same create_environment.action_repeat"
        )
    for (path, spec), (_, leaf) in zip(nest.flatten_with_path(_frame_specs(environment)), nest.flatten_with_path(episode)):
        if path != "step_type":
            _check_leaf(where, path, spec, leaf, environment)
    terminated = episode.is_last() & (episode.discount == 0)
    observation = episode.observation
    if isinstance(observation, dict) and specs.ACTION_MASK in observation:  # as `StepChecks` requires in training
        forbids = specs.forbids_acting(observation, environment.action_spec) & ~terminated
        if bool(forbids.any()):
            frame = int(forbids.nonzero()[0])
            raise TaacError(f"{where}, frame {frame}: '{specs.ACTION_MASK}' forbids every choice, expected one that is valid")
    inside = environment.repeat_gamma ** (episode.duration.double() - 1.0).clamp(min=0.0)
    wrong = (~terminated & ((episode.discount - inside).abs() > ROUNDING)).nonzero()
    if len(wrong):
        frame = int(wrong[0])
        raise TaacError(
            f"{where}, frame {frame}: 'discount' is {episode.discount[frame]:g} after an action of {episode.duration[frame]} "
            f"environment steps, expected {inside[frame]:g}: record with the same create_environment.action_repeat_gamma and "
            "action_repeat_plain_sum, with which the rewards of a repeat were added up"
        )


def other_durations(step: TimeStep, environment: VectorEnvironment) -> torch.Tensor:
    """Returns where an action lasted longer or shorter than its last number says here, `[...]` bool; see `DurationCoordinate`.

    The end of an episode may cut it short.
    """
    if not environment.duration_coordinate:
        return torch.zeros_like(step.duration, dtype=torch.bool)
    most = environment.durations[1]
    part = most * (step.prev_action[..., -1].double() + 1) / 2
    least, greatest = ((1 + (part + error).floor()).clamp(1, most) for error in (-ROUNDING, ROUNDING))
    return (step.duration > greatest) | ((step.duration < least) & ~step.is_first() & ~step.is_last())


def _check_leaf(where: str, path: str, spec: TensorSpec, leaf: torch.Tensor, environment: VectorEnvironment) -> None:
    """Requires finite numbers inside their bounds."""
    least, greatest = (-np.inf, np.inf) if spec.minimum is None else (spec.minimum, spec.maximum)
    low, high = np.asarray(least, dtype=np.float64), np.asarray(greatest, dtype=np.float64)
    if path == "discount":
        low, high = np.asarray(-ROUNDING), np.asarray(1 + ROUNDING)
    elif path == "duration":
        low, high = np.asarray(0.0), np.asarray(float(environment.durations[1]))
    elif path.startswith("prev_action") and not spec.is_categorical:
        low, high = low - ROUNDING, high + ROUNDING
    elif path.startswith("observation") and spec.dtype == torch.float32:  # simulators exceed the bounds that they declare
        low, high = low - np.inf, high + np.inf
    if spec.dtype == torch.float32:
        most = float(np.finfo(np.float32).max)
        low, high = np.maximum(low, -most), np.minimum(high, most)
    values = leaf.numpy()
    wrong = np.argwhere(~((values >= low) & (values <= high)))  # NaN, too
    if not len(wrong):
        return
    frame, *place = wrong[0].tolist()
    least, greatest = (float(np.broadcast_to(bound, values.shape[1:])[tuple(place)]) for bound in (low, high))
    expected = f"{least:g} to {greatest:g}" if max(-least, greatest) < 1e38 else "a finite number"
    at = f" at {place}" if place else ""
    raise TaacError(f"{where}, frame {frame}: '{path}'{at} is {values[tuple(wrong[0])]!s}, expected {expected}")


def _check_spaces(source: str, held: dict[str, Any], environment: VectorEnvironment) -> None:
    for name, space in environment.described_spaces().items():
        if held.get(name) != space:
            theirs, ours = (json.dumps(s) for s in (held.get(name), space))
            raise TaacError(
                f"the demonstrations '{source}' do not fit environment '{environment.name}': their {name} is "
                f"{theirs[:500]}, the environment's is {ours[:500]}"
            )


# This package's own file -----------------------------------------------------------------------------------------------


class EpisodeWriter:
    """Records the frames at which an agent acts (`evaluate`'s `on_step`). Writes the finished episodes to a new `.npz` file."""

    def __init__(self, path: Path, environment: VectorEnvironment):
        self.path, self._environment = path, environment
        self._open: list[list[TimeStep]] = [[] for _ in range(environment.num_envs)]
        self._frames: list[TimeStep] = []
        self.num_episodes = self.num_transitions = 0

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        for index, frames in enumerate(self._open):
            frames.append(nest.index(time_step, index))
            if bool(time_step.is_last()[index]):
                self._frames += frames
                self.num_episodes += 1
                self.num_transitions += len(frames) - 1
                self._open[index] = []

    def save(self) -> None:
        """Writes the file completely or not at all. Raises TaacError if no episode has ended."""
        if not self._frames:
            raise TaacError(f"no episode has ended, so there is nothing to write to {self.path}")
        frames = nest.map_structure(lambda *leaves: torch.stack(leaves), *self._frames)
        arrays = {path: leaf.cpu().numpy() for path, leaf in nest.flatten_with_path(frames)}
        meta = {
            "format": FORMAT,
            "taac": taac.__version__,
            "environment": self._environment.name,
            **self._environment.described_spaces(),
            "episodes": self.num_episodes,
            "transitions": self.num_transitions,
        }
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        packed = io.BytesIO()
        np.savez_compressed(packed, meta=text, **arrays)
        durable.write(self.path, packed.getvalue())


def _read_file(source: str, environment: VectorEnvironment) -> list[TimeStep]:
    if not Path(source).is_file():
        raise TaacError(
            f"there is no file of demonstrations '{source}'; record one with taac play --record_demonstrations, or give "
            f"a Minari dataset as '{MINARI}ID'"
        )
    try:
        with open(source, "rb") as file, np.load(file, allow_pickle=False) as held:
            most = available_bytes(torch.device("cpu")) // 2  # the replay buffer takes a copy
            total = sum(info.file_size for info in held.zip.infolist())
            if total > most:
                raise ValueError(f"its arrays have {total} bytes, expected at most {most}, half of the free memory")
            if held.zip.getinfo("meta.npy").file_size > files.MAX_JSON_BYTES:
                raise ValueError("its description is too long")
            meta = json.loads(held["meta"].tobytes().decode())
            version = int(meta["format"])
            if version > FORMAT:
                raise TaacError(
                    f"the demonstrations '{source}' have format {version}; this version of taac reads up to format {FORMAT}"
                )
            _check_spaces(source, meta, environment)
            arrays = {path: np.asarray(held[path]) for path, _ in nest.flatten_with_path(_frame_specs(environment))}
            arrays = {path: a.view(np.uint8) != 0 if a.dtype == bool else a for path, a in arrays.items()}
    except TaacError:
        raise
    except Exception as error:
        raise TaacError(f"the demonstrations '{source}' cannot be read, the file may be damaged: {error}") from error
    frames = _packed(f"the demonstrations '{source}'", arrays, environment)
    starts = frames.is_first().nonzero().flatten().tolist()
    ends = [*starts[1:], len(frames.step_type)]
    if any(end - start < 2 for start, end in zip(starts, ends)):  # before an object is made for each
        raise TaacError(f"the demonstrations '{source}' hold an episode without a transition")
    return [nest.index(frames, slice(start, end)) for start, end in zip([0, *starts[1:]], ends)]


def _frame_specs(environment: VectorEnvironment) -> TimeStep:
    """Returns dtypes and shapes of a frame. `_check` compares the reward's shape, with a better message."""
    return specs.time_step_spec(environment.observation_spec, environment.action_spec, None)


def _packed(where: str, arrays: dict[str, np.ndarray], environment: VectorEnvironment) -> TimeStep:
    """Returns the frames as one `TimeStep`, leaves `[F, ...]`. Refuses arrays of other lengths, shapes or dtypes."""
    tree = _frame_specs(environment)
    frames = len(arrays["step_type"]) if arrays["step_type"].ndim else 0
    for path, spec in nest.flatten_with_path(tree):
        array = arrays[path]
        wanted = (frames, *(array.shape[1:2] if path == "reward" else spec.shape))
        dtype = str(spec.dtype).removeprefix("torch.")
        if array.shape != wanted or array.dtype.str != np.dtype(dtype).str:
            raise TaacError(
                f"{where}: '{path}' holds {array.dtype} of shape {list(array.shape)}, expected {dtype} of shape {list(wanted)}"
            )
    return nest.pack_like(tree, [torch.from_numpy(arrays[path]) for path, _ in nest.flatten_with_path(tree)])


# Minari ----------------------------------------------------------------------------------------------------------------


def _read_minari(source: str, environment: VectorEnvironment) -> list[TimeStep]:
    name = source.removeprefix(MINARI)
    try:
        import minari

        dataset = minari.load_dataset(name)
        held = {kind: spaces.describe(getattr(dataset, kind)) for kind in ("observation_space", "action_space")}
        _check_spaces(source, held, environment)
        about = zip(dataset.iterate_episodes(), dataset.storage.get_episode_metadata(dataset.episode_indices))
        where = f"the Minari dataset '{name}'"
        return [_frames(where, episode, int(held["total_steps"]), environment) for episode, held in about]
    except TaacError:
        raise
    except ImportError as error:
        raise TaacError(
            f"the Minari dataset '{name}' needs a package that is not installed ({error}): "
            "pip install \"minari[hdf5]\" (taac's extra 'minari')"
        ) from error
    except FileNotFoundError as error:
        raise TaacError(f"there is no Minari dataset '{name}' here: {error}; try: minari download {name}") from error
    except Exception as error:
        raise TaacError(f"the Minari dataset '{name}' cannot be read: {type(error).__name__}: {error}") from error


def _frames(where: str, episode: Any, steps: int, environment: VectorEnvironment) -> TimeStep:
    """Converts a Minari episode of N `steps` to frames. It has N+1 observations and N of everything else."""
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        expected = steps + (name == "observations")
        for path, leaf in nest.flatten_with_path(getattr(episode, name)):
            if len(leaf) != expected:
                raise TaacError(
                    f"{where}: episode {episode.id} of {steps} steps has {len(leaf)} {name}{f' ({path})' if path else ''}, "
                    f"expected {expected}"
                )
    action = spaces.to_unit(where, environment.action_space, episode.actions)
    step_type = torch.full((steps + 1,), int(StepType.MID), dtype=torch.uint8)
    step_type[0], step_type[-1] = StepType.FIRST, StepType.LAST
    frames = TimeStep(
        step_type=step_type,
        reward=_after_first(0.0, torch.as_tensor(np.asarray(episode.rewards), dtype=torch.float32)),
        discount=_after_first(1.0, 1.0 - torch.as_tensor(np.asarray(episode.terminations), dtype=torch.float32)),
        observation=nest.map_structure(torch.from_numpy, spaces.to_arrays(environment.observation_spec, episode.observations)),
        prev_action=nest.map_structure(lambda a: _after_first(0, a), action),
        duration=_after_first(0, torch.ones(steps, dtype=torch.int16)),
    )
    arrays = {path: leaf.numpy() for path, leaf in nest.flatten_with_path(frames)}
    return _packed(f"{where}: episode {episode.id}", arrays, environment)


def _after_first(value: float, rest: torch.Tensor) -> torch.Tensor:
    """Extends `[N, ...]` to `[N+1, ...]` with `value` at FIRST."""
    return torch.cat([torch.full_like(rest[:1], value), rest])
