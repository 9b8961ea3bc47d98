"""Starts a run from parts of other runs: named modules of their checkpoints, the optimizer's moments, the replay buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from taac import nest
from taac.algorithms.agent import Agent
from taac.data_structures import LAST, TimeStep
from taac.demonstrations.episode_files import ROUNDING, other_durations
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError, nearest
from taac.learning.learner import Learner
from taac.learning.optimizers import load_state
from taac.replay import ReplayBuffer
from taac.runs import checkpoint
from taac.runs.checkpoint import Checkpoint
from taac.runs.frame_chunks import FrameChunks
from taac.runs.run_folder import RunFolder

OPTIMIZER, REPLAY = "optimizer", "replay"


def load_parts(
    learner: Learner, environment: VectorEnvironment, sources: Sequence[str], ring: ReplayBuffer | None = None
) -> list[dict[str, Any]]:
    """Loads modules from the checkpoints of other runs; returns the origin of each, for run.json.

    The target of a module is loaded with it, so the two are equal as at the start of any run: `x` also sets `target_x`, and a
    part `x.y` sets `target_x.y`, unless the target is named as well. If a temperature is tuned in another way here, its alpha is
    kept.

    Args:
        learner: its agent's modules are set, and its optimizer's moments.
        environment: in which the run explores.
        sources: each "FOLDER:MODULE". "runs/a:actor" is a module of the newest checkpoint of the run in runs/a.
            "runs/a/best:actor" is that of the agent of its best evaluation. A module is one of the algorithm's ("actor",
            "critics", "encoder", "actor.hidden"...), "algorithm" for all of it, "observation_normalizer",
            "reward_normalizer" or "reward_signals". "runs/a:optimizer" are its moments and counts of steps; learning rates stay.
            "runs/a:replay" are its frames, with priorities, which a prioritised `ring` needs; running episodes end at the last
            one. Their rewards count for the statistics of returns, unless "reward_normalizer" is loaded, too.
        ring: the empty buffer that takes frames. None: none can be taken.

    Raises:
        TaacError: a source is malformed or names no run or module; a module has other parameters or shapes (the message names
            both); frames are of other actions, or of repeats of another kind; or a temperature is 0 although its logarithm is to
            be tuned.
    """
    agent = learner.agent
    parsed = [_parse(agent, source) for source in sources]
    named = {name for _, name in parsed}
    records = []
    for checkpoints, name in parsed:
        found = checkpoints.newest()
        records.append({"run": str(checkpoints.path.parent), "module": name, "env_steps": found.env_steps})
        with checkpoint.restoring(f"'{name}' of the checkpoint {found.path}"):
            if name == OPTIMIZER:
                _load_moments(learner, found)
            elif name == REPLAY:
                frames = _load_frames(ring, environment, found)
                if "reward_normalizer" not in named:
                    agent.count_recorded(frames, environment.num_envs)
            else:
                _load_module(agent, name, named, found)
    return records


def _load_module(agent: Agent, name: str, named: Collection[str], found: Checkpoint) -> None:
    """Loads a module, and its target unless that is among the `named`."""
    modules = found.part("agent")
    beginning = f"{name}."
    part = {key.removeprefix(beginning): v for key, v in modules.items() if key.startswith(beginning)}
    if not part:
        held = {".".join(key.split(".")[: 2 if key.startswith("algorithm.") else 1]) for key in modules}
        raise TaacError(f"{found.path} holds no '{name}'; it holds: {', '.join(sorted(held))}")
    place = Path(f"{found.path}:{name}")  # for the error message
    checkpoint.load_into(agent.get_submodule(name), part, place)
    target = slow_copy(agent, name)
    if target is not None and not any(f"{target}.".startswith(f"{n}.") for n in named if ".target_" in n):
        checkpoint.load_into(agent.get_submodule(target), part, place)


def _load_moments(learner: Learner, found: Checkpoint) -> None:
    """Takes over an optimizer's state, but none of its settings."""
    held = found.part("learner").get("optimizer")
    if held is None:
        raise TaacError(f"{found.path} holds no '{OPTIMIZER}': give the folder of a run, not of its best agent")
    ours, theirs = (state.get("by_group", [state]) for state in (learner.optimizer.state_dict(), held))
    sizes = [[[len(group["params"]) for group in one["param_groups"]] for one in of] for of in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise TaacError(f"{found.path}:{OPTIMIZER} is of other groups of parameters than {', '.join(learner.group_names)} here")
    for our, their in zip(ours, theirs):
        our["state"] = their["state"]
        for group, other in zip(our["param_groups"], their["param_groups"]):
            group.update({name: other[name] for name in ("num_steps",) if name in other})
    try:
        load_state(learner.optimizer, {"by_group": ours})
    except TaacError as error:
        raise TaacError(f"{found.path}:{OPTIMIZER} cannot be taken: {error}") from error


def _load_frames(ring: ReplayBuffer | None, environment: VectorEnvironment, found: Checkpoint) -> Iterator[TimeStep]:
    """Takes over a buffer's frames; returns them, leaves `[B, ...]` each, the oldest first.

    The newest of each environment becomes the LAST of its episode, which goes on elsewhere.
    """
    if ring is None or ring.size:
        why = "several ranks have buffers of their own" if ring is None else "the buffer begins with demonstrations"
        raise TaacError(f"{found.path}:{REPLAY} cannot be taken: {why}")
    held, here = (
        {path: space for path, space in state.items() if path.startswith("action_space")}
        for state in (found.part("environment"), environment.state_dict())
    )
    if held != here:
        raise TaacError(f"{found.path}:{REPLAY} cannot be taken: its actions are {held}, those of '{environment.name}' {here}")
    try:
        ring.load_state_dict({name: v for name, v in found.part(REPLAY).items() if name not in ("demonstrations", "checks")})
        FrameChunks(ring).load(found.path.parent, found.frames)
    except TaacError as error:
        raise TaacError(f"{found.path}:{REPLAY} cannot be taken: {error}") from error
    if ring.size:
        newest = (ring.next - 1) % ring.length
        ring.frames(newest, newest + 1)["frames/time_step/step_type"].fill_(LAST)
    stored = ring.stored().time_step
    low, high = environment.durations
    longest = int(stored.duration.max()) if ring.size else 0  # 0 at FIRST
    inside = environment.repeat_gamma ** (stored.duration.double() - 1.0).clamp(min=0.0)
    wrong = (stored.discount != 0) & ((stored.discount - inside).abs() > ROUNDING)
    wrong |= other_durations(stored, environment)
    if longest > high or 0 < longest < low or bool(wrong.any()):
        raise TaacError(
            f"{found.path}:{REPLAY} cannot be taken: its actions take up to {longest} environment steps, and those here {low} to "
            f"{high}, or their last numbers mean other durations here, or the rewards of a repeat were added up otherwise "
            "(create_environment.action_repeat_gamma, action_repeat_plain_sum)"
        )
    return (nest.index(stored, frame % ring.length) for frame in range(ring.oldest, ring.added))


def slow_copy(root: nn.Module, name: str) -> str | None:
    """Returns the full name of a module's target: "target_x.y" or "x.target_y" for "x.y"; None if there is none."""
    modules, parts = dict(root.named_modules()), name.split(".")
    copies = (".".join([*parts[:i], f"target_{part}", *parts[i + 1 :]]) for i, part in enumerate(parts))
    return next((copy for copy in copies if copy in modules), None)


def _parse(agent: Agent, source: str) -> tuple[checkpoint.Checkpoints, str]:
    path, _, short = source.rpartition(":")
    if not path or not short:
        raise TaacError(f"create_experiment.load_from must be 'FOLDER_OF_A_RUN:MODULE', got '{source}'")
    modules = [name for name, module in agent.named_modules() if name and module.state_dict()]
    for name in (f"algorithm.{short}", short):
        if name in (*modules, OPTIMIZER, REPLAY):
            folder, best = RunFolder(path), RunFolder(Path(path).parent).best
            is_best = best.path == folder.path and not folder.config.exists()  # a run itself may be called "best"
            return (best if is_best else folder.checkpoints), name
    known = [*(name.removeprefix("algorithm.") for name in modules if name.count(".") <= 1), OPTIMIZER, REPLAY]
    raise TaacError(
        f"create_experiment.load_from '{source}': this agent has no module '{short}'{nearest(short, known)}; it has: "
        f"{', '.join(known)}"
    )
