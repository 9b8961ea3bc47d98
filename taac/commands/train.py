"""`taac train`: trains from gin files into a run folder, or resumes the run that is there."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import DivergedError, Interrupted, NotTrusted, TaacError

if TYPE_CHECKING:
    from taac.configuration import Config
    from taac.runs.layout import EpisodeSummary
    from taac.runs.run_folder import RunFolder
    from taac.training.interruption import Interruption
    from taac.training.trainer import Trainer


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
    from taac.runs import extension, files
    from taac.runs.run_folder import RunFolder, now
    from taac.training import experiment
    from taac.training.interruption import Interruption

    registry.register()
    if of_run:
        _check_trusted(asked.gin_files[0])
    loaded = asked.load()
    trainer = configuration.build(experiment.create_experiment)
    try:
        loaded.check_used()
        for note in loaded.without_effect():
            print(f"note: {note}", file=sys.stderr)
        operative = configuration.operative_config()
        folder = RunFolder(flags.run_dir(asked, loaded))
        finished = (
            f"{folder.path} already holds this run, finished; nothing to do. To train it on, give --extend and a larger "
            "--num_env_steps; to train again, another folder."
        )
        status = folder.open(operative, extend)
        if status == "finished":
            print(finished)
            return
        if extend and not (status != "new" and folder.has_checkpoints()):
            raise TaacError(f"--extend: {folder.path} holds no run with a checkpoint to train on from; nothing was changed")
        if status == "new":
            trainer.begin()  # what it cannot load is refused before the folder exists
            print(f"training in {folder.path}")
        with folder.lock(flags.FLAGS.lock_timeout):
            status = folder.open(operative, extend)  # it may have changed while another process had the lock
            if status == "finished":
                print(finished)
                return
            if status in ("unfinished", "shorter") and folder.has_checkpoints():
                if status == "shorter":
                    extension.refuse_ratio(operative)
                trainer.resume(folder)
                if status == "shorter":
                    _extend(folder, operative, trainer.env_steps)
                held = folder.read_run().get("resumed")
                resumed = [*(held if isinstance(held, list) else []), {"time": now(), "env_steps": trainer.env_steps}]
                folder.update_run(
                    status="running", resumed=resumed, diverged=None, error=None,
                    **_seal(folder, loaded, files.read_text(folder.config)),
                )  # fmt: skip
                print(f"resuming {folder.path} at {trainer.env_steps} environment steps")
            else:
                if status == "unfinished":  # killed before its first checkpoint; "auto" might choose differently now
                    trainer.learner.keep_products(folder.read_run().get("products"))
                about = {
                    "method": trainer.method,
                    "seed": trainer.seed,
                    "environment": trainer.environment.name,
                    "device": str(trainer.agent.device),
                    "products": trainer.learner.products,
                    "load_from": trainer.begin(),
                    **_seal(folder, loaded, operative),
                }
                folder.begin(operative, about)
                for line in trainer.agent.algorithm.describe():
                    print(line)
            with Interruption() as interruption:
                _train(trainer, folder, interruption, _hyper_parameters(trainer, folder, loaded))
            updates = trainer.learner.num_updates
            folder.update_run(status="finished", end=now(), env_steps=trainer.env_steps, updates=updates)
    finally:
        trainer.close()
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


def _extend(folder: RunFolder, operative: str, env_steps: int) -> None:
    from taac.runs import extension

    folder.extend(operative, env_steps)
    for name in extension.following_length(operative):
        print(
            f"note: {name} follows the length of the run. It followed the shorter one until now, so this run differs from one "
            "that was begun with the new length"
        )


def _seal(folder: RunFolder, loaded: Config, config: str) -> dict[str, Any]:
    """What run.json holds so that `taac play` knows the run as the user's own, if playing it needs that."""
    from taac.configuration.reading import needs_trust
    from taac.runs import own

    if not needs_trust(loaded):
        return {"imports": None, "seal": None}
    module, colon, _ = str(loaded.settings("create_environment")["env_name"]).partition(":")
    return own.sealed(folder.path, config, {*loaded.imports, *([module] if colon else [])})


def _hyper_parameters(trainer: Trainer, folder: RunFolder, loaded: Config) -> dict[str, Any]:
    """The values for TensorBoard's hparams view, with the same names for every run."""
    return {
        "method": folder.read_run().get("method") or type(trainer.agent.algorithm).__name__,
        "environment": trainer.environment.name,
        "seed": trainer.seed,
        **loaded.task_macros(),
    }


def _train(trainer: Trainer, folder: RunFolder, interruption: Interruption, about: dict[str, Any]) -> None:
    """Trains to the end.

    Raises:
        Interrupted: a signal stopped the run earlier.
    """
    from taac.runs import durable

    try:
        with ProgressBar(trainer.num_env_steps, trainer.env_steps) as progress:
            trainer.train(folder, progress, about, interruption)
    except OSError as error:
        if error.errno not in durable.FULL:
            _mark(folder, status="failed", error=str(error))
            raise
        raise durable.refusal(
            error, folder.path, trainer.checkpoint_bytes(), folder.checkpoints.what_remains()
        ) from error
    except DivergedError as error:
        _mark(folder, status="diverged", diverged={"env_steps": trainer.env_steps, "error": str(error)})
        raise
    except TaacError as error:
        if interruption.signal is None:
            _mark(folder, status="failed", error=str(error))
            raise
        # The signal may also have ended the processes of the environments, which would cause this error.
        why = f"{interruption.signal.name}, and then: {error}"
    except Exception as error:  # of an algorithm or a hook of the user's own; the traceback shows where
        _mark(folder, status="failed", error=f"{type(error).__name__}: {error}")
        raise
    else:
        if interruption.signal is None or trainer.env_steps >= trainer.num_env_steps:
            return
        why = f"{interruption.signal.name} at {trainer.env_steps} environment steps, a checkpoint is written"
    folder.update_run(status="interrupted")
    raise Interrupted(f"{why}; resumable: the same command continues to the same end")


def _mark(folder: RunFolder, **changes: Any) -> None:
    """Records what ended a run. Ignores errors of its own, because the original error is the one to report."""
    with contextlib.suppress(TaacError, OSError):
        folder.update_run(**changes)


class ProgressBar:
    """Shows environment steps and updates per second, time left, the last evaluation's return and the fraction repeated."""

    def __init__(self, total: int, initial: int):
        import time

        from tqdm import tqdm

        interval = 0.5 if sys.stderr.isatty() else 15.0
        self._bar = tqdm(
            total=total, initial=initial, unit=" steps", mininterval=interval, smoothing=0.1, dynamic_ncols=True
        )
        self._time, self._interval = time.monotonic, interval
        self._last = self._time()
        self._updates: int | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float) -> None:
        now = self._time()
        if self._updates is None:
            self._updates = updates
        if now - self._last >= self._interval:
            rate = (updates - self._updates) / (now - self._last)
            returned = "-" if evaluation is None else f"{evaluation.return_mean:.1f}"
            self._bar.set_postfix_str(
                f"{rate:.0f} updates/s, return {returned}, repeated {repeated:.0%}", refresh=False
            )
            self._last, self._updates = now, updates
        self._bar.update(env_steps - self._bar.n)
