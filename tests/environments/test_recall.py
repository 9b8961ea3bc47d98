"""The task that needs a memory, by hand."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import taac.environments.recall  # noqa: F401 (registers it)


def play(policy, seed, **kwargs):
    env = gymnasium.make("taac/Recall-v0", **kwargs)
    observation, _ = env.reset(seed=seed)
    seen, rewards, terminated = [observation], [], False
    cue = observation[0]
    while not terminated:
        observation, reward, terminated, truncated, _ = env.step(np.array([policy(cue)], dtype=np.float32))
        assert not truncated
        seen.append(observation)
        rewards.append(reward)
    return cue, np.array(seen), rewards


def test_an_episode_by_hand():
    cue, seen, rewards = play(lambda cue: cue, 0, length=4, recalled=2)
    assert abs(cue) == 1 and not seen[1:, 0].any()
    np.testing.assert_allclose(seen[:, 1], [0, 0.25, 0.5, 0.75, 1])
    assert rewards == [0, 0, 1, 1]


def test_returns_with_and_without_a_memory():
    assert {play(lambda _: 0.0, seed)[0] for seed in range(8)} == {-1.0, 1.0}
    assert sum(play(lambda cue: cue, 1)[2]) == 5
    assert sum(play(lambda _: 0.0, 1)[2]) == 0
    assert sum(play(lambda cue: -cue, 1)[2]) == -15


def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(gymnasium.make("taac/Recall-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("recalled", [0, 4, 5])
def test_what_is_refused(recalled):
    with pytest.raises(ValueError, match=f"recalled must be 1 or more and below length 4, got {recalled}"):
        gymnasium.make("taac/Recall-v0", length=4, recalled=recalled)
