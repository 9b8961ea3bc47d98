"""Means over the updates since the last summary, kept on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class RunningMeans:
    """Means of what updates report, since they were last taken.

    A tag that only some updates report is averaged over those. An update costs one concatenation and one sum on the device;
    nothing is waited for until `means` is called.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[torch.Tensor, int]] = {}  # by the tags that were reported together

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Adds the scalars of an update."""
        tags = tuple(values)
        now = torch.stack([value.detach() for value in values.values()])
        total, count = self._sums.get(tags, (None, 0))
        total = now.double() if total is None else total.add_(now)  # double: sums of many updates lose no digits
        self._sums[tags] = total, count + 1

    def means(self) -> dict[str, float]:
        """The mean of each tag; empty if nothing was added since the last `clear`."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for tags, (total, count) in self._sums.items():
            for tag, value in zip(tags, total.tolist()):
                sums[tag] = sums.get(tag, 0.0) + value
                counts[tag] = counts.get(tag, 0) + count
        return {tag: value / counts[tag] for tag, value in sums.items()}

    def clear(self) -> None:
        self._sums = {}

    def state_dict(self) -> list[dict[str, Any]]:
        """What a resumed run goes on from, so that its means are those of a run that was never stopped."""
        return [{"tags": list(tags), "sums": t.tolist(), "count": n} for tags, (t, n) in self._sums.items()]

    def load_state_dict(self, state: list[dict[str, Any]], device: torch.device) -> None:
        self._sums = {
            tuple(part["tags"]): (torch.tensor(part["sums"], dtype=torch.float64, device=device), int(part["count"]))
            for part in state
        }
