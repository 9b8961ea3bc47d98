"""The seeds that a run derives from its own, and the global random number generators that it uses."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from taac.runs.files import Damaged

TRAINING, EVALUATION, RANKS, COLLECTORS = 0, 1, 2, 3  # streams of seeds


def derived_seed(seed: int, stream: int, *numbers: int) -> int:
    """Returns a seed for environments. Each stream, and all numbers within a stream, have independent seeds."""
    return int(np.random.SeedSequence([seed, stream, *numbers]).generate_state(1)[0] % 2**31)


def seed_generators(seed: int) -> None:
    """Seeds the global generators of torch and numpy, from which a run draws, and Python's, by a number in [0, 2**32).

    torch is given `seed + 2**62`. A CPU uses only the low 32 bits, so it draws as after `torch.manual_seed(seed)`. The whole
    seed is one that no environment chooses, so an environment that seeds torch is noticed.
    """
    torch.manual_seed(seed + 2**62)
    np.random.seed(seed)
    random.seed(seed)  # for environments


class RandomNumbers:
    """The global generators of torch, also of the GPU that is used, and of numpy (for environments), in a checkpoint."""

    def __init__(self, device: torch.device):
        self._gpu = device if device.type == "cuda" else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the generators, as plain values and tensors."""
        state: Any = np.random.get_state(legacy=False)
        inner = state["state"]
        key = torch.from_numpy(inner["key"].astype(np.int64))
        rest = {"pos": int(inner["pos"]), "has_gauss": int(state["has_gauss"]), "gauss": float(state["gauss"])}
        return {
            "numpy": {"key": key, **rest},
            "cpu": torch.get_rng_state(),
            "cuda": None if self._gpu is None else torch.cuda.get_rng_state(self._gpu),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            Damaged: it holds no valid state of numpy's generator, which numpy would not check and then read outside its memory.
        """
        numpy = state["numpy"]
        key, position = numpy["key"], numpy["pos"]
        if key.shape != (624,) or key.dtype != torch.int64 or type(position) is not int or not 0 <= position <= 624:
            raise Damaged(f"it holds no state of numpy's generator: {list(key.shape)} {key.dtype}, position {position!r}")
        inner = {"key": key.numpy().astype(np.uint32), "pos": position}
        np.random.set_state(
            {"bit_generator": "MT19937", "state": inner, "has_gauss": numpy["has_gauss"], "gauss": numpy["gauss"]}
        )
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and self._gpu is not None:
            torch.cuda.set_rng_state(state["cuda"], self._gpu)


@contextlib.contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Restores the global generators of torch, numpy and Python on exit, because environments may draw from all of them."""
    numbers = RandomNumbers(device)
    of_python, others = random.getstate(), numbers.state_dict()
    try:
        yield
    finally:
        random.setstate(of_python)
        numbers.load_state_dict(others)
