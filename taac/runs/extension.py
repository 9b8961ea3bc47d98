"""Runs that are trained on to more environment steps than they were begun with.

What such a run computes before its former end is what a run of the new length computes there, unless something follows the
length, such as a schedule over `%num_env_steps`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from taac.errors import TaacError
from taac.runs import files, layout

TOTAL, MACRO = "Trainer.num_env_steps", "num_env_steps"
_OF_TOTAL = re.compile(rf"^(?:{re.escape(TOTAL)}|{MACRO}) = \d+\n", re.MULTILINE)
_MOST = 100  # extensions of one run that are read
_RATIO = "Trainer.updates_per_env_step"
_BETA = "PrioritizedReplayBuffer.beta"


class Lengths(NamedTuple):
    """Environment steps of a whole run: as held in its folder, and as asked for now."""

    held: int
    asked: int


def lengths(held: str, asked: str) -> Lengths | None:
    """Returns both lengths if two operative configurations differ in nothing else; None if they do, or do not differ."""
    if layout.same_run(held, asked) or not layout.same_run(_OF_TOTAL.sub("", held), _OF_TOTAL.sub("", asked)):
        return None
    totals = [layout.parse_bindings(text).get(TOTAL, "") for text in (held, asked)]
    if not all(re.fullmatch(r"\d{1,18}", total) for total in totals):
        return None
    return Lengths(*map(int, totals))


def continues(held: str, asked: str) -> bool:
    """Returns whether a run of the configuration `asked` may resume from a checkpoint of a run of `held`."""
    found = lengths(held, asked)
    return held == asked or (found is not None and found.held < found.asked)


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
    entries = run.get("extended")
    last = entries[-1] if isinstance(entries, list) and entries else None
    steps = last.get("env_steps") if isinstance(last, dict) else None
    return steps if isinstance(steps, int) else -1


def told(run: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each extension that run.json lists, newest last. Leaves out what no run writes."""
    entries = run.get("extended")
    found = []
    for entry in entries[:_MOST] if isinstance(entries, list) else ():
        numbers = [entry.get(name) for name in ("from", "to", "env_steps")] if isinstance(entry, dict) else [None]
        if not all(type(n) is int and 0 <= n < 10**15 for n in numbers):
            continue
        time, follow = entry.get("time"), entry.get("follow_length")
        names = [name for name in follow[:_MOST] if layout.is_name(name)] if isinstance(follow, list) else []
        changed = f"; {', '.join(names)} followed the shorter length until then" if names else ""
        when = f" ({time})" if layout.is_name(time) else ""
        found.append(
            f"it was extended from {numbers[0]} to {numbers[1]} environment steps when it stood at {numbers[2]}{when}{changed}"
        )
    return found


def _unresolved(config: str) -> dict[str, str]:
    """The bindings, with every macro replaced but that of the length."""
    return layout.parse_bindings(re.sub(rf"^{MACRO} = ", "_ = ", config, flags=re.MULTILINE))
