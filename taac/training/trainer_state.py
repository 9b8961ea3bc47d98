"""All that a trainer is, as nested dicts of tensors and plain values; and a trainer made to be that again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from taac import nest, specs
from taac.acting.action_log import Elsewhere, numpy_state, set_numpy_state
from taac.acting.metrics import Episode
from taac.errors import EnvironmentFailed, TaacError
from taac.runs import checkpoint
from taac.runs.checkpoint import Checkpoint
from taac.runs.files import Damaged
from taac.runs.layout import EpisodeSummary

if TYPE_CHECKING:
    from taac.training.trainer import Trainer

COUNTERS = (
    "env_steps", "decisions", "episodes", "num_restarts", "seconds", "unearned_steps", "evaluation_due",
)  # fmt: skip


def state_dict(trainer: Trainer, under_way: bool = True) -> dict[str, Any]:
    """Everything that a resumed run needs to be the same run, but for the replay buffer's frames.

    Args:
        under_way: whether episodes are, whose places are then part of it; otherwise a resumed run begins new ones.
    """
    cuda = trainer.agent.device.type == "cuda"
    learner = trainer.learner.state_dict()
    num_updates = learner.pop("num_updates")
    return {
        "agent": trainer.agent.state_dict(),
        **learner,
        "replay": trainer.replay_buffer.state_dict(frames=False) if trainer.save_replay else None,
        "counters": {
            "updates": num_updates,
            "earning_transitions": trainer.earning_transitions,
            **{name: getattr(trainer, name) for name in COUNTERS},
        },
        "evaluation": None if trainer.evaluation is None else trainer.evaluation._asdict(),
        "best_return": trainer.best_return,
        "hooks": trainer.hooks.state_dict(),
        "attributes": trainer.attributes.state_dict(),
        "signal_returns": trainer.signal_returns,
        "recent": [episode._replace(ret=episode.ret.tolist())._asdict() for episode in trainer.recent],
        "random": {
            "numpy": numpy_state(),
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if cuda else None,
        },
        "under_way": _under_way(trainer) if under_way else None,
    }


def restore(trainer: Trainer, found: Checkpoint) -> None:
    """Makes a trainer what it was when the checkpoint was written.

    Raises:
        Damaged: frames, or the actions of the running episodes, are not as they were written.
        TaacError: the checkpoint is of another network or replay buffer, or holds something else.
    """
    try:
        _restore(trainer, found.state, found)
    except TaacError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise TaacError(f"the checkpoint {found.path} does not hold what a run holds: {error!r}") from error


def _restore(trainer: Trainer, state: dict[str, Any], found: Checkpoint) -> None:
    if state["replay"] is not None and trainer.frame_chunks is not None:
        trainer.replay_buffer.load_state_dict(state["replay"])
        trainer.frame_chunks.load(found.path.parent, found.frames)
    checkpoint.load_into(trainer.agent, state["agent"], found.path)
    counters = state["counters"]
    try:
        trainer.learner.load_state_dict({**state, "num_updates": counters["updates"]})
    except TaacError as error:
        raise TaacError(f"the checkpoint {found.path} cannot be used: {error}") from error
    for name in COUNTERS:
        setattr(trainer, name, type(getattr(trainer, name))(counters[name]))
    trainer.earning_transitions = int(counters["earning_transitions"])
    trainer.evaluation = None if state["evaluation"] is None else EpisodeSummary(**state["evaluation"])
    trainer.best_return = None if state["best_return"] is None else float(state["best_return"])
    trainer.hooks.load_state_dict(state["hooks"])
    trainer.attributes.load_state_dict(state["attributes"])
    trainer.signal_returns = [{name: float(v) for name, v in returns.items()} for returns in state["signal_returns"]]
    trainer.recent = [Episode(**{**kept, "ret": np.array(kept["ret"])}) for kept in state["recent"]]
    if state["under_way"] is not None:
        trainer.start_episodes()
        try:
            _go_back(trainer, state["under_way"])
            _set_random(trainer, state["random"])
        except (Elsewhere, EnvironmentFailed) as error:
            checkpoint.tell(
                f"{found.path}: {error}. The episodes that were under way are cut off there and new ones begin, so this run "
                "will not end with the bits of one that was never stopped"
            )
            _set_random(trainer, state["random"])
            trainer.cut_off_at(state["under_way"]["time_step"], error)
    else:
        _set_random(trainer, state["random"])
        trainer.start_episodes()


def _set_random(trainer: Trainer, state: dict[str, Any]) -> None:
    set_numpy_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and trainer.agent.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"])


def _tensor_kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


# The running episodes ------------------------------------------------------------------------------------------------


def _under_way(trainer: Trainer) -> dict[str, Any]:
    return {
        "numbers": trainer.environment.episodes.tolist(),
        "actions": trainer.actions.state_dict(),
        "time_step": [leaf.cpu() for leaf in nest.flatten(trainer.rollout.time_step)],
        "policy": nest.flatten(trainer.rollout.state),
        "explorer": None if trainer.explorer_state is None else nest.flatten(trainer.explorer_state),
        "episodes": trainer.recorder.state_dict(),
    }


def _go_back(trainer: Trainer, state: dict[str, Any]) -> None:
    device = trainer.agent.device
    numbers = np.array(state["numbers"], dtype=np.int64)
    if numbers.shape != trainer.environment.episodes.shape or (numbers < 0).any():
        raise Damaged(f"it holds no numbers of {trainer.environment.num_envs} episodes: {state['numbers']}")
    _packed(trainer.rollout.time_step, state["time_step"], device)  # refuses another kind before the environments run
    trainer.actions.load_state_dict(state["actions"])
    trainer.rollout.replay(trainer.actions, trainer.environment_seed(), numbers, state["time_step"])
    trainer.rollout.state = _packed(trainer.rollout.state, state["policy"], device)
    if state["explorer"] is not None and trainer.explorer is not None:
        blank = specs.zeros(trainer.environment.action_spec, trainer.environment.num_envs, device=device)
        trainer.explorer_state = _packed(trainer.explorer.initial_state(blank), state["explorer"], device)
    trainer.recorder.load_state_dict(state["episodes"])


def _packed(like: Any, leaves: list[torch.Tensor], device: torch.device) -> Any:
    kinds = [_tensor_kind(leaf) for leaf in nest.flatten(like)]
    if (given := [_tensor_kind(leaf) for leaf in leaves]) != kinds:
        raise Damaged(f"it holds states of another kind: {given}, expected {kinds}")
    return nest.pack_like(like, [leaf.to(device) for leaf in leaves])
