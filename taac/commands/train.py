"""`taac train`: trains from gin files into a run folder, or resumes the run that is there."""

from __future__ import annotations

import sys

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import NotTrusted, TaacError


def define_flags() -> None:
    flags.define_root_dir(
        "The folder of the run: a new or empty folder, or one that holds the same run, unfinished. By default "
        "runs/<task>/<method>/seed_<n>."
    )
    flags.define_experiment()
    absl_flags.DEFINE_float(
        "lock_timeout", 0.0, "Seconds to wait for another process that is training in the folder.", lower_bound=0.0
    )
    absl_flags.DEFINE_bool(
        "extend", False, "Train the run in --root_dir on to a larger --num_env_steps. Task and method may be left out."
    )


def run() -> None:
    asked, extend = flags.asked(), flags.FLAGS.extend
    of_run = extend and not (asked.task or asked.method or asked.gin_files)
    if of_run:
        asked = asked._replace(gin_files=(_own_config(flags.root_dir()),))
    asked.files()  # refuses what is missing or unknown before anything is imported
    flags.check_run_dir(asked)

    from taac import configuration, registry
    from taac.machine import ranks
    from taac.runs.run_folder import RunFolder
    from taac.training import experiment
    from taac.training.conduct import conduct
    from taac.training.progress_bar import ProgressBar

    registry.register()
    if of_run:
        _check_trusted(asked.gin_files[0])
    loaded = asked.load()
    joined = ranks.join()
    trainer = configuration.build(lambda: experiment.create_experiment(ranks=joined))
    try:
        loaded.check_used()
        for note in loaded.without_effect():
            print(f"note: {note}", file=sys.stderr)
        folder = RunFolder(flags.run_dir(asked, loaded))
        if not conduct(trainer, loaded, folder, ProgressBar, extend, flags.FLAGS.lock_timeout):
            if joined.first:
                print(
                    f"{folder.path} already holds this run, finished; nothing to do. To train it on, give --extend and a larger "
                    "--num_env_steps; to train again, another folder."
                )
            return
    finally:
        trainer.close()
        joined.leave()
    if not joined.first:
        return
    if trainer.stopped is not None:
        print(f"stopped early: {trainer.stopped}")
    final = trainer.evaluation
    assert final is not None
    print(
        f"{trainer.env_steps} environment steps, {trainer.learner.num_updates} updates, {trainer.reporter.seconds:.0f} s; "
        f"evaluation return {final.return_mean:.2f} +- {final.return_std:.2f}, "
        f"{100 * final.fraction_repeated:.0f}% of steps repeated; in {folder.path}"
    )


def _own_config(root_dir: str) -> str:
    """Returns the path of the configuration that a run was begun with."""
    from pathlib import Path

    from taac.runs import files, layout

    config = Path(root_dir, layout.CONFIG)
    if not files.check_file(config):
        raise TaacError(f"--extend: {root_dir} holds no run: there is no {config.name}; give the --root_dir of a run")
    return str(config.absolute())


def _check_trusted(config: str) -> None:
    """Refuses a configuration that would import code, unless it is of an own run. Lets that one's modules be imported.

    Raises:
        TaacError: says why the run is not known to be one's own.
    """
    from pathlib import Path

    from taac import configuration
    from taac.runs import own

    try:
        own.import_from(own.check(Path(config).parent))
        return
    except own.NotOwn as error:
        why = error
    try:
        configuration.load([config], trusted=False)
    except NotTrusted as error:
        raise TaacError(
            f"--extend: {config} imports code, and {why}. If you trust it, give --gin_file {config}, or --task and --method"
        ) from error
