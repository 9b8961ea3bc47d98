"""A sum tree in tensors: draws from, and changes of, a large discrete distribution, for whole batches at a time."""

from __future__ import annotations

import torch

WIDTH = 128  # children of a node: few levels, each a handful of operations for the whole batch


class SumTree:
    """Masses `m_i >= 0` of `size` items, with the sums that make drawing proportional to them cheap.

    Every node has `WIDTH` children. Level 0 holds the masses, and the entry of a node in the next level is the sum of the
    row below it, so that a change or a draw touches one row a level: time and memory grow with log(size).

    A sum is the last of its row's cumulative sums: it depends on the masses alone, not on the order of changes, so that
    a tree made anew from the masses has the same bits.

    Source: Schaul et al., Prioritized Experience Replay (arXiv:1511.05952), appendix B.2.1, there with two children.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu"):
        self.size = size
        self._levels: list[torch.Tensor] = []  # [rows, WIDTH] float64, from the masses to a single row
        entries = size
        while not self._levels or entries > 1:
            rows = -(-entries // WIDTH)
            self._levels.append(torch.zeros(rows, WIDTH, dtype=torch.float64, device=device))
            entries = rows

    @property
    def masses(self) -> torch.Tensor:
        """`[size]` float64; a view, to be read."""
        return self._levels[0].reshape(-1)[: self.size]

    @property
    def total(self) -> torch.Tensor:
        """The sum of all masses, a scalar."""
        return self._levels[-1].cumsum(-1)[0, -1]

    @property
    def num_bytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def set(self, items: torch.Tensor, masses: torch.Tensor) -> None:
        """Gives items `[K]` their masses `[K]`; of an item that is there more than once, the greatest counts."""
        self._levels[0].view(-1).scatter_reduce_(0, items, masses, "amax", include_self=False)
        for below, above in zip(self._levels, self._levels[1:]):
            items = torch.div(items, WIDTH, rounding_mode="floor")
            if len(items) < len(below):
                above.view(-1)[items] = below[items].cumsum(-1)[:, -1]
            else:  # as many as there are rows
                above.view(-1)[: len(below)] = below.cumsum(-1)[:, -1]

    def find(self, targets: torch.Tensor) -> torch.Tensor:
        """The items `[K]` at which the cumulative sum of the masses first exceeds targets `[K]` in `[0, total)`.

        With `targets` uniform, item i is found with probability `m_i / total`. One without mass never is, as long as any
        has some.
        """
        items = torch.zeros_like(targets, dtype=torch.int64)
        for level in reversed(self._levels):
            sums = level[items].cumsum(-1)
            # What is left of a target may have been rounded up to its row's sum, behind which there is nothing.
            targets = torch.minimum(targets, torch.nextafter(sums[:, -1], torch.zeros_like(targets)))
            column = torch.searchsorted(sums, targets.unsqueeze(-1), right=True)
            before = torch.where(column > 0, sums.gather(-1, (column - 1).clamp(min=0)), 0.0)
            targets = (targets - before.squeeze(-1)).clamp(min=0.0)
            items = items * WIDTH + column.squeeze(-1)
        return items
