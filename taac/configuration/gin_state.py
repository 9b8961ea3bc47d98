"""gin's state, which is global to the process. Only this file uses what gin keeps private."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gin
from gin import config as gin_config
from gin import config_parser

from taac.configuration.names import short

MACRO = "gin.macro"  # selector of a macro; its scope is its name

Reference = gin_config.ConfigurableReference  # `@name` or `@name()`; `%name` is `@name/gin.macro()`
Binding = config_parser.BindingStatement
Import = config_parser.ImportStatement
Include = config_parser.IncludeStatement


def statements(text: str, skip_unknown: bool = False) -> Iterator[Any]:
    """The statements of a gin file; each has a `location`.

    Args:
        skip_unknown: whether unknown names are accepted.

    Raises:
        SyntaxError, tokenize.TokenError, ValueError: bad syntax, or an unknown name; while iterating, too.
    """
    return iter(config_parser.ConfigParser(text, gin_config.ParserDelegate(skip_unknown=skip_unknown)))


# Configurables -------------------------------------------------------------------------------------------------------


def match(selector: str) -> Any:
    """The configurable of a full or shortened name; None if there is none.

    Raises:
        KeyError: several have this name.
    """
    return gin_config._REGISTRY.get_match(selector)


def wrapped(selector: str) -> Any:
    """The class or function of a configurable, by its full name."""
    return gin_config._REGISTRY[selector].wrapped


def configurables() -> dict[str, Any]:
    """Full name -> class or function, of all configurables but gin's own."""
    return {name: found.wrapped for name, found in gin_config._REGISTRY.items() if not name.startswith("gin.")}


def with_bases(selector: str) -> list[str]:
    """A configurable's full name, and those of the classes that it extends, whose constructors take its keywords."""
    selectors = {found: name for name, found in configurables().items()}
    return [selector, *(selectors[base] for base in getattr(wrapped(selector), "__mro__", ())[1:] if base in selectors)]


def names() -> list[str]:
    """Short names of all configurables."""
    return sorted({short(selector) for selector in configurables()})


def check_bindable(scope: str, selector: str, name: str) -> None:
    """Raises ValueError for a parameter that is not there or may not be bound."""
    gin_config.ParsedBindingKey.parse((scope, selector, name))


# References ----------------------------------------------------------------------------------------------------------


def references(value: Any) -> Iterator[Any]:
    """All references in a value, macros included."""
    return gin_config.iterate_references(value)


def macro_of(reference: Any) -> str | None:
    """The name of the macro that a reference stands for; None if it refers to something else."""
    return "/".join(reference.scopes) if reference.configurable.selector == MACRO else None


# What is bound and used ----------------------------------------------------------------------------------------------


def clear() -> None:
    """Forgets all bindings and what was used."""
    gin.clear_config()


def import_module(statement: Any) -> None:
    """Carries out an import statement, which the operative configuration then repeats."""
    with gin.unlock_config():
        gin.parse_config([statement.format()])


def imports() -> set[str]:
    """Names of the modules that import statements named since `clear`."""
    return {statement.module for statement in gin_config._IMPORTS}


def install(values: Iterable[tuple[tuple[str, str, str], Any]]) -> None:
    """Binds all values, each with (scope, full name, parameter), and locks gin.

    Raises:
        ValueError: gin refuses one.
    """
    with gin.unlock_config():
        for key, value in values:
            gin.bind_parameter(key, value)
    gin.finalize()


def used() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """(scope, full name) -> parameter -> value, of all that was built since `clear`, defaults included."""
    return gin_config._OPERATIVE_CONFIG


def used_macros() -> set[str]:
    """Names of the macros that were read since `clear`."""
    return {scope for scope, selector in used() if selector == MACRO}
