"""Trains many seeds of one method in one process. Each is a run like any other; their updates are computed together."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from taac import configuration
from taac.acting.random_numbers import Generators
from taac.configuration import Asked, Config
from taac.errors import Interrupted, TaacError
from taac.learning.joint import Joint, JointUpdates
from taac.machine.processes import settled_heap
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training.conduct import Bar, conduct
from taac.training.experiment import create_experiment
from taac.training.interruption import Interruption
from taac.training.reporting import Progress
from taac.training.trainer import Trainer
from taac.training.turns import Turn, take_turns


class Member(NamedTuple):
    """One of the runs, built and ready to train."""

    seed: int
    trainer: Trainer
    loaded: Config
    operative: str
    folder: RunFolder
    generators: Generators  # as building left them


def members(asked: Asked, seeds: Sequence[int], parent: str | Path) -> list[Member]:
    """Builds a run for each seed that is not finished yet, in the folder `parent/seed_<n>`.

    Args:
        asked: the experiment; its seed is not looked at.
        seeds: of the runs.
        parent: holds the folders.

    Raises:
        TaacError: one cannot be built, or its folder holds something else. Nothing was begun then.
    """
    found: list[Member] = []
    with contextlib.ExitStack() as opened:
        for seed in seeds:
            random.seed()  # as in a process of its own
            loaded = asked._replace(seed=seed).load()
            if loaded.bound("create_experiment.collectors", 0) and len(seeds) > 1:
                raise TaacError("create_experiment.collectors starts processes for one run: leave it out, or --num_seeds")
            trainer = configuration.build(create_experiment)
            opened.callback(trainer.close)
            loaded.check_used()
            if "wandb" in trainer.reporter.logs_to and len(seeds) > 1:
                raise TaacError("WandbLogger logs one run of a process: leave out --num_seeds, or bind @MlflowLogger()")
            folder, operative = RunFolder(Path(parent) / f"seed_{seed}"), configuration.operative_config()
            if folder.open(operative) == "finished":
                trainer.close()
                continue
            generators = Generators.now(trainer.agent.device)
            found.append(Member(seed, trainer, loaded, operative, folder, generators))
        opened.pop_all()
    return found


class Outcome(NamedTuple):
    """How the runs ended: their seeds, and why those that failed did."""

    finished: list[int]
    failed: dict[int, Exception]


@settled_heap()
def conduct_seeds(
    runs: Sequence[Member],
    bar: Bar,
    lock_timeout: float = 0.0,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """Trains runs that differ only in their seeds, from wherever each stands to its end, and closes them.

    Each has the result that it would have alone, but for rounding. A run that fails or diverges is recorded as such in its own
    folder, and the others go on.

    Args:
        runs: at least one.
        bar: makes the progress bar of them all.
        lock_timeout, tell: as in `conduct`.

    Raises:
        Interrupted: a signal stopped them; each can be resumed.
    """
    with contextlib.ExitStack() as opened:
        shown = opened.enter_context(_OneBar(bar, [member.trainer for member in runs]))
        stop = opened.enter_context(Interruption())
        company = _Company(runs, shown, lock_timeout, tell, stop)
        opened.callback(company.close)
        take_turns(company.turns, company.updates.compute, stop)
    errors = {m.seed: t.error for m, t in zip(runs, company.turns) if t.error is not None}
    failed = {seed: e for seed, e in errors.items() if isinstance(e, Exception) and not isinstance(e, Interrupted)}
    for seed, error in errors.items():
        if isinstance(error, Interrupted):
            tell(f"seed {seed}: {error}")
        elif not isinstance(error, TaacError):  # of an algorithm or a hook of the user's own
            traceback.print_exception(error, file=sys.stderr)
    ended = [m.seed for m, t in zip(runs, company.turns) if t.ended and t.error is None]
    stopped = [m.seed for m in runs if m.seed not in ended and m.seed not in failed]
    if stopped:
        raise Interrupted(
            f"seed{'s' if len(stopped) > 1 else ''} {', '.join(map(str, stopped))} can go on: the same command continues to the "
            "same end"
            + "".join(f"; seed {seed} failed: {error}" for seed, error in failed.items())
        )
    return Outcome(ended, failed)


class _Company:
    """The runs, their turns and their joint updates."""

    def __init__(
        self,
        runs: Sequence[Member],
        shown: _OneBar,
        lock_timeout: float,
        tell: Callable[[str], None],
        stop: Interruption,
    ):
        self._runs, self._shown, self._lock_timeout, self._say, self._stop = runs, shown, lock_timeout, tell, stop
        self._said: set[str] = set()
        self.turns = [
            Turn(functools.partial(self._conduct, number), member.trainer.agent.device, member.generators)
            for number, member in enumerate(runs)
        ]
        self.updates = JointUpdates([member.trainer.learner for member in runs], self._meet, self._tell_updates)

    def close(self) -> None:
        """Closes the environments of those that have not begun. The others have closed theirs, in the thread that used them."""
        for member, turn in zip(self._runs, self.turns):
            if not turn.began:
                member.trainer.close()

    def _meet(self, number: int, share: Joint | None) -> Any:
        return self.turns[number].pause(share)

    def _conduct(self, number: int) -> None:
        member = self._runs[number]
        try:
            conduct(
                member.trainer, member.loaded, member.folder, self._shown.of(number), False, self._lock_timeout,
                lambda text: self._tell(number, text), lambda: contextlib.nullcontext(self._stop),
                operative=member.operative,
            )  # fmt: skip
        finally:
            member.trainer.close()

    def _tell(self, number: int, text: str) -> None:
        """Says what a run has to say, unless another has said the same."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"seed {self._runs[number].seed}: {text}")

    def _tell_updates(self, number: int, text: str) -> None:
        self._runs[number].folder.update_run(updates_together=text)
        self._tell(number, f"updates: {text}")


class _OneBar(contextlib.ExitStack):
    """A progress bar of several runs: the sums of their steps and updates, and the means of their evaluations."""

    def __init__(self, bar: Bar, trainers: Sequence[Trainer]):
        super().__init__()
        self._bar, self._whole = bar, sum(trainer.num_env_steps for trainer in trainers)
        self._told: list[tuple[int, int, EpisodeSummary | None, float]] = [(0, 0, None, 0.0)] * len(trainers)
        self._progress: Progress | None = None

    def of(self, number: int) -> Bar:
        """Returns the constructor of one run's part of the bar."""

        @contextlib.contextmanager
        def part(total: int, initial: int) -> Any:
            self._told[number] = (initial, 0, None, 0.0)
            yield functools.partial(self._follow, number)

        return part

    def _follow(
        self, number: int, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float
    ) -> None:
        self._told[number] = (env_steps, updates, evaluation, repeated)
        all_steps, all_updates, evaluations, shares = zip(*self._told)
        if self._progress is None:
            self._progress = self.enter_context(self._bar(self._whole, sum(all_steps)))
        known = [e for e in evaluations if e is not None]
        mean = known[0]._replace(return_mean=sum(e.return_mean for e in known) / len(known)) if known else None
        self._progress(sum(all_steps), sum(all_updates), mean, sum(shares) / len(shares))

