"""Pendulum from pictures: the task by which frame stacks and random shifts are judged.

    taac train --root_dir runs/pixels --task experiments.pixel_pendulum:PixelPendulum --method sac \
        --gin_file experiments/pixels/pixel_pendulum.gin
"""

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

SIZE = 24  # pixels
_Y, _X = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2


class PixelPendulum(PendulumEnv):
    """Pendulum-v1 whose observation is a grey picture of the pole. One tells the angle, two the speed. It has no time limit."""

    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)

    def _get_obs(self):
        right, down = -np.sin(self.state[0]), -np.cos(self.state[0])  # upright at angle 0
        along = np.clip(_X * right + _Y * down, 0, 10)
        distance = np.hypot(_X - along * right, _Y - along * down)
        return (255 * np.clip(2 - distance, 0, 1)).astype(np.uint8)[..., None]
