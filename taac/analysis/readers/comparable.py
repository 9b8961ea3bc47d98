"""Whether runs can be compared: what differs between them that should not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from taac.analysis.readers.run_records import Record
from taac.errors import TaacError

# Packages that read and show, but do not decide, a result.
_NO_MATTER = ("tensorboard", "gin-config")
_ENVIRONMENT = ("env_kwargs", "max_episode_steps", "wrappers")
_EVALUATION = ("evaluation_interval", "evaluation_episodes", "evaluation_epsilon")
_LONGEST = 200  # characters of a value that a message tells
_NAMED = 8  # runs that a message names


def mixtures(records: Sequence[Record]) -> list[str]:
    """What differs between runs that are to be compared, a sentence each, with the runs that differ from most.

    Over all runs: versions of packages. Over the runs of a task: budgets, update ratios, settings of the environment and
    of evaluations. Over the runs of a method on a task: all settings but the seed, and no seed twice.
    """
    found = []
    packages = sorted({p for r in records for p in r.versions} - set(_NO_MATTER))
    for package in packages:
        found += _differing(records, f"version of {package}", lambda r, p=package: _known(r.versions.get(p)))  # type: ignore[misc]
    for task, group in grouped(records, lambda r: r.task).items():
        found += _differing(group, f"budget on {task}, environment steps", lambda r: _known(r.budget))
        found += _differing(group, f"updates per environment step on {task}", lambda r: _known(r.update_ratio))
        for name in (*(f"create_environment.{n}" for n in _ENVIRONMENT), *(f"Trainer.{n}" for n in _EVALUATION)):
            found += _differing(group, f"{name} on {task}", lambda r, n=name: r.settings.get(n, _UNKNOWN))  # type: ignore[misc]
    for (task, method), group in grouped(records, lambda r: (r.task, r.method)).items():
        found += _differing(group, f"configuration of {method} on {task}", _configuration, show=False)
        for seed, twice in grouped(group, lambda r: r.seed).items():
            if seed is not None and len(twice) > 1:
                found.append(f"seed {seed} of {method} on {task} is there more than once: {named(twice)}")
    return found


def refuse_mixtures(records: Sequence[Record], allow_mixed: bool) -> list[str]:
    """`mixtures`, as warnings.

    Raises:
        TaacError: there are some, and they are not allowed.
    """
    found = mixtures(records)
    if found and not allow_mixed:
        raise TaacError(
            "these runs are not comparable; give a folder without those that differ, or --allow_mixed:\n  "
            + "\n  ".join(found)
        )
    return [f"not comparable: {mixture}" for mixture in found]


_UNKNOWN = object()  # says nothing, so it differs from nothing


def _known(value: Hashable) -> Hashable:
    return _UNKNOWN if value is None else value


def _configuration(record: Record) -> Hashable:
    return tuple(sorted(record.settings.items())) if record.settings else _UNKNOWN


def grouped(records: Sequence[Record], key: Callable[[Record], Hashable]) -> dict:
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _differing(records: Sequence[Record], what: str, key: Callable[[Record], Hashable], show: bool = True) -> list[str]:
    """One sentence where records differ in `key`: the most frequent value (of several, the first), and who has which other."""
    groups = grouped([r for r in records if key(r) is not _UNKNOWN], key)
    if len(groups) < 2:
        return []
    (usual, most), *others = sorted(groups.items(), key=lambda item: -len(item[1]))
    told = [
        f"{named(group)} {f'has {_short(value)}' if show else _changes(most[0], group[0])}" for value, group in others
    ]
    return [f"{what}: {_short(usual) if show else 'the same'} in {len(most)} run(s), but {'; '.join(told)}"]


def _short(value: Hashable) -> str:
    """A value as text that a message has room for."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _changes(usual: Record, other: Record) -> str:
    names = sorted(set(usual.settings) | set(other.settings))
    changed = [n for n in names if usual.settings.get(n) != other.settings.get(n)]
    # A macro and what it is bound to change together; the binding says more.
    changed = [n for n in changed if "." in n] or changed
    shown = [f"{n} = {_short(other.settings.get(n))} for {_short(usual.settings.get(n))}" for n in changed[:3]]
    return f"has {', '.join(shown)}{' and more' if len(changed) > 3 else ''}"


def named(records: Sequence[Record]) -> str:
    """The folders of runs, the first of them."""
    shown = ", ".join(r.folder for r in records[:_NAMED])
    return f"{shown} and {len(records) - _NAMED} more" if len(records) > _NAMED else shown
