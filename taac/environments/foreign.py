"""What a configuration that is not trusted may not bind: environments that run code of other packages."""

from __future__ import annotations

import os
import re
from typing import Any

import gymnasium

from taac.configuration import Binding, Config
from taac.environments import single
from taac.errors import NotTrusted


def refuse_foreign_environment(binding: Binding, config: Config, trusted: bool) -> None:
    """Refuses an environment of a package that is not on the list, and arguments that could make one import or open others.

    Raises:
        NotTrusted: names the binding's place and what is allowed. Never, if the configuration is trusted.
    """
    if trusted or not binding.selector.endswith(".create_environment"):
        return
    engine = config.bound("create_environment.engine")
    if binding.name == "env_name":
        _refuse_foreign_name(binding, *config.resolve(binding.value), engine)
    elif binding.name == "env_kwargs":
        known, value = config.resolve(binding.value)
        words = engine != "envpool"  # whose VizDoom takes options of a program, and a file that names the program to start
        plain = isinstance(value, dict) and all(isinstance(key, str) and _is_plain(part, words) for key, part in value.items())
        if not known or not (plain or value is None):
            named = "words that name nothing in the working directory, " if words else ""
            raise NotTrusted(
                f"{binding}: expected numbers, {named}True, False, None, or lists of them; simulators import, open or start what "
                "other arguments name"
            )


def _refuse_foreign_name(binding: Binding, known: bool, value: Any, engine: Any) -> None:
    if not known or not isinstance(value, str) or ":" in value:
        raise NotTrusted(f"{binding} imports the module before the colon, or is only known once it is built")
    if engine == "envpool" and value not in gymnasium.registry:
        return  # nothing that Gymnasium could import; envpool looks names up in a list of its own
    if not single.is_of_allowed_package(value):
        raise NotTrusted(f"{binding} is an environment of another package than {', '.join(single.allowed_packages())}")


def _is_plain(value: Any, words: bool) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part, words) for part in value)
    if isinstance(value, str):
        return words and re.fullmatch(r"[\w -]*", value) is not None and not os.path.lexists(value)  # no path
    return value is None or isinstance(value, (bool, int, float))
