"""Algorithms, one file per method."""

from taac.algorithms.algorithm import Algorithm
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.sac_chunk import SacChunkAlgorithm
from taac.algorithms.sac_discrete import DiscreteSacAlgorithm
from taac.algorithms.sac_discrete_recurrent import RecurrentDiscreteSacAlgorithm
from taac.algorithms.sac_hybrid import SacHybridAlgorithm
from taac.algorithms.sac_mixed import MixedSacAlgorithm
from taac.algorithms.sac_ntd import SacNtdAlgorithm
from taac.algorithms.sac_recurrent import RecurrentSacAlgorithm
from taac.algorithms.sac_value import SacValueAlgorithm
from taac.algorithms.sdar import SdarAlgorithm
from taac.algorithms.taac import TaacAlgorithm
from taac.algorithms.td3 import Td3Algorithm
from taac.algorithms.td_losses import OneStepTDLoss, RetraceTDLoss, TAACTDLoss, TDLoss
from taac.algorithms.temperature import Temperature
from taac.algorithms.temporl import TempoRLAlgorithm, TempoRLTd3Algorithm
from taac.algorithms.tla import TlaAlgorithm

__all__ = [
    "Algorithm",
    "DiscreteSacAlgorithm",
    "MixedSacAlgorithm",
    "OneStepTDLoss",
    "RecurrentDiscreteSacAlgorithm",
    "RecurrentSacAlgorithm",
    "RetraceTDLoss",
    "SacAlgorithm",
    "SacChunkAlgorithm",
    "SacHybridAlgorithm",
    "SacNtdAlgorithm",
    "SacValueAlgorithm",
    "SdarAlgorithm",
    "TAACTDLoss",
    "TDLoss",
    "TaacAlgorithm",
    "Td3Algorithm",
    "Temperature",
    "TempoRLAlgorithm",
    "TempoRLTd3Algorithm",
    "TlaAlgorithm",
]
