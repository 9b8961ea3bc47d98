"""Protects the process from environments that run in it: torch's settings and random numbers, and the working directory."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from taac.errors import EnvironmentFailed


def _default_device() -> Any:
    """Returns torch's default device as torch keeps it; None if none was set. Setting any slows every call of torch."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _directory() -> str | None:
    """Returns the working directory; None if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class Preserved:
    """A context that keeps settings of the process, even if the code within raises.

    It restores torch's threads, default device, default dtype and gradient mode, and the working directory. If the code seeds
    torch, its generators go on as if it had not: else the policy would draw the same noise in every episode. Code that merely
    draws from them is left alone.

    Raises EnvironmentFailed if the code changed the dtype or the gradient mode. `where` names the environment and the moment in
    its message; None restores all without an error.
    """

    def __init__(self, where: str | None):
        self._where = where

    def __enter__(self) -> None:
        self._directory = _directory()
        self._threads, self._device = torch.get_num_threads(), _default_device()
        self._seed, self._state = torch.initial_seed(), torch.get_rng_state()
        self._of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._dtype, self._gradients = torch.get_default_dtype(), torch.is_grad_enabled()

    def __exit__(self, raised: Any, *_: Any) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if _default_device() is not self._device:
            torch.set_default_device(None if self._device is None else self._device.device)
        if torch.initial_seed() != self._seed:  # the very seed of a run is noticed too: see `seed_generators`
            torch.set_rng_state(self._state)
            if self._of_gpus is not None:
                torch.cuda.set_rng_state_all(self._of_gpus)
            else:  # with which it would have started
                torch.cuda.manual_seed_all(self._seed)
        if self._directory is not None and _directory() != self._directory:
            with contextlib.suppress(OSError):  # it has been deleted meanwhile
                os.chdir(self._directory)
        changed = []
        if (dtype := torch.get_default_dtype()) != self._dtype:
            torch.set_default_dtype(self._dtype)
            changed.append(f"changed torch's default dtype from {self._dtype} to {dtype}")
        if torch.is_grad_enabled() != self._gradients:
            torch.set_grad_enabled(self._gradients)
            changed.append(f"changed torch's gradient mode from {self._gradients} to {not self._gradients}")
        if changed and self._where is not None and raised is None:
            raise EnvironmentFailed(
                f"{self._where}: it {'; '.join(changed)} for the whole process, and so for training. Make the "
                "environment restore the setting (for example, `with torch.no_grad():`)"
            )
