"""`taac.check`: an environment tried through everything that training needs, or an experiment built and described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taac.api.environments import Environment, named
from taac.api.session import in_python, session
from taac.api.settings import make_request
from taac.checking.description import describe
from taac.environments.examine import examine
from taac.errors import TaacError
from taac.networks import ObservationEncoder


class Checked:
    """What was found. `print` shows it.

    Attributes:
        lines: all of it.
        faults: what must be mended before training, each with advice.
    """

    def __init__(self, lines: list[str], faults: list[str]):
        self.lines, self.faults = lines, faults

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def check(
    environment: Environment | None = None,
    method: str | None = None,
    *,
    num_env_steps: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    gin_files: Sequence[str | Path] | str | Path = (),
    **named_settings: Any,
) -> Checked:
    """Tries an environment; or, with a method, builds an experiment without training, and describes it.

        taac.check(MyEnv)                          # what is wrong with it, and how to mend that
        taac.check("Pendulum-v1", "taac")          # every value with its origin, memory, what looks wrong

    Takes the arguments of `train`.

    Raises:
        TaacError: the environment cannot be created, or `train` would refuse the experiment.
    """
    alone = method is None and not gin_files
    place = named(environment, as_object=alone)  # with its arguments
    with session(place):
        if alone:
            if place.name is None:
                raise TaacError("nothing to check: give an environment, or an environment and a method")
            if settings or named_settings or num_env_steps is not None or seed is not None:
                raise TaacError("settings are of an experiment: give a method, too. Without both, the environment is tried alone")
            return _examined(place.name)
        request = make_request(place, method, num_env_steps, seed, gin_files, settings, named_settings)
        request.files()
        return Checked([in_python(line) for line in describe(request)], [])


def _examined(name: str) -> Checked:
    lines, faults = [], []
    for finding in examine(name, ObservationEncoder):
        text = in_python(f"{finding.about}{f': {finding.advice}' if finding.advice else ''}")
        lines.append(f"{'ok ' if finding.ok else 'FIX'} {text}")
        faults += [] if finding.ok else [text]
    return Checked(lines, faults)
