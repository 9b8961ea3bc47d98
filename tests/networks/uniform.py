"""Weights that were drawn uniformly."""

import math

import torch


def assert_uniform(weights, bound):
    """Within +-bound, up to its edge, and spread evenly."""
    x = weights.detach().flatten() / bound
    assert x.abs().max() <= 1 + 1e-6
    assert x.abs().max() > 0.98
    shares = torch.histc(x, 8, -1.0, 1.0) / len(x)
    assert torch.all((shares - 1 / 8).abs() < 5 * math.sqrt(7 / 64 / len(x)))
