"""Runs that are trained on to more environment steps than they were begun with, or with other settings.

What a longer run computes before its former end is what a run of the new length computes there, unless something follows the
length, such as a schedule over `%num_env_steps`. Settings change where the run stands.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from taac.errors import TaacError
from taac.runs import files, layout
from taac.runs.history import entries, settings_in

TOTAL, MACRO = "Intervals.num_env_steps", "num_env_steps"
_DEPTH = 10  # names of it in a row; `layout.parse_bindings` follows fewer
_RATIO = "UpdateRatio.updates_per_env_step"
_BETA = "PrioritizedReplayBuffer.beta"


def lengths(held: str, asked: str) -> tuple[int, int] | None:
    """Returns both numbers of environment steps if two operative configurations differ in that alone; else None."""
    if held == asked or _but_total(held) != _but_total(asked):
        return None
    before, after = (_total(layout.parse_bindings(text)) for text in (held, asked))
    return None if before is None or after is None or before == after else (before, after)


def changes(held: str, asked: str) -> dict[str, tuple[str, str]]:
    """Returns the settings that differ between two operative configurations: both values, in which macros are replaced."""
    if held == asked:
        return {}
    before, after = _settings(held), _settings(asked)
    both = {name: (before.get(name, "nothing"), after.get(name, "nothing")) for name in (*before, *after)}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def continues(held: str, asked: str, changed: Collection[str] = ()) -> bool:
    """Returns whether a run of `asked` may resume from a checkpoint of `held`: longer, or with other values of `changed`."""
    if len(held) > files.MAX_CONFIG_BYTES:  # a checkpoint's own, of which a file of checkpoints may hold more
        return False
    before, after = (_total(layout.parse_bindings(text)) for text in (held, asked))
    longer = before == after or (before is not None and after is not None and before < after)
    rest = [_but_total(text) for text in (held, asked)]
    found = changes(*rest)
    return longer and (rest[0] == rest[1] or (bool(changed) and found.keys() <= set(changed)))


def changed_in(run: Mapping[str, Any]) -> set[str]:
    """Returns the settings that a run has changed, according to its run.json."""
    return {name for entry in entries(run, "changed") for name in settings_in(entry)}


def held_steps(folder: Path) -> int | None:
    """Returns the environment steps of the whole run in a folder; None if there is none, or it does not say."""
    try:
        return _total(layout.read_bindings(folder))
    except (OSError, files.Damaged):
        return None


def _total(bindings: Mapping[str, str]) -> int | None:
    total = bindings.get(TOTAL, "")
    return int(total) if re.fullmatch(r"\d{1,18}", total) else None


def _names_of_total(config: str) -> list[str]:
    """Returns the parameter of the number of environment steps, its macro, and those through which this has its value."""
    names = [TOTAL, MACRO]
    for name in itertools.islice(names, _DEPTH):  # it grows
        found = re.search(rf"^{re.escape(name)} = %(\w+)$", config, re.MULTILINE)
        names += [found[1]] if found and found[1] not in names else []
    return names


def _but_total(config: str) -> str:
    """Returns a configuration without the lines that say the number of environment steps."""
    names = "|".join(map(re.escape, _names_of_total(config)))
    return re.sub(rf"^(?:{names}) = (?:\d+|%\w+)\n", "", config, flags=re.MULTILINE)


def is_longer(difference: str, folder: Path) -> bool:
    """Returns whether a line of `Config.differences` says that the run in a folder has fewer steps than are asked for."""
    name, _, both = difference.partition(" = ")
    found = re.fullmatch(r"(\d{1,18}), not (\d{1,18})", both)
    if found is None or int(found[1]) >= int(found[2]):
        return False
    return name in _names_of_total(files.read_text(folder / layout.CONFIG, files.MAX_CONFIG_BYTES))


def following_length(config: str) -> list[str]:
    """Returns the settings of an operative configuration that follow the length of the run, sorted."""
    bindings, macros = _unresolved(config), "|".join(_names_of_total(config)[1:])
    found = {name for name, value in bindings.items() if re.search(rf"%(?:{macros})\b", value)} - {TOTAL, "_"}
    beta = bindings.get(_BETA)
    return sorted(found | ({_BETA} if beta is not None and not re.fullmatch(r"0(\.0*)?", beta) else set()))


def is_of_ratio(name: str, config: str) -> bool:
    """Returns whether a setting is one of the schedule that the ratio of updates follows."""
    return _unresolved(config).get(_RATIO) == f"@{name.rpartition('.')[0]}()"


def refuse_ratio(config: str) -> None:
    """Raises TaacError for a run whose ratio of updates follows its length: another length would have earned other updates."""
    for name in following_length(config):
        if is_of_ratio(name, config):
            raise TaacError(
                f"this run cannot be extended: {_RATIO} follows its length, by {name} = {_unresolved(config)[name]}, so a longer "
                "run would have taken other updates from the start; train a new run"
            )


def extended_at(run: Mapping[str, Any]) -> int:
    """Returns the environment steps at which a run was last extended, according to its run.json; -1 if it never was."""
    return next((entry["env_steps"] for entry in reversed(entries(run, "extended"))), -1)


def _settings(config: str) -> dict[str, str]:
    """Returns the bindings but for macros, which are replaced wherever they are used, to a bounded depth."""
    bindings = layout.parse_bindings(config)
    macros = {name: value for name, value in bindings.items() if "." not in name and len(value) < 1000}
    found = {name: value for name, value in bindings.items() if "." in name}
    for _ in range(4):
        found = {
            name: re.sub(r"%(\w+)", lambda of: macros.get(of[1], of[0]), value)
            if len(value) + 1000 * value.count("%") < 50_000 else value
            for name, value in found.items()
        }
    return found


def _unresolved(config: str) -> dict[str, str]:
    """Returns the bindings, with every macro replaced but those of the length."""
    macros = "|".join(_names_of_total(config)[1:])
    return layout.parse_bindings(re.sub(rf"^(?:{macros}) = ", "_ = ", config, flags=re.MULTILINE))
