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


def derived_seed(seed: int, stream: int, number: int) -> int:
    """Returns a seed for environments. Each stream, and each number within a stream, has an independent seed."""
    return int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0] % 2**31)


def seed_generators(seed: int) -> None:
    """Seeds the global generators of torch and numpy, from which a run draws.

    torch is given `seed + 2**62`. Of this a CPU uses the low 32 bits, so it draws what `torch.manual_seed(seed)` would; but
    the seed it states is one that no environment chooses, so an environment that seeds torch is always noticed.

    Args:
        seed: in [0, 2**32).
    """
    torch.manual_seed(seed + 2**62)
    np.random.seed(seed)


class RandomNumbers:
    """The global generators of torch, and of numpy (used by some environments), as a part of a checkpoint.

    Args:
        device: of the agent. If it is a GPU, its generator is saved as well.
    """

    def __init__(self, device: torch.device):
        self._gpu = device if device.type == "cuda" else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the generators."""
        return {
            "numpy": _numpy_state(),
            "cpu": torch.get_rng_state(),
            "cuda": None if self._gpu is None else torch.cuda.get_rng_state(self._gpu),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            Damaged: it holds no valid state of numpy's generator.
        """
        _set_numpy_state(state["numpy"])
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


def _numpy_state() -> dict[str, Any]:
    """Returns the state of numpy's generator as plain values and a tensor."""
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return {
        "key": torch.from_numpy(inner["key"].astype(np.int64)),
        "pos": int(inner["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _set_numpy_state(state: dict[str, Any]) -> None:
    """Restores `_numpy_state()`. Refuses invalid states, which numpy would not check and then read outside its memory."""
    key, position = state["key"], state["pos"]
    if key.shape != (624,) or key.dtype != torch.int64 or type(position) is not int or not 0 <= position <= 624:
        raise Damaged(f"it holds no state of numpy's generator: {list(key.shape)} {key.dtype}, position {position!r}")
    inner = {"key": key.numpy().astype(np.uint32), "pos": position}
    np.random.set_state(
        {"bit_generator": "MT19937", "state": inner, "has_gauss": state["has_gauss"], "gauss": state["gauss"]}
    )
