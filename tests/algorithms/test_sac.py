"""SAC: one whole update against a slow reference, acting, targets, refusals.

The first part of this file is that reference's machinery, which `test_taac.py` uses too: plain loops over frames in
float64, graphs built from the raw weights, dQ/da by finite differences. Nothing of it calls `taac.ops` or the networks.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, SacAlgorithm, Temperature
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, ImageEncoder, ObservationEncoder
from taac.specs import TensorSpec, bounded

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
LOG_STD = (-1.0, 0.3)  # narrow, so that both clamps act
NUM_ACTIONS = 2
ACTION_SPEC = bounded((NUM_ACTIONS,), -1.0, 1.0)
VECTOR_SPEC = bounded((3,), -5.0, 5.0)
IMAGE_SPEC = {"image": bounded((7, 6, 2), 0, 255, torch.uint8), "vector": VECTOR_SPEC}
KERNEL, STRIDE, IMAGE_CHANNELS, IMAGE_FEATURES = 3, 2, 3, 4

# --- Replayed segments ---------------------------------------------------------------------------------------------------

# Columns are environments. LAST at the start, inside and at the end; FIRST at the start, inside and at the end.
STEP_TYPES = torch.tensor(
    [
        [F, M, M, F, L],
        [M, M, L, M, F],
        [M, L, F, M, M],
        [M, F, M, M, M],
        [M, M, L, M, L],
        [M, M, F, L, F],
    ],
    dtype=torch.uint8,
)
TERMINATED = [
    (2, 1),
    (4, 2),
    (4, 4),
]  # (row, column) above numbered: t and b with discount 0; other LASTs are truncations
STEPS, BATCH = STEP_TYPES.shape
NAN = float("nan")


def replayed(spec, reward_dim=None):
    """Random frames `[T, B]`. What comes before the first action is NaN, so that reading it shows."""
    first = STEP_TYPES == F
    reward = torch.randn(STEPS, BATCH, *([reward_dim] if reward_dim else []), dtype=torch.float64)
    reward[first] = 0.0
    discount = torch.ones(STEPS, BATCH, dtype=torch.float64)
    for t, b in TERMINATED:
        assert STEP_TYPES[t, b] in (L, M)
    discount[
        (STEP_TYPES == L) & torch.tensor([[(t, b) in {(2, 2), (4, 4)} for b in range(BATCH)] for t in range(STEPS)])
    ] = 0
    action = torch.rand(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64) * 2 - 1
    action[first] = 0.0
    vector = torch.randn(STEPS, BATCH, 3)
    observation = vector
    if isinstance(spec, dict):
        image = torch.randint(0, 256, (STEPS, BATCH, *spec["image"].shape), dtype=torch.uint8)
        observation = {"image": image, "vector": vector}
    reward[0], discount[0], action[0] = NAN, NAN, NAN
    return TimeStep(STEP_TYPES, reward, discount, observation, action)
