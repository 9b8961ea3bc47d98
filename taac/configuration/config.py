"""A configuration that was read, with its checks and a record of what building used."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import gin

from taac.configuration import gin_state, plain_words, values
from taac.configuration.binding import OF_COMPARE, TASK_MACROS, Binding
from taac.configuration.gin_state import enclosing_scopes, short
from taac.errors import TaacError, nearest

BACKBONE = ("CriticEnsemble.body", "CriticEnsemble.returns")  # what critics of another class leave unused
OUTDONE = (*BACKBONE, "CriticEnsemble.num_critics")  # what is told where a later file replaces it
# Parameters of which a part added to a method would silently replace another file's binding.
SINGLE = (
    "ActorCriticAlgorithm.actor_regularizers", "create_environment.wrappers", "create_collector.explorer",
    "create_experiment.demonstrations_ctor",
)  # fmt: skip
_WIDTHS = "hidden_layers"
_PER_ITERATION = "updates_per_iteration"
_CLIP = "reward_clip"  # the macro, and the parameter of `create_agent`


def _file_of(binding: Binding) -> str:
    return binding.where.rpartition(":")[0]


class Config:
    """The bindings in force, and checks of them. gin holds a copy of their values, from which it builds.

    A later binding replaces an earlier one of the same parameter; but in `SINGLE`, a part added to a method may not replace
    what another file of this package binds. `imports` names the modules that the files import.
    """

    def __init__(self, bindings: Iterable[Binding], imports: Iterable[str] = ()):
        self.imports = frozenset(imports)
        self.bindings: dict[tuple[str, str, str], Binding] = {}
        self._outdone: list[str] = []  # backbones of which another one took the place
        replaced: list[Any] = []
        lost: list[Binding] = []
        explorers: list[gin_state.Reference] = []
        for b in bindings:
            if (before := self.bindings.get(b.key)) is not None:
                if b.shipped and b.parameter in OUTDONE and b.line != before.line:
                    self._outdone.append(f"{before} has no effect: {b} replaces it")
                elif b.shipped and b.parameter == BACKBONE[0] and _file_of(b) != _file_of(before):
                    self._outdone.append(f"{b} has settings of {_file_of(before)}, too, with the same body: give one of both")
                part = Path(_file_of(b)).parent.name in ("gin", "backbones")  # a file that is added to a method
                if part and b.shipped and before.shipped and b.parameter in SINGLE and b.line != before.line:
                    lost.append(before)
                replaced.append(before.value)
                if b.parameter == "create_collector.explorer":
                    explorers += gin_state.references(before.value)
            self.bindings[b.key] = b
        for before in lost:
            if (b := self.bindings[before.key]).shipped:
                raise TaacError(
                    f"{before} would be replaced by {b}: leave one of both out, or bind what you want by --gin_param "
                    f"'{b.parameter} = ..'"
                )
        macros = self.macros
        self._outdone_macros = self._macros_in(replaced)
        replaced += [macros.get(name) for name in self._outdone_macros]
        refs = [r for value in replaced for r in gin_state.references(value)]
        self._replaced = {("/".join(r.scopes), r.configurable.selector) for r in refs if r.scopes}  # scopes and selectors
        for reference in explorers:  # whose own settings go with them, and the schedules that these name
            key = "", reference.configurable.selector
            own = [b for b in self.bindings.values() if b.shipped and (b.scope, b.selector) == key]
            named = (r for b in own for r in gin_state.references(b.value))
            self._replaced |= {key, *(("/".join(r.scopes), r.configurable.selector) for r in named if r.scopes)}

    @property
    def macros(self) -> Mapping[str, Any]:
        """Value of each macro by name."""
        return {b.scope: b.value for b in self.bindings.values() if b.is_macro}

    @property
    def modules(self) -> frozenset[str]:
        """The modules that the files import, and the one that the environment's name begins with."""
        module = str(self.bound("create_environment.env_name")).rpartition(":")[0]
        return self.imports | {module} if module else self.imports

    def bound(self, name: str, default: Any = None) -> Any:
        """Returns what a parameter such as `create_experiment.seed` is bound to, with macros replaced, or else the default."""
        configurable, _, parameter = name.rpartition(".")
        found = self.bindings.get(("", gin_state.match(configurable).selector, parameter))
        return default if found is None else self.resolve(found.value)[1]

    def resolve(self, value: Any) -> tuple[bool, Any]:
        """Returns (True, the value with its macros replaced), or (False, a placeholder) if the value must be built first."""
        return values.resolve(value, self.macros)

    def check_macros(self) -> None:
        """Refuses unreferenced macros, and names the nearest. This is the part of `check_used` that needs no build."""
        references = [r for b in self.bindings.values() for r in gin_state.references(b.value)]
        self._check_macros({name for r in references if (name := gin_state.macro_of(r)) is not None})

    def check_used(self) -> None:
        """Refuses bindings that nothing used. Call it after everything has been built.

        Bindings of `taac compare` are skipped, because each of its runs also reads its gin files.
        """
        used = gin_state.used()
        self._check_macros(gin_state.used_macros())
        for b in self.bindings.values():
            if b.is_macro or b.selector.startswith(OF_COMPARE):
                continue
            if self._may_lack(b):
                if b.parameter in BACKBONE and all(selector != b.selector for _, selector in used):
                    raise TaacError(f"{b}: has no effect, because other critics are bound: remove either")
                continue
            scopes = [scope for (scope, selector), found in used.items() if selector == b.selector and b.name in found]
            if not any(b.scope in enclosing_scopes(scope) for scope in scopes):
                named = (r.configurable.selector for other in self.bindings.values() for r in gin_state.references(other.value))
                if not isinstance(gin_state.wrapped(b.selector), type) and b.selector in named:  # handed over, such as a hook
                    raise TaacError(
                        f"{b}: building does not call the function {short(b.selector)}, so config.gin would not hold this. Make "
                        f"it a class whose constructor takes {b.name}, and bind an object of it: @ItsName()"
                    )
                name, built = short(b.selector), sorted({short(s) for _, s in used if s != gin_state.MACRO})
                having = {short(selector) for (_, selector), found in used.items() if b.name in found}
                others = [owner for owner in plain_words.owners().get(b.name, ()) if owner != b.parameter]
                why = f": what builds {name} gives it {b.name} itself" if name in built else nearest(name, having)
                if name in built and b.scope:
                    why = f": no {name} is built in this scope, or what builds it gives it {b.name} itself"
                why += f"; others that have it: {', '.join(others)}" if others and b.where.startswith("--") else ""
                raise TaacError(f"{b}: nothing in this experiment uses this binding{why}; in use are: {', '.join(built)}")
            counting = [self._counting(scope, b.selector, b.name) for scope in scopes]
            if b.where.startswith("--") and b not in counting:  # files may bind what later ones replace
                instead = ", ".join(dict.fromkeys(f"{c.parameter} ({c.where})" for c in counting if c))
                raise TaacError(f"{b} has no effect, because each {short(b.selector)} has a setting of its own: {instead}")

    def _may_lack(self, b: Binding) -> bool:
        """Returns whether building may leave a binding unused, such as one of a schedule that a number replaced."""
        replaced = (b.scope, b.selector) in self._replaced and (b.shipped or (b.scope and not b.where.startswith("--")))
        return bool(replaced or b.may_be_unused)

    def _counting(self, scope: str, selector: str, name: str) -> Binding | None:
        """Returns the binding of a parameter that counts in a scope."""
        keys = ((s, selector, name) for s in enclosing_scopes(scope))
        return next((self.bindings[key] for key in keys if key in self.bindings), None)

    def without_effect(self) -> list[str]:
        """Returns the settings that change nothing here: those of flags for task macros that this method does not use, updates an
        iteration beside a ratio, and a clip of rewards that are not normalised. Call it after everything has been built.
        """
        used = gin_state.used_macros()
        idle = [b for b in self.bindings.values() if b.is_macro and b.where.startswith("--") and b.scope not in used]
        told = [f"{b} has no effect: this method does not use {b.scope}" for b in idle]
        told += [*self._outdone, *self._without_widths()]
        if self.bound("UpdateRatio.updates_per_env_step") is not None:
            outdone = [b for b in self.bindings.values() if _PER_ITERATION in (b.scope, b.name) and b.where.startswith("--")]
            told += [f"{b} has no effect: updates_per_env_step decides the number of updates" for b in outdone if b not in idle]
        if self.bound("create_agent.normalize_rewards", False) or self.bound("create_agent.reward_clip") is None:
            return told
        clips = [b for b in self.bindings.values() if (b.scope if b.is_macro else b.name) == _CLIP]
        # Skips macros from files: they may stay bound where nothing is normalised.
        asked = [b for b in clips if b.where.startswith("--") or not (b.is_macro or isinstance(b.value, gin_state.Reference))]
        return told + [f"{b} has no effect: it clips normalised rewards, and normalize_rewards is False" for b in asked]

    def _without_widths(self) -> list[str]:
        """Returns which networks the widths of a flag do not reach, and what decides theirs."""
        flags = [b for b in self.bindings.values() if _WIDTHS in (b.scope, b.name) and b.where.startswith("--")]
        told = []
        for (scope, selector), found in gin_state.used().items() if flags else ():
            if not {"body", _WIDTHS} <= found.keys():
                continue
            network, name, given = short(selector), _WIDTHS, self._counting(scope, selector, _WIDTHS)
            counts = given
            if (body := found["body"]) is not None:
                if not isinstance(body, gin_state.Reference) or gin_state.macro_of(body) is not None:
                    continue
                scope, selector = "/".join(body.scopes), body.configurable.selector
                known = inspect.signature(gin_state.wrapped(selector)).parameters
                name = next((p for p in (_WIDTHS, "width") if p in known), "")
                counts = self._counting(scope, selector, name)
            through = self._macros_in(counts.value) if counts else set()
            setting = f"{scope}/{short(selector)}.{name}".lstrip("/")
            told += [
                f"{b} has no effect on {network}; --set {setting} has" + (f" ({counts})" if counts else "")
                for b in flags
                if name and ((b.is_macro and _WIDTHS not in through) or (b is given and b is not counts))
            ]
        return list(dict.fromkeys(told))

    def _macros_in(self, value: Any) -> set[str]:
        """Returns the macros that a value names, directly or by way of others."""
        found, left, macros = set[str](), [value], self.macros
        while left:
            names = {name for r in gin_state.references(left.pop()) if (name := gin_state.macro_of(r)) is not None} - found
            found |= names
            left += [macros.get(name) for name in names]
        return found

    def differences(self, operative: Config, ignored: Collection[str] = ()) -> list[str]:
        """Returns how an operative configuration, written by a run and read back, differs from this one. Builds neither.

        Parameters that are not bound here count as their defaults. A parameter that the operative configuration lacks, such as
        one added since, counts as a difference only if it is bound here. Parameters in `ignored`, such as
        "create_experiment.method", never count.
        """
        found: list[str] = []
        compared: set[tuple[str, str, str]] = set()
        for (scope, selector, name), held in operative.bindings.items():
            if f"{short(selector)}.{name}" in ignored:
                continue
            bases = [selector] if held.is_macro else gin_state.with_bases(selector)
            keys = [(s, base, name) for base in bases for s in enclosing_scopes(scope)]
            compared.update(keys)
            key = next((k for k in keys if k in self.bindings), None)
            if key is not None:
                asked = values.text_of(self.bindings[key].value)
            elif held.is_macro:
                asked = "nothing"
            else:
                asked = values.text_of(values.default(gin_state.wrapped(selector), name))
            if values.text_of(held.value) != asked:
                found.append(f"{held.line}, not {asked}")
        for key, b in self.bindings.items():
            if key in compared or b.is_macro or self._may_lack(b) or b.selector.startswith(OF_COMPARE):
                continue
            if f"{short(b.selector)}.{b.name}" not in ignored:
                found.append(f"no {b.line}")
        return found

    def origins(self) -> list[tuple[str, str]]:
        """Returns what building used as lines of gin, each with its origin: "file:line", "--gin_param" or "default"."""
        macros: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for (scope, selector), found in gin_state.used().items():
            for name, value in found.items():
                b = Binding(scope, selector, name, value, "default")
                inner = [scope] if b.is_macro else enclosing_scopes(scope)
                bound = next((self.bindings[s, selector, name] for s in inner if (s, selector, name) in self.bindings), b)
                (macros if b.is_macro else others).append((b.line, bound.where))
        return sorted(macros) + sorted(others)

    def settings(self, selector: str) -> dict[str, Any]:
        """Returns the parameters with which a configurable was called, with macros resolved."""
        found = gin_state.used().get(("", gin_state.match(selector).selector), {})
        return {name: self.resolve(value)[1] for name, value in found.items()}

    def task_macros(self) -> dict[str, Any]:
        """Returns the value of each of `TASK_MACROS`; None if building did not use it, or if the value must be built."""
        used, macros = gin_state.used_macros(), self.macros
        return {n: self.resolve(macros[n])[1] if n in macros and n in used else None for n in TASK_MACROS}

    def _check_macros(self, used: set[str]) -> None:
        of_compare = [b for b in self.bindings.values() if b.selector.startswith(OF_COMPARE)]
        used = used.union(*(filter(None, map(gin_state.macro_of, gin_state.references(b.value))) for b in of_compare))
        for b in self.bindings.values():
            outdone = b.scope in self._outdone_macros and not b.where.startswith("--")  # another value replaced what named it
            if b.is_macro and b.scope not in used and b.scope not in TASK_MACROS and not outdone:
                known = sorted({*used, *TASK_MACROS})
                raise TaacError(f"{b}: nothing uses this macro{nearest(b.scope, known)}")


def operative_config() -> str:
    """Returns the full configuration that building used, with defaults, as a gin file that builds the same experiment."""
    return gin.operative_config_str(max_line_length=110)


def build(create: Any) -> Any:
    """Calls a constructor that gin configures. Raises TaacError if it raises an error, or a required value is not bound."""
    try:
        return create()
    except Exception as error:
        # gin adds a line for each constructor that the error passes through.
        message = re.sub(r"\n  In call to configurable .*", "", str(error)).strip()
        if isinstance(error, TaacError):
            raise TaacError(message) from error
        if "Required bindings" in message:
            raise TaacError(f"{message}: bind it in a gin file or with --gin_param") from error
        places = re.findall(r"In call to configurable '(\w+)'", str(error))
        inside = f" in {places[0]}" if places else ""
        elsewhere = _bound_elsewhere(places[0], message) if places else ""
        raise TaacError(f"cannot build the experiment{inside}: {type(error).__name__}: {message}{elsewhere}") from error


def _bound_elsewhere(configurable: str, message: str) -> str:
    """Returns the bindings, in any scope, of the arguments that gin's message calls missing; "" if there are none."""
    missing = re.search(r"No values supplied by Gin or caller for arguments: \[(.*)\]", message)
    names = re.findall(r"'(\w+)'", missing[1]) if missing else []
    found = [
        Binding(scope, selector, name, given[name], "").line
        for (scope, selector), given in gin_state.bound().items()
        for name in names
        if short(selector) == configurable and name in given
    ]
    return f"\n  Another scope has {' and '.join(found)}: is its name misspelt?" if found else ""
