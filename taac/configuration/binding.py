"""A binding in a gin file or flag: the value of a parameter, and where it is set."""

from __future__ import annotations

from typing import Any, NamedTuple

from taac.configuration.gin_state import MACRO, Reference, macro_of, short
from taac.configuration.macros import TASK_MACROS


class Binding(NamedTuple):
    """A value that a file or flag binds."""

    scope: str  # scope of the configurable, or the name of a macro
    selector: str  # full name of the configurable; `MACRO` for a macro
    name: str  # of the parameter
    value: Any
    where: str  # "file:line", or "--gin_param"
    shipped: bool = False  # whether the file belongs to this package

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scope, self.selector, self.name

    @property
    def is_macro(self) -> bool:
        return self.selector == MACRO

    @property
    def may_be_unused(self) -> bool:
        """Whether nothing needs to use it.

        A shipped file ties parameters to macros of a task, and a class of a user's own may replace the one that has the
        parameter. A shipped task file may bind what a single algorithm does, and the task may be given to another.
        """
        if not self.shipped:
            return False
        tie = isinstance(self.value, Reference) and macro_of(self.value) in TASK_MACROS
        return tie or self.selector.startswith("taac.algorithms.")

    @property
    def line(self) -> str:
        """The binding as a line of gin."""
        return f"{self.parameter} = {self.value!r}"

    @property
    def parameter(self) -> str:
        """What is bound: the name of a macro, or `Constructor.parameter`."""
        if self.is_macro:
            return self.scope
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{short(self.selector)}.{self.name}"

    def __str__(self) -> str:
        return f"{self.where}: {self.line}"
