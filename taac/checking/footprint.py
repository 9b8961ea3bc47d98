"""Estimates the memory of a run."""

from __future__ import annotations

from typing import NamedTuple

import psutil
import torch

from taac import nest, specs
from taac.learning.optimizers import TensorFlowAdam, each, state_after_a_step
from taac.training.trainer import Trainer


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
    frame = replay.frame_bytes / replay.num_envs
    found = [
        Share("replay buffer", trainer.replay.num_bytes),
        Share("networks, targets and normalisers", sum(v.nbytes for v in trainer.agent.state_dict().values())),
        _learning(trainer, trained),
        _batches(trainer, round(frame * trainer.batch_sizes[1] * trainer.segment_length)),
        Share("actions of the running episodes, at most", 2 * a_step * _longest_episode(trainer)),
        Share(
            "this process so far: Python, torch, and environments that run in it", psutil.Process().memory_info().rss
        ),
    ]
    if workers:
        taken = sum(psutil.Process(pid).memory_info().rss for pid in workers)
        found.append(Share(f"{len(workers)} processes of environments, so far", taken))
    return found


def _batches(trainer: Trainer, batch: int) -> Share:
    waiting = trainer.learner.guard.interval
    if waiting == 1:
        return Share("a batch, as sampled", batch)
    return Share(f"{waiting} batches that the guard keeps, as sampled and as prepared", 2 * waiting * batch)


def _longest_episode(trainer: Trainer) -> int:
    """Returns the largest number of actions in an episode: up to the time limit, or the whole run if there is none."""
    limit = trainer.environment.max_episode_steps or trainer.num_env_steps // trainer.environment.num_envs
    return -(-limit // trainer.environment.durations[0])


def _learning(trainer: Trainer, trained: int) -> Share:
    optimizers = each(trainer.learner.optimizer)
    if all(isinstance(one, TensorFlowAdam) for one in optimizers):
        return Share("gradients and Adam's two moments", 3 * trained)
    states = [of for one in optimizers for of in state_after_a_step(one).values()]
    kept = [v for of in states for v in of.values() if isinstance(v, torch.Tensor)]
    what = "optimizers keep" if len(optimizers) > 1 else f"{type(optimizers[0]).__name__} keeps"
    return Share(f"gradients and what {what}", trained + sum(v.nbytes for v in kept))
