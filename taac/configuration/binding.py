"""A binding in a gin file or flag: the value of a parameter, and where it is set. And the macros of task files."""

from __future__ import annotations

from typing import Any, NamedTuple

from taac.configuration.gin_state import MACRO, Reference, macro_of, short

# Macros that a task file defines and method files refer to, with their meaning. A method need not use all of them, so only
# these may stay unused.
TASK_MACROS: dict[str, str] = {
    "num_envs": "environments stepped together",
    "num_env_steps": "environment steps of the whole run",
    "initial_collect_steps": "environment steps before the first update",
    "unroll_length": "steps in each environment per iteration",
    "updates_per_iteration": "gradient steps for each `unroll_length` x `num_envs` environment steps",
    "replay_length": "frames kept for each environment",
    "batch_size": "segments per gradient step",
    "segment_length": "frames per segment, for methods that learn from several steps",
    "action_repeat": "SAC-Nrep's N, SAC-Krep's and TLA's K, TaCoS's D, TempoRL's longest skip: segment_length - 1 in task files",
    "learning_rate": "Adam's, for all parameters of the method",
    "hidden_layers": "widths of actor and critics; a backbone may have its own",
    "log_std_min": "lower bound of the policy's log standard deviation",
    "gamma": "discount of a step",
    "target_tau": "fraction by which targets move",
    "target_period": "updates between moves of the targets",
    "action_min_prob": "gives the actor's target entropy",
    "beta_min_prob": "gives the switch's target entropy",
    "beta_advantage_clipping": "(low, high) of the advantage of switching, or None",
    "normalize_rewards": "how sampled rewards are normalised: False, True, 'scale' or 'bounded'",
    "reward_clip": "clip of normalised rewards, in standard deviations, or None",
    "evaluation_interval": "environment steps between evaluations",
    "evaluation_episodes": "episodes per evaluation",
    "checkpoint_interval": "environment steps between checkpoints",
}

ALGORITHM = "create_agent.algorithm_ctor"

# Names in Stable-Baselines3 and CleanRL that people type first; docs/migration.md has all.
OF_OTHERS = {
    "total_timesteps": "num_env_steps", "env_id": "--task", "n_envs": "num_envs", "lr": "learning_rate", "tau": "target_tau",
    "buffer_size": "replay_length", "learning_starts": "initial_collect_steps", "net_arch": "hidden_layers",
    "ent_coef": "Temperature.initial_value (a fixed one: with Temperature.tuning=fixed)",
    "env": "--task", "algo": "--method", "steps": "num_env_steps",
    "log_dir": "--root_dir", "logdir": "--root_dir", "tensorboard_log": "--root_dir", "device": "--set device=NAME",
    "train_freq": "updates_per_env_step", "gradient_steps": "updates_per_env_step", "target_update_interval": "target_period",
    "n_critics": "CriticEnsemble.num_critics", "action_noise": "create_collector.explorer", "optimizer_class": "optimizer_ctor",
    "policy_kwargs": "hidden_layers and other settings",
}  # fmt: skip

# Configurables of `taac compare` and `taac sweep`, not of an experiment.
OF_COMPARE = ("taac.campaigns.comparison.", "taac.campaigns.launchers.", "taac.campaigns.sweep.")


class Binding(NamedTuple):
    """A value that a file or flag binds."""

    scope: str  # scope of the configurable, or the name of a macro
    selector: str  # full name of the configurable; `MACRO` for a macro
    name: str  # of the parameter
    value: Any
    where: str  # "file:line", or "--gin_param"
    shipped: bool = False  # whether the file belongs to this package

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scope, self.selector, self.name

    @property
    def is_macro(self) -> bool:
        return self.selector == MACRO

    @property
    def may_be_unused(self) -> bool:
        """Whether nothing needs to use it.

        A shipped file ties parameters to macros of a task, and a class of a user's own may replace the one that has the
        parameter. A shipped task file may bind what a single algorithm does, and the task may be given to another; a backbone
        binds the networks of every method.
        """
        if not self.shipped:
            return False
        tie = isinstance(self.value, Reference) and macro_of(self.value) in TASK_MACROS
        return tie or self.selector.startswith(("taac.algorithms.", "taac.networks."))

    @property
    def line(self) -> str:
        """The binding as a line of gin."""
        return f"{self.parameter} = {self.value!r}"

    @property
    def parameter(self) -> str:
        """What is bound: the name of a macro, or `Constructor.parameter`."""
        if self.is_macro:
            return self.scope
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{short(self.selector)}.{self.name}"

    def __str__(self) -> str:
        return f"{self.where}: {self.line}"
