"""Which settings a run may change where it stands (`taac train --resume_with`).

The rule: numbers, and schedules in their place, of the learner and its optimizer, the algorithm, its losses, reward signals and
explorers; and of the trainer what is about batches, evaluations, summaries and checkpoints. All else decides what has been
stored, counted or drawn, such as the environment, networks, the buffer, the ratio of updates, the seed, and the length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from taac.configuration import gin_state
from taac.errors import TaacError
from taac.ops.schedules import Schedule

_PLACES = ("taac.learning.", "taac.algorithms.", "taac.acting.explorers", "taac.ops.schedules", "torch.optim.")
_OF_LOOP = (
    "Trainer.batch_size", "Intervals.evaluation_interval", "Intervals.summary_interval", "Intervals.checkpoint_interval",
    "Evaluator.evaluation_episodes", "Evaluator.evaluation_epsilon", "Evaluator.max_evaluation_steps", "Saving.keep_checkpoints",
    "Saving.save_best", "Reporter.monitor", "Reporter.loggers",
)  # fmt: skip
_IN_CHECKPOINTS = ("initial_value", "matmul", "pretraining_updates")  # parameters that only a new run reads


def check(changes: Mapping[str, tuple[str, str]]) -> None:
    """Refuses changed settings of which one cannot change; see above.

    Args:
        changes: their values before and after, by name, as of `extension.changes`.

    Raises:
        TaacError: names each that cannot.
    """
    fixed = [f"{name} = {new}, not {old}" for name, (old, new) in changes.items() if not _may_change(name, old, new)]
    if fixed:
        raise TaacError(
            "--resume_with changes numbers of the learner, optimizer, algorithm, losses, signals and explorer, and "
            f"{', '.join(_OF_LOOP)}. What was stored, counted or drawn so far depends on the rest: {'; '.join(fixed)}; "
            "nothing was changed. Train a new run, which may start from this one's networks (create_experiment.load_from)"
        )


def _may_change(name: str, before: str, after: str) -> bool:
    constructor, _, parameter = name.rpartition(".")
    constructor = constructor.rpartition("/")[2]
    if f"{constructor}.{parameter}" in _OF_LOOP:
        return True
    schedules = all(_is(reference, Schedule) for reference in re.findall(r"@([\w./]+)", f"{before} {after}"))
    return schedules and parameter not in _IN_CHECKPOINTS and _is(constructor, object)


def _is(reference: str, kind: type) -> bool:
    """Whether a name is of a class of a kind that belongs to `_PLACES`, by itself or by a base."""
    configurable = gin_state.match(reference.rpartition("/")[2])
    found = configurable and configurable.wrapped
    return isinstance(found, type) and issubclass(found, kind) and any(c.__module__.startswith(_PLACES) for c in found.__mro__)
