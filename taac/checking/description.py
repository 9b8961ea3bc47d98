"""Describes an experiment without training it: every value with its origin, the parts, the memory, what looks wrong."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator

import torch

from taac import configuration, nest, specs
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import describe_failure
from taac.checking.advice import Share, advice, random_endings, shares, subtracts_mean
from taac.configuration import Config, RunRequest
from taac.data_structures import Experience, Nest, StepType
from taac.learning.diagnostics import RunningMeans
from taac.machine.memory import readable_bytes
from taac.training import experiment
from taac.training.summaries import UNKNOWN, unknown_tags
from taac.training.trainer import Trainer


def describe(request: RunRequest) -> list[str]:
    """Builds an experiment and returns lines of text about it.

    Raises:
        TaacError: what `taac train` would refuse.
    """
    loaded = request.load()
    trainer = configuration.build(experiment.create_experiment)
    with contextlib.closing(trainer):
        memory = shares(trainer)
        endings = random_endings(trainer) if subtracts_mean(trainer) else (0, 0)
    loaded.check_used()
    taken = trainer.begin()
    origins = loaded.origins()
    width = min(90, max(len(line) for line, _ in origins))
    return [
        *request.describe(loaded),
        *(f"{line:<{width}}  # {where}" for line, where in origins),
        *_parts(trainer),
        *(f"  {part['module']} from {part['run']}, at {part['env_steps']} environment steps" for part in taken),
        *_numbers(trainer, loaded, memory, endings),
    ]


def _parts(trainer: Trainer) -> Iterator[str]:
    environment, algorithm = trainer.environment, trainer.agent.algorithm
    yield ""
    yield f"environment: {environment.name}, {environment.num_envs} in parallel"
    for path, spec in nest.flatten_with_path(environment.observation_spec):
        yield f"  observation {path + ' ' if path else ''}{spec}"
    for path, spec in nest.flatten_with_path(environment.action_spec):
        yield f"  action {path + ' ' if path else ''}{spec}{'' if spec.is_categorical else ' (rescaled)'}"
    count = sum(p.numel() for p in algorithm.parameters() if p.requires_grad)
    yield f"algorithm: {type(algorithm).__name__} on {trainer.agent.device}, {count} trainable parameters"
    for line in algorithm.describe():
        yield f"  {line}"
    if scheduled := trainer.schedules.describe():
        yield "schedules:"
    for line in scheduled:
        yield f"  {line}"


def _numbers(trainer: Trainer, loaded: Config, memory: list[Share], endings: tuple[int, int]) -> Iterator[str]:
    replay, earned = trainer.replay_buffer, trainer.update_ratio
    yield (
        f"replay buffer: {replay.num_bytes} bytes ({readable_bytes(replay.num_bytes)}) on {replay.device}, for the frames of the "
        f"run, of which it keeps the last {replay.length} x {replay.num_envs} environments"
    )
    updates, first = earned.updates_due(trainer.num_env_steps), earned.initial_collect_steps
    mean = updates / (trainer.num_env_steps - first)
    ratio = float(earned.ratio) if earned.schedule is None else mean
    of, most = ("environment step", "") if earned.clock == "env_steps" else ("transition", "at most ")
    yield f"updates per {of}: {ratio:g}, after {first} steps of collection"
    each = ratio * trainer.batch_size * trainer.segment_length
    shortest, longest = trainer.environment.durations if earned.clock == "env_steps" else (1, 1)
    frames = f"{each * shortest:g}" + (f" to {each * longest:g}" if longest > shortest else "")
    yield (
        f"  {most}{updates} updates in all, {updates / trainer.num_env_steps:.4g} a step of the whole run; "
        f"{frames} frames are replayed for each that is collected"
    )
    yield f"programs: {trainer.compilation}; products of matrices: {trainer.learner.products}"
    yield f"memory: {readable_bytes(sum(share.bytes for share in memory))}, and temporary memory of a gradient step"
    for share in memory:
        yield f"  {readable_bytes(share.bytes):>9}  {share.what}"
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    tags, failure = first_update(trainer.agent, spec, trainer.segment_length)
    found = [failure] if failure else []
    found += [f"{tag}: {UNKNOWN}" for tag in unknown_tags(tags, trainer.agent.algorithm.summary_tags())]
    found += [*loaded.without_effect(), *advice(trainer, loaded.settings("create_environment"), memory, endings)]
    found += _divided(trainer, loaded)
    yield "what looks wrong:" if found else "what looks wrong: nothing"
    for line in found:
        yield f"  {line}"


def _divided(trainer: Trainer, loaded: Config) -> Iterator[str]:
    """Warns if environments were added to a task's one, by which each step earns fewer updates."""
    given = {b.parameter: b for b in loaded.bindings.values() if not b.shipped}
    envs, constant = trainer.environment.num_envs, trainer.update_ratio.constant
    added = envs > 1 and {"num_envs", "create_environment.num_envs"} & set(given)
    chosen = {"updates_per_iteration", "UpdateRatio.updates_per_iteration", "UpdateRatio.updates_per_env_step"} & set(given)
    if added and not chosen and constant is not None and constant < 1:
        yield (
            f"num_envs = {envs} divides the updates by {envs}, to {float(constant):g} a step, because an iteration steps all of "
            "them: bind UpdateRatio.updates_per_env_step = 1 to learn as much from each step as with one environment"
        )


def first_update(agent: Agent, spec: Nest, segment_length: int) -> tuple[list[str], str | None]:
    """Returns the tags of the loss of blank segments, and how the steps of training fail on them; None if they do not.

    Args:
        agent: stays as it is, as do random numbers.
        spec: specs of one frame in the replay buffer.
        segment_length: frames T of a segment.
    """
    tags: list[str] = []
    devices = [agent.device] if agent.device.type == "cuda" else []
    try:
        trial = copy.deepcopy(agent)
        algorithm = trial.algorithm
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            experience = trial.prepare(_blank_segments(spec, segment_length, agent.device))
            with trial.learning():
                tags += (extra := algorithm.calc_loss(experience, algorithm.train_step(experience)).extra)
                RunningMeans().add(extra)
        algorithm.after_update(1)
    except Exception as error:
        kind = type(agent.algorithm).__name__
        return tags, f"{kind} fails to learn from blank frames, so its first update may fail: {describe_failure(error)}"
    return tags, None


def _blank_segments(spec: Nest, length: int, device: torch.device) -> Experience:
    """Returns blank segments `[T, B, ...]` from the middle of an episode. B is no usual number of parts of a reward."""
    found: Experience = specs.blank(spec, length, 7, device=device)
    time_step = found.time_step
    return found._replace(
        time_step=time_step._replace(
            step_type=torch.full_like(time_step.step_type, int(StepType.MID)),
            discount=torch.ones_like(time_step.discount),
            duration=torch.ones_like(time_step.duration),
        )
    )
