"""`taac sweep`: searches settings of a method on a task. Called again, it continues where it stopped."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs.terminal import printable

if TYPE_CHECKING:
    from taac.campaigns.run import Run
    from taac.campaigns.sweep import Record, Sweep, Trial
    from taac.configuration import RunRequest


def define_flags() -> None:
    flags.define_root_dir("The folder of the sweep: new or empty, or one that holds the same sweep, which then goes on.")
    flags.define_task_and_method()
    absl_flags.DEFINE_multi_string(
        "search", [], "A setting and its values: NAME=LOW..HIGH, NAME=log:LOW..HIGH, or NAME=A|B|C, values as for --set; repeat "
        "for several.",
    )  # fmt: skip
    absl_flags.DEFINE_integer(
        "trials", None, "Number of settings to try; 20 by default. Called again with more, the sweep goes on.", lower_bound=1
    )
    absl_flags.DEFINE_string("seeds", None, "The number of seeds of a trial, 3 by default; or the seeds: 1000,1007.")
    absl_flags.DEFINE_integer("first_seed", None, "The first seed; 1000 by default, as comparisons begin at 0.", lower_bound=0)
    absl_flags.DEFINE_enum(
        "objective", None, ["mean", "area"], "The mean over seeds that is maximised: of final returns (mean, the default) or of "
        "areas under the curve.",
    )  # fmt: skip
    absl_flags.DEFINE_integer(
        "last_evaluations", None, "A final return is the mean of this many last evaluations, 3 by default.", lower_bound=1
    )
    absl_flags.DEFINE_enum("pruner", None, ["median", "none"], "What stops poor trials early; median by default.")
    absl_flags.DEFINE_enum("sampler", None, ["tpe", "random"], "What proposes settings; tpe by default.")
    absl_flags.DEFINE_integer("sampler_seed", None, "Decides what is proposed; 0 by default.", lower_bound=0)
    absl_flags.DEFINE_integer("jobs", 1, "Number of trials at a time, each on one thread.", lower_bound=1)


def run() -> None:
    from taac.campaigns.launchers.local import LocalProcesses
    from taac.campaigns.suggestions import Suggestions
    from taac.campaigns.sweep import FIRST_SEED, Record
    from taac.campaigns.sweeping import Sweeping
    from taac.runs.run_folder import RunFolder

    root, request = Path(flags.root_dir()), flags.read_request()
    request.files()
    sweep = read()
    settings = {**request._asdict(), **sweep.settings()}  # what must stay when it goes on
    del settings["seed"]  # the sweep has its own
    record = Record(root, settings, sweep.dimensions)
    steps, interval = check(sweep, request, new=not record.trials)
    Suggestions(sweep, record, steps, interval)  # refuses before the folder exists
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the runs in order, as Ctrl-C does

    def tell(trial: Trial) -> None:
        best = record.best()
        if best is trial:
            write_best(root, sweep, record, request, steps)
        value = trial.state if trial.value is None else f"{trial.value:.4g}"
        so_far = "" if best is None else f"; best: trial {best.number}, {best.value:.4g}"
        print(printable(f"trial {trial.number}: {value} ({trial}){so_far}"), flush=True)
        if trial.state == "failed":
            print(printable(f"  {trial.why}"), file=sys.stderr, flush=True)

    with RunFolder(root).lock():
        record = Record(root, settings, sweep.dimensions)  # another process may have changed it
        plan = planner(root, request)
        check_unchanged([plan(trial, sweep.seeds[0]) for trial in record.trials])
        record.retry_failed()
        suggestions = Suggestions(sweep, record, steps, interval)
        left = max(0, sweep.trials - len(record.trials) + record.count("running"))
        told = f"{left} of {sweep.trials} trials to train, {len(sweep.seeds)} seeds x {steps} steps each"
        print(printable(f"{root}: {told}"), flush=True)
        launcher, jobs = LocalProcesses(), flags.FLAGS.jobs
        Sweeping(sweep, record, suggestions, plan, launcher, jobs, steps, scoring(sweep), tell).run()
        check_unchanged([plan(trial, sweep.seeds[0]) for trial in record.trials])
        best = record.best()
        if best is None:
            raise TaacError(f"no trial of {len(record.trials)} was completed, see {record.path}")
        path = write_best(root, sweep, record, request, steps)  # again, with the whole budget
    print(printable(f"best of {len(record.trials)} trials: {best.number}, {best.value:.6g} ({best})\n{path}"))
    defaults = min(sweep.seeds) >= FIRST_SEED
    unused = "the default seeds of taac train and taac compare (0, 1, ...)" if defaults else f"{max(sweep.seeds) + 1}"
    print(
        f"its value is the greatest of many, so it flatters: train {path.name} with seeds that the sweep did not use, such as "
        f"{unused}"
    )


def read() -> Sweep:
    """Reads the sweep from gin files, overridden by flags."""
    from taac import configuration, registry
    from taac.campaigns.comparison import given_seeds, parse_seeds
    from taac.campaigns.sweep import FIRST_SEED, Sweep

    given = flags.FLAGS
    registry.register()
    configuration.load(given.gin_file, of_compare=True)
    names = ("trials", "objective", "last_evaluations", "pruner", "sampler", "sampler_seed", "search")
    chosen = {
        **flags.given_values(dict(zip(names, names))), **given_seeds(parse_seeds(given.seeds), given.first_seed, FIRST_SEED),
    }  # fmt: skip
    return configuration.build(lambda: Sweep(**chosen))


def check(sweep: Sweep, request: RunRequest, new: bool) -> tuple[int, int]:
    """Refuses settings that `taac train` would refuse. Returns the environment steps of a run and between evaluations.

    Builds a `new` sweep's experiment with each of `Dimension.ends`, too.
    """
    from taac.checking.trial import check_buildable
    from taac.configuration import values
    from taac.training.update_ratio import Intervals

    built = set()
    first = [f"{d.name}={d.ends()[0]}" for d in sweep.dimensions]
    for number, dimension in enumerate(sweep.dimensions):
        for text in dimension.ends():
            words = (*first[:number], f"{dimension.name}={text}", *first[number + 1 :])
            of_trial = request._replace(seed=sweep.seeds[0], settings=(*request.settings, *words))
            loaded = of_trial.load()
            loaded.check_macros()
            if new and words not in built:
                check_buildable(of_trial, here=True)
                built.add(words)
                own = re.compile(rf"--\w+: (?:[\w./]+\.)?{re.escape(dimension.name.rpartition('.')[2])} = ")
                if idle := [line for line in loaded.without_effect() if own.match(line)]:
                    raise TaacError(f"--search {dimension.name} would compare equal trials: {idle[0]}")
    by_default = values.default(Intervals, "evaluation_interval")
    steps, interval = loaded.bound("Intervals.num_env_steps"), loaded.bound("Intervals.evaluation_interval", by_default)
    fixed = ("num_env_steps", "evaluation_interval")
    if not isinstance(steps, int) or any(d.name.removeprefix("Intervals.") in fixed for d in sweep.dimensions):
        raise TaacError(f"all trials must have the same environment steps and evaluations: do not search {' or '.join(fixed)}")
    return steps, interval


def planner(root: Path, request: RunRequest) -> Callable[[Trial, int], Run]:
    """Returns what makes the run of a trial with a seed, in `<root>/trials/<number>/seed_<n>`."""
    from taac.campaigns.run import Run, train_command

    def plan(trial: Trial, seed: int) -> Run:
        folder = root / "trials" / f"{trial.number:04d}" / f"seed_{seed}"
        of_run = request._replace(settings=(*request.settings, *trial.words()), seed=seed)
        return Run(str(of_run.task_name), f"trial {trial.number}", seed, folder, train_command(folder, of_run), of_run)

    return plan


def check_unchanged(runs: Sequence[Run]) -> None:
    """Refuses runs of trials that were trained with other settings, as after a change of a gin file. Reads one in 0.3 s."""
    from taac.campaigns.comparison import other_settings, shown

    for run in runs:
        if found := other_settings(run):
            raise TaacError(
                f"{run.folder} was trained with other settings than {run.name} has now, so trials cannot be compared: has a "
                f"gin file changed? Undo the change, or give another --root_dir. It has:\n  {shown(found)}"
            )


def scoring(sweep: Sweep) -> Callable[[Path], float]:
    """Returns what computes the score of a run by its folder, as reports define it."""
    import numpy as np

    from taac.analysis.curves.learning_curves import area_under_curve
    from taac.analysis.readers import run_records

    def score(folder: Path) -> float:
        problems: list[str] = []
        table = run_records.read_evaluations(folder, problems, [])
        steps, returns = table["env_steps"], table["return_mean"]
        if problems or not np.isfinite(returns).all() or not (steps > 0).any():
            raise TaacError(f"{folder} cannot be scored: {'; '.join(problems) or 'its returns are not finite'}")
        if sweep.objective == "area":
            return area_under_curve(steps, returns)
        return float(returns[steps > 0][-sweep.last_evaluations :].mean())

    return score


def write_best(root: Path, sweep: Sweep, record: Record, request: RunRequest, steps: int) -> Path:
    """Writes the gin file of the best trial; returns its path."""
    from taac.campaigns import sweep as sweeps

    trial, path = record.best(), root / sweeps.BEST
    assert trial is not None
    about = f"{trial.value:.6g}, {sweeps.OBJECTIVES[sweep.objective]} with the seeds {', '.join(map(str, sweep.seeds))}."
    of_trial = request._replace(settings=(*request.settings, *trial.words()))
    sweeps.write_best(path, of_trial, trial, sweeps.statement(sweep, record, steps), about)
    return path
