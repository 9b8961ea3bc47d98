"""Protects torch's global settings from environments in this process, since training would continue with changed ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from taac.errors import EnvironmentFailed


def _settings() -> dict[str, Any]:
    return {"default dtype": torch.get_default_dtype(), "gradient mode": torch.is_grad_enabled()}


@contextlib.contextmanager
def preserved(where: str | None) -> Iterator[None]:
    """Restores torch's default dtype and gradient mode if the code within changes them.

    Args:
        where: which environment and when, for the message. None restores the settings without an error.

    Raises:
        EnvironmentFailed: a setting was changed.
    """
    before = _settings()
    try:
        yield
    finally:
        after = _settings()
        if after != before:
            torch.set_default_dtype(before["default dtype"])
            torch.set_grad_enabled(before["gradient mode"])
    if where is not None and after != before:
        changed = "; ".join(f"{n} from {before[n]} to {after[n]}" for n in before if after[n] != before[n])
        raise EnvironmentFailed(
            f"{where}: it changed torch's {changed} for the whole process, and so for training. Make the environment restore "
            "the setting (for example, `with torch.no_grad():`), or bind create_environment.asynchronous = True"
        )
