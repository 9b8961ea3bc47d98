"""Explains to readers how the numbers of a report were computed."""

from __future__ import annotations

from typing import Any

from taac.analysis.report.curves import MOST_POINTS
from taac.analysis.report.diverged import LEAVE_OUT, WORST


def statements(content: dict[str, Any]) -> list[dict[str, str]]:
    """Returns a subject and a text for each kind of number: what it is and how it was estimated."""
    options = content["options"]
    level = f"{options['confidence']:.0%}"
    texts = {
        "Compared step": _step(options) + " Runs that did not reach it are left out and listed among the warnings.",
        "Final return": f"The mean of a run's last {options['last']} evaluations up to the compared step, without the one at "
        "step 0. Each evaluation is the mean over its greedy episodes.",
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
        "Verdicts": "A verdict follows from the interval of the difference, never from whether two intervals overlap. The "
        "difference is the mean of X minus the mean of Y, by Welch's t, or by Student's t on differences by seed if both "
        "methods have the same seeds"
        + ("" if options["paired"] else " (not used here: --nopaired)")
        + f". The verdict is better or worse if the interval excludes 0 at {level} after Holm's correction for the "
        f"{len(content['pairs'])} pairs of all tasks, else inconclusive. Inconclusive does not mean equal.",
        "Probability of improvement": "The probability that a run of X scores more than a run of Y, with ties counted half "
        "(Mann-Whitney's U / mn), with Newcombe's score interval. It is not a test; the verdict is.",
        "Over tasks": "Scores are normalised, (y - y0) / (y1 - y0), by the listed anchors. The interquartile mean is over the "
        "middle half of all runs of all tasks. The median is over the tasks' means. The optimality gap is the mean of "
        "max(1 - score, 0). All tasks have equal weight. Differences of the interquartile mean are a family of their own for "
        "Holm's correction.",
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


def _step(options: dict[str, Any]) -> str:
    if options["at_step"] is not None:
        return f"All tasks are compared at step {options['at_step']}, as requested (--at_step)."
    return (
        "Each task is compared at one step: the last evaluation of the finished run that ended first or, if no run is "
        "finished, the last step that all runs have reached."
    )


def _diverged(policy: str | float) -> str:
    if policy == LEAVE_OUT:
        return "Left out, as requested (--diverged leave_out), which flatters methods that have them."
    score = (
        "the lowest return of any evaluation of any run on its task, or as the anchor y0 if that is lower"
        if policy == WORST
        else f"{policy:g}, as requested (--diverged)"
    )
    return (
        "A run that diverged (a return, or a number in training, was no longer finite) keeps its evaluations from before and "
        f"counts from then on as {score}. Leaving it out would flatter its method."
    )
