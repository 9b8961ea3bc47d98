"""Selects what is read of the configuration of somebody else's run: what acting needs, of constructors that only compute.

Such a file may hold anything, and gin builds whatever a value names. So only the bindings of the two functions that acting calls
and of the constructors in `PURE` are kept, with the macros in them. Their values are plain, or name constructors in `PURE`. The
rest is dropped, and never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence

from taac.configuration import gin_state
from taac.configuration.binding import Binding
from taac.errors import NotTrusted

CALLED = ("taac.environments.create.create_environment", "taac.training.experiment.create_agent")
# Prefixes of constructors that touch no file, process or host and import nothing, whatever their arguments.
PURE = (
    "taac.algorithms.", "taac.environments.delays.", "taac.environments.durations.", "taac.environments.images.",
    "taac.environments.wrappers.",
    "taac.networks.", "taac.ops.schedules.", "torch.nn.",
)  # fmt: skip


def needed(bindings: Sequence[Binding]) -> list[Binding]:
    """Returns the bindings that acting needs.

    Raises NotTrusted if the value of one of them, or of a macro in it, names something other than a constructor in `PURE`.
    """
    kept = only(bindings, (*CALLED, *PURE))
    for binding in kept:
        for reference in gin_state.references(binding.value):
            if gin_state.macro_of(reference) is None and not reference.configurable.selector.startswith(PURE):
                raise NotTrusted(
                    f"{binding}: {reference!r} is not a network, algorithm, loss, trajectory, schedule or wrapper of this package"
                )
    return kept


def only(bindings: Sequence[Binding], selectors: tuple[str, ...]) -> list[Binding]:
    """Returns the bindings of configurables whose full names begin so, and those of all macros in their values."""
    kept = [b for b in bindings if b.selector.startswith(selectors)]
    macros: dict[str | None, list[Binding]] = {}
    for binding in bindings:
        if binding.is_macro:
            macros.setdefault(binding.scope, []).append(binding)
    for binding in kept:  # which grows
        for reference in gin_state.references(binding.value):
            kept += macros.pop(gin_state.macro_of(reference), ())
    return kept
