"""Demonstrations as frames: half of each batch, the replay buffer's first frames, or only for other losses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import gin
import torch
import torch.nn as nn

from taac import nest, specs
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, Nest, StepType, TimeStep
from taac.demonstrations import episode_files
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.replay.replay_buffer import Batch, ReplayBuffer

_EPISODES_AT_ONCE = 64  # most episodes for which an algorithm computes `info` in one batch


def demonstrated_frames(source: str, environment: VectorEnvironment, agent: Agent, spec: Nest) -> Experience:
    """Converts demonstrations to frames of `spec`, as this agent's rollouts would be stored. Joins episodes, leaves `[F, ...]`.

    Raises TaacError as `episode_files.read`, and if the algorithm stores something that recorded actions do not contain.
    """
    episodes = list[Experience]()
    for part in _groups(episode_files.read(source, environment)):
        info = agent.demonstrated_info(nest.map_structure(lambda *leaves: nn.utils.rnn.pad_sequence(list(leaves)), *part))
        episodes += [Experience(e, nest.index(info, (slice(len(e.step_type)), i))) for i, e in enumerate(part)]
    frames: Experience = nest.map_structure(lambda *leaves: torch.cat(leaves), *episodes)
    stored = {path: tuple(s.shape) for path, s in nest.flatten_with_path(spec.rollout_info)}
    computed = {path: tuple(x.shape[1:]) for path, x in nest.flatten_with_path(frames.rollout_info)}
    if stored != computed:
        raise TaacError(
            f"{type(agent.algorithm).__name__} cannot learn from demonstrations: it stores {', '.join(stored)} of its "
            "rollouts, which recorded actions do not contain. Use SacAlgorithm, TaacAlgorithm or another method that can"
        )
    return frames


def _groups(episodes: list[TimeStep]) -> Iterator[list[TimeStep]]:
    """Yields successive episodes together, so few that padding to the longest at most doubles their frames."""
    group: list[TimeStep] = []
    for episode in episodes:
        lengths = [len(e.step_type) for e in (*group, episode)]
        if group and (len(group) == _EPISODES_AT_ONCE or max(lengths) * len(lengths) > 2 * sum(lengths)):
            yield group
            group = []
        group.append(episode)
    yield group


@gin.configurable(denylist=["replay_buffer", "frames"])
def prefilled(replay_buffer: ReplayBuffer, frames: Experience) -> ReplayBuffer:
    """Adds demonstrations, leaves `[F, ...]`, to an empty buffer as its oldest frames. Returns the buffer.

    The frames are divided into equal, contiguous parts, one for each environment of the buffer. If a part ends within an episode,
    the episode is truncated there. A remainder is left out. Newer frames overwrite demonstrations like all others. Raises
    TaacError if each part would have fewer than 2 frames, or more than fit in the buffer.
    """
    columns = replay_buffer.num_envs
    length = len(frames.time_step.step_type) // columns
    if not 2 <= length <= replay_buffer.length:
        raise TaacError(
            f"{len(frames.time_step.step_type)} frames of demonstrations are {length} for each of {columns} environments; "
            f"expected 2 to ReplayBuffer.length = {replay_buffer.length}"
        )
    dealt = nest.map_structure(lambda x: x[: length * columns].unflatten(0, (columns, length)).transpose(0, 1), frames)
    last = dealt.time_step.step_type.clone()
    last[-1] = int(StepType.LAST)
    dealt = dealt._replace(time_step=dealt.time_step._replace(step_type=last))
    replay_buffer.reserve(length)  # at once, which needs less memory than growing
    for t in range(length):
        replay_buffer.add(nest.index(dealt, t))
    return replay_buffer


class Demonstrations(ReplayBuffer):
    """A buffer that holds only demonstrations, leaves `[F, ...]`, which its `digest` identifies, uint8 `[32]`."""

    smaller = "give fewer demonstrations"

    def __init__(self, frames: Experience, device: torch.device, burn_in: int = 0, learns_on_last_frame: bool = True):
        count = len(frames.time_step.step_type)
        spec = nest.map_structure(specs.spec_of, frames)
        super().__init__(spec, 1, max(2, count), device, burn_in, learns_on_last_frame)
        digest = hashlib.sha256()
        # The digest leaves out `rollout_info`, which the algorithm computes and which may be rounded differently elsewhere.
        for leaf in nest.flatten(frames.time_step):
            digest.update(leaf.cpu().flatten().numpy())
        self.digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        self.reserve(count)
        for held, leaf in zip(self._leaves, nest.flatten_like(self._storage, frames)):
            held[:count, 0] = leaf
        self.added = count

    def observations(self) -> Nest:
        """Returns all observations, leaves `[F, ...]`."""
        return nest.map_structure(lambda leaf: leaf[: self.size, 0], self._storage.time_step.observation)

    def check(self, digest: torch.Tensor) -> None:
        """Raises TaacError if the demonstrations have another digest."""
        if not torch.equal(digest.cpu(), self.digest):
            raise TaacError("the demonstrations are not those that the run began with; use the same file, or begin a new run")


@gin.configurable
def kept_apart(replay_buffer: ReplayBuffer, frames: Experience) -> ReplayBuffer:
    """Returns the agent's buffer unchanged: only reward signals and behaviour cloning use the demonstrations."""
    return replay_buffer


@gin.configurable
class HalfDemonstrations:
    """Batches whose first half are demonstrations, and whose second half are the agent's own frames, each with its own rewards.

    A batch of odd size has one more demonstration. Segments of demonstrations are sampled uniformly.

    Args:
        replay_buffer: the buffer of the agent's frames.
        frames: demonstrations, leaves `[F, ...]`.

    Source: Ball et al., Efficient Online Reinforcement Learning with Offline Data (RLPD, ICML 2023, arXiv:2302.02948), "symmetric
    sampling".
    """

    min_batch_size = 2  # half of a batch is the agent's

    def __init__(self, replay_buffer: ReplayBuffer, frames: Experience):
        self.agents = replay_buffer
        self.demonstrations = Demonstrations(
            frames, replay_buffer.device, replay_buffer.burn_in, replay_buffer.learns_on_last_frame
        )

    def sample(self, batch_size: int, length: int) -> Experience:
        """Returns segments of the agent's own frames as they are stored; see `Replay`."""
        return self.agents.sample(batch_size, length)

    def sample_batch(self, batch_size: int, length: int, progress: float = 0.0) -> Batch:
        """Returns a batch of which the agent's half is drawn as its buffer prefers; see `Replay`.

        If that half has importance weights, they are divided by their mean, and demonstrations have weight 1. The greatest
        weight of a prioritised batch is 1, so the agent's half would otherwise count less than the demonstrations.
        """
        demonstrated, own = self.halves(batch_size, length, progress)
        weights = own.weights
        if weights is not None:
            weights = torch.cat([weights.new_ones(batch_size - batch_size // 2), weights / weights.mean()])
        joined = nest.map_structure(lambda *halves: torch.cat(halves, dim=1), demonstrated, own.experience)
        return Batch(joined, weights, own.indices)

    def halves(self, batch_size: int, length: int, progress: float = 0.0) -> tuple[Experience, Batch]:
        """Returns both parts of a batch: demonstrations, and the agent's own with its weights and indices."""
        half = batch_size // 2
        demonstrated = self.demonstrations.sample(batch_size - half, length)
        own = self.agents.sample_batch(half, length, progress)
        return demonstrated, own

    def update_priorities(self, batch: Batch, error: torch.Tensor | None) -> None:
        """Passes the errors of the agent's half on; see `Replay`."""
        if batch.indices is not None and error is not None:
            error = error[len(error) - len(batch.indices) :]
        self.agents.update_priorities(batch, error)

    @property
    def num_bytes(self) -> int:
        return self.agents.num_bytes + self.demonstrations.num_bytes

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the agent's buffer and the digest of the demonstrations, which are read from their file again."""
        return {**self.agents.state_dict(), "demonstrations": self.demonstrations.digest}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restores `state_dict()`. Raises TaacError if the demonstrations have changed."""
        rest = dict(state)
        self.demonstrations.check(rest.pop("demonstrations"))
        self.agents.load_state_dict(rest)


@gin.configurable
class SqilReplay(HalfDemonstrations):
    """Batches for SQIL: `HalfDemonstrations` in which demonstrations have reward 1, and the agent's frames reward 0.

    The task's own reward is not used. Every demonstrated transition has reward 1, whatever its duration.

    If success ends the task, reward 1 makes continuing worth more than ending. `OneStepTDLoss.ignore_done = True` (or the
    same setting of the TD loss in use) then treats terminations as truncations.

    Args:
        replay_buffer: the buffer of the agent's frames.
        frames: demonstrations, leaves `[F, ...]`, without a vector reward.

    Source: Reddy, Dragan and Levine, SQIL (ICLR 2020, arXiv:1905.11108), algorithm 1.
    """

    def __init__(self, replay_buffer: ReplayBuffer, frames: Experience):
        if frames.time_step.reward.dim() > 1:
            raise TaacError("SqilReplay sets rewards to 1 and 0, but the environment's reward is a vector; use a scalar reward")
        super().__init__(replay_buffer, frames)

    def halves(self, batch_size: int, length: int, progress: float = 0.0) -> tuple[Experience, Batch]:
        demonstrated, own = super().halves(batch_size, length, progress)
        return _rewarded(demonstrated, 1.0), own._replace(experience=_rewarded(own.experience, 0.0))


def _rewarded(experience: Experience, reward: float) -> Experience:
    """Returns the experience with this reward at every frame, except for 0 at FIRST, where no transition arrives."""
    time_step = experience.time_step
    rewards = (~time_step.is_first()).to(time_step.reward.dtype) * reward
    return experience._replace(time_step=time_step._replace(reward=rewards))
