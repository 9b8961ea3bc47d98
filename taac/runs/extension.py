"""Runs that are trained on to more environment steps than they were begun with, or with other settings.

What a longer run computes before its former end is what a run of the new length computes there, unless something follows the
length, such as a schedule over `%num_env_steps`. Settings change where the run stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from taac.errors import TaacError
from taac.runs import files, layout
from taac.runs.history import entries, settings_in

TOTAL, MACRO = "Intervals.num_env_steps", "num_env_steps"
_OF_TOTAL = re.compile(rf"^(?:{re.escape(TOTAL)}|{MACRO}) = \d+\n", re.MULTILINE)
_RATIO = "UpdateRatio.updates_per_env_step"
_BETA = "PrioritizedReplayBuffer.beta"


class Lengths(NamedTuple):
    """Environment steps of a whole run: as held in its folder, and as asked for now."""

    held: int
    asked: int


def lengths(held: str, asked: str) -> Lengths | None:
    """Returns both lengths if two operative configurations differ in nothing else; None if they do, or do not differ."""
    if held == asked or _OF_TOTAL.sub("", held) != _OF_TOTAL.sub("", asked):
        return None
    totals = [layout.parse_bindings(text).get(TOTAL, "") for text in (held, asked)]
    if not all(re.fullmatch(r"\d{1,18}", total) for total in totals):
        return None
    return Lengths(*map(int, totals))


def changes(held: str, asked: str) -> dict[str, tuple[str, str]]:
    """Returns the settings that differ between two operative configurations: both values, in which macros are replaced."""
    if held == asked:
        return {}
    before, after = _settings(held), _settings(asked)
    both = {name: (before.get(name, "nothing"), after.get(name, "nothing")) for name in (*before, *after)}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def continues(held: str, asked: str, changed: Collection[str] = ()) -> bool:
    """Returns whether a run of the configuration `asked` may resume from a checkpoint of a run of `held`.

    Args:
        changed: settings in which they may differ.
    """
    found, other = lengths(held, asked), changes(held, asked)
    longer = found is not None and found.held < found.asked
    return held == asked or longer or (bool(other) and other.keys() <= set(changed))


def changed_in(run: Mapping[str, Any]) -> set[str]:
    """Returns the settings that a run has changed, according to its run.json."""
    return {name for entry in entries(run, "changed") for name in settings_in(entry)}


def held_steps(folder: Path) -> int | None:
    """Returns the environment steps of the whole run in a folder; None if there is none, or it does not say."""
    try:
        total = layout.read_bindings(folder).get(TOTAL, "")
    except (OSError, files.Damaged):
        return None
    return int(total) if re.fullmatch(r"\d{1,18}", total) else None


def is_longer(difference: str) -> bool:
    """Returns whether a line of `Config.differences` says that a run has fewer environment steps than are asked for."""
    found = re.fullmatch(rf"(?:{re.escape(TOTAL)}|{MACRO}) = (\d{{1,18}}), not (\d{{1,18}})", difference)
    return found is not None and int(found[1]) < int(found[2])


def following_length(config: str) -> list[str]:
    """Returns the settings of an operative configuration that follow the length of the run, sorted."""
    bindings = _unresolved(config)
    found = {name for name, value in bindings.items() if name != TOTAL and re.search(rf"%{MACRO}\b", value)}
    beta = bindings.get(_BETA)
    return sorted(found | ({_BETA} if beta is not None and not re.fullmatch(r"0(\.0*)?", beta) else set()))


def refuse_ratio(config: str) -> None:
    """Refuses to extend a run whose ratio of updates follows its length: another length would have earned other updates.

    Raises:
        TaacError: names the setting.
    """
    reference = re.fullmatch(r"@([\w./]+)\(\)", _unresolved(config).get(_RATIO, ""))
    for name in following_length(config) if reference else ():
        if name.rpartition(".")[0] == reference[1]:  # type: ignore[index]
            raise TaacError(
                f"this run cannot be extended: {_RATIO} follows its length, by {name} = %{MACRO}, so a longer run would have "
                "taken other updates from the start; train a new run"
            )


def extended_at(run: Mapping[str, Any]) -> int:
    """Returns the environment steps at which a run was last extended, according to its run.json; -1 if it never was."""
    steps = [entry.get("env_steps") for entry in entries(run, "extended")][-1:]
    return steps[0] if steps and isinstance(steps[0], int) else -1


def _settings(config: str) -> dict[str, str]:
    """Returns the bindings but for macros, which are replaced wherever they are used, to a bounded depth."""
    bindings = layout.parse_bindings(config)
    macros = {name: value for name, value in bindings.items() if "." not in name and len(value) < 1000}
    found = {name: value for name, value in bindings.items() if "." in name}
    for _ in range(4):
        found = {
            name: re.sub(r"%(\w+)", lambda of: macros.get(of[1], of[0]), value) if len(value) < 10_000 else value
            for name, value in found.items()
        }
    return found


def _unresolved(config: str) -> dict[str, str]:
    """Returns the bindings, with every macro replaced but that of the length."""
    return layout.parse_bindings(re.sub(rf"^{MACRO} = ", "_ = ", config, flags=re.MULTILINE))
