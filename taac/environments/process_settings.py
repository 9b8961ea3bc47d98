"""Protects the process from environments that run in it: torch's settings and random numbers, and the working directory."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from taac.errors import EnvironmentFailed


def _settings() -> tuple[torch.dtype, bool]:
    return torch.get_default_dtype(), torch.is_grad_enabled()


def _directory() -> str | None:
    """The working directory; None if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class kept:
    """A context that keeps torch's random numbers and the working directory.

    If the code within seeds torch, its generators go on as if it had not: else the policy would draw the same noise in every
    episode. Code that merely draws from them is left alone. Both are restored even if the code raises.
    """

    def __enter__(self) -> None:
        self._directory = _directory()
        self._seed, self._state = torch.initial_seed(), torch.get_rng_state()
        self._of_gpu = torch.cuda.get_rng_state("cuda") if torch.cuda.is_initialized() else None

    def __exit__(self, *_: Any) -> None:
        if torch.initial_seed() != self._seed:  # the very seed of a run is noticed too: see `seed_generators`
            torch.set_rng_state(self._state)
            if self._of_gpu is not None:
                torch.cuda.set_rng_state(self._of_gpu, "cuda")
            else:  # with which it would have started
                torch.cuda.manual_seed_all(self._seed)
        if self._directory is not None and _directory() != self._directory:
            with contextlib.suppress(OSError):  # it has been deleted meanwhile
                os.chdir(self._directory)


class preserved(kept):
    """A context that also restores torch's default dtype and gradient mode if the code within changes them.

    Args:
        where: which environment and when, for the message. None restores these settings without an error.

    Raises:
        EnvironmentFailed: the default dtype or the gradient mode was changed.
    """

    def __init__(self, where: str | None):
        self._where = where

    def __enter__(self) -> None:
        super().__enter__()
        self._before = _settings()

    def __exit__(self, raised: Any, *_: Any) -> None:
        super().__exit__()
        before, after = self._before, _settings()
        if after == before:
            return
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        if self._where is not None and raised is None:
            names = ("default dtype", "gradient mode")
            changed = "; ".join(f"{n} from {b} to {a}" for n, b, a in zip(names, before, after) if a != b)
            raise EnvironmentFailed(
                f"{self._where}: it changed torch's {changed} for the whole process, and so for training. Make the "
                "environment restore the setting (for example, `with torch.no_grad():`), or bind "
                "create_environment.asynchronous = True"
            )
