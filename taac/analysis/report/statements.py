"""How the numbers of a report were made, in words, for those who read it."""

from __future__ import annotations

from typing import Any

from taac.analysis.report.curves import MOST_POINTS
from taac.analysis.report.diverged import LEAVE_OUT, WORST


def statements(content: dict[str, Any]) -> list[dict[str, str]]:
    """What each kind of number is and how it was estimated: a subject and a text each."""
    options = content["options"]
    level = f"{options['confidence']:.0%}"
    told = {
        "Compared step": _step(options) + " Runs that did not reach it are left out, and named among the warnings.",
        "Final return": f"Mean of a run's last {options['last']} evaluations up to the compared step, each the mean over its "
        "greedy episodes.",
        "Area under the curve": "Integral of a run's return by the trapezoid rule, from the first step that all runs of "
        "the task share to the compared step, divided by their distance: a return again.",
        "Diverged runs": _diverged(options["diverged"]),
        "Intervals": f"{level} intervals over runs, on a standard error: Student's t for means and the optimality gap; for "
        f"the interquartile mean and the median the stratified bootstrap ({options['resamples']} resamples), corrected for "
        "small samples, with t quantiles. They keep their coverage for few runs, which the percentile bootstrap does not, but "
        "for two kinds of runs: where three or five runs on one task each end in one of two places (as solved or not, 0.7 of "
        "them solved), a 95% interval of the mean covers only 0.62 or 0.83 of the time, and one of the interquartile mean "
        "0.62 or 0.78; where returns are very skewed (lognormal), one of the mean 0.88 to 0.91. Do not trust them there. "
        "Where the runs do not differ, or there is one, no interval is given.",
        "Verdicts": "Of the interval of the difference, never of whether two intervals overlap: mean of X minus mean of Y by "
        "Welch's t, or by Student's t on differences by seed where both methods have the same seeds"
        + ("" if options["paired"] else " (not used here: --nopaired)")
        + f"; better or worse where it excludes 0 at {level} after Holm's correction for the {len(content['pairs'])} pairs "
        "of all tasks, else inconclusive. Inconclusive does not mean equal.",
        "Probability of improvement": "That a run of X scores more than a run of Y (ties half: Mann-Whitney's U / mn), with "
        "Newcombe's score interval. It is no test; the verdict is.",
        "Over tasks": "Scores are normalised, (y - y0) / (y1 - y0), by the anchors that are listed. The interquartile mean "
        "is of the middle half of all runs of all tasks; the median is of the tasks' means; the optimality gap is the mean "
        "of max(1 - score, 0). Tasks weigh the same. Differences of the interquartile mean are a family of their own for "
        "Holm's correction.",
        "Performance profiles": "Fraction of runs with a normalised score above each threshold, with a Clopper-Pearson "
        "interval at each.",
        "Learning curves": f"Mean over the runs of a method with a pointwise {level} interval (Student's t; of a fraction cut "
        "off at 0 and 1), where all of them have been: nothing is extrapolated or smoothed. Between evaluations runs are "
        "interpolated linearly; evaluations at an equal number of updates are averaged. Where runs were evaluated at many "
        "different points, "
        f"curves are told at up to {MOST_POINTS} even ones. Decisions are environment steps at which training chose a new "
        "action; wall time is that of training with its evaluations, and compares only what ran on equal, idle machines.",
        "Repetition": f"Acting greedily, means over the last {options['last']} evaluations of a run; exploring, over its "
        "training episodes of the same span, as its summaries tell them. Then means over runs with a t interval, that of a "
        "fraction cut off at 0 and 1, which no mean is beyond; runs of which it is not known, as diverged "
        "ones, have no part in it.",
    }
    return [{"about": about, "text": text} for about, text in told.items()]


def _step(options: dict[str, Any]) -> str:
    if options["at_step"] is not None:
        return f"All tasks are compared at step {options['at_step']}, as asked for (--at_step)."
    return (
        "Each task is compared at one step: the last evaluation of the finished run that ended first, or, while none is "
        "finished, the last step that all runs have reached."
    )


def _diverged(policy: str | float) -> str:
    if policy == LEAVE_OUT:
        return "Left out, as asked for (--diverged leave_out), which flatters methods that have them."
    score = (
        "the lowest return of any evaluation of any run on its task, or as the anchor y0 where that is lower"
        if policy == WORST
        else f"{policy:g}, as asked for (--diverged)"
    )
    return (
        "A run that diverged (a return, or a number in training, no longer finite) keeps its evaluations from before and "
        f"counts from there on as {score}. To leave it out would flatter its method."
    )
