"""Explains to readers how the numbers of a report were computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taac.analysis.readers.run_records import Record
from taac.analysis.report.curves import MOST_POINTS
from taac.analysis.report.scores import LEAVE_OUT, WORST
from taac.runs.deciding import deciding


def statements(content: dict[str, Any]) -> list[dict[str, str]]:
    """Returns a subject and a text for each kind of number: what it is and how it was estimated."""
    options = content["options"]
    level = f"{options['confidence']:.0%}"
    texts = {
        "Compared step": _step(options) + " Runs that did not reach it are left out and listed among the warnings.",
        "Final return": _final(options),
        "Area under the curve": "The integral of a run's return by the trapezoid rule, from the first step that all runs of "
        "the task share to the compared step, divided by their distance. It is a return again.",
        "Diverged runs": _diverged(options["diverged"]),
        "Intervals": f"{level} intervals over runs, computed from a standard error. Means and the optimality gap use Student's "
        f"t. The interquartile mean and the median use the stratified bootstrap ({options['resamples']} resamples), corrected "
        "for small samples, with t quantiles. These intervals keep their coverage for few runs, which the percentile bootstrap "
        "does not, with two exceptions. If three or five runs on one task each end in one of two places (solved or not, with "
        "probability 0.7 of solved), a 95% interval of the mean covers only 0.62 or 0.83 of the time, and one of the "
        "interquartile mean 0.62 or 0.78. If returns are very skewed (lognormal), one of the mean covers 0.88 to 0.91. Do not "
        "trust the intervals there. If all runs are equal, or there is only one, there is no interval.",
        "Verdicts": f"{family_told(content)} A verdict needs two tests. The first is Welch's t"
        + (", here on the differences of runs with equal seeds (--paired)," if options["paired"] else "")
        + f" with Bonferroni's correction: intervals have confidence 1 - {1 - options['confidence']:.2g} / m for m comparisons. "
        "All of them then hold together. The second is a permutation test, which keeps its level for any distribution of "
        "returns, for the pair alone and for all pairs of the family at once. Where it does not find what Welch's interval "
        "excludes 0 for, the interval is extended to 0. So the verdict is better or worse if and only if the interval excludes "
        "0. On one task, three seeds of each are too few for that; with --paired, five are, and more of many comparisons. "
        f"{_bounded(content)}Inconclusive does not mean equal: the column 'would find' has the smallest true difference that as "
        "many runs, spread as these are, would find with a power of 0.8. It is empty where so few runs find nothing. The error "
        "rates were simulated (docs/statistics.md).",
        "Effects": "Hedges' g: the difference of means divided by the standard deviation of single runs, with the correction for "
        "few runs. For a pair that is compared by ranks, 2 P(X > Y) - 1.",
        "Ranks": "The place of a method by its mean, or over tasks by its IQM. Its interval reaches from 1 + (methods with a "
        "verdict of being better) to the number of methods - (those with one of being worse). It agrees with the verdicts, and "
        "all of these intervals hold together. A place that verdicts by ranks exclude is moved to the nearest end. There are "
        "none with --baseline.",
        "Tasks": "Tasks are treated as fixed. A result over tasks is about these tasks and says nothing about others.",
        "Tuning": _tuning(content),
        "Probability of improvement": "The probability that a run of X scores more than a run of Y, with ties counted half "
        "(Mann-Whitney's U / mn), with Newcombe's score interval for this pair alone. It is not a test; the verdict is. For a "
        "pair that is compared by ranks, the interval is that of the verdict.",
        "Over tasks": "Scores are normalised, (y - y0) / (y1 - y0), by the listed anchors. The interquartile mean is over the "
        "middle half of all runs of all tasks. The median is over the tasks' means. The optimality gap is the mean of "
        "max(1 - score, 0). All tasks have equal weight. Anchors decide what a score says: where a "
        "random policy is far below a policy that does nothing, doing nothing scores well (MountainCarContinuous: 0.27).",
        "Performance profiles": "The fraction of runs with a normalised score above each threshold, with a Clopper-Pearson "
        "interval at each threshold.",
        "Learning curves": f"The mean over the runs of a method with a pointwise {level} interval (Student's t; cut to [0, 1] "
        "for a fraction), over the range that all of these runs cover. Nothing is extrapolated or smoothed. Between evaluations "
        "runs are interpolated linearly. Evaluations at an equal number of updates are averaged. If runs were evaluated at many "
        f"different points, curves are drawn at up to {MOST_POINTS} evenly spaced points. Decisions are environment steps at "
        "which training chose a new action. Wall time is the time of training with its evaluations, and is comparable only for "
        "runs on equal, idle machines.",
        "Repetition": f"When acting greedily, the mean over the last {options['last']} evaluations of a run. When exploring, "
        "the mean over its training episodes in the same span, as its summaries report them. Then the mean over runs with a t "
        "interval. Where a quantity cannot leave a range, the interval ends with it and covers as often as before: [0, 1] for "
        "fractions, 1 for lengths, runs and decisions, 0 for jerk. Runs without these values, such as diverged runs, are left "
        "out.",
    }
    return [{"about": about, "text": text} for about, text in texts.items()]


def _final(options: dict[str, Any]) -> str:
    if options["at_step"] == 0:
        return "A run's evaluation before training, the mean over its greedy episodes: these are returns of untrained agents."
    return (
        f"The mean of a run's last {options['last']} evaluations up to the compared step, without the one at step 0. Each "
        "evaluation is the mean over its greedy episodes."
    )


def _step(options: dict[str, Any]) -> str:
    if options["at_step"] is not None:
        return f"All tasks are compared at step {options['at_step']}, as requested (--at_step)."
    return (
        "Evaluations of different runs belong together if they were due at the same step, a multiple of the interval between "
        "evaluations or the end of the run, even if one came some steps later. "
        "Each task is compared at one such step: the last evaluation of the finished run that ended first or, if no run is "
        "finished, the last step that all runs have reached."
    )


def family_told(content: dict[str, Any]) -> str:
    """Says what was compared, by which test, and for how many comparisons it is corrected."""
    family, options = content["family"], content["options"]
    kind = "every two methods" if options["baseline"] is None else f"every method with {options['baseline']}"
    level = 1 - options["confidence"]
    one = family["final"] == 1
    return (
        f"{family['final']} comparison{'' if one else 's'} of final returns ({kind}, on each task and over tasks) "
        f"{'is' if one else 'are'} one family, {family['area']} of areas under the curve another. Within each, the probability "
        f"of any wrong verdict is at most "
        f"{level:.2g} if no method differs; in both together, {2 * level:.2g}. All pairs are compared "
        + ("by seed, by Student's t of differences" if options["paired"] else "unpaired, by Welch's t")
        + " and a permutation test."
    )


def _bounded(content: dict[str, Any]) -> str:
    bounded = [f"{task['task']} {task['bounds']}" for task in content["tasks"] if task["bounds"]]
    if not bounded:
        return ""
    return (
        f"Returns have bounds on {', '.join(bounded)}. Where all returns of a pair are at a bound, the test is Fisher's exact "
        "test and the interval is Newcombe's, from Clopper-Pearson's. "
    )


def settings_told(records: Sequence[Record]) -> list[str]:
    """Returns the settings of `deciding` in lines: one for all that are equal, and one for each that is not."""
    equal, others = [], []
    told = [(r, deciding(r.settings, r.update_ratio)) for r in records]
    for label in told[0][1]:
        by_task: dict[str, dict[str, set[str]]] = {}
        for r, values in told:
            by_task.setdefault(str(r.task), {}).setdefault(r.method, set()).add(values[label])
        of_tasks = {task: _by_method(methods) for task, methods in sorted(by_task.items())}
        if len(set(of_tasks.values())) > 1:
            others.append(f"{label}: " + "; ".join(f"{text} on {task}" for task, text in of_tasks.items()))
        elif len({frozenset(values) for values in next(iter(by_task.values())).values()}) > 1:
            others.append(f"{label}: {next(iter(of_tasks.values()))}")
        else:
            equal.append(f"{label}: {next(iter(of_tasks.values()))}")
    return [*(["; ".join(equal)] if equal else []), *others]


def _by_method(methods: Mapping[str, set[str]]) -> str:
    """The values of each method; once if they are equal."""
    texts = {method: " or ".join(sorted(values)) for method, values in sorted(methods.items())}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({method})" for method, text in texts.items())


def _tuning(content: dict[str, Any]) -> str:
    told = "; ".join(f"{method}: {text}" for method, text in content["tuning"].items())
    return f"What each method's settings were chosen for, by create_experiment.tuning. {told}."


def _diverged(policy: str | float) -> str:
    if policy == LEAVE_OUT:
        return "Left out, as requested (--diverged leave_out), which flatters methods that have them."
    if policy == WORST:
        return (
            "A run that diverged (a return, or a number in training, was no longer finite) by the compared step ranks below all "
            "others, tied with others that did. A pair with one is compared by ranks, and its verdict is about P(X > Y). Means, "
            "other summaries and curves are of the runs that did not diverge; the number of those that did stands beside them. "
            "In performance profiles they are above no threshold."
        )
    return (
        "A run that diverged (a return, or a number in training, was no longer finite) keeps its evaluations from before and "
        f"counts from then on as {policy:g}, as requested (--diverged). Leaving it out would flatter its method."
    )
