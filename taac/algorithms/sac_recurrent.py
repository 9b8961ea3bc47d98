"""Recurrent SAC: actor and critics with memories, for partially observable tasks.

Source: SAC (Haarnoja et al., arXiv:1812.05905) on histories. For the sources of the memories see `memories`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gin

from taac.algorithms.memories import Memories
from taac.algorithms.sac import SacAlgorithm
from taac.data_structures import Nest
from taac.networks.recurrent import RecurrentEncoder
from taac.specs import TensorSpec, check_unit_box


@gin.configurable
class RecurrentSacAlgorithm(Memories, SacAlgorithm):
    """Continuous SAC on histories: `pi(a | h)`, `Q_i(h', a)`, where `h` and `h'` are the memories of actor and critics.

    `Memories` describes what is stored and replayed.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        memory_ctor: called with the observation spec and `action_size`; see `RecurrentEncoder`.
        burn_in: frames at the start of a segment that only update the memories; see `Memories`.
        sac_arguments: the other arguments of `SacAlgorithm`; bind them there in gin.

    Raises:
        TaacError: errors of `SacAlgorithm`; a negative burn-in; `actor_encoder_ctor` or `actor_trains_encoder`.
    """

    has_proposal = False  # what the actor sees depends on the frames before

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        memory_ctor: Callable[..., RecurrentEncoder] = RecurrentEncoder,
        burn_in: int = 0,
        **sac_arguments: Any,
    ):
        check_unit_box(action_spec, "RecurrentSacAlgorithm")
        build = functools.partial(memory_ctor, action_size=action_spec.shape[0])
        super().__init__(observation_spec, action_spec, encoder_ctor=build, **sac_arguments)
        self.remember_from(build(observation_spec), burn_in)
