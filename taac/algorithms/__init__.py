"""Algorithms: one file a method."""

from taac.algorithms.algorithm import Algorithm
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.taac import TaacAlgorithm
from taac.algorithms.td_losses import OneStepTDLoss, TAACTDLoss, TDLoss
from taac.algorithms.temperature import Temperature

__all__ = [
    "Algorithm",
    "OneStepTDLoss",
    "SacAlgorithm",
    "TAACTDLoss",
    "TDLoss",
    "TaacAlgorithm",
    "Temperature",
]
