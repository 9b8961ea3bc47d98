"""Reports of a training run: TensorBoard, evaluations.csv, the progress bar, warnings."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import gin
import torch
import torch.nn as nn

from taac.acting.collecting import Collecting
from taac.acting.evaluation import Evaluation
from taac.acting.metrics import summarize
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.runs import files
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import warn_user
from taac.training.loggers import Logger, Loggers
from taac.training.summaries import SummaryWriter


class Progress(Protocol):
    """Called after each iteration with the progress of training."""

    def __call__(self, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float) -> None: ...


class Monitor(Protocol):
    """Computes further scalars by tag when a summary is due. It must not change anything in the run.

    It may draw random numbers and batches, and call `agent.prepare`: random numbers and buffers are restored after it.
    It may also have `check(replay)`, which raises `TaacError` if it does not support batches of this replay. Tags of its own,
    which are not in docs/summaries.md, need a meaning: `summary_tags()` returns it by tag.
    """

    def __call__(self, agent: Agent, replay: Any, batch_size: int, length: int) -> dict[str, torch.Tensor]: ...


@gin.configurable
class SqilMonitor:
    """Compares the two halves of a batch, the demonstrations and the agent's own segments.

    The cosine similarity is between the two gradients `d loss / d phi` over all the actor's parameters. If it is negative, an
    update on one half increases the other half's loss. TD errors are squared and summed over critics, as in the loss.
    """

    @staticmethod
    def check(replay: Any) -> None:
        """Refuses a replay whose batches have no two halves; see `HalfDemonstrations.halves`."""
        if not hasattr(replay, "halves"):
            raise TaacError("SqilMonitor needs batches of two halves: bind create_experiment.demonstrations_ctor = @SqilReplay")

    def __call__(self, agent: Agent, replay: Any, batch_size: int, length: int) -> dict[str, torch.Tensor]:
        """Returns scalars computed on a new batch."""
        demonstrated, own = replay.halves(batch_size, length)
        first, gradient = _half(agent, demonstrated)
        second, other = _half(agent, own.experience)
        tags = {"td_error": "loss/critic", "actor_loss": "loss/actor", "entropy": "policy/entropy"}  # TD3's policy has no entropy
        halves = {"demonstrations": first, "agent": second}
        told = {f"sqil/{name}_{half}": x[tag] for name, tag in tags.items() for half, x in halves.items() if tag in x}
        return {"sqil/gradient_cosine": nn.functional.cosine_similarity(gradient, other, dim=0), **told}


def _half(agent: Agent, experience: Experience) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the scalars of an update on one half, and the gradient of its loss with respect to the actor's parameters."""
    algorithm = agent.algorithm
    experience = agent.prepare(experience)
    loss_info = algorithm.calc_loss(experience, algorithm.train_step(experience))
    gradients = torch.autograd.grad(loss_info.loss.mean(), algorithm.parameter_groups()["actor"])
    return loss_info.extra, torch.cat([gradient.flatten() for gradient in gradients])


def timed(activity: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a method of a trainer, whose reporter then adds up the seconds that it takes."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def measured(trainer: Any, *args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(trainer, *args, **named)
            finally:
                spent = trainer.reporter.spent
                spent[activity] = spent.get(activity, 0.0) + time.perf_counter() - began

        return measured

    return decorate


@gin.configurable(denylist=["collector", "learner"])
class Reporter:
    """Writes reports of training into a run folder.

    Args:
        collector, learner: the parts to report on.
        loggers: receive the scalar summaries besides TensorBoard; see `loggers`.
        monitor: adds scalars to the summaries of training; see `Monitor`.

    Attributes:
        seconds: duration of training as of the last report, earlier processes of the run included.
        spent: seconds by activity since the last summary.
    """

    def __init__(
        self, collector: Collecting, learner: Learner, loggers: Sequence[Logger] | Logger = (), monitor: Monitor | None = None
    ):
        self._collector, self._learner, self._loggers = collector, learner, Loggers(loggers)
        self.monitor = monitor
        self._tags: dict[str, str] = getattr(monitor, "summary_tags", dict)()
        self.seconds, self.spent = 0.0, dict[str, float]()
        self._clock = time.perf_counter()
        self._marks = (0, 0, 0.0)  # environment steps, updates and seconds at the last summary
        self._open: SummaryWriter | None = None

    @contextlib.contextmanager
    def reporting_to(self, folder: RunFolder, progress: Progress | None) -> Iterator[None]:
        """Opens a new event file in the folder and closes it on exit. Reports inside the context go there."""
        env_steps = self._collector.env_steps
        self._folder, self._progress, self._finished = folder, progress, False
        self._loggers.begin(folder.path, env_steps)  # before the event file is opened, which some services follow
        try:
            self._open = SummaryWriter(
                folder.path,
                purge_step=env_steps + 1 if env_steps else 0,  # hides what an earlier process wrote and this one repeats
                tags={**self._learner.agent.algorithm.summary_tags(), **self._tags},
                also=self._loggers.scalars,
            )
            self._clock = time.perf_counter()
            self._marks = (env_steps, self._learner.num_updates, self.seconds)
            yield
        finally:
            self._loggers.end(self._finished)
            if self._open is not None:
                self._open.close()
            self._open = None

    @property
    def _writer(self) -> SummaryWriter:
        assert self._open is not None, "reports need `reporting_to`"
        return self._open

    def beginning(self, hyper_parameters: Mapping[str, Any] | None) -> None:
        """Reports the configuration of a new run, and its entry in TensorBoard's hparams view."""
        self._writer.text("config", "    " + files.read_text(self._folder.config).replace("\n", "\n    "))
        if hyper_parameters:
            self._writer.hyper_parameters(hyper_parameters)

    def progress(self, evaluation: EpisodeSummary | None) -> None:
        """Reports the progress of training; `evaluation` is the summary of the last evaluation."""
        if self._progress is not None:
            collector = self._collector
            self._progress(collector.env_steps, self._learner.num_updates, evaluation, collector.fraction_repeated)

    def training(self, more: Mapping[str, float | torch.Tensor]) -> None:
        """Reports what happened since the last summary, and `more` scalars by tag. Warns if training seems to diverge."""
        collector, learner, writer = self._collector, self._learner, self._writer
        env_steps, updates, seconds = collector.env_steps, learner.num_updates, self.elapsed()
        steps_then, updates_then, seconds_then = self._marks
        rates: dict[str, Any] = {
            "time/env_steps_per_second": (env_steps - steps_then) / (seconds - seconds_then),
            "time/updates_per_second": (updates - updates_then) / (seconds - seconds_then),
        }
        counts = {
            "count/updates": updates, "count/decisions": collector.decisions, "count/episodes": collector.episodes,
        }  # fmt: skip
        spent = {f"time/{activity}": seconds for activity, seconds in self.spent.items()}
        spent["time/sampling"] = learner.pop_seconds_sampling()
        self.spent.clear()
        writer.scalars({**learner.summary(), **rates, **spent, **counts, **more}, env_steps)
        for warning in learner.growth.warnings(learner.losses, learner.agent.algorithm.bonus_share):
            warn_user(f"warning, at {env_steps} environment steps: {warning}")
            writer.text("warning", warning, env_steps)
        episodes, signal_returns = collector.pop_episodes()
        if episodes:
            writer.episodes("rollout", summarize(episodes), env_steps)
        writer.histograms(learner.histograms(), env_steps)
        for name in signal_returns[0] if signal_returns else ():
            mean = sum(returns[name] for returns in signal_returns) / len(signal_returns)
            writer.scalars({f"signal/{name}_return": mean}, env_steps)
        self._marks = (env_steps, updates, seconds)

    def evaluation(self, found: Evaluation) -> None:
        """Reports an evaluation: a row of evaluations.csv, scalars, and its video if it was filmed."""
        env_steps, updates, decisions = self._collector.env_steps, self._learner.num_updates, self._collector.decisions
        self._folder.add_evaluation(env_steps, updates, decisions, self.elapsed(), found.summary)
        self._writer.episodes("evaluation", found.summary, env_steps)
        if found.video is not None:
            self._writer.gif("evaluation/video", *found.video, env_steps)
        self._writer.flush()

    def flush(self) -> None:
        """Flushes the event file to the disk, if one is open. Call it before a checkpoint that counts on it."""
        if self._open is not None:
            self._open.flush()

    def finished(self) -> None:
        self._finished = True
        self._writer.finished(self._collector.env_steps)

    def elapsed(self) -> float:
        """Returns the seconds of training so far, and stores them in `seconds`."""
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        return self.seconds

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = float(state["seconds"])
