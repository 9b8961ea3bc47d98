"""One run trained by several ranks: what they do together around the steps of the training loop.

Each rank has its own environments, replay buffer and random numbers. The learner, the counts of steps, and the statistics of
normalisers are the same in all. With one rank, nothing here does anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from taac.acting.collecting import Collecting
from taac.acting.evaluation import Evaluation, Evaluator
from taac.acting.random_numbers import RANKS, derived_seed
from taac.algorithms.agent import Agent
from taac.errors import RankLost, TaacError
from taac.learning.learner import Learner
from taac.machine.ranks import Ranks
from taac.networks import BatchNorm, RewardScaler

RESUME, TRAIN, END = "resume", "train", "end"  # what the first rank tells the others


def own_seed(seed: int, ranks: Ranks) -> int:
    """Returns the seed of a rank's environments and random numbers; the run's own if there is only one rank."""
    return seed if ranks.count == 1 else derived_seed(seed, RANKS, ranks.number)


def check_supported(agent: Agent, demonstrations: str | None) -> None:
    """Refuses what several ranks cannot train; says what, and why."""
    refusal = "several ranks cannot train one run with"
    if agent.signals:
        names = ", ".join(type(signal).__name__ for signal in agent.signals)
        raise TaacError(f"{refusal} create_agent.reward_signals ({names}), whose statistics would differ between ranks")
    if isinstance(agent.reward_normalizer, RewardScaler):
        raise TaacError(
            f"{refusal} create_agent.normalize_rewards = 'scale' or 'bounded', because each rank has its own returns: bind True"
        )
    if demonstrations is not None:
        raise TaacError(f"{refusal} demonstrations or behaviour cloning, which every rank would count as its own")
    if any(isinstance(part, (_BatchNorm, BatchNorm)) for part in agent.modules()):
        raise TaacError(f"{refusal} batch normalisation, whose statistics would differ between ranks")
    if agent.agents is not None and agent.agents.masked:
        raise TaacError(f"{refusal} agents that join and leave, because ranks would learn from different numbers of frames")


class DataParallel:
    """What the ranks of a run do together. The counts of collector and update ratio are summed over them."""

    def __init__(self, ranks: Ranks, learner: Learner, collector: Collecting, update_ratio: Any, evaluator: Evaluator):
        self.ranks, self._learner, self._agent = ranks, learner, learner.agent
        self._collector, self._update_ratio, self._evaluator = collector, update_ratio, evaluator
        self._stop: Callable[[], bool] = lambda: False
        self._agreed = False  # whether any rank had been told to stop by the end of the last collection
        self._begun = False

    @property
    def alone(self) -> bool:
        return self.ranks.count == 1

    # Beginning -------------------------------------------------------------------------------------------------------

    def announce(self, what: str, about: Any = None) -> None:
        """Tells the other ranks what the first does next. In these, does nothing: they have been told."""
        if not self.alone and self.ranks.first:
            self.ranks.from_first((what, about))

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """In the first rank, tells the others to end if training does not begin."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
            raise
        finally:
            if not self._begun:
                with contextlib.suppress(RankLost):
                    self.announce(END, None if failure is None else str(failure))

    def begin(self, stop: Callable[[], bool]) -> None:
        """Gives all ranks the parameters of the first, and the same programs. Call it before training.

        `stop` returns whether this rank has been told to stop.
        """
        self._stop, self._begun = stop, True
        if self.alone:
            return
        self.announce(TRAIN, (self._agent.compiled, self._learner.products))
        self._learner.ranks = self.ranks
        self._agent.join(self.ranks)

    # In the loop -----------------------------------------------------------------------------------------------------

    def stopping(self) -> bool:
        """Returns whether a rank has been told to stop: the same in all, because they agree once an iteration."""
        return self._stop() if self.alone else self._agreed

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Adds up what all ranks collect in the context, when all have left it. A rank that fails there fails all."""
        if self.alone:
            yield
            return
        before, failure = self._counts(), None
        try:
            yield
        except Exception as error:
            failure = error
        own = [now - then for now, then in zip(self._counts(), before)]
        (*sums, told_to_stop), found = self.ranks.exchange(failure, [*own, self._stop()])
        steps, decisions, episodes, transitions = (then + taken for then, taken in zip(before, sums))
        self._collector.env_steps, self._collector.decisions, self._collector.episodes = steps, decisions, episodes
        self._update_ratio.transitions = transitions
        self._agreed = self._agreed or told_to_stop > 0
        self._agent.merge_observations(self.ranks)
        if found is not None:
            raise found

    def _counts(self) -> list[int]:
        collector = self._collector
        return [collector.env_steps, collector.decisions, collector.episodes, self._update_ratio.transitions]

    def agreed(self, value: str | None) -> str | None:
        """Returns the value of the first rank that has one."""
        return next((one for one in self.ranks.gather(value) if one is not None), None)

    def gather_episodes(self) -> None:
        """Moves the ended episodes of all ranks to the first, which reports them."""
        if self.alone:
            return
        found = self.ranks.gather(self._collector.pop_episodes())
        if self.ranks.first:
            self._collector.ended = [episode for episodes, _ in found for episode in episodes]

    def evaluated(self, run: Callable[[], Evaluation | None]) -> Evaluation | None:
        """Evaluates in the first rank while the others wait; returns the result, without a video in the others.

        None if the first was told to stop.
        """
        if self.alone:
            return run()
        found: Evaluation | None = None
        self._evaluator.unfinished = True
        with self.ranks.together():
            if self.ranks.first:
                found = run()
        without_video = None if found is None else found._replace(video=None)
        state, theirs = self.ranks.from_first((self._evaluator.state_dict(), without_video))
        self._evaluator.load_state_dict(state)
        return found or theirs

    def check_identical(self) -> None:
        """Refuses to go on if ranks hold different parameters or statistics; names the first tensor that differs."""
        self.ranks.check_identical(self._agent.state_dict(), f"after {self._collector.env_steps} environment steps")
