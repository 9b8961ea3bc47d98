"""Chooses the torch devices of a run."""

from __future__ import annotations

import re

import torch

from taac.errors import TaacError
from taac.machine.ranks import ALONE, Ranks


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Returns the torch device of a name. Of several ranks on a machine, each has a GPU of its own.

    Raises:
        TaacError: there is no such device, CUDA is not available, or there are fewer GPUs than ranks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if ranks.count > 1 and name.startswith("cuda"):
        return _own_gpu(name, ranks)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise TaacError(f"device must be 'auto', 'cpu' or 'cuda' (or 'cuda:1'...), got '{name}'")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TaacError(
            f"device '{name}' is not available: torch {torch.__version__} finds no CUDA; use 'cpu' or 'auto'"
        )
    return device


def choose_replay_device(name: str | None, agent: torch.device, ranks: Ranks = ALONE) -> torch.device:
    """Returns the device of the replay buffer: the agent's for None.

    Raises:
        TaacError: it is another GPU than the agent's; also as in `choose_device`.
    """
    if name is None:
        return agent
    chosen = choose_device(name, ranks)
    if chosen.type == "cuda" and (agent.type != "cuda" or (chosen.index or 0) != (agent.index or 0)):  # "cuda" is the first
        raise TaacError(
            f"create_experiment.replay_device = '{name}', but the agent is on {agent}: another GPU draws random numbers that no "
            "checkpoint holds. Bind 'cpu', or leave it out"
        )
    return chosen


def _own_gpu(name: str, ranks: Ranks) -> torch.device:
    if name != "cuda":
        raise TaacError(f"device must be 'auto', 'cpu' or 'cuda' with {ranks.count} ranks, one each; got '{name}'")
    if ranks.local_number >= torch.cuda.device_count():
        raise TaacError(
            f"rank {ranks.number} has no GPU: this machine has {torch.cuda.device_count()}; start as many processes a machine "
            "(--nproc_per_node), or bind create_experiment.device = 'cpu'"
        )
    torch.cuda.set_device(ranks.local_number)
    return torch.device("cuda", ranks.local_number)
