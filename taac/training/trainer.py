"""The off-policy training loop."""

from __future__ import annotations

import time
from typing import Any, Protocol

import gin
import numpy as np
import torch

from taac.data_structures import AlgStep, Experience, Nest, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.ops.products import available
from taac.replay import ReplayBuffer
from taac.training import checkpoint
from taac.training.evaluation import evaluate
from taac.training.explorers import Explorer
from taac.training.learner import Learner
from taac.training.metrics import Episode, EpisodeRecorder, EpisodeSummary, summarize
from taac.training.rollout import Rollout
from taac.training.run_folder import RunFolder
from taac.training.summaries import SummaryWriter


class Progress(Protocol):
    """Is told how far training is."""

    def __call__(self, env_steps: int, updates: int, evaluation: EpisodeSummary | None, repeated: float) -> None: ...


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
        batch_size: segments a gradient step.
        segment_length: frames a segment, T.
        evaluation_interval, evaluation_episodes: how often, in environment steps, and how many greedy episodes.
        evaluation_epsilon: probability with which each choice is sampled in evaluation instead of taking the mode.
        max_evaluation_steps: an evaluation that takes more steps than this in each environment stops the run: its episodes
            may have no end.
        summary_interval: environment steps between summaries of training.
        checkpoint_interval: environment steps between checkpoints. A checkpoint ends the running
            episodes as truncations and reseeds the environments, in every run, so that a resumed run is the same run.
    """

    _explorer_state: Nest  # None until the explorer has acted in these episodes

    def __init__(
        self,
        environment: VectorEnvironment,
        evaluation_environment: VectorEnvironment,
        learner: Learner,
        replay_buffer: ReplayBuffer,
        seed: int,
        num_env_steps: int = gin.REQUIRED,
        segment_length: int = gin.REQUIRED,
        initial_collect_steps: int = 10_000,
        uniform_initial_collect: bool = True,
        explorer: Explorer | None = None,
        unroll_length: int = 1,
        updates_per_iteration: int = 1,
        batch_size: int = 256,
        evaluation_interval: int = 2_500,
        evaluation_episodes: int = 10,
        evaluation_epsilon: float = 0.0,
        max_evaluation_steps: int = 1_000_000,
        summary_interval: int = 1_000,
        checkpoint_interval: int = 10_000,
    ):
        at_least_one = {
            "num_env_steps": num_env_steps, "unroll_length": unroll_length, "batch_size": batch_size,
            "updates_per_iteration": updates_per_iteration, "evaluation_interval": evaluation_interval,
            "evaluation_episodes": evaluation_episodes, "summary_interval": summary_interval,
            "checkpoint_interval": checkpoint_interval, "max_evaluation_steps": max_evaluation_steps,
        }  # fmt: skip
        for name, value in at_least_one.items():
            if value < 1:
                raise TaacError(f"Trainer.{name} must be 1 or more, got {value}")
        if segment_length < 2:
            raise TaacError(f"Trainer.segment_length must be 2 or more frames (one transition), got {segment_length}")
        if initial_collect_steps < segment_length * environment.num_envs:
            raise TaacError(
                f"Trainer.initial_collect_steps must be at least segment_length x num_envs = "
                f"{segment_length * environment.num_envs}, so that there is a segment to sample; "
                f"got {initial_collect_steps}"
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
        if not 0 <= evaluation_epsilon <= 1:
            raise TaacError(f"Trainer.evaluation_epsilon must be in [0, 1], got {evaluation_epsilon}")
        self.environment, self.evaluation_environment = environment, evaluation_environment
        self.learner, self.agent, self.replay_buffer = learner, learner.agent, replay_buffer
        self.seed = seed
        self.num_env_steps, self.segment_length, self.batch_size = num_env_steps, segment_length, batch_size
        self.initial_collect_steps, self.uniform_initial_collect = initial_collect_steps, uniform_initial_collect
        self.explorer = explorer
        self.unroll_length, self.updates_per_iteration = unroll_length, updates_per_iteration
        self.evaluation_interval, self.evaluation_episodes = evaluation_interval, evaluation_episodes
        self.evaluation_epsilon, self.max_evaluation_steps = evaluation_epsilon, max_evaluation_steps
        self.summary_interval = summary_interval
        self.checkpoint_interval = checkpoint_interval

        self.rollout = Rollout(environment, self.agent)
        self.env_steps = self.decisions = self.episodes = self.num_checkpoints = 0
        self.seconds = 0.0
        self.evaluation: EpisodeSummary | None = None
        self._start_episodes()
        self._recent: list[Episode] = []
        self._losses: dict[str, torch.Tensor] = {}

    # The loop --------------------------------------------------------------------------------------------------------

    def train(self, folder: RunFolder, progress: Progress | None = None) -> None:
        """Trains until `num_env_steps`, from wherever this trainer stands."""
        writer = SummaryWriter(
            folder.path,
            purge_step=self.env_steps + 1 if self.env_steps else 0,
            tags=self.agent.algorithm.summary_tags(),
        )
        if self.env_steps == 0:
            writer.text("config", "    " + folder.config.read_text(encoding="utf-8").replace("\n", "\n    "))
        self._clock, self._marks = time.perf_counter(), (self.env_steps, self.learner.num_updates, self.seconds)
        try:
            while self.env_steps < self.num_env_steps:
                before = self.env_steps
                self.collect()
                self.learn()
                if progress is not None:
                    progress(self.env_steps, self.learner.num_updates, self.evaluation, self._fraction_repeated())
                if self._passed(self.summary_interval, before):
                    self._summarize(writer)
                if self._passed(self.evaluation_interval, before) or self._done():
                    self._evaluate(folder, writer)
                if self._passed(self.checkpoint_interval, before) or self._done():
                    writer.flush()
                    self.save(folder)
        finally:
            writer.close()

    def collect(self) -> None:
        """Takes `unroll_length` steps in each environment."""
        for _ in range(self.unroll_length):
            uniform = self.uniform_initial_collect and self.env_steps < self.initial_collect_steps
            time_step, alg_step = self.rollout.step(self.agent.random_step if uniform else self._explore)
            self.replay_buffer.add(Experience(time_step, alg_step.info))
            acted = time_step.step_type != StepType.LAST
            self.env_steps += int(self.rollout.time_step.duration.sum())
            self.decisions += int((acted & alg_step.decided.reshape(len(acted), -1).any(1)).sum())
            duration = self.rollout.time_step.duration
            ended = self._recorder.add(time_step, alg_step, self.rollout.raw_reward, duration)
            self.episodes += len(ended)
            self._recent += [episode for _, episode in ended]

    def _explore(self, time_step: TimeStep, state: Nest) -> AlgStep:
        alg_step = self.agent.rollout_step(time_step, state)
        if self.explorer is not None:
            if self._explorer_state is None:
                self._explorer_state = self.explorer.initial_state(alg_step.output)
            alg_step, self._explorer_state = self.explorer.step(
                time_step, alg_step, self._explorer_state, self.env_steps
            )
        return alg_step

    def learn(self) -> None:
        """Takes the gradient steps that the environment steps so far have earned."""
        for _ in range(self.updates_earned() - self.learner.num_updates):
            self._losses = self.learner.update(self.replay_buffer.sample(self.batch_size, self.segment_length))

    def updates_earned(self) -> int:
        """Gradient steps due by now: the exact ratio times the environment steps after the initial collection."""
        counted = max(0, self.env_steps - self.initial_collect_steps)
        return counted * self.updates_per_iteration // (self.unroll_length * self.environment.num_envs)

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
        seed = derived_seed(self.seed, 1, self.env_steps)
        episodes = evaluate(
            self.agent,
            self.evaluation_environment,
            self.evaluation_episodes,
            seed,
            self.evaluation_epsilon,
            max_steps=self.max_evaluation_steps,
        )
        self.evaluation = summarize(episodes)
        folder.add_evaluation(self.env_steps, self.learner.num_updates, self._elapsed(), self.evaluation)
        writer.episodes("evaluation", self.evaluation, self.env_steps)
        writer.flush()

    def _summarize(self, writer: SummaryWriter) -> None:
        seconds, updates = self._elapsed(), self.learner.num_updates
        steps_then, updates_then, seconds_then = self._marks
        values: dict[str, Any] = {
            **self._losses,
            "time/env_steps_per_second": (self.env_steps - steps_then) / (seconds - seconds_then),
            "time/updates_per_second": (updates - updates_then) / (seconds - seconds_then),
            "count/updates": updates,
            "count/update_ratio": updates / max(1, self.env_steps - self.initial_collect_steps),
            "count/decisions": self.decisions,
            "count/episodes": self.episodes,
        }
        writer.scalars(values, self.env_steps)
        if self._recent:
            writer.episodes("rollout", summarize(self._recent), self.env_steps)
        self._recent, self._marks = [], (self.env_steps, updates, seconds)

    def _fraction_repeated(self) -> float:
        return 1.0 - self.decisions / max(1, self.env_steps)

    # Saving ----------------------------------------------------------------------------------------------------------

    def save(self, folder: RunFolder) -> None:
        """Ends the running episodes as truncations, writes a checkpoint, and begins new episodes."""
        last = self.rollout.truncate()
        self.replay_buffer.add(Experience(last, self.rollout.act(self.agent.algorithm.random_step).info))
        self.num_checkpoints += 1
        held = folder.config.read_text(encoding="utf-8")
        checkpoint.save(folder.checkpoint, {"config": held, **self.state_dict()})
        self._start_episodes()

    def resume(self, folder: RunFolder) -> None:
        """Goes on from the folder's checkpoint."""
        state = checkpoint.load(folder.checkpoint)
        if state["config"] != folder.config.read_text(encoding="utf-8"):
            raise TaacError(
                f"{folder.checkpoint} is of a run of another configuration than {folder.config}; nothing was changed"
            )
        self.load_state_dict(state, folder)
        folder.keep_evaluations(self.env_steps)
        self._start_episodes()

    def _start_episodes(self) -> None:
        self.rollout.reset(derived_seed(self.seed, 0, self.num_checkpoints))
        self._explorer_state = None
        self._recorder = EpisodeRecorder(self.environment.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to be the same run."""
        return {
            "agent": self.agent.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "products": self.learner.products,  # which "auto" was: another would round differently
            "replay": self.replay_buffer.state_dict(),
            "counters": {
                "env_steps": self.env_steps,
                "updates": self.learner.num_updates,
                "decisions": self.decisions,
                "episodes": self.episodes,
                "num_checkpoints": self.num_checkpoints,
                "seconds": self.seconds,
            },
            "evaluation": None if self.evaluation is None else self.evaluation._asdict(),
            "recent": [episode._replace(ret=episode.ret.tolist())._asdict() for episode in self._recent],
            "random": {
                "numpy": _numpy_state(),
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state() if self.agent.device.type == "cuda" else None,
            },
        }

    def load_state_dict(self, state: dict[str, Any], folder: RunFolder) -> None:
        checkpoint.load_into(self.agent, state["agent"], folder.checkpoint)
        self.learner.optimizer.load_state_dict(state["optimizer"])
        if available(state["products"], self.agent.device):  # on another machine it may not be
            self.learner.products = state["products"]
        self.replay_buffer.load_state_dict(state["replay"])
        counters = state["counters"]
        self.env_steps, self.learner.num_updates = counters["env_steps"], counters["updates"]
        self.decisions, self.episodes = counters["decisions"], counters["episodes"]
        self.num_checkpoints, self.seconds = counters["num_checkpoints"], counters["seconds"]
        if state["evaluation"] is not None:
            self.evaluation = EpisodeSummary(**state["evaluation"])
        self._recent = [Episode(**{**kept, "ret": np.array(kept["ret"])}) for kept in state["recent"]]
        _set_numpy_state(state["random"]["numpy"])
        torch.set_rng_state(state["random"]["cpu"])
        if state["random"]["cuda"] is not None and self.agent.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"])

    def close(self) -> None:
        self.environment.close()
        self.evaluation_environment.close()


def derived_seed(seed: int, stream: int, number: int) -> int:
    """A seed for environments, independent for each stream (0 training, 1 evaluation) and number."""
    return int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0] % 2**31)


def _numpy_state() -> dict[str, Any]:
    """numpy's global random state, which some environments draw from, as plain values and a tensor."""
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return {
        "key": torch.from_numpy(inner["key"].astype(np.int64)),
        "pos": int(inner["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _set_numpy_state(state: dict[str, Any]) -> None:
    inner = {"key": state["key"].numpy().astype(np.uint32), "pos": state["pos"]}
    np.random.set_state(
        {"bit_generator": "MT19937", "state": inner, "has_gauss": state["has_gauss"], "gauss": state["gauss"]}
    )
