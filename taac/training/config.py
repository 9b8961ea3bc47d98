"""All the gin glue: reading gin files and parameters, refusing what is wrong in them, and the operative configuration.

gin itself reads a binding of the wrong type, or one that nothing uses, without a word. Here each is an error before any
work is done, which names the file and line, and the nearest real name. gin's state is global to the process: `load` sets
all of it.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import re
import tokenize
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin
import typeguard
from gin import config as gin_config
from gin import config_parser

import taac
from taac.errors import TaacError
from taac.ops.schedules import Schedule

# Macros that a task file defines and method files bind to. A method need not use them all, so these alone may be left
# unused. Each: its meaning.
TASK_MACROS: dict[str, str] = {
    "num_envs": "environments stepped together",
    "num_env_steps": "environment steps of the whole run",
    "initial_collect_steps": "environment steps before the first update",
    "unroll_length": "steps in each environment an iteration",
    "updates_per_iteration": "gradient steps an iteration",
    "replay_length": "frames kept for each environment",
    "batch_size": "segments a gradient step",
    "segment_length": "frames a segment, for methods that learn from several steps",
    "action_repeat": "times that a fixed frame skip takes each action: N, the segment length less one",
    "learning_rate": "Adam's, of every parameter",
    "hidden_layers": "widths of actor and critics",
    "log_std_min": "lower bound of the policy's log standard deviation",
    "gamma": "discount of a step",
    "target_tau": "fraction by which targets move",
    "target_period": "updates between moves of the targets",
    "action_min_prob": "gives the actor's target entropy",
    "beta_min_prob": "gives the switch's target entropy",
    "beta_advantage_clipping": "(low, high) of the advantage of switching, or None",
    "normalize_rewards": "whether sampled rewards are normalised",
    "reward_clip": "clip of normalised rewards, in standard deviations, or None",
    "evaluation_interval": "environment steps between evaluations",
    "evaluation_episodes": "episodes an evaluation",
    "checkpoint_interval": "environment steps between checkpoints",
}

MAX_BYTES = 1 << 20  # of a gin file, some 100 times the longest

# Configurables of `taac compare`, not of an experiment.
OF_COMPARE = ("taac.campaigns.comparison.", "taac.campaigns.launchers.")


class Binding(NamedTuple):
    """A value that some file or flag gave."""

    scope: str
    selector: str  # full name of the configurable; 'gin.macro' for a macro, whose name is the scope
    name: str
    value: Any
    where: str  # "file:line", or "--gin_param"
    shipped: bool = False  # from a gin file of this package

    @property
    def is_tie(self) -> bool:
        """Whether a shipped file ties a parameter to a task's macro. It is unused where another class takes the place of ours."""
        bare = (
            isinstance(self.value, gin_config.ConfigurableReference) and self.value.configurable.selector == "gin.macro"
        )
        return self.shipped and bare and "/".join(self.value.scopes) in TASK_MACROS

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scope, self.selector, self.name

    @property
    def binding(self) -> str:
        """As a line of gin."""
        short = self.scope if self.selector == "gin.macro" else f"{self.selector.rsplit('.', 1)[-1]}.{self.name}"
        if self.scope and self.selector != "gin.macro":
            short = f"{self.scope}/{short}"
        return f"{short} = {self.value!r}"

    def __str__(self) -> str:
        return f"{self.where}: {self.binding}"


class Config:
    """What `load` read: the binding in force of each parameter. `check_used` after building is the other half of it."""

    def __init__(self, bindings: Iterable[Binding], imports: Iterable[str] = ()):
        self.imports = frozenset(imports)  # modules, by name
        self.bindings: dict[tuple[str, str, str], Binding] = {}
        self._replaced: set[tuple[str, str]] = set()  # scope and selector of what only a replaced binding may refer to
        for b in bindings:  # a later binding takes the place of an earlier one
            if b.key in self.bindings:
                references = gin_config.iterate_references(self.bindings[b.key].value)
                self._replaced |= {("/".join(r.scopes), r.configurable.selector) for r in references if r.scopes}
            self.bindings[b.key] = b

    def check_macros(self) -> None:
        """Refuses macros that nothing refers to: what can be told of `check_used` without building.

        Raises:
            TaacError: names the macro's place and the nearest name that is referred to.
        """
        used = {
            "/".join(reference.scopes)
            for b in self.bindings.values()
            for reference in gin_config.iterate_references(b.value)
            if reference.configurable.selector == "gin.macro"
        }
        self._check_macros(used)

    def check_used(self) -> None:
        """Call when everything has been built: refuses bindings that nothing asked for.

        What is bound for `taac compare` is its to check: its gin files are also read by each of its runs.

        Raises:
            TaacError: a binding was not used; names its place and the nearest name that was.
        """
        operative = gin_config._OPERATIVE_CONFIG
        self._check_macros({scope for scope, selector in operative if selector == "gin.macro"})
        for b in self.bindings.values():
            if b.selector == "gin.macro" or b.selector.startswith(OF_COMPARE):
                continue
            if (b.scope, b.selector) in self._replaced or b.is_tie:
                continue  # settings of a schedule, say, in whose place a number was bound
            if not any(
                selector == b.selector and b.name in values and (not b.scope or f"{scope}/".startswith(f"{b.scope}/"))
                for (scope, selector), values in operative.items()
            ):
                built = sorted({s.rsplit(".", 1)[-1] for _, s in operative if s != "gin.macro"})
                raise TaacError(
                    f"{b}: nothing in this experiment uses this binding"
                    f"{nearest(b.selector.rsplit('.', 1)[-1], built)}; in use are: {', '.join(built)}"
                )

    def differences(self, operative: Config) -> list[str]:
        """What an operative configuration that was written and read again has otherwise than this one; builds neither.

        What this one does not bind has its default. A parameter that is not in the other, as one that is newer, is no
        difference, unless it is bound here.
        """
        found: list[str] = []
        used: set[tuple[str, str, str]] = set()
        for (scope, selector, name), held in operative.bindings.items():
            scopes = scope.split("/") if scope else []
            inner = ["/".join(scopes[:n]) for n in range(len(scopes), -1, -1)]  # the most specific first
            keys = [(s, selector, name) for s in inner]
            used.update(keys)
            key = next((k for k in keys if k in self.bindings), None)
            if key is not None:
                asked = repr(self.bindings[key].value)
            elif selector == "gin.macro":
                asked = "nothing"
            else:
                asked = repr(_default(selector, name))
            if repr(held.value) != asked:
                found.append(f"{held.binding}, not {asked}")
        for key, b in self.bindings.items():
            if key not in used and b.selector != "gin.macro" and not b.selector.startswith(OF_COMPARE):
                found.append(f"no {b.binding}")
        return found

    def origins(self) -> list[tuple[str, str]]:
        """What was used in building, as lines of gin, each with where it came from: "file:line", "--gin_param" or "default"."""
        bound = {(b.scope, b.selector, b.name): b.where for b in self.bindings.values()}
        macros, others = [], []
        for (scope, selector), values in gin_config._OPERATIVE_CONFIG.items():
            for name, value in values.items():
                if selector == "gin.macro":
                    macros.append((f"{scope} = {value!r}", bound.get((scope, selector, name), "default")))
                    continue
                scopes = scope.split("/") if scope else []
                inner = ["/".join(scopes[:n]) for n in range(len(scopes), -1, -1)]  # the most specific first
                where = next((bound[s, selector, name] for s in inner if (s, selector, name) in bound), "default")
                prefix = f"{scope}/" if scope else ""
                others.append((f"{prefix}{selector.rsplit('.', 1)[-1]}.{name} = {value!r}", where))
        return sorted(macros) + sorted(others)

    def settings(self, selector: str) -> dict[str, Any]:
        """The parameters with which a configurable of that full name was called, macros followed."""
        used = gin_config._OPERATIVE_CONFIG.get(("", selector), {})
        return {name: _resolve(value)[1] for name, value in used.items()}

    def task_macros(self) -> dict[str, Any]:
        """`TASK_MACROS` with the values that were used in building; None where one was not, or only building can tell."""
        used = {scope for scope, selector in gin_config._OPERATIVE_CONFIG if selector == "gin.macro"}
        bound = {b.scope: b.value for b in self.bindings.values() if b.selector == "gin.macro" and b.scope in used}
        return {name: _resolve(bound[name])[1] if name in bound else None for name in TASK_MACROS}

    def _check_macros(self, used: set[str]) -> None:
        for b in self.bindings.values():
            if b.selector == "gin.macro" and b.scope not in used and b.scope not in TASK_MACROS:
                known = sorted({*used, *TASK_MACROS})
                raise TaacError(f"{b}: nothing uses this macro{nearest(b.scope, known)}")


def load(
    gin_files: Sequence[str],
    gin_params: Sequence[str] = (),
    trusted: bool = True,
    imports: Collection[str] | None = None,
) -> Config:
    """Reads gin files in order, then parameters; later bindings take the place of earlier ones.

    A file is looked for in the working directory, then in the repository or package (`gin/tasks/simple_control.gin`);
    what a file includes is looked for in the repository or package, then beside that file.

    Args:
        trusted: False refuses what would import modules that are not this package's, and so run their code: statements,
            environments of other packages than `single.allowed_packages`, and arguments that those may import from.
        imports: modules that the files may import beside this package's own, which may be as unknown otherwise; they may then
            include no other files. None: any, where they are trusted.

    Raises:
        TaacError: a missing file, bad syntax, an unknown name, or a value of the wrong type.
    """
    _register()
    gin.clear_config()
    bindings: list[Binding] = []
    with gin.unlock_config():
        for name in gin_files:
            path = _find(name, [Path()] + search_path(), f"--gin_file {name}")
            if imports is not None:
                _refuse_imports(path, imports, "The configuration that is asked for does not")
            elif not trusted:
                _refuse_imports(path, (), _TRUST)
            bindings += _read_file(path, ())
        for param in gin_params:
            bindings += _parse(param, "--gin_param", None, ())
    config = Config(bindings, {statement.module for statement in gin_config._IMPORTS})
    for binding in config.bindings.values():
        _guarded_depth(_check_macros, binding)
    for binding in config.bindings.values():
        _guarded_depth(_check_type, binding)
        if not trusted:
            _guarded_depth(_refuse_foreign_environment, binding)
    _guarded("", gin.finalize)
    return config


def _guarded_depth(check: Callable[[Binding], None], binding: Binding) -> None:
    try:
        check(binding)
    except (RecursionError, MemoryError) as error:
        raise TaacError(f"{binding.where}: the value of {binding.name} is nested too deeply: {type(error).__name__}") from error


def operative_config() -> str:
    """The full configuration as it was used, defaults included; a gin file that builds the same experiment."""
    return gin.operative_config_str(max_line_length=110)


def search_path() -> list[Path]:
    """Where `gin/` and `experiments/` are: the repository around the package, or the package itself."""
    package = Path(taac.__file__).resolve().parent
    return [p for p in (package.parent, package / "configs") if (p / "gin" / "base.gin").is_file()]


def nearest(name: str, names: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or nothing when no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean '{found[0]}'?" if found else ""


# Reading -------------------------------------------------------------------------------------------------------------


def _find(name: str, folders: Sequence[Path], asked_by: str) -> Path:
    for folder in folders:
        try:
            if (folder / name).is_file():
                return folder / name
        except (OSError, ValueError) as error:
            raise TaacError(f"{asked_by}: '{name[:100]}' is no name of a file: {error.args[-1]}") from error
    present = [
        str(p.relative_to(f)) for f in search_path() for sub in ("gin", "experiments") for p in (f / sub).rglob("*.gin")
    ]
    raise TaacError(
        f"{asked_by}: there is no file '{name}' in {', '.join(str(f.resolve()) for f in folders)}{nearest(name, present)}"
    )


_TRUST = "A run of your own may do that: give --trust. For one from elsewhere, look at that module first: it is code"


def _refuse_imports(path: Path, allowed: Collection[str], why: str) -> None:
    """Refuses a file that imports modules but this package's own and those allowed, or that includes other files, before any
    of it is read."""
    parser = _guarded(
        str(path), lambda: list(config_parser.ConfigParser(_text(path), gin_config.ParserDelegate(skip_unknown=True)))
    )
    for statement in parser:
        if isinstance(statement, config_parser.IncludeStatement):
            raise TaacError(f"{path}:{statement.location.line_num}: includes '{statement.filename}'. {why}")
        if not isinstance(statement, config_parser.ImportStatement) or statement.module in allowed:
            continue
        if statement.module.split(".")[0] != "taac":
            raise TaacError(f"{path}:{statement.location.line_num}: imports '{statement.module}'. {why}")


def _refuse_foreign_environment(binding: Binding) -> None:
    """Refuses an environment of a package that is not on the list, and arguments by which one on the list may import others."""
    if not binding.selector.endswith(".create_environment") or binding.name not in ("env_name", "env_kwargs"):
        return
    from taac.environments import single

    known, value = _resolve(binding.value)
    if binding.name == "env_kwargs":
        plain = value is None or (isinstance(value, dict) and all(_is_plain(part) for part in value.values()))
        if not known or not plain:
            raise TaacError(
                f"{binding}: expected numbers, strings, True, False, None, or lists of them; simulators import what "
                f"other arguments name. {_TRUST}"
            )
    elif not known or not isinstance(value, str) or ":" in value:
        raise TaacError(f"{binding} imports the module before the colon, or can only be known by building it. {_TRUST}")
    elif not single.is_of_allowed_package(value):
        raise TaacError(
            f"{binding} is an environment of another package than {', '.join(single.allowed_packages())}. {_TRUST}"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TaacError(f"{path} has {size} bytes, expected at most {MAX_BYTES} of a gin file")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaacError(f"{path} cannot be read as a gin file: {error}") from error


def _read_file(path: Path, including: tuple[Path, ...]) -> list[Binding]:
    if path.resolve() in including:
        raise TaacError(f"{path} includes itself, by way of {' -> '.join(map(str, including))}")
    text = _text(path)
    shown = os.path.relpath(path) if not str(os.path.relpath(path)).startswith("..") else str(path)
    return _parse(text, shown, path, (*including, path.resolve()))


def _parse(text: str, shown: str, path: Path | None, including: tuple[Path, ...]) -> list[Binding]:
    bindings: list[Binding] = []
    parser = _guarded(shown, lambda: iter(config_parser.ConfigParser(text, gin_config.ParserDelegate())))
    while True:
        statement = _guarded(shown, lambda: next(parser, None))
        if statement is None:
            return bindings
        where = f"{shown}:{statement.location.line_num}" if path else shown
        if isinstance(statement, config_parser.IncludeStatement):
            folders = search_path() + ([path.parent] if path else [Path()])
            bindings += _read_file(_find(statement.filename, folders, f"{where}: include"), including)
        elif isinstance(statement, config_parser.ImportStatement):
            try:
                gin.parse_config([statement.format()])
            except Exception as error:  # whatever the module does when it is imported
                raise TaacError(
                    f"{where}: cannot import '{statement.module}': {type(error).__name__}: {error}"
                ) from error
        elif isinstance(statement, config_parser.BindingStatement):
            shipped = path is not None and any(folder / "gin" in path.resolve().parents for folder in search_path())
            bindings.append(_bind(statement, where)._replace(shipped=shipped))
        else:
            _configurable(statement.selector, where)


def _bind(statement: Any, where: str) -> Binding:
    scope, selector, name, value, _ = statement
    if not name:  # `gamma = 0.99`: a macro
        macro = f"{scope}/{selector}" if scope else selector
        _guarded(where, lambda: gin.bind_parameter((macro, "gin.macro", "value"), value))
        return Binding(macro, "gin.macro", "value", value, where)
    configurable = _configurable(selector, where)
    parameters = _parameters(configurable.wrapped)
    if parameters and name not in parameters:
        raise TaacError(
            f"{where}: '{selector}' has no parameter '{name}'{nearest(name, parameters)}; it has: {', '.join(parameters)}"
        )
    _guarded(where, lambda: gin.bind_parameter((scope, selector, name), value))
    return Binding(scope, configurable.selector, name, value, where)


def _configurable(selector: str, where: str) -> Any:
    try:
        found = gin_config._REGISTRY.get_match(selector)
    except KeyError as error:
        raise TaacError(f"{where}: '{selector}' is ambiguous: {error}") from error
    if found is None:
        raise TaacError(f"{where}: there is nothing configurable named '{selector}'{nearest(selector, _names())}")
    return found


def _names() -> list[str]:
    return sorted({s.rsplit(".", 1)[-1] for s, _ in gin_config._REGISTRY.items() if not s.startswith("gin.")})


def _guarded(where: str, fn: Any) -> Any:
    """Calls `fn`; gin's own exceptions become a `TaacError` with the place, and the nearest name where one is unknown."""
    try:
        return fn()
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno and where != "--gin_param" else ""
        text = f" in '{error.text.strip()}'" if error.text else ""
        raise TaacError(f"{where}{line}: bad gin syntax: {error.msg.strip()}{text}") from error
    except (RecursionError, MemoryError) as error:
        raise TaacError(f"{where}: a value is nested too deeply, or too long: {type(error).__name__}") from error
    except tokenize.TokenError as error:
        raise TaacError(f"{where}: bad gin syntax: {error.args[0]}") from error
    except (ValueError, TypeError, KeyError) as error:
        message = str(error.args[0] if error.args else error).strip()
        unknown = re.search(r"'@?%?([\w./]+?)(?:\(\))?'", message)
        near = ""
        if unknown:
            word = unknown.group(1).rsplit("/", 1)[-1].rsplit(".", 1)[-1]
            macros = [s for s, selector in gin_config._CONFIG if selector == "gin.macro"]
            near = nearest(word, [*_names(), *macros, *TASK_MACROS])
        raise TaacError((f"{where}: " if where else "gin: ") + message.replace("\n", " ") + near) from error


def _default(selector: str, name: str) -> Any:
    for level in _levels(gin_config._REGISTRY[selector].wrapped):
        if (parameter := inspect.signature(_signature_fn(level)).parameters.get(name)) is not None:
            return parameter.default
    return inspect.Parameter.empty


# Types ---------------------------------------------------------------------------------------------------------------


def _signature_fn(wrapped: Any) -> Any:
    return wrapped.__init__ if isinstance(wrapped, type) else wrapped  # type: ignore[misc]


def _levels(wrapped: Any) -> list[Any]:
    """A function; or a class and those that it extends, as far as constructors pass keywords on to the next."""
    if not isinstance(wrapped, type):
        return [wrapped]
    found = []
    for level in wrapped.__mro__[:-1]:
        if "__init__" in vars(level):
            found.append(level)
            if not _takes_any_keyword(level):
                break
    return found


def _takes_any_keyword(level: Any) -> bool:
    return any(p.kind == p.VAR_KEYWORD for p in inspect.signature(_signature_fn(level)).parameters.values())


def _parameters(wrapped: Any) -> list[str]:
    """Names that can be bound; empty if keywords of any name can."""
    levels = _levels(wrapped)
    if levels and _takes_any_keyword(levels[-1]):
        return []
    return [
        p.name
        for level in levels
        for p in inspect.signature(_signature_fn(level)).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"
    ]


def _hints(wrapped: Any) -> dict[str, Any]:
    """The types of parameters, by name. Those of a user's own configurable may not be resolvable: then there are none."""
    found: dict[str, Any] = {}
    for level in reversed(_levels(wrapped)):
        with contextlib.suppress(NameError, TypeError, AttributeError):
            found |= typing.get_type_hints(_signature_fn(level))
    return found


def _check_macros(binding: Binding, seen: tuple[str, ...] = ()) -> None:
    for reference in gin_config.iterate_references(binding.value):
        if reference.configurable.selector != "gin.macro":
            continue
        name = "/".join(reference.scopes)
        if (name, "gin.macro") not in gin_config._CONFIG:
            defined = [scope for scope, selector in gin_config._CONFIG if selector == "gin.macro"]
            by = " (a task file defines it: gin/tasks/*.gin)" if name in TASK_MACROS else ""
            raise TaacError(f"{binding}: the macro '{name}' has no value{by}{nearest(name, defined)}")
        if name in seen:
            raise TaacError(f"{binding}: the macro '{name}' is defined by itself, by way of {', '.join(seen)}")
        follow = binding._replace(value=gin_config._CONFIG[(name, "gin.macro")]["value"])
        _check_macros(follow, (*seen, name))


def _check_type(binding: Binding) -> None:
    if binding.selector == "gin.macro":
        return
    expected = _hints(gin_config._REGISTRY[binding.selector].wrapped).get(binding.name)
    if expected is None:
        return
    if (schedule := _schedule(binding.value)) is not None and Schedule not in _parts(expected):
        raise TaacError(f"{binding}: {binding.name} cannot follow a {schedule}; what can: {', '.join(_schedulable())}")
    known, value = _resolve(binding.value)
    if not known:
        return
    problem = None
    if isinstance(value, bool) and bool not in (expected, *typing.get_args(expected)) and _is_number(expected):
        problem = f"{value} is a bool"
    else:
        try:
            typeguard.check_type(
                value,
                expected,
                forward_ref_policy=typeguard.ForwardRefPolicy.IGNORE,
                collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS,
            )
        except typeguard.TypeCheckError as error:
            problem = (
                str(error).splitlines()[0].rstrip(":")
            )  # of a union, each of its types follows in a line of its own
    if problem:
        named = expected.__name__ if isinstance(expected, type) else str(expected)
        named = re.sub(r"\b(typing|taac)[.](\w+[.])*", "", named)
        given = "" if value is binding.value else f" (which is {value!r})"
        raise TaacError(f"{binding}{given} has the wrong type: expected {named}; {problem}")


def _parts(hint: Any) -> set[Any]:
    """A type, and all types that it is made of."""
    return {hint}.union(*map(_parts, typing.get_args(hint))) if isinstance(hint, typing.Hashable) else set()


def _schedule(value: Any) -> str | None:
    """The name of a schedule that a value is built of, macros followed."""
    for reference in gin_config.iterate_references(value):
        wrapped = reference.configurable.wrapped
        if reference.configurable.selector == "gin.macro":
            found = _schedule(gin_config._CONFIG[("/".join(reference.scopes), "gin.macro")]["value"])
            if found is not None:
                return found
        elif isinstance(wrapped, type) and issubclass(wrapped, Schedule):
            return wrapped.__name__
    return None


def _schedulable() -> list[str]:
    """Every parameter of this package's configurables that can follow a schedule."""
    found = set()
    for selector, configurable in gin_config._REGISTRY.items():
        names = [n for n, hint in _hints(configurable.wrapped).items() if Schedule in _parts(hint)]
        names = [n for n in names if _default(selector, n) is not inspect.Parameter.empty]  # others are not bound
        found |= {f"{selector.rsplit('.', 1)[-1]}.{name}" for name in names}
    return sorted(found)


def _is_number(hint: Any) -> bool:
    return hint in (int, float) or any(part in (int, float) for part in typing.get_args(hint))


def _resolve(value: Any) -> tuple[bool, Any]:
    """The value that a binding will have, macros followed (`_check_macros` has seen to it that they end); (False, None)
    if only building it can tell."""
    if isinstance(value, gin_config.ConfigurableReference):
        if value.configurable.selector == "gin.macro" and value.evaluate:
            return _resolve(gin_config._CONFIG[("/".join(value.scopes), "gin.macro")]["value"])
        return (False, None) if value.evaluate else (True, value.configurable.wrapper)
    if isinstance(value, (list, tuple)):
        parts = [_resolve(v) for v in value]
        return all(k for k, _ in parts), type(value)(v for _, v in parts)
    return True, value


_REGISTERED = False


def _register() -> None:
    """Makes this package's configurables, and the few torch names that files need, known to gin."""
    global _REGISTERED
    if _REGISTERED:
        return
    import taac.acting.explorers
    import taac.algorithms
    import taac.campaigns.comparison
    import taac.campaigns.launchers.slurm
    import taac.environments.vector_environment
    import taac.environments.wrappers
    import taac.training.experiment  # noqa: F401
    from taac.ops import schedules

    _register_torch()
    for schedule in (schedules.LinearSchedule, schedules.ExponentialSchedule, schedules.PiecewiseSchedule):
        gin.external_configurable(schedule, module="taac.ops.schedules")
    _REGISTERED = True


def _register_torch() -> None:
    """What gin's own `gin.torch` would, which cannot be imported on Python 3.12."""
    import torch

    for name in ("ReLU", "ELU", "LeakyReLU", "Tanh", "GELU", "SiLU"):
        activation = getattr(torch.nn, name)
        kept_back = [p for p in inspect.signature(activation).parameters if p == "inplace"]
        gin.external_configurable(activation, module="torch.nn", denylist=kept_back or None)
    for name in ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam"):
        kept_back = ["params", "lr", "maximize", "differentiable"]  # the learner's to say
        gin.external_configurable(getattr(torch.optim, name), module="torch.optim", denylist=kept_back)


def build(create: Any) -> Any:
    """Calls a gin-configured constructor; what gin itself refuses (a missing required value) becomes a `TaacError`."""
    try:
        return create()
    except Exception as error:
        # gin adds a line for each constructor on the way.
        message = re.sub(r"\n  In call to configurable .*", "", str(error)).strip()
        if isinstance(error, TaacError):
            raise TaacError(message) from error
        if "Required bindings" in message:
            raise TaacError(f"{message}: bind it in a gin file or with --gin_param") from error
        places = re.findall(r"In call to configurable '(\w+)'", str(error))
        inside = f" in {places[0]}" if places else ""
        raise TaacError(f"cannot build the experiment{inside}: {type(error).__name__}: {message}") from error
