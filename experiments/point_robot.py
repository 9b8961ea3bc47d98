"""A robot for which dying early pays: the task by which defaults for rewards are judged.

A point accelerates in a square room towards a goal that moves to another place every 25 steps. The reward of a step is -5 to 0,
by the distance to the goal. Touching a wall ends the episode. By this reward the best policy drives into the nearest wall, some
15 steps away, because each goal that is reached is followed by another one far away. A method that subtracts the mean of
rewards maximises something else: it stays alive.
"""

import gymnasium
import numpy as np


class PointRobot(gymnasium.Env):
    """Observes position, velocity and goal; accelerates by an action in [-1, 1]^2. Ends at a wall, or after 200 steps."""

    observation_space = gymnasium.spaces.Box(-1.5, 1.5, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.velocity = self.np_random.uniform(-0.5, 0.5, 2), np.zeros(2)
        self.goal, self.steps = self.np_random.uniform(-0.8, 0.8, 2), 0
        return self._observation(), {}

    def step(self, action):
        self.velocity = np.clip(self.velocity + 0.1 * np.asarray(action, float), -1, 1)
        self.position, self.steps = self.position + 0.1 * self.velocity, self.steps + 1
        distance = np.linalg.norm(self.position - self.goal)
        if self.steps % 25 == 0:
            self.goal = self.np_random.uniform(-0.8, 0.8, 2)
        crashed = bool(np.abs(self.position).max() >= 1)
        return self._observation(), -5 * min(distance / 2, 1.0), crashed, self.steps == 200, {}

    def _observation(self):
        return np.concatenate([self.position, self.velocity, self.goal]).astype(np.float32)
