"""Defaults that no gin file repeats are those of the source."""

from __future__ import annotations

import inspect

import pytest

from taac.algorithms.actor_regularizers import CAPS
from taac.algorithms.reward_signals import GAIL, ICM, RND
from taac.networks import ObservationNormalizer
from taac.networks.batch_statistics import BatchNorm
from taac.networks.value_heads import CategoricalReturns, QuantileReturns
from taac.replay import PrioritizedReplayBuffer


@pytest.mark.parametrize(
    "of, expected",
    [
        (QuantileReturns, {"num_quantiles": 25, "dropped": 2}),  # TQC, table 1
        (CategoricalReturns, {"num_atoms": 101, "low": -5.0, "high": 5.0, "sigma": None}),  # FlashSAC, SimbaV2, XQC
        (BatchNorm, {"momentum": 0.01, "r_max": 3.0, "d_max": 5.0}),  # CrossQ; batch renormalisation, section 4
        (ObservationNormalizer, {"clip": 10.0}),
        (GAIL, {"gradient_penalty": 10.0, "normalize": False}),  # Gulrajani et al., 2017
        (ICM, {"beta": 0.2, "normalize": True}),  # Pathak et al., 2017
        (RND, {"normalize": True}),  # Burda et al., 2019
        (CAPS, {"temporal": 1.0, "spatial": 1.0, "noise": 0.05}),
        (PrioritizedReplayBuffer, {"alpha": 0.6, "beta": 0.4, "epsilon": 0.01}),  # Schaul et al., 2016, proportional
    ],
)
def test_defaults_are_the_published_ones(of, expected):
    parameters = inspect.signature(of).parameters
    assert {name: parameters[name].default for name in expected} == expected
