"""Short explanations of the terms that a report uses, for readers who tap one."""

from __future__ import annotations

# A term, its further names, and the text.
_TERMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "IQM", ("interquartile mean",),
        "The interquartile mean: the mean of the middle half of the runs. The lowest and the highest quarter are left "
        "out, so that a few failed or lucky runs do not decide.",
    ),
    (
        "Bonferroni", (),
        "Bonferroni's correction. Of many comparisons some look like a difference by chance. With m of them, each interval "
        "has confidence 1 - 0.05 / m instead of 0.95, so that all of them hold together in 95% of reports.",
    ),
    (
        "permutation test", ("permutation tests",),
        "If two methods do not differ, their runs may change places. The test counts how many of these exchanges look as "
        "different as the runs do. It is right for few runs and for returns of any distribution.",
    ),
    (
        "Fisher's exact test", (),
        "The permutation test for solved or not.",
    ),
    (
        "Hedges' g", ("effect",),
        "The difference in standard deviations of a single run, corrected for few runs. 0.8 is often called large; in "
        "reinforcement learning 3 is not rare.",
    ),
    (
        "would find", (),
        "Of an inconclusive verdict: the least difference that as many runs with the same spread find in 80% of "
        "comparisons. Smaller differences may exist and need more runs.",
    ),
    (
        "rank", (),
        "The place of a method, 1 for the best. Its interval contains every place that agrees with the verdicts.",
    ),
    (
        "Welch", (),
        "Welch's t-test compares two means without the assumption that both methods spread equally. Its degrees of "
        "freedom are Welch and Satterthwaite's.",
    ),
    (
        "Student's t", ("Student t",),
        "The interval of a mean: the mean, less and plus t s / sqrt(n). The factor t is larger for few runs, because s, "
        "their standard deviation, is then itself uncertain.",
    ),
    (
        "stratified bootstrap", ("bootstrap t",),
        "Runs are drawn again and again with replacement, for each task separately; how the statistic varies among these "
        "draws tells how it would vary among new runs. Here its standard error is corrected for few runs and used with "
        "Student's t.",
    ),
    (
        "Newcombe", (),
        "Newcombe's interval of the probability of improvement, made from score intervals. It stays within 0 and 1 and "
        "does not vanish if every run of one method is better.",
    ),
    (
        "Clopper-Pearson", (),
        "The exact interval of a fraction, from the binomial distribution. It holds its level for any number of runs and "
        "is somewhat too wide.",
    ),
    (
        "Mann-Whitney", (),
        "The Mann-Whitney U counts the pairs, one run of each method, in which X is higher. Divided by the number of "
        "pairs it is the probability of improvement.",
    ),
    (
        "probability of improvement", ("P(X > Y)",),
        "The probability that a run of X scores more than a run of Y. One half means that neither is better.",
    ),
    (
        "optimality gap", (),
        "How much runs fall short of a normalised score of 1 on average; lower is better. Scores above 1 count as 1.",
    ),
    (
        "performance profile", ("performance profiles",),
        "For every threshold, the fraction of runs that score above it. A curve that is higher everywhere belongs to the "
        "better method.",
    ),
    (
        "area under the curve", (),
        "The mean return from the first to the compared step. It is high if a method learns early.",
    ),
    (
        "anchors", (),
        "Two returns of a task, y0 and y1, that are mapped to the scores 0 and 1. They make tasks with returns of "
        "different size comparable.",
    ),
    (
        "pointwise", (),
        "An interval at each point of a curve by itself: it holds its level at one point, not for the whole curve at "
        "once.",
    ),
    (
        "jerk", (),
        "The mean squared second difference of the action, over the steps of an episode: how abruptly actions change. A "
        "smooth controller has little of it.",
    ),
)  # fmt: skip


def terms() -> list[dict[str, object]]:
    """The terms with their other names and explanations, as in report.json."""
    return [{"term": term, "names": [term, *names], "text": text} for term, names, text in _TERMS]
