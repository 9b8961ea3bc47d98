"""User functions that the training loop calls at named points, and one that ends a run early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin

from taac.errors import TaacError, nearest, refuse_below
from taac.runs import tensor_files
from taac.runs.terminal import warn_user

Hook = Callable[[Any], object]  # called with the trainer

POINTS = {
    "before_collect": "before an iteration's environment steps",
    "after_collect": "after them",
    "before_update": "before each gradient step",
    "after_update": "after it, targets included",
    "after_iteration": "after an iteration's steps and updates, before what is then due",
    "before_evaluation": "before an evaluation; not again where a resumed run does one that was interrupted",
    "after_evaluation": "after it, when its row is in evaluations.csv; `trainer.evaluation` is its summary",
    "before_checkpoint": "before a checkpoint is written, in which what the hook changes is saved",
    "after_checkpoint": "after it, when it is whole on the disk",
}
STOPPED = "stopped"  # in a checkpoint, beside the states of hooks, whose names have a slash
_ORDER = "Hooks are known by point and number, from 0 on: to resume, give the same in the same order; others begin anew"


class Hooks:
    """Calls the hooks of each point of the training loop (see `POINTS`), in the order in which they were added.

    A hook receives the trainer and may read its attributes (`env_steps`, `agent`, `learner`, `evaluation`...). Its return value
    is ignored; `trainer.stop_early(why)` ends the run. A hook that draws random numbers or changes the agent changes the run.
    If a hook has an attribute `point`, it is refused at any other. Its `check`, if it has one, is called with the new trainer, to
    refuse a run in which the hook cannot do what it should. If it has `state_dict` and `load_state_dict`, checkpoints save
    its state (tensors, numbers, strings, and lists and dicts of them), and a resumed run restores it, by the hook's place among
    those of its point. Changes made at "after_checkpoint" are not in that checkpoint.

    Attributes:
        stopped: why a hook ends the run early; None if none does.
    """

    def __init__(self, given: Mapping[str, Hook | Sequence[Hook]]):
        self._by_point: dict[str, tuple[Hook, ...]] = {}
        self.stopped: str | None = None
        for point, value in given.items():
            self.add(point, value)

    def add(self, point: str, value: Hook | Sequence[Hook]) -> None:
        """Adds a hook, or a sequence of hooks, after those already at a point. Refuses what the class refuses."""
        if point not in POINTS:
            raise TaacError(
                f"Trainer.hooks: there is no point '{point}'{nearest(str(point), POINTS)}; there are: {', '.join(POINTS)}"
            )
        hooks = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        for hook in hooks:
            if not callable(hook) or isinstance(hook, type):  # calling a class would create an object each time
                raise TaacError(
                    f"Trainer.hooks['{point}'] must be a function of the trainer or a sequence of them, got {hook!r}; in a "
                    "gin file, a function is @its_name, an object @ItsClass()"
                )
            if (own := getattr(hook, "point", point)) != point:
                raise TaacError(f"Trainer.hooks['{point}']: {hook!r} is a hook for '{own}'")
        self._by_point[point] = (*self._by_point.get(point, ()), *hooks)

    @property
    def any(self) -> bool:
        return bool(self._by_point)

    def check(self, trainer: Any) -> None:
        for hook in (hook for hooks in self._by_point.values() for hook in hooks if hasattr(hook, "check")):
            hook.check(trainer)

    def __call__(self, point: str, trainer: Any) -> None:
        for hook in self._by_point.get(point, ()):
            hook(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the hooks that have one, and why the run ends early, if it does. Refuses what cannot be saved."""
        states = {name: hook.state_dict() for name, hook in self._with_state()}
        try:
            tensor_files.encode(states)
        except TypeError as error:
            raise TaacError(
                f"the state of a hook cannot be saved: {error}. It may hold tensors, numbers, strings, lists and dicts"
            ) from error
        return states if self.stopped is None else {**states, STOPPED: self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`. A hook without a saved state is left unchanged. Warns of states that no hook takes.

        Raises:
            TaacError: a hook cannot take the state, which may be another one's.
        """
        left = {name: held for name, held in state.items() if name != STOPPED}
        self.stopped = None if state.get(STOPPED) is None else str(state[STOPPED])
        for name, hook in self._with_state():
            if name in left:
                try:
                    hook.load_state_dict(left.pop(name))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise TaacError(
                        f"the hook {name}, {hook!r:.100}, cannot take the state that is saved: {error!r}. {_ORDER}"
                    ) from error
        if left:
            warn_user(f"warning: no hook takes the saved state of {', '.join(left)}. {_ORDER}")

    def _with_state(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()  # the same object may be called at several points
        for point, hooks in self._by_point.items():
            for number, hook in enumerate(hooks):
                if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict") and id(hook) not in seen:
                    seen.add(id(hook))
                    yield f"{point}/{number}", hook


@gin.configurable
class StopWhen:
    """A hook for "after_evaluation" that ends the run early. The evaluation at step 0 does not count.

    The final return of such a run is that of the evaluation that ended it, so it is chosen, not measured: evaluate the agent
    again before you report it, and compare methods on runs of one length.

    Args:
        return_at_least: ends the run when the mean return of an evaluation is at least this.
        evaluations: how many evaluations in a row must reach it.
        no_improvement: ends the run after this many evaluations in a row without a new highest mean return.
        min_improvement: how much above the highest return so far counts as improvement.
        not_before: environment steps before which the run does not end.
    """

    point = "after_evaluation"

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
        refuse_below(1, "StopWhen", evaluations=evaluations, no_improvement=no_improvement)
        refuse_below(0, "StopWhen", min_improvement=min_improvement)
        self.return_at_least, self.evaluations = return_at_least, evaluations
        self.no_improvement, self.min_improvement, self.not_before = no_improvement, min_improvement, not_before
        self._enough = self._without = 0  # evaluations in a row
        self._best: float | None = None

    def check(self, trainer: Any) -> None:
        """Begins anew, because the object may have ended another run. A checkpoint restores its state after this."""
        self._enough = self._without = 0
        self._best = None

    def __call__(self, trainer: Any) -> None:
        if trainer.env_steps == 0 or trainer.evaluation is None:
            return
        found = trainer.evaluation.return_mean
        improved = self._best is None or found > self._best + self.min_improvement
        self._without = 0 if improved else self._without + 1
        self._best = found if self._best is None else max(self._best, found)
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
        return {"best": self._best, "enough": self._enough, "without": self._without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._enough, self._without = state["best"], state["enough"], state["without"]

    def __repr__(self) -> str:
        return f"StopWhen({', '.join(f'{n}={v!r}' for n, v in vars(self).items() if v and not n.startswith('_'))})"
