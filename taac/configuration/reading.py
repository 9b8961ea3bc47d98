"""Reads gin files and parameters into a `Config`."""

from __future__ import annotations

import math
import os
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from taac.configuration import gin_state, plain_words, untrusted, values
from taac.configuration.binding import ALGORITHM, OF_COMPARE, TASK_MACROS, Binding
from taac.configuration.config import Config
from taac.configuration.plain_words import Setting
from taac.configuration.shipped import search_path
from taac.errors import NotTrusted, TaacError, nearest

MAX_BYTES = 1 << 20  # of a gin file, about 100 times the longest
GONE = {("RemoteCollector", "replacement_window")}  # which the configurations of earlier runs hold
MOVED = {("create_experiment", "evaluation_wrappers"): "create_environment"}  # as runs of earlier code have it
Check = Callable[[Binding, Config, bool], None]
_checks: list[Check] = []


class ReadFile(str):
    """The name of a gin file that has been read: what was checked is what is parsed, whatever the file holds by then."""

    text: str

    def __new__(cls, path: Path, text: str) -> ReadFile:
        self = super().__new__(cls, path)
        self.text = text
        return self


def add_check(check: Check) -> None:
    """Registers a check of every binding that is read: `check(binding, config, trusted)` raises TaacError to refuse one."""
    if check not in _checks:
        _checks.append(check)


def load(
    gin_files: Sequence[str], gin_params: Sequence[str] = (), settings: Sequence[Setting] = (), of_compare: bool = False
) -> Config:
    """Reads gin files in order, then parameters, then settings. Later bindings replace earlier ones.

    They are trusted: their import statements are executed, and they may have anything built.

    A file is searched for in the working directory, then in the repository or package (`gin/tasks/simple_control.gin`). An
    included file is searched for in the repository or package, then beside the file that includes it.

    Args:
        gin_files: names of the files. A `ReadFile` is not read again.
        gin_params: single bindings, such as "gamma = 0.99".
        settings: in plain words. No two may set the same.
        of_compare: keeps only bindings of `taac compare` and `taac sweep`, and the macros in them. Others may name macros that
            the files of each run's task define.

    Raises:
        TaacError: a file is missing, or a line of it cannot be read or has no meaning.
    """
    gin_state.clear()
    bindings: list[Binding] = []
    for name in gin_files:
        bindings += _read_file(name if isinstance(name, ReadFile) else _read(find_file(name)), ())
    for param in gin_params:
        bindings += _parse(param, "--gin_param", None, ())
    bindings += _read_settings(settings, bindings)
    kept = untrusted.only(bindings, OF_COMPARE) if of_compare else bindings
    return _install(_checked(kept, gin_state.imports(), True))


def load_untrusted(file: ReadFile) -> Config:
    """Reads what acting needs of the configuration of somebody else's run; see `untrusted`. Imports nothing.

    Raises NotTrusted if it imports a module that is not this package's, includes a file, or has something built that `untrusted`
    or a check of `add_check` refuses, such as an environment of an unlisted package.
    """
    gin_state.clear()
    return _install(_checked(untrusted.needed(_read_file(file, (), imports=())), (), False))


def read_held(file: ReadFile, imports: Collection[str]) -> Config:
    """Reads the configuration of a run folder to compare it with another one. Imports, binds and builds nothing.

    Raises NotTrusted if it includes a file, or imports modules other than this package's and those in `imports`.
    """
    return _checked(_read_file(file, (), imports), imports, True)


def _checked(bindings: Sequence[Binding], imports: Iterable[str], trusted: bool) -> Config:
    config, sizes = Config(bindings, imports), dict[str, int]()
    macros = config.macros
    steps: list[Callable[[Binding], object]] = [
        _check_writable,
        lambda binding: values.check_macros(binding, macros, sizes),
        lambda binding: values.make_whole(binding, config.bindings),
        lambda binding: values.check_type(binding, config.bindings),
        *(lambda binding, check=check: check(binding, config, trusted) for check in _checks),
    ]
    for step in steps:
        for binding in list(config.bindings.values()):
            try:
                step(binding)
            except (RecursionError, MemoryError) as error:
                why = f"the value of {binding.name} is nested too deeply: {type(error).__name__}"
                raise TaacError(f"{binding.where}: {why}") from error
    return config


def _install(config: Config) -> Config:
    _guarded("", lambda: gin_state.install((b.key, b.value) for b in config.bindings.values()))
    return config


def _read_settings(settings: Sequence[Setting], given: Sequence[Binding]) -> list[Binding]:
    found: dict[tuple[str, str, str], Setting] = {}
    bindings = []
    macros = {b.scope for b in given if b.is_macro}
    algorithm = next((b.value for b in reversed(given) if b.parameter == ALGORITHM), None)
    for setting in settings:  # a later one wins, as it does below
        if setting.text.partition("=")[0].strip() in (ALGORITHM, ALGORITHM.rpartition(".")[2]):
            algorithm = _parse(plain_words.to_gin(setting, macros, ()), setting.flag, None, ())[-1].value
    wrapped = algorithm.configurable.wrapped if isinstance(algorithm, gin_state.Reference) else None
    classes = [c.__name__ for c in getattr(wrapped, "__mro__", ())]  # a macro or a function has none
    for setting in settings:
        parsed = _parse(plain_words.to_gin(setting, macros, classes), setting.flag, None, ())
        if len(parsed) != 1:
            raise TaacError(f"{setting} must be one setting, NAME=VALUE; give each by itself")
        (binding,) = parsed
        if (other := found.setdefault(binding.key, setting)) is not setting:
            raise TaacError(f"{other} and {setting} set the same, {binding.parameter}; give one of them")
        bindings.append(binding)
    return bindings


def _check_writable(binding: Binding) -> None:
    """Refuses a value that cannot be written as text, because configurations are compared and saved as text."""
    try:
        repr(binding.value)
        if not all(math.isfinite(part) for part in gin_state.parts_of(binding.value) if isinstance(part, float)):
            raise ValueError("it is infinite")  # 1e999
    except ValueError as error:  # an int of thousands of hexadecimal digits can be read but not written
        name = binding.scope if binding.is_macro else binding.name
        raise TaacError(f"{binding.where}: the value of {name} cannot be written as text: {error}") from error


# Files ---------------------------------------------------------------------------------------------------------------


def find_file(name: str, asked_by: str = "--gin_file") -> Path:
    """Returns the path of a gin file in the working directory, the repository or the package. Messages begin with `asked_by`."""
    return _find(name, [Path()] + search_path(), f"{asked_by} {name}")


def places(name: str) -> set[str]:
    """Returns "file:line" of every binding in a gin file and in those that it includes. Binds nothing."""
    return {b.where for b in _read_file(_read(find_file(name)), ())}


def _find(name: str, folders: Sequence[Path], asked_by: str) -> Path:
    for folder in folders:
        try:
            if (folder / name).is_file():
                return folder / name
        except (OSError, ValueError) as error:
            raise TaacError(f"{asked_by}: '{name[:100]}' is not a file name: {error.args[-1]}") from error
    present = [str(p.relative_to(f)) for f in search_path() for sub in ("gin", "experiments") for p in (f / sub).rglob("*.gin")]
    raise TaacError(
        f"{asked_by}: there is no file '{name}' in {', '.join(str(f.resolve()) for f in folders)}{nearest(name, present)}"
    )


def _read(path: Path) -> ReadFile:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TaacError(f"{path} has {size} bytes, expected at most {MAX_BYTES} of a gin file")
        return ReadFile(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TaacError(f"{path} cannot be read as a gin file: {error}") from error


def _read_file(file: ReadFile, including: tuple[Path, ...], imports: Collection[str] | None = None) -> list[Binding]:
    path = Path(file)
    if path.resolve() in including:
        raise TaacError(f"{path} includes itself, by way of {' -> '.join(map(str, including))}")
    shown = os.path.relpath(path) if not str(os.path.relpath(path)).startswith("..") else str(path)
    return _parse(file.text, shown, path, (*including, path.resolve()), imports)


# Statements ----------------------------------------------------------------------------------------------------------


def _parse(
    text: str, shown: str, path: Path | None, including: tuple[Path, ...], imports: Collection[str] | None = None
) -> list[Binding]:
    """Returns the bindings of a gin file, or of a parameter, which has no `path`; `shown` is where it is, for messages.

    Executes its import statements, and reads the files that it includes; `including` are those that are being read. A text that
    is not trusted, where `imports` is not None, includes nothing, and its import statements are not executed: they may name
    these modules and this package's own, which are imported already.
    """
    bindings: list[Binding] = []
    shipped = path is not None and any(folder / "gin" in path.resolve().parents for folder in search_path())
    given = "" if path else text.strip()
    statements = _guarded(shown, lambda: gin_state.statements(text), given)
    while True:
        statement = _guarded(shown, lambda: next(statements, None), given)
        if statement is None:
            return bindings
        where = f"{shown}:{statement.location.line_num}" if path else shown
        if isinstance(statement, gin_state.Include):
            if imports is not None:
                raise NotTrusted(f"{where}: includes '{statement.filename}'")
            folders = search_path() + ([path.parent] if path else [Path()])
            bindings += _read_file(_read(_find(statement.filename, folders, f"{where}: include")), including)
        elif isinstance(statement, gin_state.Import):
            if imports is not None:
                if statement.module not in imports and statement.module.split(".")[0] != "taac":
                    raise NotTrusted(f"{where}: imports '{statement.module}'")
                continue
            try:
                gin_state.import_module(statement)
            except Exception as error:  # the module may raise anything while it is imported
                raise TaacError(f"{where}: cannot import '{statement.module}': {type(error).__name__}: {error}") from error
        elif isinstance(statement, gin_state.Binding):
            if (gin_state.short(statement.selector), statement.arg_name) in GONE:
                continue
            bindings.append(_binding(statement, where)._replace(shipped=shipped))
        else:
            _configurable(statement.selector, where)


def _binding(statement: Any, where: str) -> Binding:
    scope, selector, name, value, _ = statement
    if not name:  # `gamma = 0.99`
        macro = f"{scope}/{selector}" if scope else selector
        return Binding(macro, gin_state.MACRO, "value", value, where)
    selector = MOVED.get((gin_state.short(selector), name), selector)
    configurable = _configurable(selector, where)
    parameters = values.parameters(configurable.wrapped)
    if parameters and name not in parameters:
        owners = plain_words.owners().get(name)
        meant = f"; did you mean '{owners[0]}'?" if owners else nearest(name, parameters)
        raise TaacError(f"{where}: '{selector}' has no parameter '{name}'{meant}; it has: {', '.join(parameters)}")
    _guarded(where, lambda: gin_state.check_bindable(scope, selector, name))
    return Binding(scope, configurable.selector, name, value, where)


def _configurable(selector: str, where: str) -> Any:
    try:
        found = gin_state.match(selector)
    except KeyError as error:
        raise TaacError(f"{where}: '{selector}' is ambiguous: {error}") from error
    if found is None:
        if "taac.registry" not in sys.modules:
            raise TaacError(f"{where}: '{selector}' is not known: call taac.registry.register() before `load`")
        similar = nearest(selector, map(gin_state.short, gin_state.configurables()))
        raise TaacError(f"{where}: there is nothing configurable named '{selector}'{similar}")
    return found


def _guarded(where: str, function: Callable[[], Any], given: str = "") -> Any:
    """Calls `function`. Turns gin's errors into a `TaacError` with the place, and the nearest name to an unknown one."""
    try:
        return function()
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno and not where.startswith("--") else ""
        raise TaacError(f"{where}{line}: bad gin syntax: {_meant(error, where)}") from error
    except (RecursionError, MemoryError) as error:
        raise TaacError(f"{where}: a value is nested too deeply, or too long: {type(error).__name__}") from error
    except tokenize.TokenError as error:
        raise TaacError(f"{where}: bad gin syntax: {error.args[0]}{f' in {given!r}' if given else ''}") from error
    except (ValueError, TypeError, KeyError) as error:
        message = str(error.args[0] if error.args else error).strip()
        unknown = re.search(r"'@?%?([\w./]+?)(?:\(\))?'", message)
        near = ""
        if unknown:
            word = unknown.group(1).rsplit("/", 1)[-1].rsplit(".", 1)[-1]
            near = nearest(word, [*map(gin_state.short, gin_state.configurables()), *TASK_MACROS])
        if (reference := re.match(r"No configurable matching reference '@(.*?)(?:\(\))?'", message)) is not None:
            number = re.search(r"line (\d+)", message[reference.end() :])
            at = f"{where}:{number[1]}" if number and not where.startswith("--") else where
            raise TaacError(
                f"{at}: there is nothing configurable named '{reference[1]}'{near}; a class or function of your own needs "
                "@gin.configurable, and a gin file that imports its module"
            ) from error
        raise TaacError((f"{where}: " if where else "gin: ") + message.replace("\n", " ") + near) from error


def _meant(error: SyntaxError, where: str) -> str:
    """Returns what to write instead, or else what gin says, and the line."""
    text = (error.text or "").strip()
    if (meant := _advice(text)) is not None:
        name, _, value = (part.strip(" '\"") for part in text.partition("="))
        plain = f", or use --set {name}={value}" if where == "--gin_param" and value else ""
        return f"{meant}{plain} (in '{text}')"
    said = re.sub(r" on line \d+: <ast[.].*?>", "", " ".join(error.msg.split()))
    return f"{said} in '{text}'" if text else said


_NAME = r"(?:\w+/)*[A-Za-z_]\w*(?:\.\w+)*"
_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LONGEST_ADVISED = 200  # characters: the patterns below take time that rises with a power of the length
_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None", "yes": "True", "no": "False"}


def _advice(line: str) -> str | None:
    """Returns what to write instead of a line of gin with bad syntax; None if it cannot be told."""
    if "\n" in line or len(line) > _LONGEST_ADVISED:
        return None
    statement = re.fullmatch(rf"\s*({_NAME})\s*(=?)\s*(.*?)\s*", line)
    if statement is None:
        return None
    name, equals, value = statement.groups()
    if not equals:
        return f"a binding is NAME = VALUE: {name} = {value}" if re.fullmatch(rf"{_NUMBER}|'.*'|\".*\"", value) else None
    if not value:
        return f"a value is missing: {name} = VALUE"
    if value.lower() in _CONSTANTS:
        return f"write {name} = {_CONSTANTS[value.lower()]}"
    if re.fullmatch(r"[#(]#?(\s*(\*\*|[*/+-])\s*[#()]+)+", re.sub(_NUMBER, "#", value)):
        return f"a value is not calculated: write the number itself after {name} ="
    if re.fullmatch(rf"{_NUMBER}(?:\s*,\s*{_NUMBER})*\s*,?", value) and "," in value:
        return f"put a list in parentheses: {name} = ({value})"
    if re.match(r"[A-Za-z./~_]", value) and not re.search(r"['\"()\[\]{}]", value):
        return f"put text in quotes: {name} = {value!r}"
    return None
