"""Tells runs of one method with different settings apart, by a label that says what differs: `taac lr=3e-3`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from taac.analysis.readers import run_records
from taac.analysis.readers.comparable import failed_at_once, grouped, in_use
from taac.analysis.readers.run_records import Record
from taac.errors import TaacError, nearest
from taac.runs.layout import MAX_NAME, is_name

ABBREVIATIONS = {"learning_rate": "lr"}
_SHOWN = 3  # settings in a label, unless more are needed to tell runs apart
_LONGEST_VALUE = 40  # the most characters of a value in a label
_NAMED = 8  # the most labels in a note
UNKNOWN = "of unknown settings"


def labelled(records: Sequence[Record], group_by: Sequence[str] = ()) -> tuple[list[Record], list[str]]:
    """Returns the records with labels in place of their methods' names, and a note on each method with several settings.

    The settings of a method are those in which its runs on any one task differ, other than the seed and what changes nothing
    in a run. A label is the method's name, then the values of `group_by`, then of settings that differ. It names up to three of
    these, or as many as tell all runs apart; "..." stands for the others. A macro and the bindings that use it count once.
    `group_by` has last parts of names, such as `learning_rate`, or full ones, such as `Learner.learning_rate`.

    Raises:
        TaacError: no run has a setting of `group_by`, or several settings have that name.
    """
    wanted = [_resolve(name, records) for name in group_by]
    labels: dict[str, str] = {}  # by folder
    notes: list[str] = []
    methods = grouped([r for r in records if not failed_at_once(r)], lambda r: r.method)
    for method, runs in methods.items():
        of = _of_one_version(runs)
        differing = _differing(of)
        if differing or wanted:
            labels.update(_labels(method, of, wanted, differing, {*methods, *labels.values()} - {method}))
        if differing:
            shown = list(dict.fromkeys(labels[r.folder] for r in of))
            more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
            notes.append(f"runs of {method} have different settings, told apart as {', '.join(shown[:_NAMED])}{more}")
    return [r._replace(method=labels.get(r.folder, r.method)) for r in records], notes


def _of_one_version(of: Sequence[Record]) -> list[Record]:
    """Returns the runs without the settings that are None or False and that others, of earlier versions, lack."""
    known = [set(r.settings) for r in of if r.settings]
    everywhere = set.intersection(*known) if known else set[str]()
    return [r._replace(settings={**in_use(r), **{n: r.settings[n] for n in everywhere & r.settings.keys()}}) for r in of]


def _differing(of: Sequence[Record]) -> list[str]:
    """Returns the names of the settings in which runs on the same task differ. Of those that are equal in all runs, the simplest.

    Settings that all runs have come first, then macros, then short names.
    """
    known = [r for r in of if r.settings]
    differing: set[str] = set()
    for group in grouped(known, lambda r: r.task).values():
        pairs: list[set] = [set(in_use(r).items()) for r in group]
        differing |= {name for name, _ in set.union(*pairs) - set.intersection(*pairs)}
    absent = {name for name in differing if any(name not in r.settings for r in known)}
    by_values: dict[tuple[str | None, ...], str] = {}
    for name in sorted(differing, key=lambda name: (name in absent, "." in name, len(name), name)):
        by_values.setdefault(tuple(r.settings.get(name) for r in known), name)
    return list(by_values.values())


def _labels(
    method: str, of: Sequence[Record], wanted: Sequence[str], differing: Sequence[str], taken: set[str]
) -> dict[str, str]:
    """Returns a label for each folder. Runs on one task have the same label only if none of `differing` differs."""
    known = [r for r in of if r.settings]
    everywhere = [name for name in differing if all(name in r.settings for r in known)]
    names = [*wanted, *(name for name in everywhere[:_SHOWN] if name not in wanted)]
    rest = [name for name in differing if name not in names]

    def values(r: Record, names: Sequence[str]) -> tuple[str | None, ...]:
        return tuple(r.settings.get(name) for name in names)

    def apart(shown: Callable[[Record], object]) -> bool:
        """Returns whether what is shown differs wherever settings do."""
        seen: dict[object, object] = {}
        return all(seen.setdefault((r.task, shown(r)), values(r, differing)) == values(r, differing) for r in known)

    while rest and not apart(lambda r: values(r, names)):
        names.append(rest.pop(0))
    dots = " ..." if any(name in everywhere for name in rest) else ""
    last = {name: re.split(r"[./]", name)[-1] for name in names}  # abbreviated, where no other has the same last part
    unique = {name: list(last.values()).count(text) == 1 for name, text in last.items()}
    short = {name: ABBREVIATIONS.get(text, text) if unique[name] else name for name, text in last.items()}
    labels = {r.folder: f"{method} {UNKNOWN}" if differing else method for r in of}
    for r in known:
        shown = (f" {text}={_value(r.settings[name])}" for name, text in short.items() if name in r.settings)
        labels[r.folder] = f"{method}{''.join(shown)}{dots}"
    if apart(lambda r: labels[r.folder]) and all(is_name(label) and label not in taken for label in labels.values()):
        return labels
    number: dict[object, int] = {}  # settings are only counted, as they cannot be shown or are too long to differ
    for r in of:
        settings = values(r, differing) if r.settings else None
        while (label := f"{method[: MAX_NAME // 2]} settings {number.setdefault(settings, len(number) + 1)}") in taken:
            number[settings] += len(of)
        labels[r.folder] = label
    return labels


def _value(text: str) -> str:
    """Returns a value for a label: `1e-4` of 0.0001, `TDLoss` of @TDLoss(), without spaces and cut."""
    value = run_records.value_of(text)
    if type(value) is float:
        text = min(repr(value), np.format_float_scientific(value, trim="-", exp_digits=1).replace("e+", "e"), key=len)
    elif isinstance(value, str):
        text = value
    else:
        text = re.sub(r"[@\s]|\(\)", "", text)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _resolve(name: str, records: Sequence[Record]) -> str:
    """Returns the full name of the one setting that `--group_by` names."""
    known = {setting for r in records for setting in r.settings}
    for asked in (name, *(whole for whole, abbreviated in ABBREVIATIONS.items() if abbreviated == name)):
        if asked in known:
            return asked
        ending = sorted(setting for setting in known if re.split(r"[./]", setting)[-1] == asked)
        if len(ending) == 1:
            return ending[0]
        if ending:
            raise TaacError(f"--group_by {name}: give a whole name, one of {', '.join(ending[:_NAMED])}")
    similar = nearest(name, sorted(known)[:10_000])
    raise TaacError(f"--group_by {name}: no run has such a setting{similar}; config.gin in a run's folder lists all")
