"""Checks whether runs are comparable, and reports what differs between them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

from taac.analysis.readers.run_records import NO_EVALUATION, Record, value_of
from taac.errors import TaacError

# Packages that do not affect results.
_NO_MATTER = ("tensorboard", "gin-config")
_ENV_NAME = "create_environment.env_name"
_USING = ("create_environment.wrappers", "create_environment.env_kwargs", "create_environment.evaluation_wrappers")
_REFERENCE = re.compile(r"@(?:[\w./]*[./])?(\w+)|%([\w./]+)")  # the name of a configurable, or a macro
_CLASS = re.compile(r"[\w.]+:(\w+)")
_ENVIRONMENT = tuple(f"create_environment.{n}" for n in ("engine", "env_kwargs", "max_episode_steps", "wrappers"))
_EVALUATION = (
    "Intervals.evaluation_interval", "Evaluator.evaluation_episodes", "Evaluator.evaluation_epsilon",
    "create_environment.evaluation_wrappers",
)  # fmt: skip
_LONGEST = 200  # the most characters of a value in a message
_NAMED = 8  # the most runs named in a message


def mixtures(records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each difference that makes runs incomparable, naming the runs that deviate from the majority.

    All runs must have the same versions of packages. The runs of a task must have the same budget, update ratio, and
    settings of evaluations and of the environment, those of its wrappers and its class included (`reaching_environment`). The
    runs of a method on a task must have the same settings except for the seed (`groups.labelled` tells others apart), and
    every seed only once. A setting that is None or False is as one that a run does not have: those of earlier versions lack
    what came later. A run that failed before its first evaluation is compared with nothing.
    """
    records = [r for r in records if not failed_at_once(r)]
    found = []
    for package in sorted({p for r in records for p in r.versions} - set(_NO_MATTER)):
        found += _differing(records, f"version of {package}", lambda r, p=package: r.versions.get(p))  # type: ignore[misc]
    for task, group in grouped(records, lambda r: r.task).items():
        found += _differing(group, f"budget on {task}, environment steps", lambda r: r.budget)
        found += _differing(group, f"updates per environment step on {task}", lambda r: r.update_ratio)
        inside = sorted(set[str]().union(*(reaching_environment(r.settings) for r in group)))
        for name in (*_ENVIRONMENT, *inside, *_EVALUATION):
            found += _differing(group, f"{name} on {task}", lambda r, n=name: r.settings.get(n))  # type: ignore[misc]
    for (task, method), group in grouped(records, lambda r: (r.task, r.method)).items():
        what = f"configuration of {method} on {task}"
        found += _differing(group, what, lambda r: tuple(sorted(in_use(r).items())) or None, show=False)
        for seed, twice in grouped(group, lambda r: r.seed).items():
            if seed is not None and len(twice) > 1:
                found.append(f"seed {seed} of {method} on {task} occurs more than once: {named(twice)}")
    return found


def failed_at_once(record: Record) -> bool:
    """Returns whether a run failed before its first evaluation, that of the untrained agent aside."""
    return record.status == "failed" and (NO_EVALUATION in record.problems or record.last_step == 0)


def refuse_mixtures(records: Sequence[Record], allow_mixed: bool) -> list[str]:
    """Returns the differences of `mixtures` as warnings; refuses them unless `allow_mixed`."""
    found = mixtures(records)
    if found and not allow_mixed:
        raise TaacError(
            "these runs are not comparable; use a folder without the runs that differ, or --allow_mixed:\n  "
            + "\n  ".join(found)
        )
    return [f"not comparable: {mixture}" for mixture in found]


def origins(records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each task whose runs multiplied matrices in different ways, or are of different commits."""
    by_task = grouped(records, lambda r: r.task).items()
    products = [text for task, of in by_task for text in _differing(of, f"matrix products on {task}", lambda r: r.products)]
    commits = [text for task, of in by_task for text in _differing(of, f"commit on {task}", lambda r: r.commit)]
    return [*(f"{text}; their numbers are rounded differently, see Learner.matmul" for text in products), *commits]


def grouped(records: Sequence[Record], key: Callable[[Record], Hashable]) -> dict:
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _differing(records: Sequence[Record], what: str, key: Callable[[Record], Hashable], show: bool = True) -> list[str]:
    """Returns a sentence if records differ in `key`: the most frequent value (the first, if tied) and the runs with other values.

    None is unknown, and no difference.
    """
    groups = grouped([r for r in records if key(r) is not None], key)
    if len(groups) < 2:
        return []
    (usual, most), *others = sorted(groups.items(), key=lambda item: -len(item[1]))
    deviations = [f"{named(of)} has {_short(value) if show else _changes(most[0], of[0])}" for value, of in others]
    return [f"{what}: {_short(usual) if show else 'the same'} in {len(most)} run(s), but {'; '.join(deviations)}"]


def _short(value: Hashable) -> str:
    """Returns a value as text, cut to fit a message."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def in_use(record: Record) -> dict[str, str]:
    """Returns the settings that are neither None nor False. Earlier versions, which lack a setting, did as with these."""
    return {name: value for name, value in record.settings.items() if value not in ("None", "False")}


def _changes(usual: Record, other: Record) -> str:
    there, here = in_use(usual), in_use(other)
    changed = [n for n in sorted(set(there) | set(here)) if there.get(n) != here.get(n)]
    # A macro and the bindings that use it change together. The bindings are more informative.
    changed = [n for n in changed if "." in n] or changed
    shown = [f"{n} = {_short(other.settings.get(n))} for {_short(usual.settings.get(n))}" for n in changed[:3]]
    return f"{', '.join(shown)}{' and more' if len(changed) > 3 else ''}"


def named(records: Sequence[Record]) -> str:
    """Returns the folders of the first runs, and how many more there are."""
    shown = ", ".join(r.folder for r in records[:_NAMED])
    return f"{shown} and {len(records) - _NAMED} more" if len(records) > _NAMED else shown


def reaching_environment(settings: Mapping[str, str]) -> set[str]:
    """Returns the names of the bindings that reach an environment beside those of `create_environment`.

    They are those of every configurable, in any scope, that `wrappers`, `evaluation_wrappers` or `env_kwargs` refer to; of the
    class or function in `env_name = 'module:Class'`; of what these bindings refer to in turn; and the macros inside of their
    values. An environment that is registered under an id is not traced to its class.
    """
    of = defaultdict[str, list[str]](list)  # bindings by the name of their configurable; a macro by "%" and its own
    for binding in settings:
        owner = binding.rpartition(".")[0]
        of[re.split(r"[./]", owner)[-1] if owner else f"%{binding}"].append(binding)
    of_class = _CLASS.fullmatch(str(value_of(settings.get(_ENV_NAME, ""))))
    found, texts = set[str](), [f"@{of_class[1]}" if of_class else "", *(settings.get(name, "") for name in _USING)]
    while texts:
        for name, macro in _REFERENCE.findall(texts.pop()):
            for binding in of.pop(name or f"%{macro}", ()):
                found.add(binding)
                texts.append(settings[binding])
    return found
