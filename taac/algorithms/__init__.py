"""Algorithms: one file a method."""

from taac.algorithms.algorithm import Algorithm
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.sac_hybrid import SacHybridAlgorithm
from taac.algorithms.sac_ntd import SacNtdAlgorithm
from taac.algorithms.taac import TaacAlgorithm
from taac.algorithms.td_losses import OneStepTDLoss, RetraceTDLoss, TAACTDLoss, TDLoss
from taac.algorithms.temperature import Temperature

__all__ = [
    "Algorithm",
    "OneStepTDLoss",
    "RetraceTDLoss",
    "SacAlgorithm",
    "SacHybridAlgorithm",
    "SacNtdAlgorithm",
    "TAACTDLoss",
    "TDLoss",
    "TaacAlgorithm",
    "Temperature",
]
