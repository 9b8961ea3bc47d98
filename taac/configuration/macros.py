"""The macros of task files, and what else is known by name."""

# Macros that a task file defines and method files refer to, with their meaning. A method need not use all of them, so only
# these may stay unused.
TASK_MACROS: dict[str, str] = {
    "num_envs": "environments stepped together",
    "num_env_steps": "environment steps of the whole run",
    "initial_collect_steps": "environment steps before the first update",
    "unroll_length": "steps in each environment an iteration",
    "updates_per_iteration": "gradient steps an iteration",
    "replay_length": "frames kept for each environment",
    "batch_size": "segments a gradient step",
    "segment_length": "frames a segment, for methods that learn from several steps",
    "action_repeat": "SAC-Nrep's N, SAC-Krep's K, TempoRL's longest skip: one less than segment_length in every task file",
    "learning_rate": "Adam's, of every parameter of the method",
    "hidden_layers": "widths of actor and critics",
    "log_std_min": "lower bound of the policy's log standard deviation",
    "gamma": "discount of a step",
    "target_tau": "fraction by which targets move",
    "target_period": "updates between moves of the targets",
    "action_min_prob": "gives the actor's target entropy",
    "beta_min_prob": "gives the switch's target entropy",
    "beta_advantage_clipping": "(low, high) of the advantage of switching, or None",
    "normalize_rewards": "whether sampled rewards are normalised",
    "reward_clip": "clip of normalised rewards, in standard deviations, or None",
    "evaluation_interval": "environment steps between evaluations",
    "evaluation_episodes": "episodes an evaluation",
    "checkpoint_interval": "environment steps between checkpoints",
}

# Configurables of `taac compare` and `taac sweep`, not of an experiment.
OF_COMPARE = ("taac.campaigns.comparison.", "taac.campaigns.launchers.", "taac.campaigns.sweep.")

# Other tools' names of settings.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "num_env_steps": (
        "total_timesteps", "timesteps", "n_timesteps", "total_steps", "num_steps", "steps", "max_steps", "num_timesteps",
    ),
    "learning_rate": ("lr", "step_size"),
    "num_envs": ("n_envs", "num_env", "vec_envs"),
    "hidden_layers": ("hidden_sizes", "hidden_size", "net_arch", "hidden_dim", "hid", "policy_kwargs"),
    "replay_length": ("buffer_size", "replay_size", "memory_size"),
    "initial_collect_steps": ("learning_starts", "start_steps", "random_steps", "warmup_steps"),
    "unroll_length": ("train_freq",),
    "updates_per_iteration": ("gradient_steps",),
    "target_tau": ("tau", "polyak"),
    "target_period": ("target_update_interval", "target_network_frequency"),
    "evaluation_interval": ("eval_freq", "eval_interval", "eval_every"),
    "evaluation_episodes": ("n_eval_episodes", "num_eval_episodes"),
    "checkpoint_interval": ("save_freq", "save_interval", "checkpoint_freq"),
    "Trainer.summary_interval": ("log_interval",),
    "Trainer.explorer": ("action_noise",),
    "Temperature.initial_value": ("ent_coef",),
    "create_experiment.device": ("device", "cuda", "gpu"),
    "create_experiment.num_threads": ("num_threads", "n_threads", "threads"),
    "create_experiment.load_from": ("pretrained", "load_from", "trained_agent"),
}


def meant_by(name: str) -> str | None:
    """Returns the setting that other tools call so, or None."""
    return next((setting for setting, names in OTHER_NAMES.items() if name in names), None)
