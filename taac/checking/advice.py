"""What a run will use of memory, and warnings about settings that look wrong but do not prevent training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from taac import nest, specs
from taac.acting.rollout import Rollout
from taac.algorithms.actor_critic import ActorCriticAlgorithm
from taac.data_structures import LAST
from taac.machine.memory import available_bytes, readable_bytes
from taac.machine.products import slowness
from taac.networks import RewardNormalizer
from taac.networks.bodies import projections
from taac.networks.encoders import is_image
from taac.parallel.remote_collector import RemoteCollector
from taac.replay import HindsightReplayBuffer
from taac.specs import TensorSpec
from taac.training import checks
from taac.training.trainer import Trainer

_LARGE = 10.0  # numbers that networks do not expect; depths in metres and normalised pictures are below


class Share(NamedTuple):
    """Memory used by one part of a run."""

    what: str
    bytes: int


def shares(trainer: Trainer) -> list[Share]:
    """Returns the memory that a run will use, on CPU and GPU together. Requires open environments.

    Leaves out the intermediate results of a gradient step, and what environments allocate later.
    """
    algorithm, replay = trainer.agent.algorithm, trainer.replay_buffer
    trained = sum(p.nbytes for p in algorithm.parameters() if p.requires_grad)
    workers = trainer.environment.process_ids + trainer.evaluation_environment.process_ids
    action = specs.zeros(trainer.environment.action_spec, trainer.environment.num_envs)
    a_step = sum(leaf.nbytes for leaf in nest.flatten(action))
    batch = round(replay.frame_bytes / replay.num_envs * trainer.batch_sizes[1] * trainer.segment_length)
    waiting = trainer.learner.guard.interval
    limit = trainer.environment.max_episode_steps or trainer.num_env_steps // trainer.environment.num_envs
    longest = -(-limit // trainer.environment.durations[0])  # actions of an episode up to the time limit, or of the whole run
    found = [
        Share("replay buffer", trainer.replay.num_bytes),
        Share("networks, targets and normalisers", sum(v.nbytes for v in trainer.agent.state_dict().values())),
        Share("gradients and the optimizer's moments, as of Adam", 3 * trained),
        Share("a batch, as sampled", batch) if waiting == 1 else
        Share(f"{waiting} batches that the guard keeps, as sampled and as prepared", 2 * waiting * batch),
        Share("actions of the running episodes, at most", 2 * a_step * longest),
        Share("this process so far: Python, torch, and environments that run in it", psutil.Process().memory_info().rss),
    ]
    if workers:
        taken = sum(psutil.Process(pid).memory_info().rss for pid in workers)
        found.append(Share(f"{len(workers)} processes of environments, so far", taken))
    return found


def random_endings(trainer: Trainer) -> tuple[int, int]:
    """Plays at most 20 episodes or 2,000 steps at random. Returns how many episodes terminated, and how many ended."""
    elsewhere = isinstance(trainer.collector, RemoteCollector)  # whose processes have the training environments
    environment = trainer.evaluation_environment if elsewhere else trainer.environment
    rollout, terminated, ended, steps = Rollout(environment, trainer.agent), 0, 0, 0
    rollout.reset(trainer.seed)
    while ended < 20 and steps < 2_000:
        rollout.step(trainer.agent.unobserved_random_step)
        last = rollout.time_step.step_type == LAST
        ended, steps = ended + int(last.sum()), steps + environment.num_envs
        terminated += int((last & (rollout.time_step.discount == 0)).sum())
    return terminated, ended


def advice(trainer: Trainer, settings: Mapping[str, Any], memory: list[Share], endings: tuple[int, int] = (0, 0)) -> list[str]:
    """Returns what looks wrong, each with what to do about it. Nothing here prevents a run from training.

    `settings` are the parameters of `create_environment` in force, `memory` is from `shares`, `endings` from
    `random_endings`.
    """
    slow = slowness(trainer.learner.products, trainer.agent.device)
    return [
        *_intervals(trainer, settings), *_replay(trainer, memory), *_evaluation(trainer), *_entropy(trainer),
        *_discount(trainer, settings), *_rewards(trainer, *endings), *_critics(trainer), *_features(trainer),
        *([slow] if slow else []),
    ]  # fmt: skip


def subtracts_mean(trainer: Trainer) -> bool:
    return isinstance(trainer.agent.reward_normalizer, RewardNormalizer)


def _rewards(trainer: Trainer, terminated: int, ended: int) -> Iterator[str]:
    if terminated and subtracts_mean(trainer):
        yield (
            f"create_agent.normalize_rewards subtracts the mean of rewards, and {terminated} of {ended} random episodes "
            "terminated: where the agent decides how long an episode lasts, another policy may then be the best one. Bind "
            "normalize_rewards = 'scale', which divides rewards and keeps their mean, or False, which keeps them as they are"
        )


def _critics(trainer: Trainer) -> Iterator[str]:
    algorithm, learner = trainer.agent.algorithm, trainer.learner
    yield from checks.beyond_atoms(trainer)
    delay, ratio = getattr(algorithm, "policy_delay", 1), float(trainer.update_ratio.ratio)
    if trainer.update_ratio.schedule is None and delay > max(4, 4 * ratio):
        yield (
            f"the actor moves in one of {delay} updates, once in {delay / ratio:.3g} environment steps: bind a lower "
            "ActorCriticAlgorithm.policy_delay (--set critic_updates sets it with the updates, for redq and droq)"
        )
    kept = {id(part.weight) for part in projections(algorithm) if hasattr(part, "weight")}
    for name, group in zip(learner.group_names, learner.optimizer.param_groups):
        if group.get("weight_decay") and any(id(p) in kept for p in group["params"]):
            yield (
                f"the weights of the {name} decay by {group['weight_decay']:g} and are set back to norm 1 after each update, "
                f"which undoes it: remove '{name}' from Learner.weight_decay, or the optimizer's own"
            )


def _intervals(trainer: Trainer, settings: Mapping[str, Any]) -> Iterator[str]:
    steps, envs, often = trainer.num_env_steps, trainer.environment.num_envs, trainer.intervals
    iteration = trainer.update_ratio.unroll_length * envs
    for name, interval, follows in (
        ("evaluation_interval", often.evaluation, "the only evaluation is at the end" if not trainer.evaluator.initial
         else "the only evaluations are at the beginning and at the end"),
        ("checkpoint_interval", often.checkpoint, "the only checkpoint is at the end, and a killed run starts over"),
        ("summary_interval", often.summary, "there are no summaries"),
    ):
        if interval > steps:
            yield f"Intervals.{name} {interval} is above Intervals.num_env_steps {steps}: {follows}"
        if interval < iteration:
            yield (
                f"Intervals.{name} {interval} is below the {iteration} environment steps of an iteration (unroll_length x "
                "num_envs): it happens once an iteration"
            )
    first = trainer.update_ratio.initial_collect_steps
    if 2 * first >= steps:
        yield (
            f"UpdateRatio.initial_collect_steps {first} is half of Intervals.num_env_steps {steps} or more, and nothing is "
            f"learnt in them: --set initial_collect_steps={max(1, steps // 10)}, for example, leaves the rest"
        )
    if trainer.environment.max_episode_steps is None:
        yield (
            "the environment declares no time limit: unless its episodes all end by themselves, an evaluation does not end. "
            "create_environment.max_episode_steps sets one"
        )
    if settings.get("step_timeout") is not None and not settings.get("asynchronous"):
        yield "create_environment.step_timeout has no effect: bind create_environment.asynchronous = True, or remove it"


def _replay(trainer: Trainer, memory: list[Share]) -> Iterator[str]:
    replay, envs = trainer.replay_buffer, trainer.environment.num_envs
    first = trainer.update_ratio.initial_collect_steps
    if replay.length * envs * trainer.environment.durations[1] < first:
        yield (
            f"the replay buffer holds {replay.length * envs} frames, fewer than those of UpdateRatio.initial_collect_steps "
            f"{first}: the first of them are lost before any update"
        )
    one_step = trainer.environment.durations == (1, 1)
    if trainer.environment.goal_functions and one_step and not isinstance(replay, HindsightReplayBuffer):
        yield (
            "the environment has goals, and the run learns from those alone that it is asked for: where they are rarely reached, "
            "add hindsight to the method's name, such as taac+her"
        )
    total, free = sum(share.bytes for share in memory), available_bytes(replay.device)
    now = sum(share.bytes for share in memory if "this process" in share.what or "processes" in share.what)
    if trainer.agent.device.type == "cpu" and total - now > free:
        yield f"the run will use {readable_bytes(total)}, and {readable_bytes(free)} are free"


def _evaluation(trainer: Trainer) -> Iterator[str]:
    envs, episodes = trainer.evaluation_environment.num_envs, trainer.evaluator.num_episodes
    if episodes < envs:
        yield (
            f"Evaluator.evaluation_episodes {episodes} is below create_experiment.evaluation_envs {envs}: "
            f"{envs - episodes} of them play no episode that counts"
        )


def _entropy(trainer: Trainer) -> Iterator[str]:
    """Warns if the target entropy is so close to the uniform policy, or so far below it, that it is probably a mistake."""
    algorithm, agents = trainer.agent.algorithm, trainer.agent.agents
    spec = trainer.environment.action_spec if agents is None else agents.action
    temperature = algorithm.temperatures().get("action") if isinstance(algorithm, ActorCriticAlgorithm) else None
    if temperature is None or not isinstance(spec, TensorSpec) or spec.is_categorical or temperature.tuning == "fixed":
        return
    target = temperature.target_entropy
    below = math.log(2.0) - target / getattr(algorithm, "proposal_size", algorithm.action_size)  # a chunk has more numbers
    if below < 0.1:
        yield (
            f"the target entropy of actions, {target:.4f} nats, is within {below:.2f} nats a dimension of the uniform policy's: "
            "actions will be almost random. SAC's own is -1 a dimension"
        )
    if below > 10:
        yield (
            f"the target entropy of actions, {target:.4f} nats, is {below:.1f} nats a dimension below the uniform policy's: "
            "actions will hardly explore. SAC's own is -1 a dimension"
        )


def _discount(trainer: Trainer, settings: Mapping[str, Any]) -> Iterator[str]:
    gamma, repeat = trainer.learner.growth.gamma, settings.get("action_repeat", 1)
    inside = settings.get("action_repeat_gamma")
    repeated = repeat > 1 and not settings.get("action_repeat_plain_sum") and inside != 1  # which is a plain sum, too
    if repeated and gamma is not None and inside is not None and abs(inside - gamma) > 1e-6:
        yield (
            f"create_environment.action_repeat_gamma {inside} is not the learner's gamma {gamma:g}: rewards inside a repeat of "
            f"{repeat} steps are not discounted like those after it"
        )


def _features(trainer: Trainer) -> Iterator[str]:
    algorithm, normalizer = trainer.agent.algorithm, trainer.agent.observation_normalizer
    shared = isinstance(algorithm, ActorCriticAlgorithm) and algorithm.actor_encoder is None
    if trainer.learner.cloning is not None and shared and any(
        name.startswith("encoder.") and p.requires_grad for name, p in algorithm.named_parameters()
    ):
        yield (
            "cloning trains the actor alone, on features of the critics' encoder, which are random during pre-training: give the "
            "actor an encoder of its own, actor_encoder_ctor = @ObservationEncoder (of SacAlgorithm, TaacAlgorithm or "
            "DiscreteSacAlgorithm)"
        )
    leaves = nest.flatten(trainer.environment.observation_spec)
    if normalizer is not None and not any(spec.dtype.is_floating_point for spec in leaves):
        yield (
            "create_agent.normalize_observations has no effect: it normalises floats, and the observations are bytes and choices"
        )
    if normalizer is None:
        for path, spec in nest.flatten_with_path(trainer.environment.observation_spec):
            if not is_image(spec) or spec.dtype == torch.uint8:
                continue
            assert spec.minimum is not None and spec.maximum is not None  # as of all images of floats
            low, high = float(np.min(spec.minimum)), float(np.max(spec.maximum))
            if max(-low, high) > _LARGE:
                yield (
                    f"the observation{f' {path!r}' if path else ''} is an image of floats in [{low:g}, {high:g}], which are not "
                    "scaled, as bytes are: return uint8, divide it in a wrapper (gymnasium.wrappers.RescaleObservation), or bind "
                    "create_agent.normalize_observations = True"
                )
