"""The off-policy training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, Protocol

import gin
import numpy as np
import torch

from taac.acting.action_log import ActionLog
from taac.acting.evaluation import evaluate
from taac.acting.explorers import Explorer
from taac.acting.metrics import Episode, EpisodeRecorder, summarize
from taac.acting.rollout import Rollout
from taac.algorithms.agent import Agent
from taac.data_structures import LAST, AlgStep, Experience, Nest, TimeStep
from taac.demonstrations.replay import SqilReplay
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import EnvironmentFailed, NotFiniteError, TaacError
from taac.learning.learner import Learner
from taac.machine.processes import settled_heap
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds
from taac.pictures.video import EpisodeVideo
from taac.replay import ReplayBuffer
from taac.runs import checkpoint, files, inspection
from taac.runs.files import Damaged
from taac.runs.frame_chunks import FrameChunks
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training import trainer_state
from taac.training.attributes import Attributes
from taac.training.hooks import Hooks
from taac.training.schedules import Schedules
from taac.training.summaries import SummaryWriter
from taac.training.warm_start import load_parts


class Progress(Protocol):
    """Is told how far training is."""

    def __call__(self, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float) -> None: ...


class Monitor(Protocol):
    """Looks at what is being learnt when a summary is due, and leaves everything as it was; gives scalars by tag."""

    def __call__(
        self, agent: Agent, replay: ReplayBuffer | SqilReplay, batch_size: int, length: int
    ) -> dict[str, torch.Tensor]: ...


@gin.configurable
class Trainer:
    """Collects, learns, evaluates, summarises and saves. All counts are transitions over all environments.

    Args:
        environment, evaluation_environment: to collect in, and to evaluate in.
        learner: takes the gradient steps; holds the agent.
        replay_buffer: keeps the frames.
        seed: environments' seeds are derived from it.
        num_env_steps: training ends when so many environment steps have been taken.
        initial_collect_steps: environment steps before the first update.
        uniform_initial_collect: collect those with uniformly random actions, instead of with the untrained policy.
        explorer: may replace the policy's actions while collecting, after the initial collection; see `explorers`.
        unroll_length, updates_per_iteration: an iteration takes `unroll_length` steps in each environment, then
            `updates_per_iteration` gradient steps. The ratio of updates to environment steps that follows is held exactly:
            a reset, which is no environment step, earns no update.
        updates_per_env_step: that ratio itself, above or below 1, instead of `updates_per_iteration`; what an iteration's
            steps earn is then taken at its end. None: as above. Of a schedule in environment steps, these earn its integral;
            steps that earn nothing, because the buffer has to be filled again, delay the schedule.
        update_clock: what earns updates. "env_steps": environment steps, as above; an action that is repeated k times inside the
            environment earns what k steps earn. "transitions": transitions of the replay buffer, so that a repeated action
            earns `updates_per_iteration / (unroll_length * num_envs)`, whatever its k, as published for SAC-Nrep and SAC-Krep.
        batch_size: segments a gradient step; of a schedule, rounded to the nearest. A compiled agent compiles its update
            anew for each size, so that its schedule must be a `PiecewiseSchedule` in steps.
        segment_length: frames a segment, T.
        evaluation_interval, evaluation_episodes: how often, in environment steps, and how many greedy episodes.
        evaluation_epsilon: probability with which each choice is sampled in evaluation instead of taking the mode.
        max_evaluation_steps: an evaluation that takes more steps than this in each environment stops the run: its episodes
            may have no end.
        summary_interval: environment steps between summaries of training.
        monitor: adds to those summaries; see `SqilMonitor`.
        checkpoint_interval: environment steps between checkpoints. A checkpoint changes nothing in the run.
        keep_checkpoints: how many are kept, the newest; 1 leaves none to go on from if it is damaged.
        save_best: keeps the agent as it was at the evaluation with the greatest return, in the folder `best` of the run.
        hooks: functions called with the trainer, by the name of a point of the loop: `{'after_evaluation': @my_function}`; see
            `Hooks`.
        save_replay: checkpoints hold the replay buffer. Without it a resumed run is another run: it takes
            `initial_collect_steps` steps to fill the buffer again before updates go on.

    Attributes:
        load_from: parts of other runs that a new run starts from; see `warm_start`.
        loaded: what `begin` took from them.
        attributes: numbers that may be read and set while it trains; see `Attributes`.
    """

    explorer_state: Nest  # None until the explorer has acted in these episodes

    def __init__(
        self,
        environment: VectorEnvironment,
        evaluation_environment: VectorEnvironment,
        learner: Learner,
        replay_buffer: ReplayBuffer | SqilReplay,
        seed: int,
        num_env_steps: int = gin.REQUIRED,
        segment_length: int = gin.REQUIRED,
        initial_collect_steps: int = 10_000,
        uniform_initial_collect: bool = True,
        explorer: Explorer | None = None,
        unroll_length: int = 1,
        updates_per_iteration: int = 1,
        updates_per_env_step: float | Schedule | None = None,
        update_clock: Literal["env_steps", "transitions"] = "env_steps",
        batch_size: int | Schedule = 256,
        evaluation_interval: int = 2_500,
        evaluation_episodes: int = 10,
        evaluation_epsilon: float = 0.0,
        max_evaluation_steps: int = 1_000_000,
        summary_interval: int = 1_000,
        monitor: Monitor | None = None,
        checkpoint_interval: int = 10_000,
        keep_checkpoints: int = 2,
        save_best: bool = True,
        save_replay: bool = True,
        hooks: Mapping[str, Any] | None = None,
    ):
        at_least_one = {
            "num_env_steps": num_env_steps, "unroll_length": unroll_length, "batch_size": bounds(batch_size)[0],
            "updates_per_iteration": updates_per_iteration, "evaluation_interval": evaluation_interval,
            "evaluation_episodes": evaluation_episodes, "summary_interval": summary_interval,
            "checkpoint_interval": checkpoint_interval, "max_evaluation_steps": max_evaluation_steps,
            "keep_checkpoints": keep_checkpoints,
        }  # fmt: skip
        for name, value in at_least_one.items():
            if value < 1:
                raise TaacError(f"Trainer.{name} must be 1 or more, got {value}")
        shortest = learner.agent.algorithm.min_segment_length
        if segment_length < shortest:
            raise TaacError(
                f"Trainer.segment_length must be {shortest} or more frames ({learner.agent.algorithm.min_segment_reason}), "
                f"got {segment_length}"
            )
        if initial_collect_steps < segment_length * environment.num_envs:
            raise TaacError(
                f"Trainer.initial_collect_steps must be at least segment_length x num_envs = "
                f"{segment_length * environment.num_envs}, so that there is a segment to sample; "
                f"got {initial_collect_steps}"
            )
        if unroll_length * environment.num_envs > num_env_steps:
            raise TaacError(
                f"Trainer.unroll_length {unroll_length} x num_envs {environment.num_envs} is above Trainer.num_env_steps "
                f"{num_env_steps}: the first iteration would be longer than the run, and no update would be due"
            )
        if num_env_steps <= initial_collect_steps:
            raise TaacError(
                f"Trainer.num_env_steps {num_env_steps} must be above Trainer.initial_collect_steps "
                f"{initial_collect_steps}: there would be no update"
            )
        if replay_buffer.length < segment_length:
            raise TaacError(
                f"ReplayBuffer.length {replay_buffer.length} is below Trainer.segment_length {segment_length}"
            )
        if isinstance(batch_size, Schedule) and learner.agent.compiled and not batch_size.in_steps:
            raise TaacError(
                f"create_agent.compile compiles the update anew for each batch size, and Trainer.batch_size goes through many "
                f"({batch_size}): bind a PiecewiseSchedule of few sizes, without interpolate, or create_agent.compile = False"
            )
        if isinstance(updates_per_env_step, Schedule) and updates_per_env_step.unit != "env_steps":
            raise TaacError(
                f"Trainer.updates_per_env_step can follow a schedule in environment steps alone, which is what earns updates, "
                f"got one in updates: {updates_per_env_step}"
            )
        if updates_per_env_step is not None:
            least, most = bounds(updates_per_env_step)
            if not (least >= 0 and 0 < most < float("inf")):
                raise TaacError(f"Trainer.updates_per_env_step must be above 0, or None, got {updates_per_env_step}")
        if update_clock not in ("env_steps", "transitions"):
            raise TaacError(f"Trainer.update_clock must be 'env_steps' or 'transitions', got '{update_clock}'")
        if update_clock == "transitions" and updates_per_env_step is not None:
            raise TaacError(
                f"Trainer.updates_per_env_step {updates_per_env_step} is a ratio to environment steps, but "
                "Trainer.update_clock is 'transitions': give updates_per_iteration and unroll_length instead"
            )
        if not 0 <= evaluation_epsilon <= 1:
            raise TaacError(f"Trainer.evaluation_epsilon must be in [0, 1], got {evaluation_epsilon}")
        self.environment, self.evaluation_environment = environment, evaluation_environment
        self.learner, self.agent, self.replay_buffer = learner, learner.agent, replay_buffer
        self.seed = seed
        self.num_env_steps, self.segment_length = num_env_steps, segment_length
        self.initial_collect_steps, self.uniform_initial_collect = initial_collect_steps, uniform_initial_collect
        self.explorer = explorer
        self.unroll_length, self.update_clock = unroll_length, update_clock
        self.scheduled_ratio = updates_per_env_step if isinstance(updates_per_env_step, Schedule) else None
        self.update_ratio = Fraction(updates_per_iteration, unroll_length * environment.num_envs)
        if updates_per_env_step is not None:
            self._set_update_ratio(at_start(updates_per_env_step))
            if self.updates_due(num_env_steps) < 1:
                raise TaacError(
                    f"Trainer.updates_per_env_step {updates_per_env_step} gives no update in the "
                    f"{num_env_steps - initial_collect_steps} environment steps after the initial collection"
                )
        stays = self.scheduled_ratio is None and update_clock == "env_steps"
        self.agent.algorithm.set_update_ratio(self.update_ratio if stays else None)
        self.evaluation_interval, self.evaluation_episodes = evaluation_interval, evaluation_episodes
        self.evaluation_epsilon, self.max_evaluation_steps = evaluation_epsilon, max_evaluation_steps
        self.summary_interval, self.monitor = summary_interval, monitor
        self.checkpoint_interval, self.keep_checkpoints, self.save_best = (
            checkpoint_interval,
            keep_checkpoints,
            save_best,
        )
        self.hooks, self.attributes = Hooks(hooks or {}), Attributes(self)
        self.batch_sizes = tuple(round(size) for size in bounds(batch_size))  # the least and the greatest
        self.set_batch_size(at_start(batch_size))
        own = (
            ("batch_size", batch_size, self.set_batch_size),
            ("updates_per_env_step", updates_per_env_step, self._set_update_ratio),
        )
        self.scheduled = [Scheduled(f"Trainer.{n}", v, setter) for n, v, setter in own if isinstance(v, Schedule)]
        self.schedules = Schedules(self, learner, learner.cloning, explorer, self.agent)
        self.schedules.check(num_env_steps, self.updates_due(num_env_steps))

        self.rollout = Rollout(environment, self.agent)
        self.env_steps = self.decisions = self.episodes = self.num_restarts = 0
        self.seconds = 0.0
        self._clock = time.perf_counter()
        self.evaluation: EpisodeSummary | None = None
        self.best_return: float | None = None  # of the evaluations so far
        self.load_from: Sequence[str] = ()
        self.loaded: list[dict[str, Any]] | None = None
        self.earning_transitions = 0  # taken since there has been enough in the buffer to learn from
        self.earns_from = initial_collect_steps  # environment steps from which on transitions count among these
        self.unearned_steps = 0  # environment steps that earned no updates, because the buffer had to be filled again
        self.recent: list[Episode] = []  # ended since the last summary
        self.signal_returns: list[dict[str, float]] = []  # of the same episodes, by signal; with diagnostics
        self.evaluation_due = False  # one has begun, and not ended yet
        self.save_replay = save_replay
        self._stop: Callable[[], bool] = lambda: False
        ring = replay_buffer.agents if isinstance(replay_buffer, SqilReplay) else replay_buffer
        self.frame_chunks = FrameChunks(ring) if save_replay else None
        self.start_episodes()

    def begin(self) -> list[dict[str, Any]]:
        """Starts a new run from the parts of other runs in `load_from`; tells where each came from.

        Raises:
            TaacError: one is not there, or does not fit.
        """
        if self.loaded is None:
            self.loaded = load_parts(self.agent, self.load_from)
        return self.loaded

    # The loop --------------------------------------------------------------------------------------------------------

    @settled_heap()
    def train(
        self,
        folder: RunFolder,
        progress: Progress | None = None,
        hyper_parameters: Mapping[str, Any] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Trains until `num_env_steps`, from wherever this trainer stands; when told to stop, saves and returns.

        `hyper_parameters` are for TensorBoard's hparams view.
        """
        self._stop, folder.checkpoints.keep = stop, self.keep_checkpoints
        self.hooks.state_dict()  # refuses what could not be saved
        folder.trim_best(self.env_steps)
        writer = SummaryWriter(
            folder.path,
            purge_step=self.env_steps + 1 if self.env_steps else 0,
            tags=self.agent.algorithm.summary_tags(),
        )
        if self.env_steps == 0:
            self.begin()
            writer.text("config", "    " + files.read_text(folder.config).replace("\n", "\n    "))
            if hyper_parameters:
                writer.hyper_parameters(hyper_parameters)
        self._clock, self._marks = time.perf_counter(), (self.env_steps, self.learner.num_updates, self.seconds)
        self._follow_schedules()
        try:
            if self.env_steps == 0:
                self.learner.pretrain(self.batch_size, self.segment_length)
            if self.evaluation_due:  # it failed when this run was here before
                self._evaluate(folder, writer)
            while self.env_steps < self.num_env_steps:
                before = self.env_steps
                self.hooks("before_collect", self)
                self.collect()
                self.hooks("after_collect", self)
                self.learn()
                if progress is not None:
                    progress(self.env_steps, self.learner.num_updates, self.evaluation, self._fraction_repeated())
                if self._passed(self.summary_interval, before):
                    self._summarize(writer)
                if self._passed(self.evaluation_interval, before) or self._done():
                    self._evaluate(folder, writer)
                scheduled = self._passed(self.checkpoint_interval, before) or self._done()
                if scheduled or stop():
                    writer.flush()
                    self.save(folder, scheduled)
                elif self.frame_chunks is not None and self.frame_chunks.moved_on():
                    folder.checkpoints.follow(self.frame_chunks)
                if stop():
                    break
            if self._done():
                writer.finished(self.env_steps)
        except NotFiniteError as error:
            raise type(error)(f"{error}. {self._inspectable(folder, error)}", error.evidence) from error
        except EnvironmentFailed as failure:
            if stop():
                raise  # the signal that said so may have ended their processes: they did nothing wrong
            raise EnvironmentFailed(f"{failure}. {self._save_after(folder, writer)}") from failure
        finally:
            writer.close()

    def collect(self) -> None:
        """Takes `unroll_length` steps in each environment."""
        for _ in range(self.unroll_length):
            self._follow_schedules()
            last = self.rollout.time_step.step_type.cpu().numpy() == LAST
            uniform = self.uniform_initial_collect and self.env_steps < self.initial_collect_steps
            try:
                time_step, alg_step = self.rollout.step(self.agent.random_step if uniform else self._explore)
            except EnvironmentFailed as failure:
                self.restart(failure)
                return
            self.replay_buffer.add(Experience(time_step, alg_step.info))
            duration = self.rollout.time_step.duration
            ended = self.recorder.add(time_step, alg_step, self.rollout.raw_reward, duration)
            if self.env_steps >= self.earns_from:
                self.earning_transitions += self.recorder.transitions
            self.env_steps += self.recorder.steps
            self.decisions += self.recorder.decisions
            self.episodes += len(ended)
            self.recent += [episode for _, episode in ended]
            if self.learner.diagnostics.on and self.agent.signals:
                self.signal_returns += [r for index, _ in ended if (r := self._signal_returns(index)) is not None]
            self.actions.append(alg_step.output, last)

    def _signal_returns(self, index: int) -> dict[str, float] | None:
        """What each reward signal gave in the episode that just ended, to all agents together; None if its frames are gone."""
        frames = self.replay_buffer.newest_episode(index)
        if frames is None:
            return None
        seen = self.agent.prepare_observations(frames).time_step
        return {signal.name: signal.total(seen).sum().item() for signal in self.agent.signals}

    def restart(self, failure: EnvironmentFailed) -> None:
        """Goes on after an environment has failed: ends all running episodes as truncations, and begins new ones.

        An episode ends with the last frame that was seen, which becomes its LAST. The action that was taken there led nowhere
        and is ignored, as all actions at LAST are: no frame is made up, and the step does not count.

        Raises:
            EnvironmentFailed: the environments cannot be restarted, or have been too often.
        """
        while True:
            if self._stop():
                raise failure
            self.environment.restart(failure)
            if not self._cut_off:
                self._cut()
            self.num_restarts += 1
            checkpoint.tell(f"{failure}; restarted: all running episodes are cut off, and new ones begin")
            try:
                self.start_episodes()
                return
            except EnvironmentFailed as again:
                failure = again

    def _explore(self, time_step: TimeStep, state: Nest) -> AlgStep:
        alg_step = self.agent.rollout_step(time_step, state)
        if self.explorer is not None:
            if self.explorer_state is None:
                self.explorer_state = self.explorer.initial_state(alg_step.output)
            alg_step, self.explorer_state = self.explorer.step(
                time_step, alg_step, self.explorer_state, self.env_steps,
                lambda: self.agent.unobserved_random_step(time_step, state).output,
            )  # fmt: skip
        return alg_step

    def learn(self) -> None:
        """Takes the gradient steps that the environment steps so far have earned."""
        for _ in range(self.updates_earned() - self.learner.num_updates):
            self._follow_schedules()
            self.hooks("before_update", self)
            progress = self.env_steps / self.num_env_steps
            self.learner.learn_from(self.replay_buffer, self.batch_size, self.segment_length, progress)
            self.hooks("after_update", self)
        self._follow_schedules()  # what comes next, as an evaluation, is as of the counts that are saved

    def updates_earned(self) -> int:
        """Gradient steps due by now."""
        if self.update_clock == "transitions":
            return int(self.earning_transitions * self.update_ratio)
        return self.updates_due(self.env_steps - self.unearned_steps)

    def updates_due(self, env_steps: int) -> int:
        """Gradient steps due after so many environment steps that earn: the exact ratio times those after the initial
        collection, or the integral over them of the schedule of that ratio.
        """
        begin = self.initial_collect_steps
        if self.scheduled_ratio is None:
            return int(max(0, env_steps - begin) * self.update_ratio)
        integral = self.scheduled_ratio.integral
        return int(integral(max(env_steps, begin)) - integral(begin))

    def _follow_schedules(self) -> None:
        self.schedules.move(self.env_steps, self.learner.num_updates)

    def set_batch_size(self, size: float) -> None:
        self.batch_size = round(size)

    def _set_update_ratio(self, ratio: float) -> None:
        self.update_ratio = Fraction(str(ratio))  # 0.1 is meant as 1/10, which no float is

    # What happens at intervals ---------------------------------------------------------------------------------------

    def _passed(self, interval: int, before: int) -> bool:
        return self.env_steps // interval > before // interval

    def _done(self) -> bool:
        return self.env_steps >= self.num_env_steps

    def _elapsed(self) -> float:
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        return self.seconds

    def _evaluate(self, folder: RunFolder, writer: SummaryWriter) -> None:
        self.evaluation_due = True
        self.hooks("before_evaluation", self)
        seed = derived_seed(self.seed, 1, self.env_steps)
        video = EpisodeVideo(self.evaluation_environment) if self.evaluation_environment.recorded else None
        episodes = evaluate(
            self.agent,
            self.evaluation_environment,
            self.evaluation_episodes,
            seed,
            self.evaluation_epsilon,
            None if video is None else video.on_step,
            max_steps=self.max_evaluation_steps,
        )
        self.evaluation = summarize(episodes)
        updates, seconds = self.learner.num_updates, self._elapsed()
        folder.add_evaluation(self.env_steps, updates, self.decisions, seconds, self.evaluation)
        self.evaluation_due = False
        writer.episodes("evaluation", self.evaluation, self.env_steps)
        if video is not None:
            writer.gif("evaluation/video", *video.gif(), self.env_steps)
        writer.flush()
        if self.save_best and (self.best_return is None or self.evaluation.return_mean > self.best_return):
            self.best_return = self.evaluation.return_mean
            counters = {"updates": self.learner.num_updates}
            state = {"agent": self.agent.state_dict(), "evaluation": self.evaluation._asdict(), "counters": counters}
            folder.save_best(self.env_steps, state)
        self.hooks("after_evaluation", self)

    def _summarize(self, writer: SummaryWriter) -> None:
        seconds, updates = self._elapsed(), self.learner.num_updates
        steps_then, updates_then, seconds_then = self._marks
        values: dict[str, Any] = {
            **self.learner.summary(),
            "time/env_steps_per_second": (self.env_steps - steps_then) / (seconds - seconds_then),
            "time/updates_per_second": (updates - updates_then) / (seconds - seconds_then),
            "count/updates": updates,
            "count/update_ratio": updates / max(1, self.env_steps - self.initial_collect_steps),
            "count/decisions": self.decisions,
            "count/episodes": self.episodes,
            **self.schedules.summaries(),
        }
        if self.monitor is not None and updates:
            values |= self.monitor(self.agent, self.replay_buffer, self.batch_size, self.segment_length)
        writer.scalars(values, self.env_steps)
        for warning in self.learner.growth.warnings(self.learner.losses):
            checkpoint.tell(f"warning, at {self.env_steps} environment steps: {warning}")
            writer.text("warning", warning, self.env_steps)
        if self.recent:
            writer.episodes("rollout", summarize(self.recent), self.env_steps)
        writer.histograms(self.learner.histograms(), self.env_steps)
        for name in self.signal_returns[0] if self.signal_returns else ():
            mean = sum(returns[name] for returns in self.signal_returns) / len(self.signal_returns)
            writer.scalars({f"signal/{name}_return": mean}, self.env_steps)
        self.recent, self.signal_returns, self._marks = [], [], (self.env_steps, updates, seconds)

    def _fraction_repeated(self) -> float:
        return 1.0 - self.decisions / max(1, self.env_steps)

    # Saving ----------------------------------------------------------------------------------------------------------

    def save(self, folder: RunFolder, scheduled: bool = True) -> None:
        """Writes a checkpoint and changes nothing in the run: where the episodes are is saved with it."""
        self._write(folder, scheduled, under_way=True)

    def cut_off_at(self, leaves: list[torch.Tensor], why: Exception) -> None:
        """Ends the episodes at a saved time step as truncations, and begins new ones; anew in processes that failed."""
        if isinstance(why, EnvironmentFailed) and self.environment.process_ids:
            self.environment.restart(why)
        self.rollout.stand_at(leaves)
        self._cut()
        self.num_restarts += 1
        self.start_episodes()

    def _cut(self) -> None:
        """Ends the running episodes as truncations."""
        last = self.rollout.truncate()
        self.replay_buffer.add(Experience(last, self.rollout.act(self.agent.unobserved_random_step).info))
        self._cut_off = True

    def _save_after(self, folder: RunFolder, writer: SummaryWriter) -> str:
        """Saves when environments have failed for good; returns what a run that goes on from there will do.

        The episodes of training are ended, unless it was an evaluation that failed.
        """
        if self.env_steps == 0:
            return "Nothing had been learnt yet"
        if not self.evaluation_due:
            if not self._cut_off:
                self._cut()
            self.num_restarts += 1
        writer.flush()
        self._write(folder, scheduled=True, under_way=self.evaluation_due)
        then = "with the evaluation" if self.evaluation_due else "with new episodes"
        return (
            f"A checkpoint is written at {self.env_steps} environment steps: when the environment is mended, the same command "
            f"goes on from there {then}"
        )

    def _inspectable(self, folder: RunFolder, error: NotFiniteError) -> str:
        """Saves what an error was found among; tells where."""
        try:
            return f"To see what was in it: taac check --batch {inspection.write(folder.path, self.env_steps, error)}"
        except OSError as failure:
            return f"What it was found among could not be saved: {failure}"

    def _write(self, folder: RunFolder, scheduled: bool, under_way: bool) -> None:
        self.hooks("before_checkpoint", self)
        self.learner.guard.check_parameters()
        self._elapsed()
        records = {"config": files.read_text(folder.config), **folder.records()}
        state = {**records, **trainer_state.state_dict(self, under_way)}
        folder.checkpoints.save(self.env_steps, state, self.frame_chunks, scheduled)
        folder.trim_best(self.env_steps)
        self.hooks("after_checkpoint", self)

    def checkpoint_bytes(self) -> int:
        """About what the next checkpoint will write: changed frames, parameters and Adam's two moments."""
        frames = self.frame_chunks.stale_bytes() if self.frame_chunks else 0
        return frames + 3 * sum(p.nbytes for p in self.agent.state_dict().values())

    def resume(self, folder: RunFolder) -> None:
        """Goes on from the folder's newest checkpoint that is whole; tells of those that are not.

        Raises:
            TaacError: none is, or it is of another run.
        """
        folder.checkpoints.refuse_earlier_version()
        for found in folder.checkpoints.readable():
            if found.state.get("config") != files.read_text(folder.config):
                raise TaacError(
                    f"{found.path} is of a run of another configuration than {folder.config}; nothing was changed"
                )
            try:
                trainer_state.restore(self, found)
            except Damaged as error:
                checkpoint.tell(f"the checkpoint {found.path} cannot be used: {error}; looking for the one before it")
                continue
            folder.checkpoints.set_aside(newer_than=found.env_steps)
            for damage in folder.restore(found.state):
                checkpoint.tell(damage)
            if found.state["replay"] is None:  # filled again before updates go on, demonstrations in it or not
                self.unearned_steps += min(self.env_steps, self.initial_collect_steps)
                self.earns_from = self.env_steps + self.initial_collect_steps
            return
        raise folder.checkpoints.nothing_left()

    def start_episodes(self) -> None:
        """Begins episodes whose seeds depend on the run's seed and the number of restarts before them alone."""
        self.rollout.reset(self.environment_seed())
        self._cut_off = False
        self.explorer_state = None
        self.recorder = EpisodeRecorder(self.environment.num_envs)
        self.actions = ActionLog(self.environment)

    def environment_seed(self) -> int:
        """What the environments of training are seeded with."""
        return derived_seed(self.seed, 0, self.num_restarts)

    def close(self) -> None:
        self.environment.close()
        self.evaluation_environment.close()


def derived_seed(seed: int, stream: int, number: int) -> int:
    """A seed for environments, independent for each stream (0 training, 1 evaluation) and number."""
    return int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0] % 2**31)
