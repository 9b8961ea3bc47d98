"""The processes that train one run together, as `torchrun` starts them: what they add up, average, and send one another."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from taac.errors import DivergedError, EnvironmentFailed, NotFiniteError, RankLost, TaacError

# Seconds that ranks wait for one another, for example while the first evaluates. A process that ends is noticed at once.
TIMEOUT = 7200.0
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # environment variables of torchrun
_ERRORS = {kind.__name__: kind for kind in (DivergedError, NotFiniteError, EnvironmentFailed)}


class Ranks:
    """One process that trains alone. It has nobody to add up with, so every method returns what it was given.

    Attributes:
        number: of this process, from 0.
        local_number: of this process among those on its machine.
        count: number of processes.
    """

    number = local_number = 0
    count = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.number == 0

    def share(self, name: str, total: int) -> int:
        """Returns each rank's part of a number. Refuses one that cannot be divided."""
        if total % self.count:
            raise TaacError(
                f"{name} {total} is the number over all ranks, and {total} cannot be divided by {self.count} ranks: bind a "
                f"multiple of {self.count}"
            )
        return total // self.count

    def average(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the mean of each tensor over the ranks. All ranks give tensors of the same shapes, and get the same bits."""
        return list(tensors)

    def average_update(
        self,
        parameters: Sequence[torch.nn.Parameter],
        loss: torch.Tensor,
        total: torch.Tensor,
        extra: dict[str, torch.Tensor],
        statistics: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Averages the parameters' gradients, and scalars, over the ranks in one message; returns the scalars.

        The mean of the gradients of equal parts of a batch is the gradient of the whole batch's mean loss. A number that is not
        finite in one rank is not finite in any.
        """
        if self.count == 1:
            return loss, total, extra, statistics
        own = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in own if parameter.grad is not None]
        averaged = self.average([*gradients, loss, total, *extra.values(), *statistics.values()])
        for parameter in own:
            parameter.grad = averaged.pop(0)
        loss, total, *values = averaged
        return loss, total, dict(zip(extra, values)), dict(zip(statistics, values[len(extra) :]))

    def stack(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensors of all ranks, in their order."""
        return [tensor]

    def copy_first(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the first rank's values into the tensors of all ranks."""

    def exchange(self, failure: Exception | None, numbers: Sequence[int] = ()) -> tuple[list[int], Exception | None]:
        """Waits until all ranks call this; returns the sum of each number over the ranks, and a failure if one has failed.

        `failure` is what failed in this rank; None: nothing. Each rank gives as many numbers.
        """
        return list(numbers), failure

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in their order."""
        return [value]

    def from_first(self, value: Any = None) -> Any:
        """Returns the first rank's value in all of them."""
        return value

    def leave(self) -> None:
        """Ends what `join` began."""

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Ends when all ranks have ended it. If it fails in one, it fails in all."""
        failure: Exception | None = None
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            failure = error
        if (found := self.exchange(failure)[1]) is not None:
            raise found

    def check_identical(self, tensors: Mapping[str, torch.Tensor], when: str) -> None:
        """Checks that tensors, by name, have the same bits in all ranks. If not, the message names the first that differs."""
        found = self.gather({name: _digest(tensor) for name, tensor in tensors.items()} if self.count > 1 else {})
        for number, theirs in enumerate(found):
            if differ := [name for name, digest in found[0].items() if theirs.get(name) != digest]:
                more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
                raise TaacError(
                    f"{when}, rank {number} no longer holds the same '{differ[0]}'{more} as rank 0: something changes it by what "
                    "only one rank has seen, such as a hook or a method of your own, or the processors differ"
                )


class JoinedRanks(Ranks):
    """A process of several that have joined a group of `torch.distributed`."""

    def __init__(self) -> None:
        self.number, self.count = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.local_number = int(os.environ["LOCAL_RANK"])

    def __deepcopy__(self, memo: Any) -> Ranks:
        return ALONE  # what one rank tries on a copy of a part, it tries alone

    def average(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # One message instead of one for each tensor. Divided before they are added up, they cannot overflow.
        flat = torch.cat([tensor.reshape(-1).to(tensors[0].dtype) for tensor in tensors]).div_(self.count)
        with self._reaching():
            torch.distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]

    def stack(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.count)]
        with self._reaching():
            torch.distributed.all_gather(found, tensor.contiguous())
        return found

    def copy_first(self, tensors: Sequence[torch.Tensor]) -> None:
        with self._reaching():
            for tensor in tensors:
                torch.distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)

    def exchange(self, failure: Exception | None, numbers: Sequence[int] = ()) -> tuple[list[int], Exception | None]:
        told = torch.tensor([*numbers, failure is not None], dtype=torch.int64)
        with self._reaching():
            torch.distributed.all_reduce(told)
        *sums, failed = told.tolist()
        if failed:
            causes = self.gather(None if failure is None else (type(failure).__name__, str(failure)))
            number, (kind, message) = next((i, cause) for i, cause in enumerate(causes) if cause is not None)
            if failure is None:
                known = kind in _ERRORS or kind == TaacError.__name__
                failure = _ERRORS.get(kind, TaacError)(f"rank {number}: {message if known else f'{kind}: {message}'}")
        return sums, failure

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.count
        with self._reaching():
            torch.distributed.all_gather_object(found, value)
        return found

    def from_first(self, value: Any = None) -> Any:
        held = [value]
        with self._reaching():
            torch.distributed.broadcast_object_list(held, 0)
        return held[0]

    def leave(self) -> None:
        torch.distributed.destroy_process_group()

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turns what torch raises when a process cannot be reached into `RankLost`."""
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.number} of {self.count} cannot reach the others: one has ended, hangs or evaluates for longer than "
                f"--rank_timeout, or its machine cannot be reached ({str(error).strip().splitlines()[0][:200]})"
            ) from error


ALONE = Ranks()


def join(timeout: float = TIMEOUT) -> Ranks:
    """Joins the processes that `torchrun` started with this one; returns `ALONE` if it started none.

    They talk through gloo about what is in memory, and through NCCL about what is on a GPU. A rank that others wait for
    is lost after `timeout` seconds.

    Raises:
        RankLost: the others cannot be reached.
        TaacError: this torch cannot do it, or there are fewer GPUs than processes on this machine.
    """
    if not all(name in os.environ for name in _NEEDED) or int(os.environ["WORLD_SIZE"]) == 1:
        return ALONE
    if not torch.distributed.is_available():
        raise TaacError(f"torchrun needs torch.distributed, which torch {torch.__version__} was built without")
    backend = "gloo"
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, number, count = next(torch.distributed.rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # After a restart on one machine, the store still holds the addresses of the processes before.
            store = torch.distributed.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        limit = datetime.timedelta(seconds=timeout)
        torch.distributed.init_process_group(backend, store=store, rank=number, world_size=count, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise RankLost(f"the processes that torchrun started cannot reach one another: {error}") from error
    return JoinedRanks()


def _digest(tensor: torch.Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=8).digest()
