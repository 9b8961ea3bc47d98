"""`taac evaluate`: plays a run's greedy agent with other switching thresholds, with actions that are held or late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs.terminal import printable

Number = TypeVar("Number", int, float)


def define_flags() -> None:
    flags.define_saved_agent("Evaluate")
    absl_flags.DEFINE_list("switch_threshold", None, "Thresholds, separated by commas: 0.5,0.6,0.7,0.8,0.9. Default: the run's.")
    absl_flags.DEFINE_list("hold", ["1"], "For how many steps (repeats, if the method repeats) an action is held: 1,2,4,8.")
    absl_flags.DEFINE_list("delay", ["0"], "Steps until an action takes effect, separated by commas: 0,1,2.")
    absl_flags.DEFINE_integer("num_episodes", 20, "Episodes under each condition.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0, upper_bound=2**32 - 1)
    absl_flags.DEFINE_string("output", None, "A new .csv or .png file, for the table or its picture.")


def run() -> None:
    given = flags.FLAGS
    thresholds = _numbers("switch_threshold", given.switch_threshold or (), float)
    holds, delays = _numbers("hold", given.hold, int), _numbers("delay", given.delay, int)

    from taac import registry
    from taac.playing import conditions
    from taac.playing.pictures import new_file

    output = new_file("--output", given.output, ".csv", ".png")
    root_dir = flags.root_dir()
    registry.register()
    found = conditions.evaluate_conditions(
        root_dir, given.num_episodes, given.seed, thresholds or (None,), holds, delays, given.best, given.trust
    )
    print(found)
    if output is not None:
        conditions.write(found, output)
        print(printable(output))


def _numbers(flag: str, words: Sequence[str], kind: Callable[[str], Number]) -> list[Number]:
    """Returns the numbers of a flag.

    Raises:
        TaacError: they are no numbers of this kind.
    """
    try:
        return [kind(word) for word in words]
    except ValueError as error:
        name = "integers" if kind is int else "numbers"
        raise TaacError(f"--{flag} must be {name} separated by commas, such as 1,2, got '{','.join(words)}'") from error
