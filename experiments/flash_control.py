"""Trains FlashSAC by its published code, in run folders that `taac report` reads, to compare it with this package's.

    git clone https://github.com/Holiday-Robot/FlashSAC ../FlashSAC
    python -m experiments.flash_control --code ../FlashSAC --root_dir runs/flash_64
    taac compare --root_dir runs/flash_64 --gin_file experiments/backbones/published_64.gin
    taac report --root_dir runs/flash_64

Runs go to <root_dir>/HalfCheetah-v5/flash_published/seed_<n>. Settings are those published for MuJoCo on CPUs, but for the
sizes of `published_64.gin`, which `taac compare` gives to this package's FlashSAC: as published, a seed takes 6 to 12 hours of a
core with no GPU. Nothing of it is compiled, which made it no faster at these sizes; Adam is torch's fused one. Evaluations are
as in `sb3_control.py`.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from experiments import sb3_control

TASK, METHOD = "HalfCheetah-v5", "flash_published"


def published(code: Path) -> None:
    """Makes a clone of the published code importable, without what it needs only for annotations and its files of settings."""
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    sys.path.insert(0, str(code))
    for name in ("jax", "jax.numpy", "omegaconf"):
        sys.modules.setdefault(name, mock.MagicMock())


class Published:
    """The agent of the published code with its training loop, by the names of a Stable-Baselines3 model."""

    def __init__(self, code: Path, task: str, seed: int, initial_collect_steps: int):
        published(code)
        from flash_rl.agents.flashSAC import agent

        agent.optim.Adam = functools.partial(torch.optim.Adam, fused=True)
        torch.set_num_threads(1)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.environment = SyncVectorEnv([lambda: gymnasium.make(task)], autoreset_mode="SameStep")
        self.environment.action_space.seed(seed)
        config = agent.FlashSACConfig(
            seed=seed, device_type="cpu", buffer_device_type="cpu", asymmetric_observation=False,
            normalize_reward=True, normalized_G_max=5.0, critic_num_bins=101, critic_min_v=-5.0, critic_max_v=5.0,
            buffer_max_length=1_000_000, buffer_min_length=initial_collect_steps, sample_batch_size=128,
            learning_rate_init=3e-4, learning_rate_peak=3e-4, learning_rate_end=1.5e-4, learning_rate_warmup_rate=1e-6,
            learning_rate_warmup_step=1, learning_rate_decay_rate=1.0, learning_rate_decay_step=1_000_000,
            actor_num_blocks=1, actor_hidden_dim=32, actor_bc_alpha=0.0, actor_noise_zeta_mu=2.0, actor_noise_zeta_max=16,
            actor_update_period=2, critic_num_blocks=1, critic_hidden_dim=64, critic_target_update_tau=0.01,
            temp_initial_value=0.01, temp_target_sigma=0.15, temp_target_entropy=0.0, gamma=0.99, n_step=1,
            use_compile=False, compile_mode="default", use_amp=False, load_optimizer=True, load_reward_normalizer=True,
        )  # fmt: skip
        self.agent = agent.FlashSACAgent(self.environment.observation_space, self.environment.action_space, {}, config)
        self.num_timesteps = self._n_updates = 0
        self._observation, _ = self.environment.reset(seed=seed)

    def learn(self, steps: int, **_: Any) -> None:
        for _step in range(steps):
            if self.agent.can_start_training():
                action = self._act(self._observation, training=True)
            else:
                action = self.environment.action_space.sample()
            following, reward, terminated, truncated, info = self.environment.step(action)
            last = info["final_obs"][0][None] if terminated[0] or truncated[0] else following
            self.agent.process_transition(
                {"observation": self._observation, "action": action, "reward": reward, "terminated": terminated,
                 "truncated": truncated, "next_observation": last.astype(following.dtype)}
            )  # fmt: skip
            self._observation, self.num_timesteps = following, self.num_timesteps + 1
            if self.agent.can_start_training():
                self.agent.update()
                self._n_updates += 1

    def predict(self, observation: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        return self._act(observation[None], training=not deterministic)[0], None

    def _act(self, observation: np.ndarray, training: bool) -> np.ndarray:
        return np.array(self.agent.sample_actions(0, {"next_observation": observation}, training=training))


def main() -> None:
    parser = sb3_control.shared_parser(__doc__)
    parser.add_argument("--root_dir", type=Path, required=True)
    parser.add_argument("--code", type=Path, required=True, help="clone of the published code")
    options = parser.parse_args()
    for folder, task, seed in sb3_control.missing(options, [TASK], METHOD):
        model = Published(options.code, task, seed, options.initial_collect_steps)
        sb3_control.train(folder, task, seed, options, model, METHOD)


if __name__ == "__main__":
    main()
