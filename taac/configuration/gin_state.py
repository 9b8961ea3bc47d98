"""Access to gin's process-wide state. Only this file uses gin's private parts.

gin-config 0.5.0 is of 2021 and no later one may come. CONTRIBUTING.md says what is done if it breaks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import gin
from gin import config as gin_config
from gin import config_parser

from taac.errors import TaacError

MACRO = "gin.macro"  # selector of a macro, whose scope is its name
Reference = gin_config.ConfigurableReference  # `@name` or `@name()`; `%name` is `@name/gin.macro()`
Binding = config_parser.BindingStatement
Import = config_parser.ImportStatement
Include = config_parser.IncludeStatement


def statements(text: str) -> Iterator[Any]:
    """Returns the statements of the text of a gin file; each has a `location`.

    For bad syntax or an unknown name, raises SyntaxError, tokenize.TokenError or ValueError, perhaps during iteration.
    """
    return iter(config_parser.ConfigParser(text, gin_config.ParserDelegate()))


# Names and configurables ---------------------------------------------------------------------------------------------


def short(selector: str) -> str:
    """Returns the name of a configurable without its module: "Learner" for "taac.learning.learner.Learner"."""
    return selector.rsplit(".", 1)[-1]


def enclosing_scopes(scope: str) -> list[str]:
    """Returns the scopes whose bindings apply in `scope`, the most specific first: "a/b", "a" and "" for "a/b"."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]


def match(selector: str) -> Any:
    """Returns the configurable of a full or shortened name; None if there is none. Raises KeyError if the name is ambiguous."""
    return gin_config._REGISTRY.get_match(selector)


def wrapped(selector: str) -> Any:
    """Returns the class or function of a configurable, by its full name."""
    return gin_config._REGISTRY[selector].wrapped


def configurables() -> dict[str, Any]:
    """Returns full name -> class or function, of all configurables except gin's own."""
    return {name: found.wrapped for name, found in gin_config._REGISTRY.items() if not name.startswith("gin.")}


def with_bases(selector: str) -> list[str]:
    """Returns the full names of a configurable and of its base classes, to whose constructors it may pass keywords."""
    selectors = {found: name for name, found in configurables().items()}
    return [selector, *(selectors[base] for base in getattr(wrapped(selector), "__mro__", ())[1:] if base in selectors)]


def check_bindable(scope: str, selector: str, name: str) -> None:
    """Raises ValueError if a parameter does not exist or may not be bound."""
    gin_config.ParsedBindingKey.parse((scope, selector, name))


# References ----------------------------------------------------------------------------------------------------------


def references(value: Any) -> Iterator[Any]:
    """Returns all references in a value, macros and those in the keys of dicts included."""
    return (part for part in parts_of(value) if isinstance(part, Reference))


def parts_of(value: Any) -> Iterator[Any]:
    """Returns a value, and all that its lists and dicts hold, keys included, at any depth, in order."""
    left = [value]
    while left:
        yield (part := left.pop())
        items = itertools.chain(*part.items()) if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
        left += reversed(list(items))


def macro_of(reference: Any) -> str | None:
    """Returns the name of the macro that a reference stands for; None if it refers to something else."""
    return "/".join(reference.scopes) if reference.configurable.selector == MACRO else None


# What is bound and used ----------------------------------------------------------------------------------------------


clear = gin.clear_config  # removes all bindings, and the record of what was used


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """A context without the caller's bindings and scope; on exit both are restored, and whether gin was locked."""
    stores: list[Any] = [gin_config._CONFIG, gin_config._SINGLETONS, gin_config._IMPORTS, gin_config._OPERATIVE_CONFIG]
    held, locked = [store.copy() for store in stores], gin.config_is_locked()
    clear()
    try:
        with gin.config_scope(None):
            yield
    finally:
        clear()
        for store, before in zip(stores, held):
            store.update(before)
        gin_config._set_config_is_locked(locked)


def name_of(configurable: Any) -> tuple[str, str] | None:
    """Returns the full name of a class or function that gin configures, and its module; None if it does not."""
    for selector, found in gin_config._REGISTRY.items():
        if configurable is found.wrapper or configurable is found.wrapped:
            return selector, getattr(found.wrapped, "__module__", "")
    return None


def import_module(statement: Any) -> None:
    """Executes an import statement. The operative configuration will repeat it."""
    with gin.unlock_config():
        gin.parse_config([statement.format()])


def keep_import(module: str) -> None:
    """Lets the operative configuration import a module whose package defines configurables, which may be in it by now."""
    package = module.partition(".")[0]
    modules = {str(getattr(found, "__module__", "")) for found in configurables().values()}  # None of torch's own functions
    if package and package in {name.partition(".")[0] for name in modules}:
        with gin.unlock_config():
            gin.parse_config([f"import {module}"])


def imports() -> set[str]:
    """Returns the names of the modules imported by import statements since `clear`."""
    return {statement.module for statement in gin_config._IMPORTS}


def install(values: Iterable[tuple[tuple[str, str, str], Any]]) -> None:
    """Binds all values, each with (scope, full name, parameter), and locks gin. Raises ValueError if gin refuses one."""
    with gin.unlock_config():
        for key, value in values:
            gin.bind_parameter(key, value)
    gin.finalize()


def override(values: Mapping[str, Any]) -> None:
    """Binds parameters such as "create_environment.num_envs" anew, after `install`."""
    with gin.unlock_config():
        for name, value in values.items():
            gin.bind_parameter(name, value)


def bound() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Returns (scope, full name) -> parameter -> value, of all that is bound."""
    return gin_config._CONFIG


def used() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Returns (scope, full name) -> parameter -> value, of all that was built since `clear`, with defaults."""
    return gin_config._OPERATIVE_CONFIG


def used_macros() -> set[str]:
    """Returns the names of the macros that were read since `clear`."""
    return {scope for scope, selector in used() if selector == MACRO}


# In another process --------------------------------------------------------------------------------------------------

_register: list[Callable[[], None]] = []  # registers all configurables; see `registered_by`


def registered_by(register: Callable[[], None]) -> None:
    """Sets the function of a module that registers all configurables, for other processes. They may call it more than once."""
    _register[:] = [register]


class PortableConfig(NamedTuple):
    """The configuration of a process as plain data, which another process or machine can install."""

    bindings: str  # as a gin file, imports included
    folder: str  # working directory, to which file names are relative
    register: Callable[[], None]

    def install(self) -> None:
        """Replaces this process's configuration. Raises TaacError if a module or a configurable does not exist here."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        self.register()
        try:
            with gin.unlock_config():
                gin.clear_config()
                gin.parse_config(self.bindings)
        except (ImportError, ValueError, SyntaxError) as error:
            raise TaacError(f"this process cannot install the configuration of the run: {error}") from error


def portable() -> PortableConfig:
    """Returns the configuration in force."""
    return PortableConfig(gin.config_str(max_line_length=110), os.getcwd(), *_register)


def bindings_text() -> str:
    """Returns the bindings in force as a gin file without imports, for a process that imports only what it needs."""
    return "\n".join(line for line in gin.config_str(110).splitlines() if not line.startswith(("import ", "from ")))
