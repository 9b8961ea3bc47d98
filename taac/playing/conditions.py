"""Evaluates one agent under conditions that it was not trained for: fewer decisions, actions that are held or late."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy import integrate

from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.algorithms.agent import Agent
from taac.analysis.curves.plots import csv_cell
from taac.analysis.readers import comparable, groups, run_records
from taac.analysis.statistics.intervals import CONFIDENCE, student_quantile
from taac.data_structures import AlgStep, Nest, TimeStep
from taac.environments.delays import ActionDelay
from taac.errors import TaacError
from taac.pictures.panels import image, literal_text, panels
from taac.playing.saved_agent import SavedAgent, load_saved
from taac.runs import durable
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import printable
from taac.specs import ACTION_MASK, AGENT_MASK, is_masked

_NONE = "switch_threshold, hold and delay must be a number each, or several, got none"
Over = Literal["hold", "delay"]  # conditions of which there may be a mean return


HEAD = "delay threshold hold                return decisions repeated mean run    jerk  change  high f    MMACs"


def _legend(over: str) -> list[str]:
    return [
        f"\nreturn: mean with half the width of its 95% interval over {over}; the other columns are means",
        "change: of the action from step to step; high f: mean of its amplitudes times their frequencies (Mysore et al.)",
        "MMACs: a million multiply-adds of the networks that acting needs",
    ]


class Condition(NamedTuple):
    """What an agent is evaluated under."""

    switch_threshold: float | None = None  # see `Algorithm.set_switch_threshold`; None: the run's
    hold: int = 1  # steps for which each action is held without asking the agent; if the method repeats actions, repeats
    delay: int = 0  # environment steps until an action takes effect, see `ActionDelay`


class Point(NamedTuple):
    """Greedy episodes under one condition."""

    condition: Condition
    summary: EpisodeSummary

    @property
    def half_width(self) -> float:
        """Half the 95% interval of the mean return, Student's t over episodes (or runs); NaN for one, 0 if all are equal."""
        n = self.summary.episodes
        if n < 2:
            return math.nan
        return student_quantile(CONFIDENCE, n - 1) * self.summary.return_std / math.sqrt(n - 1)  # `return_std` divides by n

    def __str__(self) -> str:
        (threshold, hold, delay), summary = self.condition, self.summary
        interval = f"{summary.return_mean:.2f}" + (f" +- {self.half_width:.2f}" if self.half_width > 0 else "")
        return (
            f"{delay:>5} {'' if threshold is None else threshold:>9} {hold:>4} {interval:>21} {summary.decisions:>9.1f} "
            f"{summary.fraction_repeated:>8.0%} {summary.mean_run:>8.2f} {summary.jerk:>7.3g} {summary.action_change:>7.3g} "
            f"{summary.high_frequency:>7.3g} {summary.multiply_adds / 1e6:>8.3g}"
        )


class Points(NamedTuple):
    """The points of an agent: thresholds within delays, holds within thresholds. Printed, they are a table."""

    environment: str
    method: str
    points: list[Point]

    def lines(self, over: Over = "hold") -> list[list[Point]]:
        """Returns the points in lists. The points of a list differ in `over` alone."""
        others = lambda point: point.condition._replace(**{over: 0})  # noqa: E731
        return [[p for p in self.points if others(p) == key] for key in dict.fromkeys(map(others, self.points))]

    def areas(self, over: Over = "hold") -> dict[Condition, float]:
        """Returns the mean return over holds, or delays, for each setting of the other conditions that has several of them.

        It is the area under the return against the hold by the trapezoid rule, divided by the range of holds: the
        frequency-averaged score, in units of the return. FAS divides by the best return as well. The keys have the least hold,
        or delay.

        Source: FAS (arXiv:2410.08979).
        """
        found = {}
        for line in self.lines(over):
            line = sorted(line, key=lambda point: getattr(point.condition, over))
            x = [getattr(point.condition, over) for point in line]
            if len(line) > 1:
                area = integrate.trapezoid([point.summary.return_mean for point in line], x)
                found[line[0].condition] = float(area) / (x[-1] - x[0])
        return found

    def __repr__(self) -> str:
        episodes = self.points[0].summary.episodes
        text = [f"{printable(self.method)} on {printable(self.environment)}, {episodes} greedy episodes each:\n", HEAD]
        text += [*map(str, self.points), *_legend("episodes")]
        for over in get_args(Over):
            for (threshold, hold, delay), area in self.areas(over).items():
                of = "" if threshold is None else f", threshold {threshold:g}"
                other = f"delay {delay}" if over == "hold" else f"hold {hold}"
                text.append(f"{other}{of}: mean return over {over}s {area:.2f} (area under return against {over})")
        return "\n".join(text)


class Holding:
    """An agent whose greedy actions are each held for some steps, in one environment.

    Source: the frequency-averaged score, FAS (arXiv:2410.08979), which holds each action for s steps.
    """

    def __init__(self, agent: Agent, steps: int):
        self._agent, self._steps, self._left = agent, steps, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        if self._left == 0 or bool(time_step.is_first()[0]):
            self._left, self._step = self._steps, self._agent.predict_step(time_step, state, epsilon)
        else:
            self._step = self._step._replace(decided=torch.zeros_like(self._step.decided))
        self._left -= 1
        return self._step

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        if self._left == self._steps - 1:
            return self._agent.needed_modules(step)
        return dict.fromkeys(self._agent.algorithm.acting_modules(), torch.zeros_like(step.decided))


def evaluate_conditions(
    path: str | Path,
    num_episodes: int,
    seed: int,
    switch_thresholds: Sequence[float | None] = (None,),
    holds: Sequence[int] = (1,),
    delays: Sequence[int] = (0,),
    best: bool = False,
    trusted: bool = False,
) -> Points:
    """Plays the same episodes (equal seeds) under each combination. Call `taac.registry.register()` first.

    Args:
        path: the run folder.
        num_episodes, seed: as in `evaluate`.
        switch_thresholds, holds, delays: see `Condition`; one that is given twice is played once.
        best, trusted: as in `load_saved`.

    Raises:
        TaacError: the run cannot be loaded, or a condition is out of range or does not fit the method or the environment.
    """
    thresholds, holds, delays = tuple(dict.fromkeys(switch_thresholds)), tuple(dict.fromkeys(holds)), tuple(dict.fromkeys(delays))
    if not (thresholds and holds and delays):
        raise TaacError(_NONE)
    for name, numbers, least in (("hold", holds, 1), ("delay", delays, 0)):
        if wrong := [n for n in numbers if n < least]:
            raise TaacError(f"{name} must be {least} or more steps, got {wrong[0]}")
    if outside := [threshold for threshold in thresholds if threshold is not None and not 0 <= threshold < 1]:
        raise TaacError(f"switch_threshold must be 0 or more and below 1, got {outside[0]}")
    points = []
    with contextlib.ExitStack() as opened:
        # All before the first episode, because an environment may refuse a delay.
        loaded = {delay: opened.enter_context(_loaded(path, max(holds), delay, best, trusted)) for delay in delays}
        for delay, threshold, hold in itertools.product(delays, thresholds, holds):
            saved = loaded[delay]
            if threshold is not None:
                saved.agent.algorithm.set_switch_threshold(threshold)
            agent: Any = saved.agent if hold == 1 else Holding(saved.agent, hold)
            found = summarize(evaluate(agent, saved.environment, num_episodes, seed))
            points.append(Point(Condition(threshold, hold, delay), found))
    return Points(saved.environment.name, saved.method, points)


@contextlib.contextmanager
def _loaded(path: str | Path, longest: int, delay: int, best: bool, trusted: bool) -> Iterator[SavedAgent]:
    """Loads a run whose actions will be late, and held for `longest` steps at most. Closes its environment on exit."""
    late = (functools.partial(ActionDelay, steps=delay, observe_pending=False),) if delay else ()
    saved = load_saved(path, best, trusted, outer_wrappers=late)
    with contextlib.closing(saved.environment):
        observed = saved.environment.observation_spec
        masks = [ACTION_MASK] if is_masked(observed, saved.environment.action_spec) else []
        masks += [AGENT_MASK] if isinstance(observed, dict) and AGENT_MASK in observed else []
        if longest > 1 and masks:
            raise TaacError(f"hold must be 1 where observations have an {masks[0]}, which may forbid an action that is held")
        yield saved


def evaluate_runs(
    root: str | Path,
    num_episodes: int,
    seed: int,
    thresholds: Sequence[float | None],
    holds: Sequence[int],
    delays: Sequence[int],
    best: bool = False,
    trusted: bool = False,
    allow_mixed: bool = False,
) -> tuple[list[Points], list[str]]:
    """Plays the finished runs with checkpoints below a folder. Returns the points of each task and method: means over its runs.

    `episodes` of a summary is then the number of runs, and `return_std` is over them. All runs play the same episodes, whose luck
    they share. Arguments as of `evaluate_conditions`; thresholds are for the methods that have one. Runs of a method with other
    settings are told apart as in reports. Also returns notes on the runs that are left out, and on differences of
    those played, with `allow_mixed`.
    """
    if not (thresholds and holds and delays):
        raise TaacError(_NONE)
    every, records = groups.labelled(run_records.find(Path(root)))[0], list[run_records.Record]()
    left = Counter[str]()
    for r in sorted(every, key=lambda r: (r.task or "", r.method)):
        folder = RunFolder(Path(root) / r.folder)
        if r.status == "finished" and (folder.best.saved() if best else folder.has_checkpoints()):
            records.append(r)
        else:
            lacks = "without a best agent" if best else "without a checkpoint"
            why = lacks if r.status == "finished" else "with the status " + r.status
            left[f"of {r.method} on {r.task} {why}"] += 1
    if not records:
        raise TaacError(f"{root} holds no finished run with a {'best agent' if best else 'checkpoint'}")
    notes = [*comparable.refuse_mixtures(records, allow_mixed), *(f"left out: {n} run(s) {of}" for of, n in left.items())]
    switching = {r.folder for r in records if any(name.endswith(".switch_threshold") for name in r.settings)}
    if any(threshold is not None for threshold in thresholds) and not switching:
        raise TaacError(f"no method of the runs in {root} has a switch_threshold: leave it out")
    for r in {(r.task, r.method): r for r in records}.values():  # refuses what does not fit before any episode
        try:
            with _loaded(Path(root) / r.folder, max(holds), max(delays), best, trusted):
                pass
        except TaacError as error:
            raise TaacError(f"{r.folder}: {error}") from error
    found: dict[tuple[str | None, str], list[Points]] = {}
    for r in records:
        own = thresholds if r.folder in switching else (None,)
        played = evaluate_conditions(Path(root) / r.folder, num_episodes, seed, own, holds, delays, best, trusted)
        found.setdefault((r.task, r.method), []).append(played._replace(method=r.method))
    return [_mean_of(runs) for runs in found.values()], notes


def _mean_of(runs: list[Points]) -> Points:
    points = []
    for same in zip(*(of.points for of in runs), strict=True):
        each = [point.summary for point in same]
        names = [name for name in EpisodeSummary._fields if name != "info"]
        means: dict[str, Any] = {name: float(np.mean([getattr(s, name) for s in each])) for name in names}
        told = [name for name in each[0].info if all(name in s.info for s in each)]
        info = {name: float(np.mean([s.info[name] for s in each])) for name in told}
        means |= {"episodes": len(runs), "return_std": float(np.std([s.return_mean for s in each])), "info": info}
        points.append(Point(same[0].condition, each[0]._replace(**means)))
    return runs[0]._replace(points=points)


def table_of_runs(found: Sequence[Points]) -> str:
    """Returns the means over runs as text, a table for each environment and a line for each method and condition."""
    tables = []
    for environment, of_environment in itertools.groupby(found, key=lambda points: points.environment):
        text = [f"{printable(environment)}, greedy episodes of finished runs:\n", f"{'method':<24} runs {HEAD}"]
        for points in of_environment:
            text += [f"{printable(points.method):<24} {p.summary.episodes:>4} {p}" for p in points.points]
        tables.append("\n".join(text))
    return "\n".join(["\n\n".join(tables), *_legend("runs, in these episodes")])


def write(found: Points | Sequence[Points], path: Path) -> None:
    """Writes the points as a .csv file, or draws those of one run as a .png file."""
    durable.write(path, _picture(found) if isinstance(found, Points) and path.suffix == ".png" else _table(found))


def _table(found: Points | Sequence[Points]) -> bytes:
    """Returns a CSV file: of several runs task and method, then the condition and the columns of `EpisodeSummary`."""
    several = not isinstance(found, Points)
    renamed = {"episodes": "runs", "return_std": "return_std_of_runs"} if several else {}
    rows = []
    for of in [found] if isinstance(found, Points) else found:
        told = {"task": csv_cell(of.environment), "method": csv_cell(of.method)} if several else {}
        for point in of.points:
            numbers = {renamed.get(name, name): value for name, value in point.summary.numbers().items()}
            rows.append({**told, **point.condition._asdict(), **numbers})
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names), lineterminator="\n")  # tasks tell other things in info
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


@literal_text()
def _picture(found: Points) -> bytes:
    """Draws mean returns with their intervals, as PNG: against holds, else thresholds' decisions, else delays."""
    lines = found.lines()
    by_hold, by_delay = max(map(len, lines)) > 1, False
    if not by_hold:  # a line of thresholds for each delay, or one of delays
        of_delay = [[*points] for _, points in itertools.groupby(found.points, key=lambda point: point.condition.delay)]
        by_delay = len(of_delay) > 1 and len(of_delay) == len(found.points)
        lines = [found.points] if by_delay else of_delay
    figure, ((axis,),) = panels(1, 1, (6.0, 4.0))
    labels = []
    for line in lines:
        if by_hold or by_delay:
            line = sorted(line, key=lambda p: p.condition.hold if by_hold else p.condition.delay)
        x = [p.condition.hold if by_hold else p.condition.delay if by_delay else p.summary.decisions for p in line]
        y = [p.summary.return_mean for p in line]
        threshold, _, delay = line[0].condition
        label = f"delay {delay}" + (f", switch_threshold {threshold:g}" if by_hold and threshold is not None else "")
        labels.append(label)
        axis.errorbar(x, y, np.nan_to_num([p.half_width for p in line]), marker="o", capsize=3, label=label)
        for point, at in zip(line, zip(x, y)):
            if not (by_hold or by_delay) and (own := point.condition.switch_threshold) is not None:
                axis.annotate(f"{own:g}", at, textcoords="offset points", xytext=(6, 6), fontsize="small")
    late = "steps until an action takes effect" if by_delay else "decisions an episode"
    axis.set(xlabel="steps for which an action is held" if by_hold else late, ylabel="return")
    hold = line[0].condition.hold
    held = "" if by_hold or hold == 1 else f", hold {hold}"
    thresholds = len(lines[0]) > 1 and not (by_hold or by_delay)
    title = f"{found.method} on {found.environment}{': switch_threshold' if thresholds else ''}{held}"
    alone = len(lines) == 1 and not by_delay and labels != ["delay 0"]  # what a legend would say
    axis.set_title(f"{title}, {labels[0]}" if alone else title)
    if by_hold or by_delay:
        axis.xaxis.get_major_locator().set_params(integer=True)
    if len(lines) > 1:
        axis.legend(fontsize="small")
    return image(figure, dpi=120)
