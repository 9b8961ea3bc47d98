"""Counts the multiply-adds of the networks that acting needs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from taac import nest
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.data_structures import AlgStep


class MultiplyAdds:
    """The multiply-adds of an agent's greedy steps: matrix products and convolutions, as TLA counts them.

    They are counted at the first step, for each of its algorithm's `acting_modules`. Where a module is not needed
    (`Algorithm.needed_modules`), such as every network while an action is held, it counts 0, even if it was evaluated because
    another environment needed it.

    Source: Patel, Sejnowski and Siegelmann, Optimizing Attention and Cognitive Control Costs Using Temporally Layered
    Architectures (Neural Computation 2024, arXiv:2305.18701), "MMACs", a million of them.
    """

    def __init__(self, agent: Agent):
        self._agent = agent
        self._counts: dict[str, int] | None = None

    def count(self, act: Callable[[], AlgStep]) -> tuple[AlgStep, np.ndarray]:
        """Returns what `act` returns, and the multiply-adds `[B]` that each environment's step needed."""
        counts = self._counts
        if counts is None:
            counts = Counter[str]()
            step = counted(self._agent.algorithm, act, counts)
            self._counts = counts = {name: total // len(step.decided) for name, total in counts.items()}
        else:
            step = act()
        total = np.full(len(step.decided), float(sum(counts.values())))
        for name, needed in self._agent.needed_modules(step).items():
            part = nest.array(needed).reshape(len(total), -1).mean(1)  # below 1 where some of several agents need none
            total -= (1 - part) * counts.get(name, 0)
        return step, total


def counted(algorithm: Algorithm, act: Callable[[], AlgStep], counts: Counter[str]) -> AlgStep:
    """Returns what `act` returns. Adds to `counts`, by name, the multiply-adds of each of the `acting_modules`."""
    handles, inside = [], Counter[str]()
    with FlopCounterMode(display=False) as counter:

        def enter(name: str, *_: Any) -> None:
            if not inside[name]:  # the outermost of the parts alone
                counts[name] -= counter.get_total_flops() // 2
            inside[name] += 1

        def leave(name: str, *_: Any) -> None:
            inside[name] -= 1
            if not inside[name]:
                counts[name] += counter.get_total_flops() // 2

        try:
            for name in algorithm.acting_modules():
                for part in algorithm.get_submodule(name).modules():  # of an algorithm in it only the parts are called
                    handles.append(part.register_forward_pre_hook(functools.partial(enter, name)))
                    handles.append(part.register_forward_hook(functools.partial(leave, name)))
            return act()
        finally:
            for handle in handles:
                handle.remove()
