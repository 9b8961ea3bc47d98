"""Functions of the user that the training loop calls at named points."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from taac.errors import TaacError
from taac.runs import files

Hook = Callable[[Any], object]  # of the trainer

POINTS = {
    "before_collect": "before an iteration's environment steps",
    "after_collect": "after them",
    "before_update": "before each gradient step",
    "after_update": "after it, targets included",
    "before_evaluation": "before an evaluation",
    "after_evaluation": "after it, when its row is in evaluations.csv; `trainer.evaluation` is its summary",
    "before_checkpoint": "before a checkpoint is written, in which what the hook changes is saved",
    "after_checkpoint": "after it, when it is whole on the disk",
}


class Hooks:
    """Calls the hooks of each point of the training loop, in the order in which they were given.

    A hook is called with the trainer. It reads the trainer's attributes (`env_steps`, `agent`, `learner`, `evaluation`...); what
    it returns is not used. A hook that draws random numbers or changes the agent changes the run. If a hook has `state_dict`
    and `load_state_dict`, checkpoints hold its state (tensors, numbers, strings, and lists and dicts of them), and a resumed
    run restores it. What a hook changes at "after_checkpoint" is not in that checkpoint.

    Args:
        given: a hook, or a sequence of hooks, by the name of its point, one of `POINTS`.

    Raises:
        TaacError: no such point, or what is given cannot be called.
    """

    def __init__(self, given: Mapping[str, Hook | Sequence[Hook]]):
        self._by_point: dict[str, tuple[Hook, ...]] = {}
        for point, value in given.items():
            self.add(point, value)

    def add(self, point: str, value: Hook | Sequence[Hook]) -> None:
        """Adds a hook, or a sequence of hooks, at a point, after those that are there.

        Raises:
            TaacError: no such point, or what is given cannot be called.
        """
        if point not in POINTS:
            near = difflib.get_close_matches(str(point), POINTS, n=1)
            raise TaacError(
                f"Trainer.hooks: there is no point '{point}'{f' (did you mean {near[0]}?)' if near else ''}; there are "
                f"{', '.join(POINTS)}"
            )
        hooks = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        for hook in hooks:
            if not callable(hook) or isinstance(hook, type):  # a class would make an object at each call
                raise TaacError(
                    f"Trainer.hooks['{point}'] must be a function of the trainer or a sequence of them, got {hook!r}; in a "
                    "gin file, a function is @its_name, an object @ItsClass()"
                )
        self._by_point[point] = (*self._by_point.get(point, ()), *hooks)

    def __call__(self, point: str, trainer: Any) -> None:
        """Calls the hooks of a point with the trainer."""
        for hook in self._by_point.get(point, ()):
            hook(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The states of the hooks that have one.

        Raises:
            TaacError: one holds what checkpoints cannot.
        """
        states = {name: hook.state_dict() for name, hook in self._with_state()}
        try:
            files.encode(states)
        except TypeError as error:
            raise TaacError(
                f"the state of a hook cannot be saved: {error}. It may hold tensors, numbers, strings, lists and dicts"
            ) from error
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`. A hook that has been added since is left as it is."""
        for name, hook in self._with_state():
            if name in state:
                hook.load_state_dict(state[name])

    def _with_state(self) -> Iterator[tuple[str, Any]]:
        seen: list[Hook] = []  # an object may be called at several points
        for point, hooks in self._by_point.items():
            for number, hook in enumerate(hooks):
                if (
                    hasattr(hook, "state_dict")
                    and hasattr(hook, "load_state_dict")
                    and not any(hook is other for other in seen)
                ):
                    seen.append(hook)
                    yield f"{point}/{number}", hook
