"""What an algorithm is: five steps, parameters and hyper-parameters, and nothing else.

State that runs through time is passed in and handed out, never kept. The environment, the buffer, optimizers,
checkpoints, the gradient step and summaries belong to others. One iteration of the trainer is, in short,

    state = reset_where_first(state, algorithm.initial_state(B), time_step)     # whoever acts does this
    step = algorithm.rollout_step(time_step, state)                             # act
    replay.add(Experience(time_step, step.info)); time_step = environment.step(step.output)
    experience = replay.sample(...)                                             # [T, B]
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience))    # LossInfo, loss [T, B]
    loss.loss.mean().backward(); optimizer.step(); algorithm.after_update(number)
"""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import FIRST, AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError


class Algorithm(nn.Module):
    """The interface. Everything in a `TimeStep` is batched: `[B, ...]` in the acting steps, `[T, B, ...]` in training."""

    min_segment_length = 2  # frames T of a segment that it can learn all it acts on from
    min_segment_reason = "one transition that is learnt from"  # why not fewer, for people
    reward_scale = 1.0  # rewards are multiplied by it where they are learnt from
    info_tells_action = True  # whether `info` depends on the action chosen: then no explorer may execute another

    def initial_state(self, batch_size: int) -> Nest:
        """The state at the first frame of an episode, leaves `[batch_size, ...]`; `()` if there is none."""
        raise NotImplementedError

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        """Acts greedily; with probability `epsilon`, each random choice is sampled instead of taking its mode."""
        raise NotImplementedError

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts to explore; `info` is what training needs of this frame, and goes to the replay buffer."""
        raise NotImplementedError

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts uniformly at random: how experience is collected before training begins. `info` as `rollout_step`."""
        raise NotImplementedError

    def demonstrated_info(self, time_step: TimeStep) -> Nest:
        """The `info` of recorded frames, leaves `[T, E, ...]`: what rollouts that took these actions would have stored.

        Args:
            time_step: E episodes side by side, each from its FIRST at frame 0, `[T, E, ...]`; what comes after an episode's
                LAST is filling.

        An algorithm whose rollouts store nothing has nothing to say; where this does not match what rollouts store, the
        algorithm cannot learn from recorded episodes.
        """
        return ()

    def train_step(self, experience: Experience) -> Nest:
        """Runs the networks once, on all `T*B` replayed frames at a time; its result is handed to `calc_loss`."""
        raise NotImplementedError

    def learnt_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """The parts of a replayed reward `[T, B(, D)]` that `train_step` and `calc_loss` take: all, unless said otherwise.

        `Agent.prepare` calls it; the replay buffer and the records of episodes keep the whole reward.
        """
        return reward

    def calc_loss(self, experience: Experience, info: Nest) -> LossInfo:
        """The loss of each frame, `[T, B]`, 0 at LAST."""
        raise NotImplementedError

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """How far the policy is from replayed demonstrations, `[T, B]`: 0 at LAST and at the segment's last frame."""
        raise TaacError(f"{type(self).__name__} has no behaviour cloning")

    def after_update(self, num_updates: int) -> None:
        """Called after each optimizer step, with how many there have been: moves targets, projects what is bounded."""

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        """Is told, before any update, how many there are for each environment step; None: that changes over the run."""

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trainable parameters by role ("actor", "critic", "temperature"); every one in exactly one group."""
        raise NotImplementedError

    def acting_modules(self) -> list[str]:
        """Names of the sub-modules that acting needs, greedily and exploring; the others only learn. All, if nothing is said."""
        return [name for name, _ in self.named_children()]

    def summary_tags(self) -> dict[str, str]:
        """Tags of `LossInfo.extra` that are this algorithm's own, with their meaning; the common ones need not be named."""
        return {}

    def describe(self) -> list[str]:
        """Lines about what follows from the settings: target entropies in nats with their formula."""
        return []


def reset_where_first(state: Nest, initial: Nest, time_step: TimeStep) -> Nest:
    """The state with the rows that begin an episode set to the initial one. Leaves `[B, ...]`."""
    step_type = time_step.step_type
    if step_type.device.type == "cpu" and FIRST not in step_type.numpy():  # nearly always; a GPU would be waited for
        return state
    first = time_step.is_first()
    return nest.map_structure(lambda s, i: torch.where(first.reshape(-1, *(1,) * (s.dim() - 1)), i, s), state, initial)
