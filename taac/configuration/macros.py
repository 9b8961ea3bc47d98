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
