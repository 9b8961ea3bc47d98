"""Evaluation: greedy episodes in separate environments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import numpy as np
import torch

from taac import nest
from taac.acting.metrics import Episode, EpisodeRecorder, Traces, summarize
from taac.acting.multiply_adds import MultiplyAdds
from taac.acting.random_numbers import EVALUATION, derived_seed, random_numbers_kept
from taac.acting.rollout import Rollout
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import describe_failure
from taac.data_structures import AlgStep, Nest, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError, refuse_below
from taac.ops.schedules import Schedule, bounds, follow
from taac.pictures.video import EpisodeVideo
from taac.runs.layout import EpisodeSummary
from taac.runs.terminal import warn_user

_LONG = 10_000  # steps of an episode after which a missing time limit is told or refused


def evaluate(
    agent: Agent,
    environment: VectorEnvironment,
    num_episodes: int,
    seed: int,
    epsilon: float = 0.0,
    on_step: Callable[[TimeStep, AlgStep], None] | None = None,
    max_steps: int = 1_000_000,
    refuse_endless: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[Episode]:
    """Plays `num_episodes` greedy episodes and returns them; fewer if it is told to stop.

    Every environment contributes its first episodes, the same number from each (one more from some if the number does not
    divide). Taking whichever episodes end first would favour short ones. The random numbers of training are restored
    afterwards.

    Args:
        seed: of the environments, of the policy's random choices, and of the global generators that environments may use.
        epsilon: probability with which each random choice of the policy is sampled instead of taking its mode.
        on_step: called with each frame and what the agent did there.
        max_steps: most steps in each environment. Long before them a warning tells that the environments have no time limit.
        refuse_endless: raises an error instead of that warning.
        stop: returns whether to stop; asked at each step.

    Raises:
        TaacError: the episodes do not end within `max_steps`, or seem not to end.
    """
    least, more = divmod(num_episodes, environment.num_envs)
    shares = [least + (i < more) for i in range(environment.num_envs)]
    episodes: list[Episode] = []
    with random_numbers_kept(agent.device):
        torch.manual_seed(seed)
        random.seed(seed)  # environments may draw from these
        np.random.seed(seed % 2**32)
        rollout, multiply_adds = Rollout(environment, agent), MultiplyAdds(agent)
        recorder = EpisodeRecorder(environment.num_envs, environment.duration_coordinate, environment.info)
        traces = Traces(environment.num_envs, recorder.moves)
        rollout.reset(seed)
        steps, cost = 0, np.zeros(environment.num_envs)
        lasted, told = np.zeros(environment.num_envs, np.int64), environment.max_episode_steps is not None

        def act(time_step: TimeStep, state: Nest) -> AlgStep:
            nonlocal cost
            try:
                taken, cost = multiply_adds.count(lambda: agent.predict_step(time_step, state, epsilon))
                return taken
            except TaacError:
                raise
            except Exception as error:
                raise TaacError(
                    f"{type(agent.algorithm).__name__}.predict_step failed in an evaluation: {describe_failure(error)}"
                ) from error

        while sum(shares) > 0 and not stop():
            steps += 1
            if steps > max_steps:
                raise TaacError(
                    f"after {max_steps} steps in each of {environment.num_envs} environments '{environment.name}', "
                    f"{sum(shares)} of {num_episodes} episodes have not ended; set create_environment.max_episode_steps, "
                    "or raise Evaluator.max_evaluation_steps"
                )
            if not told and bool((lasted[np.array(shares) > 0] > _LONG).any()):
                about = (
                    f"an episode of an evaluation has not ended after {_LONG} steps in '{environment.name}', which declares no "
                    "time limit"
                )
                if refuse_endless:
                    raise TaacError(
                        f"{about}: bind create_environment.max_episode_steps, to more steps than an episode takes if it ends by "
                        "itself"
                    )
                told = True
                warn_user(
                    f"warning: {about}; it goes on to {max_steps} steps. create_environment.max_episode_steps sets a time limit"
                )
            step = rollout.step(act)
            lasted = np.where(nest.array(step.arrays.step_type) == StepType.LAST, 0, lasted + step.duration)
            if on_step is not None:
                on_step(step.time_step, step.alg_step)
            ended = recorder.add(step.arrays, step.alg_step, step.raw_reward, step.duration, step.episode_info)
            traces.add(step.arrays.step_type, recorder.action, step.duration, cost)
            for index, episode in ended:
                if shares[index] > 0:
                    shares[index] -= 1
                    episodes.append(traces.complete(index, episode))
    return episodes


class Evaluation(NamedTuple):
    """The result of an evaluation."""

    summary: EpisodeSummary
    is_best: bool  # its mean return exceeds that of all earlier evaluations after step 0
    video: tuple[bytes, tuple[int, int]] | None  # the first episode as a GIF with its height and width, if recorded


@gin.configurable(denylist=["agent", "environment", "seed"])
class Evaluator:
    """Evaluates an agent in greedy episodes.

    Args:
        environment: used for nothing else. If it is recorded, the first episode of each evaluation is filmed.
        seed: of the run. The seed of each evaluation is derived from it and from the step at which it was due.
        evaluation_episodes: greedy episodes of an evaluation.
        evaluation_epsilon: probability with which each choice is sampled instead of taking the mode; a number or a schedule.
        max_evaluation_steps: an evaluation that takes more steps than this in each environment stops the run, because its
            episodes may never end.
        initial_evaluation: evaluates also before the first step (after what was loaded or cloned), so that curves begin at
            step 0. It changes nothing else in the run.

    Attributes:
        summary: of the last evaluation; None before the first.
        best_return: highest mean return so far after step 0; None before the first.
        unfinished: an evaluation has begun but not ended, because an environment failed or it was told to stop.
        evaluated_at: environment steps at the last evaluation; None before the first.
        prepared_at: environment steps at which the trainer last called the hooks before an evaluation.
    """

    epsilon: float  # as it is now

    def __init__(
        self,
        agent: Agent,
        environment: VectorEnvironment,
        seed: int,
        evaluation_episodes: int = 10,
        evaluation_epsilon: float | Schedule = 0.0,
        max_evaluation_steps: int = 1_000_000,
        initial_evaluation: bool = True,
    ):
        refuse_below(1, "Evaluator", evaluation_episodes=evaluation_episodes, max_evaluation_steps=max_evaluation_steps)
        least, most = bounds(evaluation_epsilon)
        if not (least >= 0 and most <= 1):
            raise TaacError(f"Evaluator.evaluation_epsilon must be in [0, 1], got {evaluation_epsilon}")
        self.agent, self.environment, self.seed = agent, environment, seed
        self.num_episodes, self.max_steps, self.initial = evaluation_episodes, max_evaluation_steps, initial_evaluation
        followed = follow(self, epsilon=evaluation_epsilon)
        self.scheduled = [one._replace(name="Evaluator.evaluation_epsilon") for one in followed]
        self.summary: EpisodeSummary | None = None
        self.best_return: float | None = None
        self.unfinished = False
        self.evaluated_at: int | None = None
        self.prepared_at: int | None = None

    def run(self, env_steps: int, stop: Callable[[], bool] = lambda: False, due: int | None = None) -> Evaluation | None:
        """Evaluates the agent after `env_steps` environment steps of training. At step 0 it cannot be the best.

        It was `due` at a step, perhaps some steps ago; None: now.

        Returns None if `stop()` has returned true. Then, or if it fails, `unfinished` is true until an evaluation has ended.

        Raises:
            EnvironmentFailed: an environment fails.
            TaacError: the episodes do not end within `max_steps`; or, at step 0, seem not to end.
        """
        self.unfinished = True
        video = EpisodeVideo(self.environment) if self.environment.recorded else None
        on_step = None if video is None else video.on_step
        seed = derived_seed(self.seed, EVALUATION, env_steps if due is None else due)
        episodes = evaluate(
            self.agent, self.environment, self.num_episodes, seed, self.epsilon, on_step, self.max_steps, env_steps == 0, stop
        )
        if len(episodes) < self.num_episodes:
            return None
        self.summary = summarize(episodes)
        self.unfinished, self.evaluated_at = False, env_steps
        is_best = env_steps > 0 and (self.best_return is None or self.summary.return_mean > self.best_return)
        if is_best:
            self.best_return = self.summary.return_mean
        return Evaluation(self.summary, is_best, None if video is None else video.gif())

    def state_dict(self) -> dict[str, Any]:
        """Returns the outcome of the last evaluation, the best return, and whether an evaluation is unfinished."""
        return {
            "summary": None if self.summary is None else self.summary._asdict(),
            "best_return": self.best_return,
            "unfinished": self.unfinished,
            "evaluated_at": self.evaluated_at,
            "prepared_at": self.prepared_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.summary = None if state["summary"] is None else EpisodeSummary(**state["summary"])
        self.best_return = None if state["best_return"] is None else float(state["best_return"])
        self.unfinished = bool(state["unfinished"])
        at = (state["evaluated_at"], state.get("prepared_at"))  # which checkpoints of earlier code lack
        self.evaluated_at, self.prepared_at = (None if steps is None else int(steps) for steps in at)
