"""Checkpoint files: tensors and plain containers only, replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from taac.errors import TaacError

FORMAT = 1


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (nested dicts and lists of tensors, numbers, strings) beside `path`, then puts it in its place."""
    beside = path.with_suffix(".tmp")
    with open(beside, "wb") as file:
        torch.save({"format": FORMAT, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: Path, lazily: bool = False) -> dict[str, Any]:
    """What `save` wrote, on the CPU. Loading cannot run code.

    Args:
        lazily: map the file into memory, so that only what is used is read.

    Raises:
        TaacError: no such file, a damaged one, or one of a newer format.
    """
    if not path.exists():
        raise TaacError(f"there is no checkpoint at {path}; train first, or give the folder of a run")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
        found, state = content["format"], content["state"]
    except Exception as error:
        raise TaacError(f"the checkpoint {path} cannot be read, it may be damaged: {error}") from error
    if found != FORMAT:
        raise TaacError(f"the checkpoint {path} has format {found}; this version of taac reads format {FORMAT}")
    return state


def load_into(module: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Loads a module's parameters.

    Raises:
        TaacError: the module has other parameters, or of other shapes; names each.
    """
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise TaacError(f"the checkpoint {path} is of another network: {error}") from error
