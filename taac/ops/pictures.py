"""Augmentation of pictures."""

from __future__ import annotations

import torch


def random_shift(x: torch.Tensor, pixels: int) -> torch.Tensor:
    """Moves each picture by whole pixels, drawn uniformly from -`pixels` to `pixels` for each direction, and repeats its edge.

    It equals padding by repetition and a random crop of the old size.

    Args:
        x: `[..., H, W, C]`; each picture of the leading dimensions gets its own shift, all channels of it (a stack) the same.
        pixels: 0 or more.

    Returns:
        `[..., H, W, C]`.

    Source: Kostrikov, Yarats and Fergus, DrQ (arXiv:2004.13649), section 4; as in DrQ-v2 (arXiv:2107.09645) without averages over
    several shifts.
    """
    height, width = x.shape[-3:-1]
    flat = x.reshape(-1, *x.shape[-3:])
    by = torch.randint(-pixels, pixels + 1, (2, len(flat), 1), device=x.device)
    rows, columns = (
        (torch.arange(size, device=x.device) + shift).clamp_(0, size - 1) for size, shift in zip((height, width), by)
    )
    number = torch.arange(len(flat), device=x.device).view(-1, 1, 1)
    return flat[number, rows.unsqueeze(2), columns.unsqueeze(1)].view(x.shape)
