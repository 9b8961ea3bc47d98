"""Every episode is its seed and its actions: it can be reached again, in whatever environments run beside it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from taac import nest
from taac.acting.action_log import ActionLog, ReplayMismatch
from taac.data_structures import LAST
from taac.environments.create import create_environment
from taac.environments.seeded_episodes import SeededEpisodes, episode_seed
from taac.environments.wrappers import SplitReward
from taac.errors import EnvironmentFailed
from taac.runs.files import Damaged
from tests.environments.toys import Noise, Probe, Remembering, env_id


def drawn(env, generator):
    """Random actions, leaves `[B, ...]`."""

    def leaf(spec):
        uniform = torch.rand(env.num_envs, *spec.shape, generator=generator)
        if spec.is_categorical:
            return (uniform * torch.as_tensor(spec.num_choices)).long()
        return 2 * uniform - 1

    return nest.map_structure(leaf, env.action_spec)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(nest.flatten(a), nest.flatten(b), strict=True))


def parts_of_the_reward(env):
    return SplitReward(env, ("reward_forward", "reward_ctrl", "reward_survive"))


def play(env, log, time_step, steps, generator):
    """Takes random steps; returns all time steps from the given one on."""
    seen = [time_step]
    for _ in range(steps):
        action = drawn(env, generator)
        last = seen[-1].step_type.numpy() == LAST
        seen.append(env.step(action))
        log.append(action, last)
    return seen


@pytest.mark.parametrize("remake", [False, True])
def test_an_episode_depends_on_its_number_and_its_seed_alone(remake):
    env = SeededEpisodes(Noise, remake=remake)
    action = np.array([0.5], np.float32)
    for seed in (3, 4):
        for episode in range(4):
            observation, _ = env.reset(seed=seed) if episode == 0 else env.reset()
            alone = Noise()
            expected, _ = alone.reset(seed=episode_seed(seed, episode))
            for _ in range(episode + 1):  # how long the episodes before were makes no difference
                assert np.array_equal(observation, expected)
                observation, expected = env.step(action)[0], alone.step(action)[0]


def test_the_first_episode_has_the_seed_itself_and_all_seeds_differ():
    seeds = [episode_seed(seed, episode) for seed in range(50) for episode in range(50)]
    assert [episode_seed(seed, 0) for seed in range(50)] == list(range(50))
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**31 for seed in seeds)


def test_a_simulator_that_keeps_state_is_recreated_for_every_episode():
    fresh, used = [], []
    for seen, remake in ((fresh, True), (used, False)):
        env = SeededEpisodes(Remembering, remake=remake)
        env.reset(seed=1)
        seen += [env.reset()[0].item() / Noise().reset(seed=episode_seed(1, n))[0].item() for n in (1, 2, 3)]
    assert fresh == pytest.approx([0.9] * 3) and used == pytest.approx([0.9**2, 0.9**3, 0.9**4])


def test_an_environment_that_is_recreated_with_other_spaces_is_refused():
    """Its actions would be scaled to the bounds of the first."""
    reaches = iter((1.0, 2.0))
    env = SeededEpisodes(lambda: Probe(action_space=Box(-1.0, next(reaches), (1,))))
    env.reset(seed=1)
    with pytest.raises(EnvironmentFailed, match=r"episode 1 .* its action_space is Box\(-1.0, 2.0.* it was Box\(-1.0, 1.0"):
        env.reset(seed=2)


@pytest.mark.parametrize(
    "env_name, settings",
    [
        (env_id("Noise"), {"num_envs": 3}),
        (env_id("Noise"), {"num_envs": 2, "asynchronous": True}),
        (env_id("GlobalNoise"), {"num_envs": 2, "asynchronous": True}),
        (env_id("Ledger"), {"num_envs": 2, "action_repeat": 3, "action_repeat_gamma": 0.9}),
        (env_id("Ledger"), {"num_envs": 3, "action_repeat": 4, "action_repeat_chosen": True}),
        (env_id("Remembering"), {"num_envs": 2, "remake": True}),
        ("Hopper-v5", {"num_envs": 2, "wrappers": (parts_of_the_reward,), "action_repeat": 2}),
        ("CartPole-v1", {"num_envs": 3}),
        ("BipedalWalker-v3", {"num_envs": 1, "max_episode_steps": 12}),
        ("Hopper-v5", {"num_envs": 2}),
    ],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else ",".join(value),
)
def test_episodes_are_restored_at_any_step_and_continue_alike(env_name, settings):
    env, again = create_environment(env_name, **settings), create_environment(env_name, **settings)
    log, generator = ActionLog(env), torch.Generator().manual_seed(0)
    time_step = env.reset(7)
    seen_first = False
    for steps in (0, 1, 4, 7, 1, 23, 1, 1, 1, 6):
        time_step = play(env, log, time_step, steps, generator)[-1]
        seen_first |= bool(time_step.is_first().any())
        other = ActionLog(again)
        other.load_state_dict(log.state_dict())
        assert same(other.replay_actions(again, 7, env.episodes, nest.flatten(time_step)), time_step)
        assert np.array_equal(again.episodes, env.episodes)
        assert np.array_equal(again.raw_reward, env.raw_reward)
        now = generator.get_state()
        ahead = play(again, other, time_step, 15, generator)
        generator.set_state(now)
        time_step = play(env, log, time_step, 15, generator)[-1]
        assert same(ahead[-1], time_step) and np.array_equal(again.episodes, env.episodes)
        assert all(torch.equal(a, b) for x, y in zip(other.state_dict(), log.state_dict()) for a, b in zip(x, y))
    assert env.episodes.min() >= 2 and seen_first
    env.close()
    again.close()


def test_a_replay_ends_at_a_last_frame_too():
    """The next step must begin an episode, as the vector environment does where it was not replayed."""
    env, again = (create_environment(env_id("Noise"), num_envs=3) for _ in range(2))
    log, generator, ends = ActionLog(env), torch.Generator().manual_seed(1), 0
    time_step = env.reset(3)
    for _ in range(60):
        time_step = play(env, log, time_step, 1, generator)[-1]
        if bool(time_step.is_last().any()):
            ends += 1
            assert same(again.replay(3, env.episodes, unpacked(env, log)), time_step)
            action = drawn(env, generator)
            last = time_step.step_type.numpy() == LAST
            after = again.step(action)
            time_step = env.step(action)
            log.append(action, last)
            assert same(after, time_step) and time_step.is_first().numpy()[last].all()
    assert ends > 5
    env.close()
    again.close()


def unpacked(env, log):
    return [nest.pack_like(env.action_spec, leaves) for leaves in log.state_dict()]


def test_a_simulator_that_remembers_is_found_elsewhere():
    env = create_environment(env_id("Remembering"))
    log, generator = ActionLog(env), torch.Generator().manual_seed(0)
    seen = play(env, log, env.reset(0), 40, generator)
    assert env.episodes[0] > 0
    again = create_environment(env_id("Remembering"))
    with pytest.raises(ReplayMismatch, match=r"create_environment\.remake = True"):
        log.replay_actions(again, 0, env.episodes, nest.flatten(seen[-1]))


def test_a_replay_has_the_time_that_its_steps_had():
    settings = {"num_envs": 1, "asynchronous": True, "step_timeout": 0.5}
    env = create_environment(env_id("Sluggish"), **settings)
    log, generator = ActionLog(env), torch.Generator().manual_seed(0)
    seen = play(env, log, env.reset(0), 20, generator)  # a second in all
    log.replay_actions(env, 0, env.episodes, nest.flatten(seen[-1]))
    env.close()


def test_the_log_holds_each_environments_running_episode_and_little_more():
    env = create_environment(env_id("Noise"), num_envs=3)
    log, generator = ActionLog(env), np.random.default_rng(0)
    expected = [[], [], []]
    longest = 0
    for number in range(2000):
        last = generator.random(3) < (0.1, 0.02, 0.3)
        action = torch.full((3, 1), float(number))
        log.append(action, last)
        for i in range(3):
            expected[i] = [] if last[i] else [*expected[i], float(number)]
        longest = max(longest, *map(len, expected))
        assert [leaves[0].flatten().tolist() for leaves in log.state_dict()] == expected
        assert len(log._held[0]) <= 12 * 2 * max(1, max(map(len, expected))) + 12
    assert longest > 100


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state[:1],
        lambda state: [[], []],
        lambda state: [[leaf.double() for leaf in leaves] for leaves in state],
        lambda state: [[leaf[..., None] for leaf in leaves] for leaves in state],
        lambda state: [[*leaves, *leaves] for leaves in state],
    ],
)
def test_actions_of_another_environment_are_damage(change):
    env = create_environment("Pendulum-v1", num_envs=2)
    log = ActionLog(env)
    log.append(torch.zeros(2, 1), np.zeros(2, bool))
    with pytest.raises(Damaged, match="actions"):
        ActionLog(env).load_state_dict(change(log.state_dict()))


def test_parts_of_an_action_are_as_many():
    env = create_environment(env_id("Ledger"), action_repeat=4, action_repeat_chosen=True)
    log = ActionLog(env)
    log.append(nest.map_structure(lambda s: s.zeros(1), env.action_spec), np.zeros(1, bool))
    choice, action = log.state_dict()[0]
    with pytest.raises(Damaged, match="different numbers"):
        ActionLog(env).load_state_dict([[choice, action[:0]]])


def test_a_registered_simulator_that_remembers_is_known():
    env = create_environment("LunarLanderContinuous-v3")
    (seeded,) = env._env.envs
    before = seeded.env
    seeded.reset(seed=0)
    seeded.reset()
    assert seeded.env is not before and isinstance(seeded, SeededEpisodes)
    env.close()
    plain = create_environment("Pendulum-v1")
    (seeded,) = plain._env.envs
    before = seeded.env
    seeded.reset(seed=0)
    seeded.reset()
    assert seeded.env is before and isinstance(before, gymnasium.Env)
    plain.close()
