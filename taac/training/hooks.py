"""User functions that the training loop calls at named points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from taac.errors import TaacError, nearest
from taac.runs import tensor_files
from taac.runs.terminal import warn_user

Hook = Callable[[Any], object]  # called with the trainer

POINTS = {
    "before_collect": "before an iteration's environment steps",
    "after_collect": "after them",
    "before_update": "before each gradient step",
    "after_update": "after it, targets included",
    "after_iteration": "after an iteration's steps and updates, before what is then due",
    "before_evaluation": "before an evaluation",
    "after_evaluation": "after it, when its row is in evaluations.csv; `trainer.evaluation` is its summary",
    "before_checkpoint": "before a checkpoint is written, in which what the hook changes is saved",
    "after_checkpoint": "after it, when it is whole on the disk",
}
STOPPED = "stopped"  # in a checkpoint, beside the states of hooks, whose names have a slash
_ORDER = "Hooks are known by point and number, from 0 on: to resume, give the same in the same order; others begin anew"


class Hooks:
    """Calls the hooks of each point of the training loop, in the order in which they were added.

    A hook receives the trainer and may read its attributes (`env_steps`, `agent`, `learner`, `evaluation`...). Its return value
    is ignored; `trainer.stop_early(why)` ends the run. A hook that draws random numbers or changes the agent changes the run.
    If a hook has `state_dict` and `load_state_dict`, checkpoints save its state (tensors, numbers, strings, and lists and dicts
    of them), and a resumed run restores it, by the hook's place among those of its point. Changes made at "after_checkpoint" are
    not in that checkpoint.

    Args:
        given: for each point (see `POINTS`), a hook or a sequence of hooks.

    Attributes:
        stopped: why a hook ends the run early; None if none does.

    Raises:
        TaacError: a point does not exist, or a hook is not callable.
    """

    def __init__(self, given: Mapping[str, Hook | Sequence[Hook]]):
        self._by_point: dict[str, tuple[Hook, ...]] = {}
        self.stopped: str | None = None
        for point, value in given.items():
            self.add(point, value)

    def add(self, point: str, value: Hook | Sequence[Hook]) -> None:
        """Adds a hook, or a sequence of hooks, after those already at a point.

        Raises:
            TaacError: the point does not exist, or a hook is not callable.
        """
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
        self._by_point[point] = (*self._by_point.get(point, ()), *hooks)

    @property
    def any(self) -> bool:
        """Whether there are hooks at any point."""
        return bool(self._by_point)

    def __call__(self, point: str, trainer: Any) -> None:
        """Calls the hooks of a point with the trainer."""
        for hook in self._by_point.get(point, ()):
            hook(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the hooks that have one, and why the run ends early, if it does.

        Raises:
            TaacError: a state holds something that checkpoints cannot save.
        """
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
            warn_user(f"warning: no hook takes the state that is saved of {', '.join(left)}. {_ORDER}")

    def _with_state(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()  # the same object may be called at several points
        for point, hooks in self._by_point.items():
            for number, hook in enumerate(hooks):
                if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict") and id(hook) not in seen:
                    seen.add(id(hook))
                    yield f"{point}/{number}", hook
