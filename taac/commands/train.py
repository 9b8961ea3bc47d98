"""`taac train`: trains from gin files into a run folder, or goes on with the run that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taac.commands import flags

if TYPE_CHECKING:
    from taac.training.metrics import EpisodeSummary


def define_flags() -> None:
    flags.define_root_dir("Where the run goes: a new or empty folder, or one that holds the same run, unfinished.")
    flags.define_gin()


def run() -> None:
    root_dir, gin_files = flags.root_dir(), flags.gin_files()

    from taac.training import config, experiment
    from taac.training.run_folder import RunFolder, now

    loaded = config.load(gin_files, flags.FLAGS.gin_param)
    trainer = config.build(experiment.create_experiment)
    try:
        loaded.check_used()
        operative = config.operative_config()
        folder = RunFolder(root_dir)
        status = folder.open(operative)
        if status == "finished":
            print(
                f"{folder.path} holds this run already, finished; nothing to do. To train again, give another folder."
            )
            return
        with folder.lock():
            if status == "unfinished" and folder.checkpoint.exists():
                trainer.resume(folder)
                resumed = folder.read_run().get("resumed", [])
                folder.update_run(resumed=[*resumed, {"time": now(), "env_steps": trainer.env_steps}])
                print(f"resuming {folder.path} at {trainer.env_steps} environment steps")
            else:
                about = {
                    "method": next(
                        (Path(f).stem for f in reversed(gin_files) if Path(f).parent.name == "methods"), None
                    ),
                    "seed": trainer.seed,
                    "environment": trainer.environment.name,
                    "device": str(trainer.agent.device),
                    "products": trainer.learner.products,
                }
                folder.begin(operative, about)
                for line in trainer.agent.algorithm.describe():
                    print(line)
            with ProgressBar(trainer.num_env_steps, trainer.env_steps) as progress:
                trainer.train(folder, progress)
            updates = trainer.learner.num_updates
            folder.update_run(status="finished", end=now(), env_steps=trainer.env_steps, updates=updates)
    finally:
        trainer.close()
    final = trainer.evaluation
    assert final is not None
    print(
        f"{trainer.env_steps} environment steps, {trainer.learner.num_updates} updates, {trainer.seconds:.0f} s; "
        f"evaluation return {final.return_mean:.2f} +- {final.return_std:.2f}, "
        f"{100 * final.fraction_repeated:.0f}% of steps repeated; in {folder.path}"
    )


class ProgressBar:
    """Environment steps and updates a second, time left, last evaluation return, fraction of repeated steps."""

    def __init__(self, total: int, initial: int):
        import sys
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
