"""Networks: encoders, actor, critic ensemble."""

from taac.networks.actor import (
    ActorNetwork,
    CategoricalActorNetwork,
    DeterministicActorNetwork,
    SwitchNetwork,
    TrajectoryEmbedding,
)
from taac.networks.batch_statistics import BatchNorm
from taac.networks.bodies import FlashBody, LayerNorm, MlpBody, RMSNorm, SimbaBody, SimbaV2Body
from taac.networks.critics import CriticEnsemble
from taac.networks.encoders import ImageEncoder, LocalEncoder, ObservationEncoder
from taac.networks.normalizers import ObservationNormalizer, RewardNormalizer, RewardScaler
from taac.networks.prefix_critics import PrefixCritics
from taac.networks.recurrent import GRUMemory, LSTMMemory, RecurrentEncoder
from taac.networks.value_heads import CategoricalReturns, QuantileReturns

__all__ = [
    "ActorNetwork",
    "BatchNorm",
    "CategoricalActorNetwork",
    "CategoricalReturns",
    "CriticEnsemble",
    "DeterministicActorNetwork",
    "FlashBody",
    "GRUMemory",
    "ImageEncoder",
    "LSTMMemory",
    "LayerNorm",
    "LocalEncoder",
    "MlpBody",
    "ObservationEncoder",
    "ObservationNormalizer",
    "PrefixCritics",
    "QuantileReturns",
    "RMSNorm",
    "RecurrentEncoder",
    "RewardNormalizer",
    "RewardScaler",
    "SimbaBody",
    "SimbaV2Body",
    "SwitchNetwork",
    "TrajectoryEmbedding",
]
