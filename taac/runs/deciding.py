"""The settings that decide most of what a method learns, in words."""

from __future__ import annotations

from collections.abc import Mapping

_REWARDS = {
    "False": "raw",
    "True": "normalised, with their mean subtracted",
    "'scale'": "divided by the standard deviation of returns",
}
_LONGEST = 100  # characters of a value


def deciding(settings: Mapping[str, str], update_ratio: float | None) -> dict[str, str]:
    """Returns the learning rate, random steps, rewards, updates a step and batch of a run, each as label and value.

    Args:
        settings: from `layout.parse_bindings`. What it lacks is told as "not stated".
        update_ratio: gradient steps per environment step; None if it is no constant.
    """

    def value(name: str) -> str:
        return settings.get(name, "not stated")[:_LONGEST]

    clip, normalized = value("create_agent.reward_clip"), value("create_agent.normalize_rewards")
    rewards = _REWARDS.get(normalized, normalized)
    if rewards != "raw" and clip not in ("None", "not stated"):
        rewards += f", clipped at {clip}"
    length = value("Trainer.segment_length")
    offline = settings.get("create_experiment.offline") == "True"
    return {
        "learning rate": value("Learner.learning_rate"),
        "random steps first": "0" if offline else value("UpdateRatio.initial_collect_steps"),
        "rewards": rewards,
        "updates a step": "no constant" if update_ratio is None else f"{update_ratio:g}",
        "batch": f"{value('Trainer.batch_size')} x {length} frames",
    }
