"""What the first update would show, computed on blank frames."""

from __future__ import annotations

import copy
import warnings

import torch

from taac import specs
from taac.algorithms import Algorithm
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import describe_failure
from taac.data_structures import Experience, Nest, StepType
from taac.errors import TaacError

_SEGMENTS = 2


def check_steps_of_training(algorithm: Algorithm) -> None:
    """Refuses an algorithm that does not define a step of training."""
    kind = type(algorithm)
    for name in ("train_step", "calc_loss"):
        if getattr(kind, name) is getattr(Algorithm, name):
            raise TaacError(f"{kind.__name__} does not define {name}, which every algorithm needs")


def tags_of_first_update(agent: Agent, spec: Nest, segment_length: int) -> list[str] | None:
    """Returns the tags of the loss of blank segments; None if the algorithm fails on them.

    Args:
        agent: stays as it is, as do random numbers.
        spec: specs of one frame in the replay buffer.
        segment_length: frames T of a segment.
    """
    try:
        return _first_update(copy.deepcopy(agent), spec, segment_length)
    except Exception:
        return None


def failure_of_first_update(agent: Agent, spec: Nest, segment_length: int) -> str | None:
    """Returns how the steps of training fail on blank segments, with the line; None if they do not."""
    try:
        trial = copy.deepcopy(agent)
        _first_update(trial, spec, segment_length)
        trial.algorithm.after_update(1)
    except Exception as error:
        return (
            f"{type(agent.algorithm).__name__} fails to learn from blank frames, so its first update may fail: "
            f"{describe_failure(error)}"
        )
    return None


def _first_update(agent: Agent, spec: Nest, segment_length: int) -> list[str]:
    devices = [agent.device] if agent.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experience = agent.prepare(_blank_segments(spec, segment_length, agent.device))
        with agent.learning():
            return list(agent.algorithm.calc_loss(experience, agent.algorithm.train_step(experience)).extra)


def _blank_segments(spec: Nest, length: int, device: torch.device) -> Experience:
    """Returns blank segments `[T, B, ...]` from the middle of an episode."""
    found: Experience = specs.blank(spec, length, _SEGMENTS, device=device)
    time_step = found.time_step
    return found._replace(
        time_step=time_step._replace(
            step_type=torch.full_like(time_step.step_type, int(StepType.MID)),
            discount=torch.ones_like(time_step.discount),
            duration=torch.ones_like(time_step.duration),
        )
    )
