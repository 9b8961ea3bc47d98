"""An exploration of your own: TAAC that draws a new action at each step before training, as SAC does.

taac train --task HalfCheetah-v5 --method experiments/examples/own_exploration.gin
"""

from __future__ import annotations

import gin
import torch

from taac.algorithms import TaacAlgorithm


@gin.configurable
class SwitchingTaac(TaacAlgorithm):
    """TAAC, but for its first `initial_collect_steps` steps: b = 1 in each of them, where TAAC throws a fair coin."""

    def random_switch(self, batch_size: int) -> torch.Tensor:
        return torch.ones(batch_size, dtype=torch.bool, device=self.weights.device)
