"""Networks: encoders, actor, critic ensemble."""

from taac.networks.actor import (
    ActorNetwork,
    CategoricalActorNetwork,
    DeterministicActorNetwork,
    SwitchNetwork,
    TrajectoryEmbedding,
)
from taac.networks.critics import CriticEnsemble
from taac.networks.encoders import ImageEncoder, LocalEncoder, ObservationEncoder
from taac.networks.normalizers import ObservationNormalizer, RewardNormalizer, RewardScaler
from taac.networks.recurrent import GRUMemory, LSTMMemory, RecurrentEncoder
from taac.networks.value_heads import CategoricalReturns, QuantileReturns

__all__ = [
    "ActorNetwork",
    "CategoricalActorNetwork",
    "CategoricalReturns",
    "CriticEnsemble",
    "DeterministicActorNetwork",
    "GRUMemory",
    "ImageEncoder",
    "LSTMMemory",
    "LocalEncoder",
    "ObservationEncoder",
    "ObservationNormalizer",
    "QuantileReturns",
    "RecurrentEncoder",
    "RewardNormalizer",
    "RewardScaler",
    "SwitchNetwork",
    "TrajectoryEmbedding",
]
