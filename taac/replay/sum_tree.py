"""A sum tree in tensors: samples and updates a large discrete distribution, a whole batch at a time."""

from __future__ import annotations

import torch

WIDTH = 128  # children of a node. Wide nodes make few levels, each of which needs a few operations for the whole batch


class SumTree:
    """Stores masses `m_i >= 0` of `size` items, and sums that make sampling in proportion to the masses cheap.

    Every node has `WIDTH` children. Level 0 holds the masses. An entry of the next level is the sum of the row below it, so
    an update or a draw touches one row in each level and its time grows with log(size).

    A sum is the last of its row's cumulative sums. It depends only on the masses, not on the order of updates, so a tree
    rebuilt from the masses has the same bits.

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
        """`[size]` float64, a read-only view."""
        return self._levels[0].reshape(-1)[: self.size]

    @property
    def total(self) -> torch.Tensor:
        """The sum of all masses, a scalar."""
        return self._levels[-1].cumsum(-1)[0, -1]

    @property
    def num_bytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def set(self, items: torch.Tensor, masses: torch.Tensor) -> None:
        """Sets the masses `[K]` of items `[K]`. For an item that occurs more than once, the greatest mass counts."""
        self._levels[0].view(-1).scatter_reduce_(0, items, masses, "amax", include_self=False)
        for below, above in zip(self._levels, self._levels[1:]):
            items = torch.div(items, WIDTH, rounding_mode="floor")
            if len(items) < len(below):
                above.view(-1)[items] = below[items].cumsum(-1)[:, -1]
            else:  # at least as many items as rows, so sum every row
                above.view(-1)[: len(below)] = below.cumsum(-1)[:, -1]

    def find(self, targets: torch.Tensor) -> torch.Tensor:
        """Returns the items `[K]` at which the cumulative sum of the masses first exceeds targets `[K]` in `[0, total)`.

        With uniform `targets`, item i is found with probability `m_i / total`. An item with mass 0 is never found; some
        mass must be above 0.
        """
        items = torch.zeros_like(targets, dtype=torch.int64)
        for level in reversed(self._levels):
            sums = level[items].cumsum(-1)
            # Rounding may have raised a target to its row's sum, where there is no item.
            targets = torch.minimum(targets, torch.nextafter(sums[:, -1], torch.zeros_like(targets)))
            column = torch.searchsorted(sums, targets.unsqueeze(-1), right=True)
            before = torch.where(column > 0, sums.gather(-1, (column - 1).clamp(min=0)), 0.0)
            targets = targets - before.squeeze(-1)
            items = items * WIDTH + column.squeeze(-1)
        return items
