"""`taac train`: trains from gin files into a run folder, or resumes the run that is there, if need be by its folder alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError
from taac.runs import files, layout
from taac.runs.terminal import printable

if TYPE_CHECKING:
    from taac.configuration import ReadFile


def define_flags() -> None:
    flags.define_root_dir(
        "The folder of the run: a new or empty folder, or one that holds the same run, unfinished; alone, it resumes that. With "
        "--task and --method, by default runs/<task>/<method>/seed_<n>."
    )
    flags.define_experiment()
    absl_flags.DEFINE_float(
        "lock_timeout", 0.0, "Seconds to wait for another process that is training in the folder.", lower_bound=0.0
    )
    absl_flags.DEFINE_bool(
        "extend", False, "Train the run in --root_dir on to a larger --num_env_steps. Task and method may be left out."
    )
    absl_flags.DEFINE_bool(
        "trust", False, "With --root_dir alone: allow the configuration of a run that you did not train here; it can run code."
    )
    absl_flags.DEFINE_multi_string(
        "resume_with", [], "Go on with the run in --root_dir with another value of a setting, NAME=VALUE as with --set, from "
        "where it stands; repeat for several.",
    )  # fmt: skip
    absl_flags.DEFINE_bool(
        "forget_replay", False, "Resume without the replay buffer, as where a file of its frames is damaged: it is filled again."
    )
    absl_flags.DEFINE_float(
        "rank_timeout", 7200.0, "Under torchrun: seconds that ranks wait for one that hangs. Above what an evaluation takes.",
        lower_bound=1.0,
    )  # fmt: skip


def run() -> None:
    request, extend = flags.read_request(), flags.FLAGS.extend
    changed = tuple(flags.FLAGS.resume_with)
    needed = "--extend" if extend else "--resume_with" if changed else ""
    of_run = None if request.task or request.method or request.gin_files else _own_config(needed, flags.FLAGS.trust)
    if changed and (extend or not of_run or any(value not in (None, ()) for value in request)):
        raise TaacError("--resume_with changes settings of the run in --root_dir: give it with --root_dir alone")
    if of_run:
        request = request._replace(gin_files=(of_run,), settings=(*request.settings, *changed))
    elif flags.FLAGS.trust:
        raise TaacError("--trust is about the configuration in --root_dir, which only a call without --task and --gin_file uses")
    request.files()  # refuses what is missing or unknown before anything is imported
    if flags.FLAGS.root_dir or not (request.task and request.method):  # the folder does not follow from these
        flags.root_dir()

    from taac import configuration, registry
    from taac.machine import ranks
    from taac.runs.run_folder import RunFolder
    from taac.training import experiment
    from taac.training.conduct import conduct, default_folder
    from taac.training.progress_bar import ProgressBar

    registry.register()
    loaded = request.load()
    joined = ranks.join(flags.FLAGS.rank_timeout)
    trainer = configuration.build(lambda: experiment.create_experiment(ranks=joined))
    try:
        loaded.check_used()
        for note in loaded.without_effect():
            print(f"note: {note}", file=sys.stderr)
        folder = RunFolder(flags.root_dir() if flags.FLAGS.root_dir else default_folder(request, loaded))
        if not conduct(
            trainer, loaded, folder, ProgressBar, extend, flags.FLAGS.lock_timeout, change=bool(changed),
            forget_replay=flags.FLAGS.forget_replay,
        ):  # fmt: skip
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
    if trainer.stopped is not None and trainer.env_steps < trainer.num_env_steps:
        print(printable(f"stopped early: {trainer.stopped}"))
    final = trainer.evaluation
    assert final is not None
    print(
        f"{trainer.env_steps} environment steps, {trainer.learner.num_updates} updates, {trainer.reporter.seconds:.0f} s; "
        f"evaluation return {final.return_mean:.2f} +- {final.return_std:.2f}, "
        f"{final.decisions:.1f} decisions in {final.length:.1f} steps; in {folder.path}"
    )


def _own_config(needed: str, trusted: bool) -> ReadFile | None:
    """Returns the configuration that the run in --root_dir was begun with; None if there is none, unless it is `needed`.

    Lets modules of the user's own run be imported. Raises TaacError if the run is neither the user's nor trusted.
    """
    from taac.configuration import ReadFile
    from taac.runs import own_runs

    if not (needed or flags.FLAGS.root_dir):
        return None
    config = Path(flags.root_dir(), layout.CONFIG)
    if not files.check_file(config):
        if needed:
            raise TaacError(f"{needed}: {config.parent} holds no run: there is no {config.name}; give the --root_dir of a run")
        return None
    read = ReadFile(config.absolute(), files.read_text(config, files.MAX_CONFIG_BYTES))
    try:
        if not trusted:
            own_runs.allow_imports(config.parent, read.text)
    except own_runs.NotOwn as why:
        compared = "" if needed == "--resume_with" else "; or give --task and --method, or a --gin_file, and it is only compared"
        raise TaacError(f"{config} can run any code, and {why}. If you trust it, give --trust{compared}") from why
    return read
