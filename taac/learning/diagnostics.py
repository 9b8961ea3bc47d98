"""Statistics of updates for summaries: means since the last summary, and diagnostics of critics, policy and switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from taac import nest
from taac.algorithms.agent import Agent
from taac.data_structures import FIRST, LAST
from taac.errors import TaacError
from taac.learning.optimizers import Optimizer


class RunningMeans:
    """Means of the values that updates report, since the last `clear`.

    A tag that only some updates report is averaged over those. An update costs one concatenation and one sum on the device.
    Only `means` waits for the device.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[torch.Tensor, int]] = {}  # by the tags that were reported together

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        tags = tuple(values)
        try:
            now = torch.stack(list(values.values())).detach()
        except (RuntimeError, TypeError) as error:
            wrong = [tag for tag, value in values.items() if not (isinstance(value, torch.Tensor) and value.dim() == 0)]
            raise TaacError(f"what an update reports must be scalars, tensors without dimensions: {', '.join(wrong)}") from error
        total, count = self._sums.get(tags, (None, 0))
        total = now.double() if total is None else total.add_(now)  # double, so that long sums lose no digits
        self._sums[tags] = total, count + 1

    def means(self) -> dict[str, float]:
        """Returns the mean of each tag; empty if nothing was added since the last `clear`."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for tags, (total, count) in self._sums.items():
            for tag, value in zip(tags, total.tolist()):
                sums[tag] = sums.get(tag, 0.0) + value
                counts[tag] = counts.get(tag, 0) + count
        return {tag: value / counts[tag] for tag, value in sums.items()}

    def clear(self) -> None:
        self._sums = {}

    def state_dict(self) -> list[dict[str, Any]]:
        return [{"tags": list(tags), "sums": t.tolist(), "count": n} for tags, (t, n) in self._sums.items()]

    def load_state_dict(self, state: list[dict[str, Any]], device: torch.device) -> None:
        self._sums = {
            tuple(part["tags"]): (torch.tensor(part["sums"], dtype=torch.float64, device=device), int(part["count"]))
            for part in state
        }


class Diagnostics:
    """Computes statistics of an update from `LossInfo.detail`, which holds values of each frame. If off, they cost nothing.

    Their tags and equations are in `summaries.TAGS`. Means, variances and standard deviations are over the frames that are
    learnt from: all except LAST, and for the critics also except the segment's last. `kind` is "off", "scalars" or "histograms".
    """

    def __init__(self, kind: Literal["off", "scalars", "histograms"], agent: Agent):
        if kind not in ("off", "scalars", "histograms"):
            raise TaacError(f"Learner.diagnostics must be 'off', 'scalars' or 'histograms', got '{kind}'")
        self.on, self._histograms = kind != "off", kind == "histograms"
        self._agent = agent

    @torch.no_grad()
    def compute(self, detail: Mapping[str, torch.Tensor] | None) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Returns scalars by tag, and tensors by name for histograms.

        Both are empty if diagnostics are off, or if the algorithm reports no detail.
        """
        if not self.on or not detail:
            return {}, {}
        acted = detail["step_type"] != LAST
        found = self._critic_statistics(detail, _learnt(detail))
        for name in ("mean", "log_std", "action"):
            if name in detail:
                found[f"policy/{name}"], found[f"policy/{name}_std"] = _moments(detail[name], acted)
        found.pop("policy/log_std", None)  # which every summary has
        for name, tag in (("q_pi", "policy/q"), ("v", "value/prediction"), ("v_target", "value/target")):
            if name in detail:
                found[tag] = _moments(detail[name], acted)[0]
        if "value" in detail:
            found["critic/next_value"] = _moments(detail["value"][1:], detail["step_type"][1:] != FIRST)[0]
        if "switch" in detail:
            found["replay/fraction_repeated"] = _moments((~detail["switch"]).float(), acted)[0]
        if "advantage" in detail:
            found["switch/advantage"], found["switch/advantage_std"] = _moments(detail["advantage"], acted)
            found["switch/beta_std"] = _moments(detail["beta"][..., 1], acted)[1]
        if not self._histograms:
            return found, {}
        return found, {name: x.detach().clone() for name, x in detail.items() if name not in ("value", "switch")}

    def histograms(self, observed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the tensors of `compute` by tag, restricted to the frames learnt from and flattened.

        They include all dimensions of the action; values and errors also of each critic and part of the reward.
        """
        if not observed:
            return {}
        acted, learnt, of_critics = observed["step_type"] != LAST, _learnt(observed), ("q", "target")
        others = observed.keys() - {"step_type", "regressed", *of_critics}
        found = {name: x[acted[: len(x)]] for name, x in observed.items() if name in others}
        found["q"], found["target"] = observed["q"][:, learnt], observed["target"][learnt]
        found["td_error"] = found["target"] - found["q"]
        if "beta" in found:
            found["beta"] = found["beta"][..., 1]
        q, target = found["q"], found["target"]
        if target.dim() == 1:
            q, target = q.unsqueeze(-1), target.unsqueeze(-1)
        for d, part in enumerate(reward_parts(self._agent, target.shape[-1])):
            found[f"target/{part}"] = target[:, d]
            for i in range(len(q)):
                found[f"critic_{i}/value/{part}"], found[f"critic_{i}/td_error/{part}"] = q[i, :, d], target[:, d] - q[i, :, d]
        return {f"histogram/{name}": x.flatten() for name, x in found.items()}

    def _critic_statistics(self, detail: Mapping[str, torch.Tensor], learnt: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns means and variances of values, targets and errors, by part of the reward."""
        q, target = detail["q"], detail["target"]
        q, target = (q.unsqueeze(-1), target.unsqueeze(-1)) if target.dim() == 2 else (q.flatten(3), target.flatten(2))
        weight = learnt.unsqueeze(-1).to(q.dtype)  # [T-1, B, 1]
        weight = weight / weight.sum().clamp(min=1.0)
        value, error = (q * weight).sum((1, 2)), target - q  # [N, D], [N, T-1, B, D]
        mean_error, mean_target = (error * weight).sum((1, 2)), (target * weight).sum((0, 1))
        residual = ((error - mean_error[:, None, None]).square() * weight).sum((1, 2))
        spread = ((target - mean_target).square() * weight).sum((0, 1))
        found = {}
        for d, part in enumerate(reward_parts(self._agent, target.shape[-1])):
            found[f"critic/target/{part}"] = mean_target[d]
            found[f"critic/target_variance/{part}"] = spread[d]
            for i in range(len(q)):
                found[f"critic_{i}/value/{part}"] = value[i, d]
                found[f"critic_{i}/td_error/{part}"] = mean_error[i, d]
                found[f"critic_{i}/td_error_variance/{part}"] = residual[i, d]
                found[f"critic_{i}/loss/{part}"] = residual[i, d] + mean_error[i, d].square()
        return found

    def gradient_norms(self, names: Sequence[str], optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Returns the norm of each group's gradient before clipping, if on. Groups without gradients are left out."""
        norms: dict[str, torch.Tensor] = {}
        if not self.on:
            return norms
        for name, group in zip(names, optimizer.param_groups):
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                norms[f"gradient/{name}"] = torch.stack(torch._foreach_norm(gradients)).norm()
        return norms


def _learnt(detail: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the frames that the critics learn from, `[T-1, B]` bool."""
    acted = detail["step_type"][:-1] != LAST
    return acted & detail["regressed"] if "regressed" in detail else acted


def _moments(x: torch.Tensor, acted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and standard deviation of `x` `[T or T-1, B, ...]` over the frames where `acted` `[T, B]` is true."""
    weight = nest.broadcast(acted[: len(x)], x).to(x.dtype).expand_as(x)
    weight = weight / weight.sum().clamp(min=1.0)
    mean = (x * weight).sum()
    return mean, ((x - mean).square() * weight).sum().sqrt()


def reward_parts(agent: Agent, count: int) -> list[str]:
    """Returns the names of the `count` parts of the reward that an agent learns: `reward` if there is one, and no signal."""
    signals, learnt = [signal.name for signal in agent.signals], getattr(agent.algorithm, "part_numbers", None)
    if count == 1 and not signals:
        return ["reward"]
    numbers = (range(count) if learnt is None else learnt)[: count - len(signals)]
    return [*(f"part_{number}" for number in numbers), *signals]


def explained_variances(means: Mapping[str, float]) -> dict[str, float]:
    """Returns the means, with `1 - Var(G - Q_i) / Var(G)` in place of the variances.

    It is left out where G does not vary.
    """
    found = {}
    for tag, value in means.items():
        critic, _, rest = tag.partition("/")
        kind, _, part = rest.partition("/")
        if kind == "target_variance":
            continue
        if kind != "td_error_variance":
            found[tag] = value
        elif (spread := means[f"critic/target_variance/{part}"]) > 0:
            found[f"{critic}/explained_variance/{part}"] = 1.0 - value / spread
    return found
