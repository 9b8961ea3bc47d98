"""A hook that gives parts of the agent new initial values while the replay buffer stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin

from taac.errors import TaacError, nearest, refuse_below
from taac.learning.optimizers import forget
from taac.training.experiment import create_agent
from taac.training.warm_start import slow_copy


@gin.configurable
class Reset:
    """A hook for "before_update" that begins parts of the agent anew, with new random values, and keeps the replay buffer.

    The source finds that networks which fit their first frames too well learn badly from later ones, and that an agent which
    begins anew with the whole buffer overtakes them, by more with more updates a step. This was not tried at length here.

    Modules, their targets, and what the optimizer holds of their parameters (moments and counts of steps) are reset. Normalisers
    and reward signals are not.

    Source: Nikishin et al. (arXiv:2205.07802); BRO (arXiv:2405.16158) resets everything at fixed steps.

    Args:
        at: numbers of updates after which parts are reset, before the next update.
        modules: of the algorithm, such as `("critics", "actor.head")`; none: all, with temperature and targets.
    """

    point = "before_update"

    def __init__(self, at: Sequence[int], modules: Sequence[str] = ()):
        self.at, self.modules = frozenset(at), (modules,) if isinstance(modules, str) else tuple(modules)
        for number in self.at:
            refuse_below(1, "Reset", at=number)
        if not self.at:
            raise TaacError("Reset.at names no update: give numbers of updates, such as (20000, 50000)")

    def check(self, trainer: Any) -> None:
        """Refuses modules that the algorithm does not have, and numbers beyond the run."""
        algorithm = trainer.agent.algorithm
        if max(self.at) >= trainer.updates_expected:
            updates = trainer.updates_expected
            raise TaacError(f"Reset.at: the run has {updates} updates, so no update follows number {max(self.at)}")
        for name in self.modules:
            try:
                algorithm.get_submodule(name)
            except AttributeError:
                known = [one for one, module in algorithm.named_modules() if one and module.state_dict()]
                top = ", ".join(one for one in known if "." not in one)
                raise TaacError(f"Reset.modules: the algorithm has no '{name}'{nearest(name, known)}; it has: {top}") from None

    def __call__(self, trainer: Any) -> None:
        if trainer.learner.num_updates not in self.at:
            return
        algorithm = trainer.agent.algorithm
        new = create_agent(trainer.environment, trainer.agent.device).algorithm
        targets = (slow_copy(algorithm, name) for name in self.modules)
        for name in dict.fromkeys([*self.modules, *(target for target in targets if target)]) or [""]:
            algorithm.get_submodule(name).load_state_dict(new.get_submodule(name).state_dict())
        trainer.ranks.copy_first(list(algorithm.state_dict().values()))
        named = [p for name in self.modules or [""] for p in algorithm.get_submodule(name).parameters()]
        forget(trainer.learner.optimizer, named)
