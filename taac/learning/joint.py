"""Loss and gradients of several learners at once: many seeds of one method in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from taac.data_structures import Experience, Nest
from taac.errors import TaacError
from taac.learning.gradients import Differentiated
from taac.learning.learner import Learner
from taac.machine.products import parts, using
from taac.machine.stacked import CannotStack, Handed, StackedFunction, StackedTensors

# On a CPU, batched products of many large matrices leave the cache and take longer than the same products in turn. What is
# gained are the costs of each operation, which are larger where nothing is compiled. In multiplications of one learner's update.
MOST_COMPILED, MOST_UNCOMPILED = 60e6, 200e6
FEWEST_COMPILED = 8  # learners; fewer do not make up for what handing over costs, on some processors
PATIENCE = 100  # joint updates that most slots of a program on a CPU may be computed for nobody
BETWEEN_TURNS = 16  # updates of a learner that computes alone, before others have their turn


class Joint(NamedTuple):
    """A learner's share of a joint update."""

    function: StackedFunction
    handed: Handed
    products: str


class JointUpdates:
    """Computes the loss and gradients of N learners by one stacked program, where that is possible and pays.

    The learners have one configuration and seeds of their own. Each computes in a thread of its own, only one of which runs at
    a time. A learner that needs an update hands in its batch and its random numbers, and waits for the others. The results are
    those that it would compute alone, but for rounding. A learner for which that is not possible computes alone, from then on.

    Args:
        learners: with agents on one device.
        meet: called with a learner's number and its share; returns its result of `compute`. Called with None, it lets others
            have their turn.
        tell: called with a learner's number, and with how its updates are computed, before the first and whenever it changes.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        meet: Callable[[int, Joint | None], Differentiated | Exception | None],
        tell: Callable[[int, str], object] = lambda number, text: None,
    ):
        self._learners, self._meet, self._tell = learners, meet, tell
        self._functions: dict[tuple[str, bool], StackedFunction] = {}
        self._alone: dict[int, int] = {}  # updates that a learner has computed alone
        self._why: str | None = None
        self._told: set[int] = set()
        self._sparse = 0  # joint updates of fewer than half the learners, one after the other
        self._held: StackedTensors | None = None
        try:
            if len(learners) == 1:
                raise CannotStack("there is one seed")
            if type(learners[0]).compute is not Learner.compute:
                raise CannotStack(f"{type(learners[0]).__name__} computes updates in its own way")
            self._held = StackedTensors([learner.agent for learner in learners])
        except CannotStack as error:
            self._why = str(error)
        for number, learner in enumerate(learners):
            learner.together = functools.partial(self._together, number)
            learner.compiles_ahead = functools.partial(self._compiles_ahead, number)

    def compute(self, shares: Mapping[int, Joint]) -> dict[int, Differentiated | Exception]:
        """Computes the updates of all learners that have handed in their share, by number.

        A result is an exception where computing them together failed.
        """
        self._sparse = self._sparse + 1 if 2 * len(shares) < len(self._learners) else 0
        if self._sparse > PATIENCE and self._learners[0].agent.device.type == "cpu":
            return {number: CannotStack("most of the seeds have ended") for number in shares}
        found: dict[int, Differentiated | Exception] = {}
        for first in shares.values():
            alike = {n: s for n, s in shares.items() if s.function is first.function and s.handed.key == first.handed.key}
            if found.keys() >= alike.keys():
                continue
            try:
                with using(first.products):
                    found |= first.function({number: share.handed for number, share in alike.items()})
            except CannotStack as error:
                found |= dict.fromkeys(alike, error)
        return found

    def _together(
        self, number: int, own: Callable[..., Differentiated], experience: Experience, weights: Nest
    ) -> Differentiated:
        device = self._learners[number].agent.device
        if number not in self._alone:
            random_numbers = _random_numbers(device)
            try:
                return self._hand_in(number, experience, weights)
            except TaacError as error:
                _set_random_numbers(device, random_numbers)
                self._alone[number] = 0
                self._tell(number, f"in turn: {error}")
        self._alone[number] += 1
        if self._alone[number] % BETWEEN_TURNS == 0:
            self._meet(number, None)
        return own(experience, weights)

    def _hand_in(self, number: int, experience: Experience, weights: Nest) -> Differentiated:
        learner = self._learners[number]
        function = self._function(learner)
        found = self._meet(number, Joint(function, function.hand_in(number, experience, weights), learner.products))
        if isinstance(found, Exception):
            raise found
        assert found is not None
        if number not in self._told:
            self._told.add(number)
            millions = f"{function.multiplications / 1e6:.1f} million multiplications"
            self._tell(number, f"one program for {len(self._learners)} seeds, of {millions} each")
        return found

    def _why_alone(self, learner: Learner) -> str | None:
        """Why a learner computes alone, as far as that is known before its first update; None if it may join others."""
        agent = learner.agent
        if self._held is None:
            return str(self._why)
        if agent.agents is not None and agent.agents.masked:
            return "agents join and leave, so batches have many sizes"
        if agent.compiled and agent.device.type == "cpu" and len(self._learners) < FEWEST_COMPILED:
            return f"fewer than {FEWEST_COMPILED} compiled seeds are not always faster in one program"
        return None

    def _compiles_ahead(self, number: int) -> bool:
        """Whether a learner compiles a program of its own ahead. Of several, the first does, for all find it on the disk."""
        return number == 0 and self._why_alone(self._learners[0]) is not None

    def _function(self, learner: Learner) -> StackedFunction:
        if (why := self._why_alone(learner)) is not None:
            raise CannotStack(why)
        assert self._held is not None
        agent = learner.agent
        kind = (learner.products, agent.compiled)
        if kind not in self._functions:
            most = MOST_COMPILED if agent.compiled else MOST_UNCOMPILED
            self._functions[kind] = StackedFunction(
                [other.differentiate for other in self._learners],
                self._held,
                parts(learner.products, agent.device) if agent.compiled else None,
                "inductor" if agent.compiled else "none",
                most if agent.device.type == "cpu" else float("inf"),
            )
        return self._functions[kind]


def _random_numbers(device: torch.device) -> Any:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_numbers(device: torch.device, state: Any) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
