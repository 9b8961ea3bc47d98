"""The configuration in force as plain data, which another process or machine can install."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

import gin

from taac.errors import TaacError

_register: list[Callable[[], None]] = []  # registers all configurables; see `registered_by`


def registered_by(register: Callable[[], None]) -> None:
    """Says which function registers all configurables, so that another process can call it too.

    Args:
        register: a function of a module. It may be called more than once.
    """
    _register[:] = [register]


class Carried(NamedTuple):
    """What gin was told in a process; `install` tells it to gin in another one."""

    bindings: str  # as a gin file, imports included
    folder: str  # working directory, to which file names are relative
    register: Callable[[], None]

    def install(self) -> None:
        """Replaces this process's configuration.

        Raises:
            TaacError: a module or a configurable does not exist here.
        """
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        self.register()
        try:
            with gin.unlock_config():
                gin.clear_config()
                gin.parse_config(self.bindings)
        except (ImportError, ValueError, SyntaxError) as error:
            raise TaacError(f"this process cannot install the configuration of the run: {error}") from error


def bindings() -> str:
    """Returns the bindings in force as a gin file without imports, for a process that imports only what it needs."""
    lines = gin.config_str(max_line_length=110).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("import ", "from ")))


def carried() -> Carried:
    """Returns the configuration in force."""
    return Carried(gin.config_str(max_line_length=110), os.getcwd(), *_register)
