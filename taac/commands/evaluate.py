"""`taac evaluate`: plays the greedy agent of a run, or of each run below a folder, with other switching thresholds, or with
actions that are held or late.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs.terminal import printable

Number = TypeVar("Number", int, float)


def define_flags() -> None:
    flags.define_saved_agent("Evaluate", "The folder of the run; or of many, as of a comparison, for means over their runs.")
    absl_flags.DEFINE_list("switch_threshold", None, "Thresholds, separated by commas: 0.5,0.6,0.7,0.8,0.9. Default: the run's.")
    absl_flags.DEFINE_list("hold", ["1"], "For how many steps (repeats, if the method repeats) an action is held: 1,2,4,8.")
    absl_flags.DEFINE_list("delay", ["0"], "Steps until an action takes effect, beside a delay of the run's own: 0,1,2.")
    absl_flags.DEFINE_integer("num_episodes", 20, "Episodes under each condition.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0, upper_bound=2**32 - 1)
    absl_flags.DEFINE_bool("allow_mixed", False, "Also take means of runs whose budgets, versions or settings differ.")
    absl_flags.DEFINE_string("output", None, "A new .csv or .png file, for the table or its picture.")


def run() -> None:
    given = flags.FLAGS
    thresholds = _numbers("switch_threshold", given.switch_threshold or (), float)
    holds, delays = _numbers("hold", given.hold, int), _numbers("delay", given.delay, int)

    from taac import registry
    from taac.playing import conditions
    from taac.playing.pictures import new_file
    from taac.runs.run_folder import RunFolder

    output = new_file("--output", given.output, ".csv", ".png")
    root_dir = flags.root_dir()
    registry.register()
    of_one = RunFolder(root_dir).config.exists() or not os.path.isdir(root_dir)
    if output is not None and output.suffix == ".png" and not of_one:
        raise TaacError(f"--output {output}: a picture is of one run; give the folder of a run, or a .csv file")
    asked = (root_dir, given.num_episodes, given.seed, thresholds or (None,), holds, delays, given.best, given.trust)
    found: Any
    if of_one:
        found = conditions.evaluate_conditions(*asked)
        print(found)
    else:
        found, notes = conditions.evaluate_runs(*asked, allow_mixed=given.allow_mixed)
        print("\n".join([conditions.table_of_runs(found), *map(printable, notes)]))
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
