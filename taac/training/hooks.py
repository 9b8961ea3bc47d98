"""Functions of the user's that the training loop calls at named points."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taac.errors import TaacError
from taac.runs import files

if TYPE_CHECKING:
    from taac.training.trainer import Trainer

Hook = Callable[["Trainer"], object]

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
    """What is called at which point of the training loop, in the order in which it was given.

    A hook is called with the trainer, whose attributes say the rest (`env_steps`, `agent`, `learner`, `evaluation`...); what
    it returns is not used. One that draws random numbers or changes the agent changes the run. If a hook has `state_dict` and
    `load_state_dict`, checkpoints hold its state (tensors, numbers, strings, and lists and dicts of them), so that a resumed
    run has it. What a hook changes at "after_checkpoint" is not in that checkpoint.

    Args:
        given: by the name of a point, one of `POINTS`, a hook or a sequence of hooks.

    Raises:
        TaacError: no such point, or what is given cannot be called.
    """

    def __init__(self, given: Mapping[str, Hook | Sequence[Hook]]):
        self._by_point: dict[str, tuple[Hook, ...]] = {}
        for point, value in given.items():
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
            self._by_point[point] = hooks

    def __call__(self, point: str, trainer: Trainer) -> None:
        """Calls what was given for a point."""
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
