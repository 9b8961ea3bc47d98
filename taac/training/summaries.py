"""TensorBoard summaries: one table of tags, one place that writes them. The x-axis is environment steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from taac.training.metrics import EpisodeSummary

# Tag -> meaning. No other scalar is written, but for what an algorithm declares in `summary_tags`.
TAGS: dict[str, str] = {
    "{phase}/return": "mean over episodes of the undiscounted sum of raw rewards",
    "{phase}/return_std": "standard deviation of the same over episodes",
    "{phase}/length": "transitions an episode, mean",
    "{phase}/fraction_repeated": "transitions at which the old trajectory went on (b = 0) / all transitions",
    "{phase}/mean_run": "transitions that follow one decision, mean",
    "{phase}/max_run": "the longest of them",
    "{phase}/decisions": "transitions at which a new action was chosen, per episode",
    "{phase}/jerk": "mean squared second difference of the action in [-1, 1]",
    "{phase}/fraction_same": "components of the action that equal the ones before / all, measured on the actions alone",
    "loss/total": "mean over all T*B frames of actor + temperature + critic losses, 0 at LAST: what is minimised",
    "loss/critic": "sum over critics of (Q_i - G)^2, mean over the frames that are learnt from",
    "loss/actor": "half the squared length of beta_1 dQ/da, + alpha log pi (beta_1 = 1 for SAC), mean over frames",
    "critic/q": "Q_i(s, tau) at the executed trajectories, mean over critics and frames",
    "critic/target": "the returns G that the critics regress on, mean",
    "policy/entropy": "-log pi of the sampled action, nats, mean",
    "policy/alpha": "temperature of the actor",
    "beta/switch_probability": "beta_1, mean over frames; of SDAR, the dimensions that act / all",
    "beta/entropy": "entropy of beta, nats, mean",
    "beta/alpha": "temperature of beta",
    "beta/reach_through": "fraction of frames at which neither the rollout's b nor the sampled b~ switches",
    "time/env_steps_per_second": "transitions over all environments a second, since the last summary",
    "time/updates_per_second": "gradient steps a second, since the last summary",
    "count/updates": "gradient steps so far",
    "count/update_ratio": "gradient steps per environment step after the initial collection, as it was in effect",
    "count/decisions": "environment steps at which a new action was chosen, so far",
    "count/episodes": "episodes ended so far",
}
PHASES = {"rollout": "while exploring", "evaluation": "acting greedily"}


def known_tags() -> dict[str, str]:
    """The table with its phases spelt out."""
    tags = {}
    for tag, meaning in TAGS.items():
        if "{phase}" in tag:
            tags.update({tag.format(phase=p): f"{meaning}, {when}" for p, when in PHASES.items()})
        else:
            tags[tag] = meaning
    return tags


class SummaryWriter:
    """Writes scalars to a TensorBoard event file.

    Args:
        folder: where the event file goes.
        tags: an algorithm's own, with their meaning.
        purge_step: what an earlier part of the run wrote after this step is hidden (it is about to be done again).
    """

    def __init__(self, folder: Path, purge_step: int | None = None, tags: Mapping[str, str] | None = None):
        from torch.utils.tensorboard import SummaryWriter as Writer  # half a second that only runs pay for

        self._writer = Writer(str(folder), purge_step=purge_step)
        self._known = {**known_tags(), **(tags or {})}

    def scalars(self, values: Mapping[str, float | torch.Tensor], env_steps: int) -> None:
        """Writes each value at `env_steps`."""
        for tag, value in values.items():
            if tag not in self._known:
                raise KeyError(
                    f"summary tag '{tag}' is neither in taac.training.summaries.TAGS nor in the algorithm's summary_tags()"
                )
            self._writer.add_scalar(tag, float(value), env_steps)

    def episodes(self, phase: str, summary: EpisodeSummary, env_steps: int) -> None:
        """Writes the averages over episodes under `rollout/` or `evaluation/`."""
        names = {"return_mean": "return"}
        values = {f"{phase}/{names.get(k, k)}": v for k, v in summary._asdict().items() if k != "episodes"}
        self.scalars(values, env_steps)

    def text(self, tag: str, text: str) -> None:
        self._writer.add_text(tag, text, 0)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
