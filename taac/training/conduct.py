"""Trains in a run folder: begins the run or resumes the one that is there, and records how it ended."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from taac import configuration
from taac.configuration import Config, RunRequest, gin_state, shipped
from taac.errors import Interrupted, NotFiniteError, RankLost, TaacError
from taac.machine.products import slowness
from taac.ops.schedules import Schedule
from taac.parallel.data_parallel import RESUME, TRAIN
from taac.runs import durable, extension, files, history, layout, own_runs
from taac.runs.provenance import changed_versions, now
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import shortened
from taac.training.checks import beyond_atoms
from taac.training.compilation import NO_COMPILER
from taac.training.data_parallel_files import SharedFolder, check_count
from taac.training.interruption import Interruption
from taac.training.reporting import Progress
from taac.training.trainer import Trainer

_PLACES = ("taac.learning.", "taac.algorithms.", "taac.acting.explorers", "taac.ops.schedules", "torch.optim.")
_OF_LOOP = (
    "Trainer.batch_size", "Intervals.evaluation_interval", "Intervals.summary_interval", "Intervals.checkpoint_interval",
    "Evaluator.evaluation_episodes", "Evaluator.evaluation_epsilon", "Evaluator.max_evaluation_steps", "Saving.keep_checkpoints",
    "Saving.save_best", "Reporter.monitor", "Reporter.loggers", "RemoteCollector.launcher", "RemoteCollector.ray_address",
    "RemoteCollector.timeout", "RemoteCollector.max_replacements",
)  # fmt: skip
_SHOWN = ("Reporter.loggers", "Reporter.monitor")  # what they name may come and go with its settings
# Parameters that only a new run reads, or by which stored frames were made.
_IN_CHECKPOINTS = ("initial_value", "matmul", "pretraining_updates", "slow_steps")

Bar = Callable[[int, int], AbstractContextManager[Progress]]  # called with the steps of the whole run and those taken


def default_folder(request: RunRequest, loaded: Config) -> Path:
    """Returns the folder of a run for which none is given, `runs/<task>/<method>/seed_<n>`."""
    seed = loaded.bound("create_experiment.seed", 0)
    return layout.run_folder("runs", str(request.task_name), str(request.method_name), seed)


def conduct(
    trainer: Trainer,
    loaded: Config,
    folder: RunFolder,
    bar: Bar,
    extend: bool = False,
    lock_timeout: float = 0.0,
    tell: Callable[[str], None] = print,
    interruption: Callable[[], AbstractContextManager[Interruption]] = Interruption,
    about: Mapping[str, Any] | None = None,
    change: bool = False,
    forget_replay: bool = False,
) -> bool:
    """Trains the run in the folder from where it stands to its end. Call it when everything has been built.

    Args:
        trainer: of the whole run, as `create_experiment` builds it from `loaded`. The caller closes it.
        folder: a new or empty folder, or one that holds the same run.
        bar: makes the progress bar.
        extend: whether the run in the folder may have been begun with fewer environment steps. Without a checkpoint it begins
            again, with as many as are asked for.
        lock_timeout: seconds to wait for another process that trains in the folder.
        tell: called with what a user may want to know at the beginning.
        interruption: makes the context that records signals.
        about: more keys of run.json.
        change: whether the run in the folder goes on with other settings from where it stands; see `_may_change`.
        forget_replay: whether it goes on without the replay buffer.

    Returns:
        False if the run is finished already: then nothing was done.

    Raises:
        TaacError: the folder holds something else, or training failed.
        Interrupted: a signal stopped the run, which can be resumed.
    """
    if not trainer.ranks.first:
        return _follow(trainer, folder, interruption)
    with trainer.parallel.leading():
        operative = configuration.operative_config()
        status = folder.open(operative, extend, change)
        if status == "finished":
            return False
        if status == "other":
            _check_changes(trainer, folder, operative)
        if extend and status == "new":
            raise TaacError(f"--extend: {folder.path} holds no run to train on; nothing was changed")
        if forget_replay and not trainer.parallel.alone:
            raise TaacError("--forget_replay is for runs of one process: each rank has a replay buffer of its own")
        if forget_replay and (status == "new" or not folder.has_checkpoints()):
            raise TaacError(f"--forget_replay resumes a run from a checkpoint, and {folder.path} holds none")
        if status == "new":
            trainer.begin()  # what it cannot load is refused before the folder exists
            tell(f"training in {folder.path}{'' if trainer.parallel.alone else f', by {trainer.ranks.count} ranks'}")
            for line in headline(trainer, loaded, operative):
                tell(line)
        with folder.lock(lock_timeout):
            status = folder.open(operative, extend, change)  # it may have changed while another process had the lock
            if status == "finished":
                return False
            if status != "new":
                check_count(folder, trainer.ranks)
            # `taac play` and `--extend` know it as the user's own. Before it is written, so that one killed there is known.
            own_runs.note(folder.path, operative, loaded.modules)
            if status in ("unfinished", "shorter", "other") and folder.has_checkpoints():
                by = str((about or {}).get("command", ""))
                if status == "shorter":
                    _extend(trainer, folder, operative, tell, forget_replay, by)
                elif status == "other":
                    _check_changes(trainer, folder, operative)  # it may have finished meanwhile
                    _change(trainer, folder, operative, tell, forget_replay, by)
                else:
                    trainer.resume(folder, forget_replay=forget_replay)
                _resume(trainer, folder, operative, about or {}, forget_replay)
                tell(f"resuming {folder.path} at {trainer.env_steps} environment steps")
                if trainer.update_ratio.filling(trainer.num_env_steps):
                    tell("note: nothing more will be learnt: filling the replay buffer anew takes the steps that are left")
                if forget_replay:
                    tell("note: to go on after an interruption, leave --forget_replay out: it would forget the new frames, too")
            else:
                if status in ("unfinished", "shorter"):  # killed before its first checkpoint; "auto" might choose differently now
                    tell(f"{folder.path} has no checkpoint: the run begins again")
                    begun = folder.read_run()
                    trainer.learner.keep(begun.get("compiled"), begun.get("products"))
                _begin(trainer, loaded, folder, operative, about or {})
                for line in [*trainer.agent.algorithm.describe(), *(f"note: {each}" for each in beyond_atoms(trainer))]:
                    tell(line)
            if trainer.learner.runs_compiled:
                tell("updates are compiled: the first update waits for it, up to a minute or more unless it was compiled before")
            if trainer.compilation == NO_COMPILER:
                tell(f"note: {NO_COMPILER}")
            if slow := slowness(trainer.learner.products, trainer.agent.device):
                tell(f"note: {slow}")
            with interruption() as stop:
                _train(trainer, folder, stop, hyper_parameters(trainer, folder, loaded), bar)
            updates, stopped = trainer.learner.num_updates, None
            if trainer.stopped is not None and trainer.env_steps < trainer.num_env_steps:
                stopped = {"env_steps": trainer.env_steps, "why": trainer.stopped}
            folder.update_run(
                status="finished", end=now(), stopped=stopped, env_steps=trainer.env_steps, updates=updates,
                compiled=trainer.learner.runs_compiled,
            )  # fmt: skip
    return True


def _follow(trainer: Trainer, folder: RunFolder, interruption: Callable[[], AbstractContextManager[Interruption]]) -> bool:
    """Trains in a rank after the first, which decides what is done; see `conduct`."""
    shared = SharedFolder(folder.path, trainer.ranks.number)
    while True:
        order, about = trainer.ranks.from_first()
        if order == RESUME:
            trainer.resume(shared)
        elif order == TRAIN:
            trainer.learner.keep(*about)
            break
        elif about is not None:
            raise TaacError(f"rank 0: {about}")
        else:
            return False
    with interruption() as stop:
        try:
            trainer.train(shared, stop=stop)
        except RankLost as error:
            raise Interrupted(_lost(error)) from error
        if trainer.interrupted:
            raise Interrupted(f"rank {trainer.ranks.number} stopped with the others at {trainer.env_steps} environment steps")
    return True


def _lost(error: RankLost) -> str:
    return f"{error}; resumable: the same command continues from the newest checkpoint"


def _begin(trainer: Trainer, loaded: Config, folder: RunFolder, operative: str, more: Mapping[str, Any]) -> None:
    about = {
        "method": loaded.bound("create_experiment.method", None),
        "seed": trainer.seed,
        "environment": trainer.environment.name,
        "device": str(trainer.agent.device),
        "products": trainer.learner.products,
        "compiled": trainer.agent.compiled,
        "load_from": trainer.begin(),
        **({} if trainer.parallel.alone else {"ranks": trainer.ranks.count}),
        **more,
    }
    folder.begin(operative, about, trainer.environment.info)


def _extend(
    trainer: Trainer, folder: RunFolder, operative: str, tell: Callable[[str], None], forget_replay: bool = False, by: str = ""
) -> None:
    extension.refuse_ratio(operative)
    decided = trainer.agent.compiled
    trainer.resume(folder, forget_replay=forget_replay)
    if decided != trainer.agent.compiled:
        tell("note: the shorter run was not compiled, so this one goes on uncompiled and is rounded differently from a new one")
    folder.extend(operative, trainer.env_steps, by)
    for name in extension.following_length(operative):
        tell(
            f"note: {name} follows the length of the run. It followed the shorter one until now, so this run differs from one "
            "that was begun with the new length"
        )


def _check_changes(trainer: Trainer, folder: RunFolder, operative: str) -> None:
    """Refuses changes of settings that cannot be made, before anything is read but the configuration."""
    if not (found := extension.changes(files.read_text(folder.config), operative)):
        raise TaacError(f"--resume_with changes nothing: the run in {folder.path} has these values already")
    _refuse_fixed(found, operative)
    price = getattr(trainer.agent.algorithm, "decision_price", None)
    if price is not None and price.target_rate is not None and any(name.endswith("Algorithm.decision_price") for name in found):
        raise TaacError(
            "--resume_with: decision_price is where the price that target_decision_rate learns began, and nothing would change: "
            "give another target_decision_rate"
        )
    td_loss = getattr(trainer.agent.algorithm, "td_loss", None)
    if td_loss is not None and 0 < td_loss.repeat_gamma < 1 and any(name.endswith("Loss.gamma") for name in found):
        raise TaacError(
            "--resume_with: gamma cannot change where actions are repeated: their rewards are stored as sums, discounted by the "
            "one before; nothing was changed"
        )
    if not trainer.parallel.alone:
        raise TaacError("--resume_with is for runs of one process: several ranks could not agree on what has changed")
    if folder.read_run().get("status") == "finished":
        raise TaacError(f"--resume_with: the run in {folder.path} is finished; nothing was changed. --extend makes it longer")
    if not folder.has_checkpoints():
        raise TaacError(f"--resume_with: {folder.path} has no checkpoint yet; begin the run again, in another folder")


def _refuse_fixed(found: Mapping[str, tuple[str, str]], operative: str) -> None:
    """Refuses changed settings, values before and after by name, of which one cannot change; names each that cannot."""
    shown = re.findall(r"@([\w./]+)", " ".join(text for name in _SHOWN for text in found.get(name, ())))
    fixed = [
        name
        for name, values in found.items()
        if name.rpartition(".")[0] not in shown
        and (extension.is_of_ratio(name, operative) or not _may_change(name, *values))
    ]
    if fixed := [f"{name} = {found[name][1]}, not {found[name][0]}" for name in fixed]:
        raise TaacError(
            "--resume_with changes numbers of the learner, optimizer, algorithm, losses, signals and explorer, and "
            f"{', '.join(_OF_LOOP)}. What was stored, counted or drawn so far depends on the rest: {'; '.join(fixed)}; "
            "nothing was changed. Train a new run, which may start from this one's networks (create_experiment.load_from)"
        )


def _may_change(name: str, before: str, after: str) -> bool:
    """Returns whether a run may change a setting where it stands.

    Numbers, and schedules in their place, of the learner and its optimizer, the algorithm, its losses, reward signals and
    explorers may change; and of the trainer what is about batches, evaluations, summaries and checkpoints. All else decides what
    has been stored, counted or drawn, such as the environment, networks, the buffer, the ratio of updates, seed and length.
    """
    constructor, _, parameter = name.rpartition(".")
    constructor = constructor.rpartition("/")[2]
    if f"{constructor}.{parameter}" in _OF_LOOP:
        return True
    schedules = all(_is(reference, Schedule) for reference in re.findall(r"@([\w./]+)", f"{before} {after}"))
    return schedules and parameter not in _IN_CHECKPOINTS and _is(constructor, object)


def _is(reference: str, kind: type) -> bool:
    """Returns whether a name is of a class of a kind that belongs to `_PLACES`, by itself or by a base."""
    configurable = gin_state.match(reference.rpartition("/")[2])
    found = configurable and configurable.wrapped
    return isinstance(found, type) and issubclass(found, kind) and any(c.__module__.startswith(_PLACES) for c in found.__mro__)


def _change(
    trainer: Trainer, folder: RunFolder, operative: str, tell: Callable[[str], None], forget_replay: bool = False, by: str = ""
) -> None:
    trainer.resume(folder, operative, forget_replay)
    folder.change(operative, trainer.env_steps, by)
    for line in history.describe_changes({"changed": folder.read_run()["changed"]})[-1:]:
        tell(f"note: {line}")


def _resume(
    trainer: Trainer, folder: RunFolder, operative: str, more: Mapping[str, Any], forget_replay: bool = False
) -> None:
    run, config = folder.read_run(), files.read_text(folder.config, files.MAX_CONFIG_BYTES)
    if config != operative:  # which was so when it was opened
        raise TaacError(f"{folder.config} was replaced while the run was loaded; nothing was changed")
    if trainer.env_steps <= extension.extended_at(run):  # the checkpoint is of the shorter run, which a hook may have ended
        trainer.hooks.stopped = None
    held = run.get("resumed")
    products = trainer.learner.products  # this machine may lack those of the run
    here = {"products": products, "device": str(trainer.agent.device), "compiled": trainer.agent.compiled}
    others = {name: value for name, value in here.items() if run.get(name, value) != value}
    entry = {"time": now(), "env_steps": trainer.env_steps, **others, **changed_versions(run)}
    if forget_replay or trainer.saver.frames is None:
        entry["forgot_replay"] = True
    if run.get("diverged") is not None:
        entry["diverged"] = run["diverged"]
    resumed = [*(held if isinstance(held, list) else []), entry]
    folder.update_run(
        status="running", products=products, resumed=resumed, stopped=None, diverged=None, error=None,
        callbacks=more.get("callbacks"),
    )  # fmt: skip




def headline(trainer: Trainer, loaded: Config, operative: str) -> list[str]:
    """Returns in two lines what decides most: where the settings are from, and the settings of `deciding`."""
    places = dict.fromkeys(b.where.rpartition(":")[0] for b in loaded.bindings.values() if ".gin:" in b.where)
    included = [("gin", f"{name}.gin") for name in shipped.INCLUDED]
    asked = [place for place in places if Path(place).parts[-2:] not in included]
    default = f"gin/tasks/{shipped.DEFAULT_TASK}.gin"
    asked = [f"{place} (no task file names this environment)" if place == default else place for place in asked]
    chosen = [b for b in loaded.bindings.values() if b.where.startswith("--") and b.where != "--task" and b.name != "method"]
    constant = trainer.update_ratio.constant
    told = layout.deciding(layout.parse_bindings(operative), None if constant is None else float(constant))
    return [
        f"settings: {', '.join(asked)}" + (f"; changed: {', '.join(b.parameter for b in chosen)}" if chosen else ""),
        "; ".join(f"{label}: {value}" for label, value in told.items()),
    ]


def hyper_parameters(trainer: Trainer, folder: RunFolder, loaded: Config) -> dict[str, Any]:
    """Returns the values for TensorBoard's hparams view, with the same names for every run."""
    return {
        "method": folder.read_run().get("method") or type(trainer.agent.algorithm).__name__,
        "environment": trainer.environment.name,
        "seed": trainer.seed,
        **loaded.task_macros(),
    }


def _train(trainer: Trainer, folder: RunFolder, interruption: Interruption, about: dict[str, Any], bar: Bar) -> None:
    try:
        with bar(trainer.num_env_steps, trainer.env_steps) as progress:
            trainer.train(folder, progress, about, interruption)
    except OSError as error:
        _mark(folder, status="failed", error=shortened(error))
        elsewhere = isinstance(error.filename, str) and folder.path.resolve() not in Path(error.filename).resolve().parents
        if error.errno not in durable.FULL or elsewhere:
            raise
        raise durable.refusal(error, folder.path, trainer.checkpoint_bytes(), folder.checkpoints.what_remains()) from error
    except RankLost as error:
        _mark(folder, status="interrupted")
        raise Interrupted(_lost(error)) from error
    except NotFiniteError as error:  # of the agent, or of a simulator that its actions have broken
        _mark(folder, status="diverged", diverged={"env_steps": trainer.env_steps, "error": shortened(error)})
        raise
    except TaacError as error:
        if interruption.signal is None:
            _mark(folder, status="failed", error=shortened(error))
            raise
        # The signal may also have ended the processes of the environments, which would cause this error.
        why = f"{interruption.signal.name}, and then: {error}"
    except Exception as error:  # of an algorithm or a hook of the user's own; the traceback shows where
        _mark(folder, status="failed", error=shortened(f"{type(error).__name__}: {error}"))
        raise
    else:
        if not trainer.interrupted:
            return
        signal = "a signal to another rank" if interruption.signal is None else interruption.signal.name
        why = f"{signal} at {trainer.env_steps} environment steps, "
        why += "a checkpoint is written" if trainer.env_steps else "before anything was learnt"
    folder.update_run(status="interrupted")
    raise Interrupted(f"{why}; resumable: the same command continues to the same end")


def _mark(folder: RunFolder, **changes: Any) -> None:
    """Records what ended a run. Ignores errors of its own, because the original error is the one to report."""
    with contextlib.suppress(TaacError, OSError):
        folder.update_run(**changes)
