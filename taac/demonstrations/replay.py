"""What becomes of demonstrations: half of each batch (SQIL), or the first frames of the replay buffer."""

from __future__ import annotations

import hashlib

import gin
import torch

from taac import nest, specs
from taac.data_structures import Experience, Nest, StepType
from taac.errors import TaacError
from taac.replay.replay_buffer import ReplayBuffer


def prefilled(replay_buffer: ReplayBuffer, frames: Experience) -> ReplayBuffer:
    """The buffer with demonstrations for its oldest frames, leaves `[F, ...]`.

    They are dealt to the environments' places in equal, contiguous parts; where a part ends within an episode, the episode
    is cut off there as a truncation, and what does not divide is left out. As all frames they give way to newer ones.

    Raises:
        TaacError: they do not fit in the buffer.
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
    for t in range(length):
        replay_buffer.add(nest.index(dealt, t))
    return replay_buffer


class Demonstrations(ReplayBuffer):
    """A buffer that holds demonstrations, leaves `[F, ...]`, and nothing else.

    Attributes:
        digest: uint8 `[32]`, by which to know what was demonstrated.
    """

    def __init__(self, frames: Experience, device: torch.device):
        count = len(frames.time_step.step_type)
        super().__init__(nest.map_structure(specs.spec_of, frames), 1, max(2, count), device)
        digest = hashlib.sha256()
        for leaf in nest.flatten(
            frames.time_step
        ):  # what an algorithm makes of them may be rounded otherwise elsewhere
            digest.update(leaf.cpu().contiguous().numpy().tobytes())
        self.digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        for t in range(count):
            self.add(nest.index(frames, slice(t, t + 1)))

    def observations(self) -> Nest:
        """Every one, leaves `[F, ...]`."""
        return nest.map_structure(lambda leaf: leaf[: self.size, 0], self._storage.time_step.observation)

    def check(self, digest: torch.Tensor) -> None:
        """Refuses to go on with others.

        Raises:
            TaacError: the demonstrations are not those of the digest.
        """
        if not torch.equal(digest.cpu(), self.digest):
            raise TaacError(
                "the demonstrations are not those that the run began with; give the same file, or begin a new run"
            )


@gin.configurable
def kept_apart(replay_buffer: ReplayBuffer, frames: Experience) -> ReplayBuffer:
    """The agent's buffer as it is: the demonstrations are for reward signals and behaviour cloning alone."""
    return replay_buffer


@gin.configurable
class SqilReplay:
    """Batches for SQIL: the first half demonstrations with reward 1, the second half the agent's with reward 0.

    The task's own reward is not learnt from. A batch of odd size has one demonstration more. Segments of demonstrations are
    drawn as those of the buffer are. Every transition has reward 1, whatever its duration.

    Args:
        replay_buffer: of the agent's frames.
        frames: demonstrations, leaves `[F, ...]`.

    Raises:
        TaacError: the reward is a vector.

    Where the task ends by success, reward 1 makes going on worth more than ending: `OneStepTDLoss.ignore_done = True` (or
    of the TD loss in use) takes terminations for what truncations are.

    Source: Reddy, Dragan and Levine, SQIL (ICLR 2020, arXiv:1905.11108), algorithm 1.
    """

    def __init__(self, replay_buffer: ReplayBuffer, frames: Experience):
        if frames.time_step.reward.dim() > 1:
            raise TaacError("SqilReplay gives rewards of 1 and 0, but the environment's reward is a vector")
        self.agents = replay_buffer
        self._drawn = 0  # demonstrations in the last batch
        self.demonstrations = Demonstrations(frames, replay_buffer.device)

    def sample(self, batch_size: int, length: int) -> Experience:
        """`batch_size` segments of `length` frames, leaves `[length, batch_size, ...]`; demonstrations first."""
        halves = self.halves(batch_size, length)
        return nest.map_structure(lambda demonstrated, own: torch.cat([demonstrated, own], dim=1), *halves)

    def halves(self, batch_size: int, length: int) -> tuple[Experience, Experience]:
        """Both parts of a batch: demonstrations, and the agent's own."""
        half = batch_size // 2
        self._drawn = batch_size - half
        demonstrated = self.demonstrations.sample(self._drawn, length)
        own = self.agents.sample(half, length)
        return _rewarded(demonstrated, 1.0), _rewarded(own, 0.0)

    def sample_aside(self, batch_size: int, length: int) -> Experience:
        """As `sample`, without becoming the batch that was sampled last; the agent's half is drawn uniformly."""
        half = batch_size // 2
        demonstrated = _rewarded(self.demonstrations.sample(batch_size - half, length), 1.0)
        own = _rewarded(self.agents.sample_aside(half, length), 0.0)
        return nest.map_structure(lambda *halves: torch.cat(halves, dim=1), demonstrated, own)

    def importance_weights(self, progress: float) -> torch.Tensor | None:
        """Those of prioritised replay of the agent's frames, `[B']`, with mean 1; demonstrations count 1. See `ReplayBuffer`.

        The greatest weight of a prioritised batch is 1, so that its mean is less: the agent's half would count less than
        the demonstrations, the less the more unequal priorities are.
        """
        own = self.agents.importance_weights(progress)
        return None if own is None else torch.cat([own.new_ones(self._drawn), own / own.mean()])

    def update_priorities(self, error: torch.Tensor | None) -> None:
        """Hands the errors `[B']` of the agent's segments on. See `ReplayBuffer`."""
        self.agents.update_priorities(None if error is None else error[self._drawn :])

    # The agent's frames ----------------------------------------------------------------------------------------------

    num_envs = property(lambda self: self.agents.num_envs)
    length = property(lambda self: self.agents.length)
    size = property(lambda self: self.agents.size)
    device = property(lambda self: self.agents.device)

    @property
    def num_bytes(self) -> int:
        return self.agents.num_bytes + self.demonstrations.num_bytes

    def add(self, experience: Experience) -> None:
        self.agents.add(experience)

    def newest_episode(self, environment: int) -> Experience | None:
        return self.agents.newest_episode(environment)

    def state_dict(self, frames: bool = True) -> dict[str, torch.Tensor]:
        """What the agent's buffer gives, and by what to know the demonstrations, which are read anew."""
        return {**self.agents.state_dict(frames), "demonstrations": self.demonstrations.digest}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes up what `state_dict` gave.

        Raises:
            TaacError: the demonstrations are others than then.
        """
        rest = dict(state)
        self.demonstrations.check(rest.pop("demonstrations"))
        self.agents.load_state_dict(rest)


def _rewarded(experience: Experience, reward: float) -> Experience:
    """With this reward at every transition; at FIRST, which is none, it is 0."""
    time_step = experience.time_step
    given = (~time_step.is_first()).to(time_step.reward.dtype) * reward
    return experience._replace(time_step=time_step._replace(reward=given))
