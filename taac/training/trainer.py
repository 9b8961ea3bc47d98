"""The off-policy training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin

from taac.acting.collecting import Collecting, Offline
from taac.acting.evaluation import Evaluator
from taac.acting.random_numbers import RandomNumbers, random_numbers_kept
from taac.demonstrations.replay import HalfDemonstrations
from taac.errors import EnvironmentFailed, NotFiniteError, TaacError
from taac.learning.learner import Learner
from taac.machine.processes import settled_heap
from taac.machine.ranks import ALONE, Ranks
from taac.ops.schedules import Schedule, Scheduled, Schedules, at_start, bounds
from taac.parallel.data_parallel import RESUME, DataParallel
from taac.replay import ReplayBuffer
from taac.runs import extension, files, layout
from taac.runs.frame_chunks import FrameChunks
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training.attributes import Attribute, Attributes
from taac.training.checks import check_batches, check_segments, check_sizes
from taac.training.compilation import compile_if_it_pays
from taac.training.data_parallel_files import SharedSaver
from taac.training.hooks import Hooks
from taac.training.reporting import Progress, Reporter, timed
from taac.training.saving import Part, Saver, Saving, save_evidence
from taac.training.update_ratio import Due, Intervals, UpdateRatio
from taac.training.warm_start import load_parts


@gin.configurable(denylist=["ranks", "load_from", "replay"])
class Trainer:
    """Collects, learns, evaluates, writes summaries and saves. Counts of steps are sums over all environments and ranks.

    Args:
        intervals: say when summaries, evaluations, checkpoints and the end are due.
        update_ratio: says how many gradient steps the environment steps earn.
        saving: says what is kept.
        segment_length: frames per segment, T.
        batch_size: segments per gradient step. The values of a schedule are rounded. A compiled agent recompiles its update
            for each size, so its schedule must be a `PiecewiseSchedule` in steps.
        hooks: functions called with the trainer, by the name of a point of the loop: `{'after_evaluation': @my_function}`;
            see `Hooks`.
        ranks: the processes that train this run together; see `DataParallel`.
        load_from: parts of other runs that a new run starts from; see `warm_start`.
        replay: what batches are sampled from; None: the replay buffer.

    Attributes:
        batch_size, own_batch_size: segments of the current batches, and those of them that this rank samples.
        loaded: the parts that `begin` loaded; None before.
        interrupted: whether `train` ended because it was told to, before the end of the run.
        compilation: whether updates are compiled and why, as a sentence.
        attributes: numbers that can be read and set during training; see `Attributes`.
    """

    def __init__(
        self,
        collector: Collecting,
        learner: Learner,
        replay_buffer: ReplayBuffer,
        intervals: Intervals,
        update_ratio: UpdateRatio,
        evaluator: Evaluator,
        saving: Saving,
        reporter: Reporter,
        segment_length: int = gin.REQUIRED,
        batch_size: int | Schedule = 256,
        hooks: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
        load_from: Sequence[str] = (),
        replay: ReplayBuffer | HalfDemonstrations | None = None,
    ):
        self.collector, self.learner, self.agent, self.replay_buffer = collector, learner, learner.agent, replay_buffer
        self.replay = replay = replay or replay_buffer
        self.intervals, self.update_ratio, self.evaluator = intervals, update_ratio, evaluator
        self.saving, self.reporter, self.ranks, self.load_from = saving, reporter, ranks, load_from
        self.environment, self.evaluation_environment = collector.environment, evaluator.environment
        self.num_env_steps, self.segment_length = intervals.num_env_steps, segment_length
        offline = isinstance(collector, Offline)
        first = None if offline else update_ratio.initial_collect_steps
        check_segments(segment_length, self.num_env_steps, first, self.environment, self.agent, replay_buffer, ranks)
        least_duration = 1 if offline else self.environment.durations[0]
        self.updates_expected = updates = update_ratio.updates_expected(self.num_env_steps, least_duration)
        self.compilation = compile_if_it_pays(learner, updates, batch_size)
        check_batches(batch_size, self.agent, replay, reporter.monitor, ranks)
        own_steps = 0 if offline else self.num_env_steps // (self.environment.num_envs * ranks.count * least_duration)
        replay_buffer.reserve(replay_buffer.added + own_steps * 11 // 10)  # an episode has one frame more than steps
        self.agent.algorithm.set_update_ratio(update_ratio.constant)
        self.batch_sizes = tuple(round(size) for size in bounds(batch_size))  # smallest and largest
        self.set_batch_size(at_start(batch_size))
        parameter = "Trainer.batch_size"
        self.scheduled = [Scheduled(parameter, batch_size, self.set_batch_size)] if isinstance(batch_size, Schedule) else []
        explorer = collector.explorer
        self.schedules = Schedules(self, update_ratio, learner, learner.cloning, explorer, self.agent, evaluator)
        self.schedules.check(self.num_env_steps, updates)
        in_force = Attribute(lambda: self.batch_size, self.set_batch_size, parameter, (replay.min_batch_size, float("inf")))
        self.attributes = Attributes(learner, explorer, self.schedules, in_force)
        self.hooks = Hooks(hooks or {})
        self.loaded: list[dict[str, Any]] | None = None
        self.interrupted = False
        self._stop: Callable[[], bool] = lambda: False
        frames = FrameChunks(replay_buffer) if saving.save_replay else None
        parts: dict[str, Part] = {  # in the order in which `Saver` restores them
            "environment": self.environment,  # first: it refuses other spaces
            "agent": self.agent,
            "learner": self.learner,
            **({"replay": replay} if saving.save_replay else {}),
            "update_ratio": self.update_ratio,
            "evaluator": self.evaluator,
            "reporter": self.reporter,
            "hooks": self.hooks,
            "attributes": self.attributes,
            "random": RandomNumbers(self.agent.device),
            "collector": self.collector,
        }
        self.saver = Saver(parts, frames) if ranks.count == 1 else SharedSaver(ranks, parts, frames)
        self.parallel = DataParallel(ranks, learner, collector, update_ratio, evaluator)
        self.hooks.check(self)

    @property
    def env_steps(self) -> int:
        """Environment steps so far, over all environments."""
        return self.collector.env_steps

    @property
    def seed(self) -> int:
        return self.evaluator.seed

    @property
    def stopped(self) -> str | None:
        """Why the run ends early; None if it does not."""
        return self.hooks.stopped

    @property
    def evaluation(self) -> EpisodeSummary | None:
        """Result of the last evaluation; None before the first."""
        return self.evaluator.summary

    # The loop --------------------------------------------------------------------------------------------------------

    @settled_heap()
    def train(
        self,
        folder: RunFolder,
        progress: Progress | None = None,
        hyper_parameters: Mapping[str, Any] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Trains to the end of the run from the current state. If `stop()` returns true, saves (unless at step 0) and returns.

        Args:
            folder: the run folder to write to.
            progress: called after each iteration.
            hyper_parameters: shown in TensorBoard's hparams view.
            stop: returns whether to stop; asked after each iteration, in evaluations and in restarts.
        """
        self._prepare(folder, stop)
        with self.reporter.reporting_to(folder, progress), self._saved_on_failure(folder):
            told_to_stop = self._start(folder, hyper_parameters)
            while not (told_to_stop or self._ended()):
                self._iteration_began = self.env_steps
                self.collect()
                self.learn()
                due = self._due()
                self.reporter.progress(self.evaluation)
                if due.summary:
                    self.summarize()
                if due.evaluation:
                    self.evaluate(folder)
                # Asked once an iteration: a later signal is for the next one.
                told_to_stop = self.parallel.stopping() or self.evaluator.unfinished
                if due.checkpoint or (told_to_stop and self.env_steps) or self.stopped:  # a run of 0 steps begins anew
                    self.save(folder)
                else:
                    self.saver.write_full_chunks(folder)
            self.interrupted = not self._ended()
            if not self.interrupted:
                self.reporter.finished()

    def _prepare(self, folder: RunFolder, stop: Callable[[], bool]) -> None:
        self._stop, self._iteration_began = stop, self.env_steps
        if self.ranks.first:  # the others keep what the first does
            folder.checkpoints.keep = self.saving.keep_checkpoints
        self.parallel.begin(stop)
        self.hooks.stopped = self.ranks.from_first(self.stopped)  # which `--extend` forgets in the first rank
        self.hooks.state_dict()  # fails early if a hook's state cannot be saved
        folder.trim_best(self.env_steps)

    def _start(self, folder: RunFolder, hyper_parameters: Mapping[str, Any] | None) -> bool:
        """Begins a new run, or finishes an iteration that broke off. Returns whether its evaluation was told to stop."""
        new = self.env_steps == 0
        if new:
            self.begin()
            self.reporter.beginning(hyper_parameters)
        self._follow_schedules()
        if new:
            self.learner.pretrain(self.batch_size, self.segment_length)
        initial = self.evaluator.initial and new and self.evaluation is None
        self.learn()  # updates earned by an iteration in which the environments failed
        if initial or self.evaluator.unfinished:
            self.evaluate(folder)
            if self._ended() or (self.env_steps and not self.evaluator.unfinished):  # or it would be made up for again
                self.save(folder)
        return self.evaluator.unfinished

    def _due(self) -> Due:
        """Calls the hooks after an iteration, and returns what is then due. A hook that ends the run asks for an evaluation."""
        self._call_hooks("after_iteration")
        due = self.intervals.due(self._iteration_began, self.env_steps)
        return due._replace(evaluation=due.evaluation or (self.stopped is not None and not self._stopped_here()))

    def stop_early(self, why: str) -> None:
        """Ends the run after this iteration, with an evaluation and a checkpoint. For hooks.

        The run is then finished, and run.json holds the reason, a line of text. Of several, the first counts.
        """
        self.hooks.stopped = self.hooks.stopped or why

    def _ended(self) -> bool:
        """Returns whether the run is at its end, or where a hook ends it, and has been evaluated there."""
        return (self.intervals.done(self.env_steps) or self._stopped_here()) and not self.evaluator.unfinished

    def _stopped_here(self) -> bool:
        """Returns whether a hook ends the run early and the agent has been evaluated at this step of training.

        An iteration of resets takes no step, so an evaluation after it would be the same as the one before.
        """
        return self.stopped is not None and 0 < self.env_steps == self.evaluator.evaluated_at

    def begin(self) -> list[dict[str, Any]]:
        """Loads the parts of other runs in `load_from`; returns where each came from. Refuses parts that do not exist or fit."""
        if self.loaded is None:
            buffer = self.replay_buffer if self.ranks.count == 1 else None
            self.loaded = load_parts(self.learner, self.environment, self.load_from, buffer)
        return self.loaded

    @timed("collecting")
    def collect(self) -> None:
        """Takes `unroll_length` steps in each environment; fewer if one fails and all are restarted."""
        self.hooks("before_collect", self)
        decisions, began = self.collector.decisions, self.env_steps
        with self.parallel.collecting():
            for _ in range(self.update_ratio.unroll_length):
                self._follow_schedules()
                env_steps = self.env_steps
                try:
                    transitions = self.collector.step()
                except EnvironmentFailed as failure:
                    self.collector.restart(failure, self._stop)
                    break
                self.update_ratio.add_transitions(transitions, env_steps)
        if began >= self.update_ratio.initial_collect_steps:
            self.agent.algorithm.after_collect(self.collector.decisions - decisions, self.env_steps - began)
        self.hooks("after_collect", self)

    @timed("updating")
    def learn(self) -> None:
        """Takes the gradient steps that the environment steps so far have earned."""
        owed = self.update_ratio.updates_earned(self.env_steps) - self.learner.num_updates
        for _ in range(0 if self.update_ratio.filling(self.env_steps) else owed):
            self._follow_schedules()
            self.hooks("before_update", self)
            progress = self.env_steps / self.num_env_steps
            self.learner.learn_from(self.replay, self.own_batch_size, self.segment_length, progress)
            self.hooks("after_update", self)
        self._follow_schedules()  # evaluations and checkpoints then see the values of the current counts

    def summarize(self) -> None:
        updates, earning = self.learner.num_updates, self.env_steps - self.update_ratio.initial_collect_steps
        values: dict[str, Any] = {"count/update_ratio": updates / max(1, earning), **self.schedules.summaries()}
        values |= self.collector.summaries()
        if self.reporter.monitor is not None and updates and not self.update_ratio.filling(self.env_steps):
            kept = [(buffer, buffer.clone()) for buffer in self.agent.buffers()]
            with random_numbers_kept(self.agent.device):
                values |= self.reporter.monitor(self.agent, self.replay, self.own_batch_size, self.segment_length)
            for buffer, before in kept:
                buffer.copy_(before)
        self.parallel.check_identical()
        self.parallel.gather_episodes()
        self.reporter.training(values)

    @timed("evaluating")
    def evaluate(self, folder: RunFolder) -> None:
        """Evaluates the agent, reports the result, and saves the agent if it is the best so far.

        If the run is told to stop meanwhile, the evaluation is done when the run goes on.
        """
        if self.evaluator.prepared_at != self.env_steps:  # once, if it is told to stop meanwhile
            self.hooks("before_evaluation", self)
            self.evaluator.prepared_at = self.env_steps
        cloned = self.env_steps == 0 and self.learner.cloning is not None  # which no checkpoint holds yet
        stop = (lambda: False) if cloned else self._stop
        due = layout.due_step(self.env_steps, self.intervals.evaluation, self.num_env_steps)
        found = self.parallel.evaluated(lambda: self.evaluator.run(self.env_steps, stop, due))
        if found is None:
            return
        self.reporter.evaluation(found)
        if self.saving.save_best and found.is_best:
            counts = {"num_updates": self.learner.num_updates}
            state = {name: self.saver.parts[name].state_dict() for name in ("environment", "agent", "attributes")}
            state |= {"evaluation": found.summary._asdict(), "learner": counts}
            folder.save_best(self.env_steps, state)
        self._call_hooks("after_evaluation")

    @timed("saving")
    def save(self, folder: RunFolder) -> None:
        """Writes a checkpoint. It includes the running episodes, so saving changes nothing in the run."""
        self.reporter.flush()
        self.hooks("before_checkpoint", self)
        self.learner.guard.check_parameters()
        self.parallel.check_identical()
        self.saver.save(folder, self.env_steps)
        self._call_hooks("after_checkpoint")

    def resume(self, folder: RunFolder, config: str | None = None, forget_replay: bool = False) -> None:
        """Resumes from the folder's newest undamaged checkpoint. Warns of damaged ones.

        `config` is the configuration to go on with, if it is another than the folder's. With `forget_replay` the replay buffer is
        left behind, and filled again, as without `save_replay`.

        Raises:
            TaacError: no checkpoint is undamaged, it belongs to a run of another configuration, or its counts fit no run.
        """
        self.parallel.announce(RESUME)
        built = self.attributes.as_built()
        held = self.saver.restore(folder, config, ("replay",) if forget_replay else ())
        if self.ranks.first:  # several go on with the same settings
            self.attributes.renew(built, extension.changes(held, config or files.read_text(folder.config)))
        for batch_size in self.scheduled:  # the run may have been compiled before its batches followed a schedule
            check_sizes(batch_size.schedule, self.agent)
        updates, earned = self.learner.num_updates, self.update_ratio.updates_earned(self.env_steps)
        most = bounds(self.update_ratio.schedule or float(self.update_ratio.ratio))[1]
        if updates < 0 or earned - updates > self.num_env_steps * max(1.0, most):  # without end
            raise TaacError(
                f"the checkpoint in {folder.path} counts {updates} updates, but its environment steps earn {earned}: no run "
                "writes that. Remove its checkpoints/ to begin the run again"
            )
        if self.saver.frames is None or forget_replay:
            self.update_ratio.refill(self.env_steps)

    def close(self) -> None:
        """Closes the environments."""
        self.collector.close()
        self.environment.close()
        self.evaluator.environment.close()

    # Its parts -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _saved_on_failure(self, folder: RunFolder) -> Iterator[None]:
        """On failure, saves what is needed to explain a number that was not finite, or to resume after an environment failed."""
        try:
            yield
        except NotFiniteError as error:
            if self.ranks.count > 1 and not error.evidence:
                raise  # it was found in another rank, which saves it
            evidence = save_evidence(folder, self.env_steps, error)
            raise type(error)(f"{error}. {evidence}", error.evidence) from error
        except EnvironmentFailed as failure:
            if self.parallel.stopping():
                raise  # the stop signal itself may have ended the environments' processes
            raise EnvironmentFailed(f"{failure}. {self._save_after_failure(folder)}") from failure

    def _save_after_failure(self, folder: RunFolder) -> str:
        """Saves after the environments have failed for good; returns a sentence on how to resume.

        Ends the episodes of training, unless an evaluation failed.
        """
        if self.env_steps == 0:
            return "Nothing had been learnt yet"
        how = "with the evaluation" if self.evaluator.unfinished else "with new episodes"
        if not self.evaluator.unfinished:
            self.collector.give_up()
            due = self.intervals.due(self._iteration_began, self.env_steps)
            # Done when the run goes on, unless it was done before the failure.
            self.evaluator.unfinished = due.evaluation and self.evaluator.evaluated_at != self.env_steps
        self.save(folder)
        return (
            f"A checkpoint was written at {self.env_steps} environment steps: once the environment works again, the same "
            f"command resumes there {how}"
        )

    def checkpoint_bytes(self) -> int:
        """Estimates the bytes of the next checkpoint: changed frames, parameters, Adam's two moments."""
        frames = self.saver.frames.stale_bytes() if self.saver.frames else 0
        return frames + 3 * sum(p.nbytes for p in self.agent.state_dict().values())

    def set_batch_size(self, size: float) -> None:
        """Sets the number of segments per batch, rounded. Refuses one that the ranks cannot share equally."""
        self.own_batch_size = self.ranks.share("Trainer.batch_size", round(size))
        self.batch_size = round(size)

    def _call_hooks(self, point: str) -> None:
        """Calls the hooks of a point at which all ranks then agree whether a hook, of any point so far, ends the run early."""
        self.hooks(point, self)
        if self.ranks.count > 1 and self.hooks.any:
            self.hooks.stopped = self.parallel.agreed(self.stopped)

    def _follow_schedules(self) -> None:
        self.schedules.move(self.env_steps, self.learner.num_updates)
