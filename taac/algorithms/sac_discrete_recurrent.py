"""Recurrent discrete SAC: discrete choices by actor and critics with memories, for partially observable tasks.

Source: discrete SAC (Christodoulou, arXiv:1910.07207) on histories, as in Ni et al. (arXiv:2110.05038). For the sources of
the memories see `memories`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gin

from taac.algorithms.action_specs import DiscreteActionSpec
from taac.algorithms.memories import Memories
from taac.algorithms.sac_discrete import DiscreteSacAlgorithm
from taac.data_structures import Nest, TimeStep
from taac.networks import ObservationEncoder
from taac.networks.recurrent import RecurrentEncoder


@gin.configurable
class RecurrentDiscreteSacAlgorithm(Memories, DiscreteSacAlgorithm):
    """Discrete SAC on histories: `pi(a | h)`, `Q_i(h', a)`, where `h` and `h'` are the memories of actor and critics.

    `Memories` describes what is stored and replayed. A memory receives the previous choice of each branch as one-hot. At
    FIRST, which has no previous choice, it receives choice 0. It does not see the mask of valid choices.

    Args:
        observation_spec, action_spec: see `DiscreteSacAlgorithm`.
        memory_ctor: called with the observation spec and `action_size`, the number of all choices; see `RecurrentEncoder`.
        burn_in: frames at the start of a segment that only update the memories; see `Memories`.
        sac_arguments: the other arguments of `DiscreteSacAlgorithm`; bind them there in gin.

    Raises:
        TaacError: errors of `DiscreteSacAlgorithm`; a negative burn-in; `actor_encoder_ctor` or `actor_trains_encoder`.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        *,
        memory_ctor: Callable[..., RecurrentEncoder] = RecurrentEncoder,
        burn_in: int = 0,
        **sac_arguments: Any,
    ):
        discrete = DiscreteActionSpec(action_spec, observation_spec, type(self).__name__)
        build = functools.partial(memory_ctor, action_size=sum(discrete.num_choices))
        super().__init__(observation_spec, action_spec, encoder_ctor=build, **sac_arguments)
        self.remember_from(build(discrete.observation), burn_in)
        self.one_hot = ObservationEncoder(action_spec)

    def memorable(self, time_step: TimeStep) -> TimeStep:
        return time_step._replace(
            observation=self.discrete.observed(time_step.observation), prev_action=self.one_hot(time_step.prev_action)
        )

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "one_hot"]
