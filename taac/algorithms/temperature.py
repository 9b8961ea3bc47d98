"""The entropy temperature, fixed or tuned towards a target entropy."""

from __future__ import annotations

import math
from typing import Any, Literal

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.ops import losses
from taac.ops.schedules import Schedule, at_start


@gin.configurable
class Temperature(nn.Module):
    """alpha, and the loss that tunes it.

    Args:
        target_entropy: in nats; a number or a schedule. The owner of a scheduled target lists it in `scheduled`, with
            `set_target_entropy`.
        initial_value: alpha at the start, > 0.
        tuning: "log" tunes log alpha with the loss `log_alpha * (H - H_target)`; "direct" tunes alpha itself with
            `alpha * (H - H_target)` and keeps it at or above 0; "fixed" keeps alpha constant.

    A checkpoint records whether the stored value is a logarithm. Loading it under another `tuning` therefore restores alpha.

    Raises:
        TaacError: an unknown tuning; an initial value that is not above 0; a schedule with tuning "fixed"; a checkpoint whose
            alpha is not above 0, loaded with tuning "log".

    Source: Haarnoja et al., SAC (arXiv:1812.05905), section 5.
    """

    target_entropy: float | torch.Tensor
    formula = ""  # how the target entropy was computed, for display

    def __init__(
        self,
        target_entropy: float | Schedule,
        initial_value: float = 1.0,
        tuning: Literal["log", "direct", "fixed"] = "log",
    ):
        super().__init__()
        if tuning not in ("log", "direct", "fixed"):
            raise TaacError(f"Temperature.tuning must be 'log', 'direct' or 'fixed', got '{tuning}'")
        if not initial_value > 0:
            raise TaacError(f"Temperature.initial_value must be above 0, got {initial_value}")
        if not isinstance(target_entropy, Schedule):
            self.target_entropy = target_entropy
        elif tuning == "fixed":
            raise TaacError(
                f"the target entropy follows a schedule ({target_entropy}), which has no effect if Temperature.tuning is "
                "'fixed': bind 'log' or 'direct'"
            )
        else:  # a buffer that is written in place, so that compiled programs see the change
            self.register_buffer("target_entropy", torch.tensor(at_start(target_entropy)), persistent=False)
        self.tuning = tuning
        start = math.log(initial_value) if tuning == "log" else float(initial_value)
        self.value = nn.Parameter(torch.tensor(start), requires_grad=tuning != "fixed")
        self.register_buffer("is_log", torch.tensor(tuning == "log"))

    def set_target_entropy(self, nats: float) -> None:
        """Changes the target entropy. Only allowed if it was constructed with a schedule."""
        assert isinstance(self.target_entropy, torch.Tensor)
        self.target_entropy.fill_(nats)

    def alpha(self) -> torch.Tensor:
        """Returns the temperature as it is now, a detached scalar of its own."""
        value = self.value.detach()
        return value.exp() if self.tuning == "log" else value.clone()  # a view would follow the next step

    @torch.no_grad()
    def set_alpha(self, alpha: float) -> None:
        """Sets the temperature, > 0. Tuning continues from there."""
        self.value.fill_(math.log(alpha) if self.tuning == "log" else alpha)

    def loss(self, entropy: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
        """Returns the temperature's loss for entropies `[...]` in nats (constants); zeros if the temperature is fixed.

        Args:
            scale: factor of the target entropy, `[...]`, for states that cannot all reach the same entropy.
        """
        if self.tuning == "fixed":
            return torch.zeros_like(entropy)
        return losses.temperature_loss(self.value, entropy, self.target_entropy * scale)

    @torch.no_grad()
    def project(self) -> None:
        """Keeps a directly tuned temperature at or above 0."""
        if self.tuning == "direct":
            self.value.clamp_(min=0.0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        value, mark = f"{prefix}value", f"{prefix}is_log"
        is_log = self.tuning == "log"
        if mark in state_dict and value in state_dict and bool(state_dict[mark]) != is_log:
            given = state_dict[value]
            if is_log and not bool((given > 0).all()):
                raise TaacError(
                    f"{value} is {given.item():g}, which has no logarithm: bind Temperature.tuning = 'direct'"
                )
            state_dict[value], state_dict[mark] = given.log() if is_log else given.exp(), self.is_log
        super()._load_from_state_dict(state_dict, prefix, *others)


class BranchTemperatures(nn.ModuleList):
    """Temperatures of the K branches of an action, used as one: `alpha` is `[K]`, entropies and losses are `[..., K]`."""

    def each(self) -> list[Temperature]:
        """Returns the temperatures in the order of the branches."""
        return list(self)  # type: ignore[arg-type]

    def alpha(self) -> torch.Tensor:
        """Returns the temperatures, detached, `[K]`."""
        return torch.stack([temperature.alpha() for temperature in self.each()])

    def loss(self, entropy: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Returns each temperature's loss, `[..., K]`, for entropies and scales `[..., K]`; see `Temperature.loss`."""
        parts = zip(self.each(), entropy.unbind(-1), scale.unbind(-1), strict=True)
        return torch.stack([temperature.loss(h, part) for temperature, h, part in parts], dim=-1)
