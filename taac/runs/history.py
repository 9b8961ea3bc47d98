"""What run.json says of a run's history, as sentences. Whatever no run writes is left out: the file may be a stranger's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taac.runs.layout import is_name

_MOST = 100  # sentences, and names in one


def entries(run: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the entries of a list of run.json, each of which has its environment steps."""
    found = run.get(name)
    listed = found if isinstance(found, list) else []
    return [entry for entry in listed if isinstance(entry, dict) and _count(entry.get("env_steps")) is not None]


def settings_in(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that an entry of "changed" names."""
    settings = entry.get("settings")
    return dict(list(settings.items())[:_MOST]) if isinstance(settings, dict) else {}


def describe(run: Mapping[str, Any]) -> list[str]:
    """Returns all sentences about a run."""
    return [*describe_changes(run), *describe_versions(run), *describe_stopped(run)]


def describe_changes(run: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each extension, change of settings, forgotten buffer and divergence that was trained again."""
    found = []
    for entry in entries(run, "extended"):
        at, before, after = map(_count, map(entry.get, ("env_steps", "from", "to")))
        follow, time = entry.get("follow_length"), entry.get("time")
        names = list(filter(is_name, follow[:_MOST])) if isinstance(follow, list) else []
        when = f" ({time})" if is_name(time) else ""
        followed = f"; {', '.join(names)} followed the shorter length until then" if names else ""
        if None not in (before, after):
            found.append(f"it was extended from {before} to {after} environment steps when it stood at {at}{when}{followed}")
    for entry in entries(run, "changed"):
        changes = [
            f"{name} = {values[1]}, before {values[0]}"
            for name, values in settings_in(entry).items()
            if isinstance(values, list) and len(values) == 2 and all(map(is_name, (name, *values)))
        ]
        if changes:
            found.append(f"it went on with other settings at {entry['env_steps']} environment steps: {'; '.join(changes)}")
    forgot = [entry["env_steps"] for entry in entries(run, "resumed") if entry.get("forgot_replay") is True]
    found += [f"it was resumed at {at} environment steps without its replay buffer, which it filled again" for at in forgot]
    for entry in entries(run, "resumed"):
        if (at := diverged_at(entry)) is not None:
            found.append(f"it diverged at {at} environment steps, and was trained again from {entry['env_steps']} on")
    return found[:_MOST]


def describe_versions(run: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each version of a package with which a run was resumed, if it was begun with another."""
    begun = run.get("versions")
    found: dict[str, int] = {}  # the steps at which it first was
    for entry in entries(run, "resumed"):
        resumed, moved = entry.get("versions"), (entry.get("commit"), run.get("commit"))
        if all(map(is_name, moved)):
            found.setdefault("with commit {} of taac; it was begun with {}".format(*moved), entry["env_steps"])
        if not isinstance(begun, dict) or not isinstance(resumed, dict):
            continue
        for name, version in resumed.items():
            before, after = ("none" if v is None else v for v in (begun.get(name), version))
            if all(map(is_name, (name, before, after))):
                found.setdefault(f"with {name} {after}; it was begun with {before}", entry["env_steps"])
    return [f"it was resumed at {at} environment steps {what}" for what, at in list(found.items())[:_MOST]]


def describe_stopped(run: Mapping[str, Any]) -> list[str]:
    """Returns a sentence if the run was ended early by a rule of its own."""
    held = run.get("stopped")
    if not isinstance(held, dict) or (at := _count(held.get("env_steps"))) is None:
        return []
    why = held.get("why")
    return [f"it ended early, at {at} environment steps{f': {why}' if is_name(why) else ''}"]


def diverged_at(entry: Mapping[str, Any]) -> int | None:
    """Returns the step at which run.json, or an entry of "resumed" before which it was so, says that the run diverged."""
    held = entry.get("diverged")
    return _count(held.get("env_steps")) if isinstance(held, dict) else None


def _count(value: Any) -> int | None:
    """Returns a number of environment steps, or None."""
    return value if type(value) is int and 0 <= value < 10**15 else None
