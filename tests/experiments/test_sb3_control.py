"""The control's run folders are read by `taac report` as any other. Stable-Baselines3 itself is stood in for."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from experiments import sb3_control
from taac.analysis.readers import run_records


class Stand:
    """Has the few names of a Stable-Baselines3 model that the script uses; always acts with the same torque."""

    def __init__(self, torque):
        self.torque, self.num_timesteps, self._n_updates, self.resets = torque, 0, 0, []

    def learn(self, steps, reset_num_timesteps, log_interval):
        self.resets.append(reset_num_timesteps)
        self.num_timesteps += steps
        self._n_updates = max(0, self.num_timesteps - 20)

    def predict(self, observation, deterministic):
        assert deterministic
        return np.array([self.torque], dtype=np.float32), None


def arguments(tmp_path, *more):
    return sb3_control.parser().parse_args(
        ["--root_dir", str(tmp_path), "--tasks", "Pendulum-v1", "--num_env_steps", "90", "--evaluation_interval", "30",
         "--evaluation_episodes", "2", "--initial_collect_steps", "20", *more]
    )  # fmt: skip


def test_a_run_is_read_as_any_other(tmp_path):
    model = Stand(0.5)
    sb3_control.train(tmp_path / "Pendulum-v1" / "sb3_sac" / "seed_3", "Pendulum-v1", 3, arguments(tmp_path), model, "sb3_sac")
    [record] = run_records.find(tmp_path)
    assert record.problems == () and record.status == "finished"
    assert (record.method, record.task, record.seed) == ("sb3_sac", "Pendulum-v1", 3)
    assert record.evaluations["env_steps"].tolist() == [30, 60, 90]
    assert record.evaluations["updates"].tolist() == [10, 40, 70]
    assert model.resets == [True, False, False]


def test_returns_are_those_of_the_environment():
    environment = gymnasium.make("Pendulum-v1")
    environment.reset(seed=5)
    expected = sum(environment.step(np.array([0.5], dtype=np.float32))[1] for _ in range(200))
    returns, lengths, successes = sb3_control.greedy_episodes(Stand(0.5), "Pendulum-v1", [5, 6])
    assert np.isnan(successes).all()
    assert returns[0] == pytest.approx(expected) and returns[0] != returns[1]
    assert lengths.tolist() == [200, 200]


def test_episodes_of_other_runs_and_steps_have_other_seeds():
    seeds = [sb3_control.episode_seeds(run, step, 10) for run in (0, 1) for step in (30, 60)]
    assert len({s for group in seeds for s in group}) == 40
    assert sb3_control.episode_seeds(1, 60, 10) == seeds[3]


def test_a_finished_run_is_left_alone(tmp_path, monkeypatch):
    folder = tmp_path / "Pendulum-v1" / "sb3_sac" / "seed_0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    begun = []
    monkeypatch.setattr(sb3_control, "make_model", lambda task, seed, options: None)
    monkeypatch.setattr(sb3_control, "train", lambda folder, task, seed, *more: begun.append(seed))
    monkeypatch.setattr(
        "sys.argv", ["sb3_control", "--root_dir", str(tmp_path), "--tasks", "Pendulum-v1", "--seeds", "2"]
    )
    sb3_control.main()
    assert begun == [1]


class Reaches(gymnasium.Env):
    """Two steps an episode; says after the second whether the action was above 0."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {"is_success": 0.0}

    def step(self, action):
        self.steps += 1
        info = {"is_success": float(self.steps == 2 and action[0] > 0)}
        return np.zeros(1, np.float32), -1.0, False, self.steps == 2, info


@pytest.fixture
def reaches():
    gymnasium.register("Reaches-v0", Reaches)
    yield "Reaches-v0"
    del gymnasium.registry["Reaches-v0"]


@pytest.mark.parametrize(("torque", "success"), [(0.5, 1.0), (-0.5, 0.0)])
def test_with_goals_success_is_written(tmp_path, reaches, torque, success):
    folder = tmp_path / reaches / "sb3_sac+her" / "seed_0"
    sb3_control.train(folder, reaches, 0, arguments(tmp_path, "--her"), Stand(torque), "sb3_sac+her")
    [record] = run_records.find(tmp_path)
    assert record.problems == () and record.evaluations["info/is_success"].tolist() == [success] * 3
