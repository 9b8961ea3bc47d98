"""Protects torch's global settings from environments in this process, since training would continue with changed ones."""

from __future__ import annotations

from typing import Any

import torch

from taac.errors import EnvironmentFailed


def _settings() -> tuple[torch.dtype, bool]:
    return torch.get_default_dtype(), torch.is_grad_enabled()


class preserved:
    """A context that restores torch's default dtype and gradient mode if the code within changes them.

    Args:
        where: which environment and when, for the message. None restores the settings without an error.

    Raises:
        EnvironmentFailed: a setting was changed.
    """

    def __init__(self, where: str | None):
        self._where = where

    def __enter__(self) -> None:
        self._before = _settings()

    def __exit__(self, raised: Any, *_: Any) -> None:
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
