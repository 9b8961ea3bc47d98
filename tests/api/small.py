"""A run that takes a second: 30 updates on Pendulum with episodes of 20 steps."""

SMALL = {
    "num_env_steps": 330, "initial_collect_steps": 300, "hidden_layers": (16, 16), "batch_size": 16, "replay_length": 400,
    "evaluation_interval": 320, "evaluation_episodes": 1, "evaluation_envs": 1, "max_episode_steps": 20,
    "checkpoint_interval": 310, "progress": False,
}  # fmt: skip
