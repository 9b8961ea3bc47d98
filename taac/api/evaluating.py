"""`taac.evaluate`: a finished agent under conditions that it was not trained for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taac.api.environments import Environment, named, refuse_other
from taac.api.run import refuse_numbers
from taac.api.session import session
from taac.errors import TaacError
from taac.playing.conditions import Points, evaluate_conditions, write
from taac.playing.pictures import new_file


def evaluate(
    root_dir: str | Path,
    *,
    num_episodes: int = 20,
    seed: int = 0,
    switch_threshold: float | Sequence[float] | None = None,
    hold: int | Sequence[int] = 1,
    delay: int | Sequence[int] = 0,
    best: bool = False,
    environment: Environment | None = None,
    trust: bool = False,
    output: str | Path | None = None,
) -> Points:
    """Plays the greedy agent of a run under each combination of conditions, in the same episodes, as `taac evaluate` does.

        found = taac.evaluate("runs/pendulum", hold=[1, 2, 4], delay=[0, 1])
        [(p.condition.hold, p.condition.delay, p.summary.return_mean, p.half_width) for p in found.points]
        found.areas("hold")  # the mean return over holds, for each delay

    Args:
        root_dir: the folder of the run.
        num_episodes: under each condition.
        seed: of the environment.
        switch_threshold: the agent switches where the probability is above this; None: the run's setting. One or several.
        hold: environment steps for which each action is held; if the method repeats actions, the number of
            repeats. One or several.
        delay: environment steps until an action takes effect. One or several.
        best, environment, trust: as in `taac.load`.
        output: a new .csv or .png file, for the table or its picture.

    Raises:
        TaacError: the run cannot be loaded, a number is out of range, or a condition does not fit the method or the environment.
    """
    refuse_numbers(seed, num_episodes=num_episodes)
    thresholds = (None,) if switch_threshold is None else _numbers("switch_threshold", switch_threshold, float)
    holds, delays = _numbers("hold", hold, int), _numbers("delay", delay, int)
    place = named(environment)
    refuse_other(environment, place, Path(root_dir))
    with session(place):
        file = new_file("output", output, ".csv", ".png")
        found = evaluate_conditions(root_dir, int(num_episodes), int(seed), thresholds, holds, delays, best, trust)
        if file is not None:
            write(found, file)
        return found


def _numbers(name: str, given: Any, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """Returns a number or several of a kind as a tuple; refuses anything else."""
    several = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    kinds = (int, np.integer) if kind is int else (int, float, np.number)
    if any(isinstance(n, bool) or not isinstance(n, kinds) for n in several):
        what = "an integer, or several" if kind is int else "a number, or several"
        raise TaacError(f"{name} must be {what}, got {given!r:.200}")
    return tuple(map(kind, several))
