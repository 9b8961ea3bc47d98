"""An environment of one's own: checked, trained, compared and reported.

    python experiments/examples/own_environment.py
"""

import gymnasium
import numpy as np

import taac


class Cart(gymnasium.Env):
    """A cart on a rail is pushed to the middle and held there. It observes position and velocity."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.uniform([-1, 0], [1, 0]), 0
        return self.state.astype(np.float32), {}

    def step(self, action):
        velocity = 0.95 * self.state[1] + 0.05 * action[0]
        self.state, self.steps = np.array([self.state[0] + 0.5 * velocity, velocity]), self.steps + 1
        return self.state.astype(np.float32), -abs(self.state[0]), False, self.steps == 60, {}


def main(root="runs/cart", seeds=3, num_env_steps=2_000, **settings):
    cart = "own_environment:Cart"  # by name, so that every process can make it
    print(taac.check(cart))
    settings = {"num_env_steps": num_env_steps, "initial_collect_steps": 500, "evaluation_interval": 500,
                "hidden_layers": (32, 32), "batch_size": 64, "learning_rate": 1e-3, **settings}  # fmt: skip
    run = taac.train(cart, "taac", root_dir=f"{root}/first", **settings)
    print(run.evaluate(10))
    compared = taac.compare(["sac", "taac"], cart, root_dir=f"{root}/compared", seeds=seeds, **settings)
    print(compared.report(baseline="sac"))


if __name__ == "__main__":
    main()
