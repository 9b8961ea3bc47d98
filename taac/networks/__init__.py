"""Networks: encoders, actor, critic ensemble."""

from taac.networks.actor import ActorNetwork, SwitchNetwork, TrajectoryEmbedding
from taac.networks.critics import CriticEnsemble
from taac.networks.encoders import ImageEncoder, ObservationEncoder
from taac.networks.normalizers import ObservationNormalizer, RewardNormalizer

__all__ = [
    "ActorNetwork",
    "CriticEnsemble",
    "ImageEncoder",
    "ObservationEncoder",
    "ObservationNormalizer",
    "RewardNormalizer",
    "SwitchNetwork",
    "TrajectoryEmbedding",
]
