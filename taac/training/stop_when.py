"""Ends a run early when its evaluations are good enough, or no longer improve."""

from __future__ import annotations

from typing import Any

import gin

from taac.errors import TaacError
from taac.training.trainer import Trainer


@gin.configurable
class StopWhen:
    """A hook for "after_evaluation" that ends the run early. The evaluation at step 0 does not count.

    The final return of such a run is that of the evaluation that ended it, so it is chosen, not measured: evaluate the agent
    again before you report it, and compare methods on runs of one length.

    Args:
        return_at_least: the mean return of an evaluation that is enough.
        evaluations: how many evaluations in a row must reach it.
        no_improvement: ends the run after this many evaluations in a row without a new highest mean return.
        min_improvement: how much above the highest return so far counts as improvement.
        not_before: environment steps before which the run does not end.

    Raises:
        TaacError: neither `return_at_least` nor `no_improvement` is given, or a number is out of range.
    """

    def __init__(
        self,
        return_at_least: float | None = None,
        evaluations: int = 1,
        no_improvement: int | None = None,
        min_improvement: float = 0.0,
        not_before: int = 0,
    ):
        if return_at_least is None and no_improvement is None:
            raise TaacError("StopWhen needs return_at_least or no_improvement: without both it would never end a run")
        for name, value, least in (
            ("evaluations", evaluations, 1), ("no_improvement", no_improvement, 1), ("min_improvement", min_improvement, 0),
        ):  # fmt: skip
            if value is not None and not value >= least:
                raise TaacError(f"StopWhen.{name} must be {least} or more, got {value}")
        self.return_at_least, self.evaluations = return_at_least, evaluations
        self.no_improvement, self.min_improvement, self.not_before = no_improvement, min_improvement, not_before
        self._enough = self._without = 0  # evaluations in a row
        self._best: float | None = None

    def __call__(self, trainer: Trainer) -> None:
        if trainer.env_steps == 0 or trainer.evaluation is None:
            return
        found = trainer.evaluation.return_mean
        improved = self._best is None or found > self._best + self.min_improvement
        self._without = 0 if improved else self._without + 1
        self._best = found if improved else self._best
        enough = self.return_at_least is not None and found >= self.return_at_least
        self._enough = self._enough + 1 if enough else 0
        if trainer.env_steps < self.not_before:
            return
        if self._enough >= self.evaluations:
            row = f" in {self.evaluations} evaluations in a row" if self.evaluations > 1 else ""
            trainer.stop_early(f"the return reached {self.return_at_least:g}{row}: {found:.6g}")
        if self.no_improvement is not None and self._without >= self.no_improvement:
            trainer.stop_early(f"no improvement on the return {self._best:.6g} in {self._without} evaluations in a row")

    def state_dict(self) -> dict[str, Any]:
        """Returns the highest return so far, and the numbers of evaluations in a row that reached the goal or did not improve."""
        return {"best": self._best, "enough": self._enough, "without": self._without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        self._best, self._enough, self._without = state["best"], state["enough"], state["without"]

    def __repr__(self) -> str:
        given = {
            "return_at_least": self.return_at_least, "evaluations": self.evaluations, "no_improvement": self.no_improvement,
            "min_improvement": self.min_improvement, "not_before": self.not_before,
        }  # fmt: skip
        return f"StopWhen({', '.join(f'{name}={value!r}' for name, value in given.items() if value)})"
