"""TensorBoard summaries: the table of all tags, and the writer. The x-axis is environment steps."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from taac.runs import durable, files, layout
from taac.runs.layout import EpisodeSummary
from taac.runs.terminal import warn_user

# Tag -> meaning. Other scalars need a declaration in `summary_tags` of the algorithm or monitor, or the user is warned.
TAGS: dict[str, str] = {
    "{phase}/return": "undiscounted sum of an episode's raw rewards, mean over episodes",
    "{phase}/return_std": "standard deviation of that sum over episodes",
    "{phase}/length": "environment steps per episode, mean",
    "{phase}/fraction_repeated": "fraction of environment steps that continue the old trajectory (b = 0), or repeat an action",
    "{phase}/mean_run": "environment steps from one decision to the next, mean",
    "{phase}/max_run": "the largest number of them",
    "{phase}/decisions": "environment steps at which a new action was chosen, per episode",
    "{phase}/jerk": "squared second difference of the action in [-1, 1] (of a discrete choice, of its number), mean",
    "{phase}/fraction_same": "fraction of the action's components that equal those of the step before, whatever b says",
    "{phase}/action_change": "distance of an action in [-1, 1] from the one before, mean over dimensions and steps",
    "{phase}/effort": "squared action in [-1, 1], mean over dimensions and steps",
    "{phase}/info/{name}": "a number that the environment reports of an episode, mean; needs `create_environment.info`",
    "evaluation/high_frequency": "mean over frequencies of 2 x frequency (cycles per step) x amplitude (Mysore et al.'s Sm)",
    "evaluation/multiply_adds": "multiply-adds of the networks that acting needed, per episode",
    "loss/total": "what is minimised: actor + temperature + critic losses, mean over all T*B frames, 0 at LAST",
    "loss/critic": "sum over critics of (Q_i - G)^2 (or Huber's, see `huber_delta`), of distributions of the cross-entropy or "
    "quantile Huber loss, mean over the learnt frames",
    "loss/actor": "half the squared length of beta_1 dQ/da, plus alpha log pi (beta_1 = 1 for SAC), mean over frames; "
    "for discrete SAC, sum_a pi(a) (alpha log pi(a) - min Q(a)); SAC-Hybrid adds its switch's loss, and SDAR, whose pi is of the "
    "dimensions that act, subtracts alpha_beta H(beta)",
    "critic/q": "Q_i(s, tau) at the executed trajectories, mean over critics, learnt parts of the reward, and learnt frames",
    "critic/target": "returns G, the targets of the critics, mean over the same frames",
    "critic/beyond": "fraction of the targets' probability that is beyond the atoms of categorical critics",
    "policy/entropy": "-log pi of the sampled action, nats, mean over frames except LAST; for discrete SAC, the exact entropy",
    "policy/alpha": "temperature of the actor",
    "policy/log_std": "of the actor's outputs before tanh, mean over frames except LAST and over dimensions",
    "loss/temperature_{name}": "log_alpha (H - H_target) of a temperature (alpha instead of log_alpha if it is tuned directly), "
    "or log_price (rho - rate) of a decision's learnt price, mean over frames except LAST",
    "learning_rate/{group}": "learning rate of a group of parameters, at the summary",
    "gradient/total": "norm of the last update's gradient over all the algorithm's parameters, before clipping",
    "beta/switch_probability": "beta_1, mean over frames except LAST; for SDAR, fraction of the dimensions that act, mean over "
    "frames except FIRST and LAST",
    "beta/entropy": "entropy of beta, nats, mean over the same frames",
    "beta/alpha": "temperature of beta",
    "beta/reach_through": "fraction of the frames that returns could pass (MID, frames 1..T-2 of a segment) that returns do "
    "pass: neither the rollout's b nor the sampled b~ switches, and the rest of a chunk is the stored one; 0 where segments have "
    "two frames",
    "loss/regularizer_{name}": "a loss that is added to the actor's, see `actor_regularizers`, mean over frames except LAST",
    "decision/price": "price of a decision, in units of the reward that is learnt; see `decision_price`",
    "replay/weight": "importance weights of prioritised replay, which multiply the losses, mean over segments",
    "replay/segment_error": "absolute value of Q_i - G, mean over critics and the learnt frames of a segment, then over "
    "segments; priorities are computed from it",
    "sqil/gradient_cosine": "cosine similarity of the policy's gradients on demonstrations and on the agent's own frames",
    "sqil/td_error_demonstrations": "`loss/critic` on demonstrations alone",
    "sqil/td_error_agent": "`loss/critic` on the agent's own frames alone",
    "sqil/actor_loss_demonstrations": "`loss/actor` on demonstrations alone",
    "sqil/actor_loss_agent": "`loss/actor` on the agent's own frames alone",
    "sqil/entropy_demonstrations": "`policy/entropy` on demonstrations alone",
    "sqil/entropy_agent": "`policy/entropy` on the agent's own frames alone",
    "signal/icm_reward": "curiosity reward, divided by its running root mean square if `normalize`, before its strength is "
    "applied, mean over frames except FIRST",
    "signal/icm_loss": "(1 - beta) L_inverse + beta L_forward of the curiosity models",
    "signal/rnd_reward": "novelty reward, divided likewise, before its strength is applied, mean over frames except FIRST",
    "signal/rnd_loss": "squared error of the novelty predictor",
    "signal/gail_reward": "-log(1 - D(s, a)) on replayed frames, before its strength is applied, mean over frames except FIRST",
    "signal/gail_loss": "cross-entropy of the discriminator, plus its gradient penalty",
    "signal/{name}_reward": "reward of your own signal, before its strength is applied, mean over frames except FIRST",
    "signal/{name}_loss": "loss of its model",
    "signal/{name}_return": "undiscounted sum of a signal's reward over an episode, before its strength is applied, mean over "
    "the episodes since the last summary; needs `Learner.diagnostics`",
    "cloning/loss": "behaviour cloning loss on demonstrations, mean over all T*B frames",
    "cloning/weight": "weight of that loss",
    "schedule/{name}": "current value of a hyper-parameter that follows a schedule, such as `schedule/Learner.learning_rate`",
    "critic_{i}/value/{part}": "Q_i of a part of the reward at the executed actions, mean over the learnt frames; parts "
    "are `reward`, or `part_0`, ..., and reward signals by name. This row and those down to "
    "`gradient/{group}` need `Learner.diagnostics`",
    "critic_{i}/td_error/{part}": "G - Q_i, signed, mean over the same frames",
    "critic_{i}/loss/{part}": "(G - Q_i)^2 of one critic, mean over the same frames",
    "critic_{i}/explained_variance/{part}": "1 - Var(G - Q_i) / Var(G), with variances over the learnt frames of a batch that "
    "are averaged over updates; 1 is best, below 0 is worse than a constant",
    "critic/target/{part}": "returns G of a part of the reward, mean over the same frames",
    "critic/next_value": "the value of the next state that G bootstraps from (SAC: soft; SAC-value: target V), mean over frames "
    "1..T-1 except FIRST, and over parts of the reward",
    "policy/{statistic}": "over frames except LAST and over dimensions: `mean` is that of the actor's outputs before tanh, "
    "`mean_std` and `log_std_std` are standard deviations; `action` and `action_std` are of the replayed actions in [-1, 1]; `q` "
    "is min_i Q_i, or as `combine_critics` says, at the policy's own action (TAAC: q_1; TD3: Q_1), weighted over parts of the "
    "reward",
    "value/{statistic}": "of SAC-value: `prediction` is V(s) and `target` what it learns, mean over frames except LAST and parts",
    "replay/fraction_repeated": "fraction of the replayed frames except LAST at which the rollout did not switch (b = 0)",
    "switch/{statistic}": "over frames except LAST: `advantage` is the mean of q_1 - q_0, less a decision's price, before "
    "clipping, `advantage_std` its standard deviation, `beta_std` that of beta_1",
    "gradient/{group}": "norm of the gradient of a group of parameters, before clipping, mean over the updates since the "
    "last summary",
    "time/env_steps_per_second": "environment steps per second, over all environments, since the last summary",
    "time/updates_per_second": "gradient steps per second, since the last summary",
    "time/{activity}": "seconds since the last summary: `collecting`, `updating` (on a GPU as the host sees it; with sampling), "
    "`sampling`, `evaluating` and `saving`",
    "count/updates": "gradient steps so far",
    "count/update_ratio": "gradient steps per environment step after the initial collection, so far",
    "count/decisions": "environment steps at which a new action was chosen, so far",
    "count/episodes": "episodes that have ended so far; each is counted one step later",
    "collectors/staleness": "updates between the parameters that acted and the learner's when it takes the frame, mean over "
    "frames since the last summary. This row and the next need `create_experiment.collectors`",
    "collectors/restarts": "how often running episodes of a collector were cut off, because it or its environments failed",
}
# Not scalars: `histogram/*` of q, target, td_error (also of each critic and part of the reward), q_pi, mean, log_std, action,
# advantage, beta, v and v_target, for the last update before the summary (`Learner.diagnostics = 'histograms'`);
# `evaluation/video`, a GIF of an evaluation's first episode (`create_experiment.evaluation_video`).
UNKNOWN = "this summary has no meaning, in docs/summaries.md or in summary_tags() of the algorithm or monitor: return one there"
PHASES = {"rollout": "while exploring", "evaluation": "acting greedily"}


def known_tags() -> dict[str, str]:
    """Returns the table with `{phase}` replaced by each phase."""
    tags = {}
    for tag, meaning in TAGS.items():
        if "{phase}" in tag:
            tags.update({tag.replace("{phase}", p): f"{meaning}, {when}" for p, when in PHASES.items()})
        else:
            tags[tag] = meaning
    return tags


def unknown_tags(tags: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """Returns the tags that are neither in the table nor declared by the algorithm or monitor.

    A template's `{name}` matches anything without a slash, or with slashes if the environment chose it.
    """
    if not tags:
        return []
    known = {**known_tags(), **own}
    patterns = [
        re.compile(re.sub(r"\\\{\w+\\\}", ".+" if "/info/" in tag else "[^/]+", re.escape(tag))) for tag in known if "{" in tag
    ]
    return [tag for tag in tags if tag not in known and not any(pattern.fullmatch(tag) for pattern in patterns)]


class SummaryWriter:
    """Writes summaries to a TensorBoard event file in a folder.

    Args:
        purge_step: hides what an earlier process of the run wrote at this step or later, because it will be repeated.
        tags: own tags of the algorithm and the monitor, and their meaning.
        also: called with the same scalars by tag, and their step.
    """

    def __init__(
        self,
        folder: Path,
        purge_step: int | None = None,
        tags: Mapping[str, str] | None = None,
        also: Callable[[Mapping[str, float], int], None] = lambda values, env_steps: None,
    ):
        from torch.utils.tensorboard import SummaryWriter as Writer  # takes half a second, which only runs pay

        self._folder, self._also = folder, also
        # The number orders a run's event files even if the clock was set back. The random part is unpredictable, so no link
        # can be waiting under that name.
        found = (layout.number_of_event_file(path.name) for path in folder.glob(layout.EVENTS))
        number = 1 + max((number for number in found if number is not None), default=-1)
        suffix = f".taac-{number}-{secrets.token_hex(8)}"
        self._file = folder / f"{layout.EVENTS}{suffix}"  # for errors of the system, whose thread does not name it
        self._writer = Writer(str(folder), purge_step=purge_step, filename_suffix=suffix)
        self._tags, self._known = tags or {}, set[str]()  # known: tags that were written before

    def scalars(self, values: Mapping[str, float | torch.Tensor], env_steps: int) -> None:
        """Writes each value at `env_steps`. Warns once of each tag that is not in the table."""
        for tag in unknown_tags([tag for tag in values if tag not in self._known], self._tags):
            warn_user(f"{tag}: {UNKNOWN}")
        self._known.update(values)
        numbers = {tag: float(value) for tag, value in values.items()}
        with files.named(self._file):
            for tag, number in numbers.items():
                self._writer.add_scalar(tag, number, env_steps)
        self._also(numbers, env_steps)

    def histograms(self, values: Mapping[str, torch.Tensor], env_steps: int) -> None:
        for tag, value in values.items():
            self._writer.add_histogram(tag, value.cpu(), env_steps)

    def episodes(self, phase: str, summary: EpisodeSummary, env_steps: int) -> None:
        """Writes the averages over episodes under `rollout/` or `evaluation/`."""
        known = {k: v for k, v in summary.numbers().items() if k != "episodes" and not math.isnan(v)}
        self.scalars({f"{phase}/{'return' if k == 'return_mean' else k}": v for k, v in known.items()}, env_steps)

    def text(self, tag: str, text: str, env_steps: int = 0) -> None:
        self._writer.add_text(tag, text, env_steps)

    def gif(self, tag: str, content: bytes, size: tuple[int, int], env_steps: int) -> None:
        """Writes a GIF file's content, of size (height, width), which TensorBoard shows as an image."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=content)
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), env_steps)

    def hyper_parameters(self, values: Mapping[str, Any]) -> None:
        """Writes the run's entry in the hparams view, with `evaluation/return` as the metric.

        Values other than numbers are written as text, and None leaves the cell empty. All runs should have the same
        names, because the view reads its columns from just one of them.
        """
        from torch.utils.tensorboard.summary import hparams

        numbers = {name: v for name, v in values.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        cells = {name: numbers.get(name, str(v)) for name, v in values.items()}
        columns, _, _ = hparams(cells, {"evaluation/return": None})
        _, row, _ = hparams({name: cell for name, cell in cells.items() if values[name] is not None}, {})
        for record in (columns, row):
            self._writer.file_writer.add_summary(record, 0)

    def finished(self, env_steps: int) -> None:
        """Marks the run as finished in the hparams view, and flushes, because closing would not report a failed write."""
        from torch.utils.tensorboard.summary import hparams

        self._writer.file_writer.add_summary(hparams({}, {})[2], env_steps)
        self.flush()

    def flush(self) -> None:
        """Flushes the event file to the disk. A checkpoint that counts it as written must not outlast it."""
        with files.named(self._file):
            self._writer.flush()
        for path in self._folder.glob(layout.EVENTS):
            durable.sync(path)

    def close(self) -> None:
        with files.named(self._file):
            self._writer.close()
