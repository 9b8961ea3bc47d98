"""Hindsight experience replay: segments whose goal is one that was achieved later, with the rewards that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import gin
import numpy as np
import torch

from taac.data_structures import FIRST, LAST, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.replay.replay_buffer import Batch, ReplayBuffer
from taac.specs import TensorSpec

Strategy = Literal["future", "final", "episode"]
GoalFunction = Callable[[np.ndarray, np.ndarray, Any], Any]  # of achieved and desired goals [N, G], and N infos

CHECKED = 10  # batches whose stored rewards are compared with `compute_reward`
_DIFFER = 0.01  # of their frames may: goals are stored in float32, so one may be on the other side of a threshold
# Of one batch in ten, checks go on until so many frames were seen with another reward than most; a tenth of these may differ.
_SELDOM, _SELDOM_DIFFER = 200, 0.1
_TRIES = 32  # segments that are drawn in place of one whose new goal was achieved when its episode began


# What was checked. A run that resumes does not begin to check anew, or it could be refused where it would have gone on.
_CHECKS = ("_batches", "_seldom", "_seldom_wrong", "_ends", "_ends_wrong", "_ends_by_chance")
_GOAL_ERRORS = (KeyError, TypeError, ValueError, IndexError, AttributeError)


class _NewGoals(NamedTuple):
    """Segments and their new goals."""

    environment: torch.Tensor  # [B']
    first: torch.Tensor  # [B'], the first frame
    begin: torch.Tensor  # [B'], the first stored frame of the episode whose goals are new
    end: torch.Tensor  # [B'], the last
    drawn: torch.Tensor  # [B'] bool, whether there is a new goal
    goal: torch.Tensor  # [B', G]


@contextmanager
def _explained(name: str, shape: torch.Size) -> Iterator[None]:
    """A context whose errors of an environment's function of goals of this shape say who called it, and how."""
    try:
        yield
    except TaacError:
        raise
    except (*_GOAL_ERRORS, NotImplementedError) as error:
        raise TaacError(
            f"{name} cannot be called with goals {list(shape)} and empty infos, as HindsightReplayBuffer does: {error!r}"
        ) from error


@gin.configurable(denylist=["compute_reward", "compute_terminated"])
class HindsightReplayBuffer(ReplayBuffer):
    """Samples segments like `ReplayBuffer`, and gives some of them a goal that their episode achieved later.

    With `probability`, one goal is drawn for a segment whose first frame to learn from is t, of an episode whose last stored
    frame is T:

    - "future": the goal achieved at a frame uniform in t+1..T;
    - "final": the goal achieved at T;
    - "episode": the goal achieved at a frame uniform among the episode's stored frames, without the first of them.

    At every frame of the segment in this episode, `desired_goal` becomes this goal, and the reward on arrival becomes
    `compute_reward(achieved_goal, goal)`. Actions, trajectories and decisions stay: they are what was executed. So TAAC's
    compare-through return, which asks whether the present policy would repeat *under the new goal*, still ends where behaviour
    and policy part, and is the return of the present policy. Plain n-step returns are not corrected and become biased (Yang et
    al., MHER, arXiv:2102.12962). In a stochastic environment a goal is chosen knowing what happened by chance, so
    returns under it are too high, and the more so the longer the segment; see `max_steps`. A policy with a memory begins a
    segment with what it remembers of the old goal, as far as the burn-in leaves it.

    Where the environment has `compute_terminated`, a frame that reaches the new goal ends the episode: its discount is 0, and
    later frames of the segment are not learnt from. An end by the old goal becomes a truncation. Other ends stay.

    Args:
        experience_spec, num_envs: as in `ReplayBuffer`.
        compute_reward: the environment's function of goals `[N, G]`, `[N, G]` and N empty infos; returns rewards `[N]`.
        compute_terminated: the environment's function of the same arguments; returns whether they end an episode, `[N]`. One
            that knows no batches is called row by row, which is slow. None: goals end no episode.
        strategy: how a goal is drawn.
        probability: of a new goal, for each segment; in [0, 1]. With 0, batches are those of `ReplayBuffer` to the bit.
        max_steps: truncates a segment that has a new goal this many frames after the first that is learnt from; None does not.
        skip_achieved: draws a segment and its new goal again, up to 32 times, while the goal g was achieved at the episode's
            first stored frame already, `compute_reward(achieved_0, g) >= compute_reward(g, g)`; after that it keeps its own. If
            goals are places of an object that is seldom moved, most drawn ones are the place where it lies, and teach not to
            touch it (filtered HER, McCarthy and Redmond, arXiv:2110.02414, which draws nothing again).
        buffer_arguments: the other arguments of `ReplayBuffer`; gin binds them there.

    Raises:
        TaacError: the environment has no goals, or a vector reward; a setting out of range; also as in `ReplayBuffer`.

    Source: Andrychowicz et al., Hindsight experience replay (NeurIPS 2017, arXiv:1707.01495), section 3.3 and 4.5.
    """

    def __init__(
        self,
        experience_spec: Nest,
        num_envs: int,
        compute_reward: GoalFunction | None = None,
        compute_terminated: GoalFunction | None = None,
        strategy: Strategy = "future",
        probability: float = 0.8,
        max_steps: int | None = None,
        skip_achieved: bool = False,
        **buffer_arguments: Any,
    ):
        if compute_reward is None:
            raise TaacError(
                "HindsightReplayBuffer needs an environment with goals: its observation space is a Dict with achieved_goal and "
                "desired_goal, it has compute_reward(achieved_goal, desired_goal, info), as in Gymnasium-Robotics, and its "
                "reward is no vector. Use another task, or @ReplayBuffer"
            )
        if strategy not in get_args(Strategy):
            raise TaacError(f"HindsightReplayBuffer.strategy must be one of {', '.join(get_args(Strategy))}, got '{strategy}'")
        if not 0 <= probability <= 1:
            raise TaacError(f"HindsightReplayBuffer.probability must be in [0, 1], got {probability}")
        refuse_below(1, "HindsightReplayBuffer", max_steps=max_steps)
        super().__init__(experience_spec, num_envs, **buffer_arguments)
        self._compute_reward, self._compute_terminated = compute_reward, compute_terminated
        self.strategy, self.probability, self.max_steps, self.skip_achieved = strategy, probability, max_steps, skip_achieved
        desired = experience_spec.time_step.observation["desired_goal"]
        achieved = experience_spec.time_step.observation["achieved_goal"]
        if not isinstance(desired, TensorSpec) or len(desired.shape) != 1 or getattr(achieved, "shape", None) != desired.shape:
            raise TaacError(
                "HindsightReplayBuffer needs goals that are vectors of one size; desired_goal is "
                f"{desired}, achieved_goal {achieved}"
            )
        self._batches = self._seldom = self._seldom_wrong = self._ends = self._ends_wrong = 0.0
        self._ends_by_chance = 0.0
        goals = torch.zeros(2, 2, *desired.shape, dtype=desired.dtype)  # achieved and desired, of two frames
        goals[1, 1] = 1.0
        self.reward_at_goal = float(self._rewards(*goals)[0])
        try:
            if compute_terminated is not None:
                self._terminates(*goals)
        except NotImplementedError:  # the method of `GoalEnv` itself
            self._compute_terminated = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        checks = torch.tensor([float(getattr(self, name)) for name in _CHECKS], dtype=torch.float64)
        return {**super().state_dict(), "checks": checks}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state)
        if "checks" in state:  # not in checkpoints of earlier code
            for name, number in zip(_CHECKS, state["checks"].flatten().tolist()):
                setattr(self, name, number)

    def sample_batch(self, batch_size: int, length: int, progress: float = 0.0) -> Batch:
        if not self.probability:
            return super().sample_batch(batch_size, length, progress)
        new = self._new_goals(batch_size, length, self.probability)
        if self.skip_achieved:
            new = self._drawn_again(new, length)
        batch, learnt = self.at(new.environment, new.first, length), new.first + self.burn_in
        frame = new.first + torch.arange(length, device=self.device).unsqueeze(1)  # [T, B']
        inside = (frame >= new.begin) & (frame <= new.end)
        time_step = batch.experience.time_step
        self._batches += 1
        if self._batches <= CHECKED or (self._seldom < _SELDOM and self._batches % 10 == 0):
            self._check(time_step, inside & (frame > new.begin))
        relabelled = self._relabelled(time_step, new.goal, new.drawn & inside, frame > learnt)
        return batch._replace(experience=batch.experience._replace(time_step=relabelled))

    def _new_goals(self, batch_size: int, length: int, probability: float) -> _NewGoals:
        """Draws segments, and with this probability a new goal for each that has a next frame."""
        environment, first = self.positions(batch_size, length)
        learnt = first + self.burn_in
        begin, end = self.episode_bounds(environment, learnt)
        drawn = (torch.rand(batch_size, device=self.device) < probability) & (learnt < end)
        goal = self._achieved_goal(environment, self._achieved_at(begin, learnt, end))
        return _NewGoals(environment, first, begin, end, drawn, goal)

    def _drawn_again(self, new: _NewGoals, length: int) -> _NewGoals:
        """Replaces segments whose new goals were achieved when their episodes began; see `skip_achieved`."""
        batch_size = len(new.first)
        others = self._new_goals(_TRIES * batch_size, length, 1.0)
        order = torch.randperm(_TRIES * batch_size, device=self.device).view(_TRIES, -1)  # they are drawn from old to new
        tried = _NewGoals(*(torch.cat([x.unsqueeze(0), y[order]]) for x, y in zip(new, others)))  # [1 + tries, B', ...]
        achieved = self._achieved_goal(tried.environment.flatten(), tried.begin.flatten())
        goal = tried.goal.flatten(0, 1)
        worth = tried.drawn & (self._rewards(achieved, goal) < self._rewards(goal, goal)).view_as(tried.drawn)
        chosen = torch.where(new.drawn, worth.long().argmax(0), 0)
        row = torch.arange(batch_size, device=self.device)
        return _NewGoals(*(x[chosen, row] for x in tried))._replace(drawn=worth[chosen, row] & new.drawn)

    def _achieved_at(self, begin: torch.Tensor, learnt: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Draws the frames `[B']` at which the new goals were achieved."""
        if self.strategy == "final":
            return end
        least = (learnt if self.strategy == "future" else begin) + 1
        uniform = torch.rand(end.shape, device=self.device, dtype=torch.float64)
        return torch.minimum(least + (uniform * (end - least + 1)).long(), end)

    def _achieved_goal(self, environment: torch.Tensor, frame: torch.Tensor) -> torch.Tensor:
        """Returns what was achieved at stored frames of the environments `[B']`, `[B', G]`."""
        return self.read(environment, frame, lambda frames: frames.time_step.observation["achieved_goal"])

    def _relabelled(self, time_step: TimeStep, goal: torch.Tensor, new: torch.Tensor, later: torch.Tensor) -> TimeStep:
        """Returns the frames `[T, B']` with the goal `[B', G]` where it is `new`. `later`: after the first to learn from."""
        observation, step_type = dict(time_step.observation), time_step.step_type
        achieved, old_goal = observation["achieved_goal"], observation["desired_goal"]
        observation["desired_goal"] = desired = torch.where(new.unsqueeze(-1), goal, old_goal)
        arrives = new & (step_type != FIRST)
        reward, discount = time_step.reward.clone(), time_step.discount
        reward[arrives] = self._rewards(achieved[arrives], desired[arrives])
        if self._compute_terminated is not None:
            arrives = arrives & later
            before, now = torch.zeros_like(arrives), torch.zeros_like(arrives)
            before[arrives] = self._terminates(achieved[arrives], old_goal[arrives])
            now[arrives] = self._terminates(achieved[arrives], desired[arrives])
            discount = torch.where(before, 1.0, discount).masked_fill(now, 0.0)
            step_type = torch.where(new & now.cummax(0).values, LAST, step_type)
        if self.max_steps is not None:
            step_type, cut = step_type.clone(), self.burn_in + self.max_steps
            step_type[cut:][new[cut:]] = LAST
        return time_step._replace(step_type=step_type, reward=reward, discount=discount, observation=observation)

    def _rewards(self, achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
        """Returns the rewards `[N]` of goals `[N, G]`."""
        if not len(achieved):
            return torch.zeros(0, device=self.device)
        with _explained("compute_reward", achieved.shape):
            given = self._compute_reward(achieved.cpu().numpy(), desired.cpu().numpy(), [{}] * len(achieved))
        rewards = np.asarray(given, np.float32)
        if rewards.shape != (len(achieved),):
            raise TaacError(
                f"compute_reward returned shape {list(rewards.shape)} for {len(achieved)} goals, expected [{len(achieved)}]: "
                "HindsightReplayBuffer calls it with batches. Compute with axis=-1 there"
            )
        return torch.from_numpy(rewards).to(self.device)

    def _terminates(self, achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
        """Returns whether goals `[N, G]` end an episode, `[N]`."""
        assert self._compute_terminated is not None
        goals = achieved.cpu().numpy(), desired.cpu().numpy()
        try:
            given = np.asarray(self._compute_terminated(*goals, [{}] * len(achieved)))
        except _GOAL_ERRORS:  # such as bool() of an array
            given = np.empty(())
        if given.shape != (len(achieved),):
            with _explained("compute_terminated", achieved.shape[1:]):
                given = np.array([bool(self._compute_terminated(*row, {})) for row in zip(*goals)], dtype=bool)
        return torch.from_numpy(given.astype(bool)).to(self.device)

    def _check(self, time_step: TimeStep, arrives: torch.Tensor) -> None:
        """Refuses functions of goals that say otherwise than the environment did at those frames `[T, B']` that arrive.

        Rewards are compared with `compute_reward`, those that are not the usual one (a success of a sparse task) by themselves.
        """
        seen: Any = time_step.observation
        given, achieved, desired = time_step.reward[arrives], seen["achieved_goal"][arrives], seen["desired_goal"][arrives]
        if not len(given):
            return
        computed = self._rewards(achieved, desired)
        differs = ~torch.isclose(given, computed, rtol=1e-3, atol=1e-4)
        usual = given.mode().values
        seldom = ~(torch.isclose(given, usual) & torch.isclose(computed, usual))
        self._seldom += int(seldom.sum())
        self._seldom_wrong += int((differs & seldom).sum())
        too_many = self._seldom >= _SELDOM / 10 and self._seldom_wrong > _SELDOM_DIFFER * self._seldom
        if bool(differs.any()) and (too_many or int(differs.sum()) > _DIFFER * len(given)):
            at = int(differs.nonzero()[0])
            raise TaacError(
                f"compute_reward gives {computed[at] + 0.0:g} where the environment gave the reward {given[at]:g}, as at "
                f"{int(differs.sum())} of {len(given)} sampled frames, so hindsight would mix two tasks. A wrapper that changes "
                "rewards or goals must define compute_reward, too; one that needs the info cannot be used"
            )
        self._check_ends(time_step.discount[arrives] == 0, given, achieved, desired, seldom, usual)

    def _check_ends(
        self, ended: torch.Tensor, given: torch.Tensor, achieved: torch.Tensor, desired: torch.Tensor, seldom: torch.Tensor,
        usual: torch.Tensor,
    ) -> None:
        """Refuses ends by a goal that `compute_terminated` does not know.

        An end counts as the goal's if its reward is above the usual one or, where rewards vary, in the highest tenth, in which
        ends must then be far more frequent than elsewhere.
        """
        varies = bool(seldom.float().mean() >= 0.5)
        special = given > given.quantile(0.9) if varies else seldom & (given > usual)
        ends = ended & special
        if varies:  # as many ends as elsewhere are failures
            self._ends_by_chance += float((ended & ~special).sum() * special.sum() / (~special).sum())
        by_goal = 0
        if self._compute_terminated is not None and bool(ends.any()):
            by_goal = int(self._terminates(achieved[ends], desired[ends]).sum())
        self._ends += int(ends.sum())
        self._ends_wrong += int(ends.sum()) - by_goal
        if self._ends >= 10 and self._ends_wrong > max(self._ends / 2, 5 * self._ends_by_chance):
            raise TaacError(
                f"{self._ends_wrong:.0f} of {self._ends:.0f} sampled ends of episodes have a reward above the usual, or one of "
                "the highest, as if the goal ended them, but the environment's compute_terminated(achieved_goal, desired_goal, "
                "info) does not say so: they would be ends under any other goal, too. Define it, as SuccessEndsEpisode, or let "
                "them go on"
            )
