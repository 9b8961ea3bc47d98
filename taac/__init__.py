"""Temporally abstract actor-critic control for PyTorch and Gymnasium."""

__version__ = "0.1.0"
