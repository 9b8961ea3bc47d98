"""Recorded episodes: what is written is what is read, and what cannot be read or does not fit is refused."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import tests.toy_tasks
from taac import nest, specs
from taac.data_structures import AlgStep, TimeStep
from taac.demonstrations import episode_files
from taac.demonstrations.episode_files import EpisodeWriter, read
from taac.environments.create import create_environment
from taac.environments.durations import DurationCoordinate
from taac.errors import TaacError
from tests.environments.toys import env_id

POINT, CAMERA, BOTH = "taac-test/PointMass-v0", "taac-test/Camera-v0", "taac-test/TwoRewards-v0"


class Gears(gymnasium.Env):
    """Actions of every kind, and an episode that terminates after `3 + gear` steps."""

    def __init__(self):
        spaces = gymnasium.spaces
        self.observation_space = spaces.MultiBinary(2)
        self.action_space = spaces.Dict(
            gear=spaces.Discrete(3, start=1),
            push=spaces.Tuple((spaces.Box(-2.0, 6.0, (2, 1)), spaces.Box(-1, 1, (1,)))),
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, dtype=np.int8), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._t += 1
        return np.array([self._t % 2, 1], dtype=np.int8), 0.5, self._t >= 3 + action["gear"], False, {}


gymnasium.register("taac-test/Gears-v0", Gears)


def played(environment, steps, *watchers, seed=0):
    """Every frame of random play."""
    torch.manual_seed(seed)
    spec, count = environment.action_spec, environment.num_envs
    frames, time_step = [], environment.reset(seed)
    for _ in range(steps):
        frames.append(time_step)

        def draw(leaf):
            if leaf.is_categorical:
                return torch.randint(int(leaf.maximum) + 1, (count, *leaf.shape))
            return torch.rand(count, *leaf.shape) * 2 - 1

        action = nest.map_structure(draw, spec)
        for watcher in watchers:
            watcher(time_step, AlgStep(action, (), (), torch.ones(count, dtype=torch.bool)))
        time_step = environment.step(action)
    return nest.map_structure(lambda *leaves: torch.stack(leaves), *frames)


def record(path, environment, steps):
    """Writes the episodes of random play; returns the writer."""
    played(environment, steps, writer := EpisodeWriter(path, environment))
    writer.save()
    return writer


@pytest.fixture
def recorded(tmp_path):
    environment = create_environment(POINT)
    record(tmp_path / "point.npz", environment, 70)
    return tmp_path / "point.npz", environment


@pytest.mark.parametrize("env_name", [POINT, CAMERA, BOTH, "taac-test/Gears-v0"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_recorded_episode_is_read_back_as_played(env_name, num_envs, tmp_path):
    environment = create_environment(env_name, num_envs=num_envs)
    writer = EpisodeWriter(tmp_path / "e.npz", environment)
    frames = played(environment, 75, writer)
    writer.save()
    found = read(str(tmp_path / "e.npz"), environment)
    expected = []
    for t in range(75):
        for b in range(num_envs):
            if frames.is_last()[t, b]:
                first = max(i for i in range(t + 1) if frames.is_first()[i, b])
                expected.append(nest.index(frames, (slice(first, t + 1), b)))
    assert len(found) == len(expected) == writer.num_episodes >= 2 * num_envs
    assert writer.num_transitions == sum(len(e.step_type) - 1 for e in expected)
    for episode, other in zip(found, expected):
        for (path, x), (_, y) in zip(nest.flatten_with_path(episode), nest.flatten_with_path(other)):
            assert x.dtype == y.dtype and torch.equal(x, y), path
    assert not list(tmp_path.glob("*.tmp"))


def test_episodes_that_do_not_end_are_not_written(tmp_path):
    environment = create_environment(POINT)
    writer = EpisodeWriter(tmp_path / "e.npz", environment)
    played(environment, 30, writer)  # 31 frames an episode
    with pytest.raises(TaacError, match="no episode has ended"):
        writer.save()
    assert not (tmp_path / "e.npz").exists()
    record(tmp_path / "e.npz", environment, 40)
    assert [len(e.step_type) for e in read(str(tmp_path / "e.npz"), environment)] == [31]


def test_the_file_holds_no_code(recorded):
    path, _ = recorded
    with np.load(path, allow_pickle=False) as held:
        meta = json.loads(held["meta"].tobytes())
        assert all(held[name].dtype != object for name in held.files)
    assert meta["format"] == 1 and meta["environment"] == POINT and meta["episodes"] == 2
    assert meta["transitions"] == 60 and meta["action_space"]["high"] == "2.0"


def test_a_file_with_a_pickle_in_it_is_refused(recorded):
    path, environment = recorded
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **{**arrays, "reward": np.array([{}], dtype=object)})
    with pytest.raises(TaacError, match=r"cannot be read, the file may be damaged: .*pickle"):
        read(str(path), environment)


def test_torn_files_are_refused(recorded):
    """Cut anywhere, or with a byte changed anywhere that holds frames."""
    path, environment = recorded
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TaacError, match=r"cannot be read, the file may be damaged|are damaged"):
            read(str(path), environment)
    for place in range(200, len(whole), len(whole) // 15):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:  # a byte of the archive's padding may not matter; then everything is as it was
            found = read(str(path), environment)
        except TaacError as error:
            assert re.search("damaged", str(error))
        else:
            assert len(found) == 2
    path.write_bytes(b"not at all a file of episodes")
    with pytest.raises(TaacError, match="cannot be read"):
        read(str(path), environment)


def rewritten(path, change):
    """The file with something else in it, and a fitting archive around that."""
    with np.load(path) as held:
        arrays = dict(held)
    meta = json.loads(arrays.pop("meta").tobytes())
    change(meta, arrays)
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)


REFUSED = {
    "newer": (lambda m, a: m.update(format=2), "have format 2; this version of taac reads up to format 1"),
    "fewer frames": (lambda m, a: a.update({k: v[:-1] for k, v in a.items()}), "episode 1 is not whole"),
    "frames alone": (lambda m, a: a["step_type"].fill(0), "an episode without a transition"),
    "no beginning": (lambda m, a: a.update({k: v[1:] for k, v in a.items()}), "episode 0 is not whole"),
    "not finite": (lambda m, a: a["observation"].__setitem__(5, np.nan), "frame 5: 'observation.*nan, expected"),
    "no episode": (lambda m, a: a.update({k: v[:0] for k, v in a.items()}), "is not whole"),
    "other spaces": (lambda m, a: m["action_space"].update(low="-3.0"), r"their action_space is .*-3\.0.*is .*-2\.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, recorded):
    path, environment = recorded
    change, message = REFUSED[name]
    rewritten(path, change)
    with pytest.raises(TaacError, match=message):
        read(str(path), environment)


GEARS = "taac-test/Gears-v0"
OUTSIDE = {
    "observation": (POINT, "observation", (4, 0), -np.inf, r"frame 4: 'observation' at \[0\] is -inf, expected a finite number"),
    "action": (POINT, "prev_action", (3, 0), -1.001, r"frame 3: 'prev_action' at \[0\] is -1.001, expected -1\S* to 1"),
    "infinite action": (POINT, "prev_action", (3, 0), np.inf, "frame 3: 'prev_action' at .* is inf, expected"),
    "reward": (POINT, "reward", (2,), -np.inf, "frame 2: 'reward' is -inf, expected a finite number"),
    "no number": (POINT, "reward", (2,), np.nan, "frame 2: 'reward' is nan, expected a finite number"),
    "discount": (POINT, "discount", (7,), 1.01, "frame 7: 'discount' is 1.01, expected .* to 1"),
    "negative discount": (POINT, "discount", (7,), -0.5, "frame 7: 'discount' is -0.5, expected .* to 1"),
    "duration": (POINT, "duration", (1,), -1, "frame 1: 'duration' is -1, expected 0 to 1$"),
    "choice": (GEARS, "prev_action/gear", (1,), 3, "frame 1: 'prev_action/gear' is 3, expected 0 to 2"),
    "negative choice": (GEARS, "prev_action/gear", (1,), -1, "frame 1: 'prev_action/gear' is -1, expected 0 to 2"),
    "far choice": (GEARS, "prev_action/gear", (1,), -(2**63), "frame 1: 'prev_action/gear' is -9223372036854775808, expected"),
    "part": (GEARS, "prev_action/push/0", (2, 1, 0), 2.0, r"frame 2: 'prev_action/push/0' at \[1, 0\] is 2.0, expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_frames_outside_the_spaces_are_refused(tmp_path, name):
    env_name, array, place, value, message = OUTSIDE[name]
    environment = create_environment(env_name, num_envs=1)
    record(tmp_path / "e.npz", environment, 70)
    read(str(tmp_path / "e.npz"), environment)
    rewritten(tmp_path / "e.npz", lambda m, a: a[array].__setitem__(place, value))
    with pytest.raises(TaacError, match=f"e.npz': episode 0, {message}"):
        read(str(tmp_path / "e.npz"), environment)


def test_rounding_and_simulators_that_leave_their_own_bounds_are_allowed(tmp_path, recorded):
    path, environment = recorded

    def change(meta, arrays):
        arrays["prev_action"][3] = np.float32(1.000001)
        arrays["discount"][3] = np.nextafter(np.float32(1), np.float32(2))
        arrays["observation"][4] = 1e30

    rewritten(path, change)
    assert len(read(str(path), environment)) == 2


def test_masks_that_allow_nothing_are_refused_where_the_episode_continues():
    choice, mask = (specs.TensorSpec(shape, dtype, np.asarray(0), np.asarray(top)) for shape, dtype, top in (
        ((), torch.int64, 2), ((3,), torch.bool, 1)
    ))  # fmt: skip
    environment = SimpleNamespace(
        durations=(1, 1), duration_coordinate=False, reward_dim=None, repeat_gamma=1.0, observation_spec={"action_mask": mask},
        action_spec=choice,
    )  # fmt: skip

    def check(last, discount=1.0):
        kinds, first = torch.tensor([0, 2], dtype=torch.uint8), [True] * 3
        seen = {"action_mask": torch.tensor([first, last])}
        rest = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1], dtype=torch.int16)
        episode = TimeStep(kinds, torch.zeros(2), torch.tensor([1.0, discount]), seen, *rest)
        episode_files._check("here", episode, environment)

    check([False, True, False])
    check([False] * 3, discount=0.0)
    with pytest.raises(TaacError, match="here, frame 1: 'action_mask' forbids every choice"):
        check([False] * 3)


def claimed(shape, dtype="<f4"):
    """An array of 16 bytes whose description says otherwise."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + b"\0" * 16


@pytest.mark.parametrize(
    "name, data",
    [("meta", claimed((10**12,), "|u1")), ("reward", claimed((10**6, 10**6))), ("reward", claimed((-2, -2))),
     ("reward", claimed((100,))), ("reward", b"\x93NUMPY\x09\0" + b"\0" * 8), ("reward", b"anything at all")],
)  # fmt: skip
def test_an_array_that_is_not_what_it_claims_is_refused(recorded, name, data):
    path, environment = recorded
    with zipfile.ZipFile(path) as held:
        members = {info.filename: held.read(info) for info in held.infolist()} | {f"{name}.npy": data}
    with zipfile.ZipFile(path, "w") as held:
        for member, content in members.items():
            held.writestr(member, content)
    with pytest.raises(TaacError, match=r"damaged|holds .* expected"):
        read(str(path), environment)


def test_a_description_that_inflates_is_not_parsed(recorded, monkeypatch):
    path, environment = recorded
    monkeypatch.setattr(episode_files.files, "MAX_JSON_BYTES", 200)
    with pytest.raises(TaacError, match="its description is too long"):
        read(str(path), environment)


@pytest.mark.parametrize(
    "name, array, message",
    [("reward", None, "reward"), ("reward", np.zeros(1 << 18), "expected at most 1048576"),
     ("reward", np.array([None] * 5), "allow_pickle"), ("meta", np.array([0], dtype=np.uint8), "cannot be read")],
)  # fmt: skip
def test_a_file_of_other_arrays_is_refused(recorded, monkeypatch, name, array, message):
    path, environment = recorded
    with np.load(path) as held:
        arrays = {**held, name: array}
    np.savez(path, **{name: given for name, given in arrays.items() if given is not None})
    monkeypatch.setattr(episode_files, "available_bytes", lambda device: 1 << 21)
    with pytest.raises(TaacError, match=message):
        read(str(path), environment)


@pytest.mark.parametrize(
    "name, change",
    [
        ("observation", lambda a: a.astype(np.float64)),
        ("observation", lambda a: a.astype(">f4")),
        ("prev_action", lambda a: a[:, None]),
        ("step_type", lambda a: a[:-1]),
        ("step_type", lambda a: a[0]),
        ("duration", lambda a: a.astype(np.uint16)),
        ("reward", lambda a: a.sum()),
    ],
)
def test_arrays_of_other_shapes_and_kinds_are_refused(recorded, name, change):
    path, environment = recorded
    rewritten(path, lambda meta, arrays: arrays.update({name: np.asarray(change(arrays[name]))}))
    with pytest.raises(TaacError, match=r"point.npz': '.*' holds .* expected .* of shape"):
        read(str(path), environment)


def test_files_of_other_environments_are_refused(recorded, tmp_path):
    path, _ = recorded
    with pytest.raises(TaacError, match=rf"do not fit environment '{CAMERA}': their observation_space is .*Box.*Dict"):
        read(str(path), create_environment(CAMERA))
    with pytest.raises(TaacError, match=r"rewards of shape \[\], but those of environment .* have shape \[2\]"):
        read(str(path), create_environment(BOTH))
    with pytest.raises(TaacError, match=r"there is no file of demonstrations .*--record_demonstrations"):
        read(str(tmp_path / "none.npz"), create_environment(POINT))


@pytest.mark.parametrize("recorded_with, read_with", [(1, 3), (3, 1), (3, 2)])
def test_actions_that_take_other_times_are_refused(recorded_with, read_with, tmp_path):
    record(tmp_path / "e.npz", create_environment(POINT, action_repeat=recorded_with), 40)
    other = create_environment(POINT, action_repeat=read_with)
    with pytest.raises(TaacError, match=rf"actions that take {recorded_with} environment steps, .* take {read_with}"):
        read(str(tmp_path / "e.npz"), other)


@pytest.mark.parametrize(
    "recorded_with, read_with, discounts",
    [
        ({"action_repeat_gamma": 0.5}, {"action_repeat_gamma": 0.9}, {(2, "0.5", "0.9"), (3, "0.25", "0.81")}),
        ({"action_repeat_gamma": 0.5}, {"action_repeat_plain_sum": True}, {(2, "0.5", "1"), (3, "0.25", "1")}),
        ({"action_repeat_plain_sum": True}, {"action_repeat_gamma": 0.9}, {(2, "1", "0.9"), (3, "1", "0.81")}),
        ({"action_repeat_gamma": 0.5}, {"action_repeat_gamma": 0.5}, None),
    ],
)
@pytest.mark.parametrize("chosen", [False, True])
def test_rewards_that_were_discounted_otherwise_are_refused(recorded_with, read_with, discounts, chosen, tmp_path):
    """The reward of a repeated action is a sum that its gamma weighs, so it would be of another task's scale."""
    repeat = {"env_kwargs": {"scripts": (("7t", "3t", "8u"),)}, "action_repeat": 3, "action_repeat_chosen": chosen}
    environment = create_environment(env_id("Counter"), **repeat, **recorded_with)
    writer = record(tmp_path / "e.npz", environment, 40)
    other = create_environment(env_id("Counter"), **repeat, **read_with)
    if discounts is None:
        assert len(read(str(tmp_path / "e.npz"), other)) == writer.num_episodes
        return
    with pytest.raises(TaacError, match=r"same create_environment\.action_repeat_gamma and action_repeat_plain_sum") as error:
        read(str(tmp_path / "e.npz"), other)
    about = r"frame \d+: 'discount' is (\S+) after an action of (\d) environment steps, expected (\S+):"
    told = re.search(about, str(error.value))
    assert (int(told[2]), told[1], told[3]) in discounts and (chosen or told[2] == "3")


def test_an_episode_of_one_action_may_cut_it_short(tmp_path):
    environment = create_environment(env_id("Counter"), env_kwargs={"scripts": (("2t",),)}, action_repeat=4)
    record(tmp_path / "e.npz", environment, 4)
    assert [episode.duration.tolist() for episode in read(str(tmp_path / "e.npz"), environment)] == [[0, 2]] * 2


@pytest.mark.parametrize("choice", [0, 3])
def test_durations_that_are_chosen_need_not_all_occur(tmp_path, choice):
    environment = create_environment(POINT, action_repeat=4, action_repeat_chosen=True)
    writer = EpisodeWriter(tmp_path / "e.npz", environment)
    time_step = environment.reset(0)
    for _ in range(33):  # one step at a time, or four, always
        action = (torch.full((1,), choice, dtype=torch.int64), torch.zeros(1, 1))
        writer(time_step, AlgStep(action, (), (), torch.ones(1, dtype=torch.bool)))
        time_step = environment.step(action)
    writer.save()
    episodes = read(str(tmp_path / "e.npz"), environment)
    assert len(episodes) >= 1 and max(int(episode.duration.max()) for episode in episodes) == choice + 1


def test_durations_as_actions_of_another_longest_are_refused(tmp_path):
    """Their last numbers would mean other durations. An action that the end of an episode cuts short is no such one."""
    two, four = (create_environment(POINT, action_repeat=n, action_repeat_chosen=DurationCoordinate) for n in (2, 4))
    writer = record(tmp_path / "e.npz", two, 90)
    assert len(read(str(tmp_path / "e.npz"), two)) == writer.num_episodes > 1
    with pytest.raises(TaacError, match=r"frame \d+: the action takes [12] environment steps, and here its last number says oth"):
        read(str(tmp_path / "e.npz"), four)


# Minari ---------------------------------------------------------------------------------------------------------------


def minari_dataset(tmp_path, monkeypatch, env_name, lengths=(7, 30), scale=1.0):
    """A real dataset of random play on disk, and for each episode the actions and results of the environment."""
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = gymnasium.make(env_name)
    env.action_space.seed(0)
    buffers = []
    for number, length in enumerate(lengths):
        observation, _ = env.reset(seed=number)
        observations, actions, rewards, terminated, truncated = [observation], [], [], [], []
        for t in range(length):
            action = env.action_space.sample()
            observation, reward, over, cut, _ = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(reward)
            terminated.append(over or (number == 0 and t == length - 1))
            truncated.append(cut)
        stacked = _stacked(observations)
        buffers.append(
            EpisodeBuffer(
                id=number, observations=stacked, actions=np.array(actions) * scale, rewards=rewards,
                terminations=terminated, truncations=truncated, infos=None,
            )
        )  # fmt: skip
    minari.create_dataset_from_buffers(
        dataset_id="toy/test-v0", buffer=buffers, env=env, eval_env=env, algorithm_name="random", author="tests",
        author_email="tests@example.com", code_permalink="https://example.com", description="random", requirements=[],
    )  # fmt: skip
    return buffers


def _stacked(observations):
    first = observations[0]
    if isinstance(first, dict):
        return {key: _stacked([o[key] for o in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(part)) for part in zip(*observations))
    return np.array(observations)


class Parts(tests.toy_tasks.Camera):
    """The same without the picture, which Minari would keep as a JPEG."""

    def __init__(self):
        super().__init__()
        spaces = gymnasium.spaces
        rest = spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(31, start=5)))
        self.observation_space = spaces.Dict(keys=spaces.MultiBinary(2), rest=rest)

    def _seen(self):
        return {"keys": np.array([self._t % 2, 1], dtype=np.int8), "rest": super()._seen()["rest"]}


# By its module's name, as Minari can write it down.
gymnasium.register("taac-test/Parts-v0", "tests.demonstrations.test_episodes:Parts")


@pytest.mark.parametrize("env_name", ["Pendulum-v1", "taac-test/Parts-v0"])
def test_a_minari_dataset_is_read_as_frames(env_name, tmp_path, monkeypatch):
    buffers = minari_dataset(tmp_path, monkeypatch, env_name)
    environment = create_environment(env_name)
    low, high = environment.action_space.low, environment.action_space.high
    found = read("minari:toy/test-v0", environment)
    assert len(found) == 2
    for episode, buffer in zip(found, buffers):
        steps = len(buffer.rewards)
        assert episode.step_type.tolist() == [0] + [1] * (steps - 1) + [2]
        assert episode.duration.tolist() == [0] + [1] * steps
        # Time t holds what came of the action at t-1.
        assert episode.reward[0] == 0 and episode.discount[0] == 1 and not episode.prev_action[0].any()
        np.testing.assert_allclose(episode.reward[1:], buffer.rewards, rtol=1e-6)
        np.testing.assert_allclose((episode.prev_action[1:].numpy() + 1) / 2 * (high - low) + low, buffer.actions, atol=2e-6)
        observations = nest.flatten(buffer.observations)
        for leaf, expected in zip(nest.flatten(episode.observation), observations):
            np.testing.assert_allclose(leaf, expected)
    assert found[0].discount.tolist() == [1.0] * 7 + [0.0]  # terminated
    assert found[1].discount.tolist() == [1.0] * 31  # cut off, or not ended at all
    blank = specs.zeros(environment.observation_spec, 1)
    nest.map_structure(lambda x, y: x.dtype == y.dtype or pytest.fail("dtype"), found[0].observation, blank)


def test_a_minari_dataset_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    minari_dataset(tmp_path, monkeypatch, "Pendulum-v1")
    with pytest.raises(TaacError, match=r"do not fit environment .*PointMass.*their observation_space is .*Box"):
        read("minari:toy/test-v0", create_environment(POINT))
    with pytest.raises(TaacError, match=r"there is no Minari dataset 'toy/other-v0' here: .*minari download toy/other-v0"):
        read("minari:toy/other-v0", create_environment("Pendulum-v1"))
    with pytest.raises(TaacError, match=r"the Minari dataset 'so-what' cannot be read|there is no Minari dataset 'so-what'"):
        read("minari:so-what", create_environment("Pendulum-v1"))
    with pytest.raises(TaacError, match=r"actions that take 1 environment steps, but those of .* take 3"):
        read("minari:toy/test-v0", create_environment("Pendulum-v1", action_repeat=3))


def test_a_torn_minari_dataset_is_refused(tmp_path, monkeypatch):
    minari_dataset(tmp_path, monkeypatch, "Pendulum-v1")
    (path,) = (tmp_path / "minari").rglob("main_data.hdf5")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TaacError, match=r"the Minari dataset 'toy/test-v0' cannot be read: "):
        read("minari:toy/test-v0", create_environment("Pendulum-v1"))


def cut(group, array, rows):
    """Leaves out or repeats rows of an array of an episode, as `rows` says."""
    values = group[array][:][rows]
    del group[array]
    group[array] = values


SHIFTED = {
    "no last observation": (lambda e: cut(e, "observations", np.arange(7)), "7 observations, expected 8"),
    "an observation more": (lambda e: cut(e, "observations", np.arange(9) % 8), "9 observations, expected 8"),
    "an action less": (lambda e: cut(e, "actions", np.arange(6)), "6 actions, expected 7"),
    "a reward more": (lambda e: cut(e, "rewards", np.arange(8) % 7), "8 rewards, expected 7"),
    "a termination less": (lambda e: cut(e, "terminations", np.arange(6)), "6 terminations, expected 7"),
    "no truncation": (lambda e: cut(e, "truncations", np.arange(0)), "0 truncations, expected 7"),
    "padded": (lambda e: e.attrs.update(total_steps=6), "of 6 steps has 8 observations, expected 7"),  # as Arrow does
    "of another shape": (lambda e: cut(e, "observations", np.s_[:, :1]), r"shape \[8, 1\], expected .* \[8, 3\]"),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_a_minari_episode_whose_frames_would_shift_is_refused(name, tmp_path, monkeypatch):
    import h5py

    minari_dataset(tmp_path, monkeypatch, "Pendulum-v1")
    (path,) = (tmp_path / "minari").rglob("main_data.hdf5")
    change, message = SHIFTED[name]
    with h5py.File(path, "r+") as file:
        change(file["episode_0"])
    with pytest.raises(TaacError, match=f"the Minari dataset 'toy/test-v0': episode 0.*{message}"):
        read("minari:toy/test-v0", create_environment("Pendulum-v1"))


def test_actions_of_minaris_outside_the_space_are_refused(tmp_path, monkeypatch):
    minari_dataset(tmp_path, monkeypatch, "Pendulum-v1", scale=2.0)
    with pytest.raises(TaacError, match=r"the Minari dataset 'toy/test-v0' has an action outside Box"):
        read("minari:toy/test-v0", create_environment("Pendulum-v1"))


def test_without_minari_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(TaacError, match=r'needs a package that is not installed .*pip install "minari\[hdf5\]"'):
        read("minari:toy/test-v0", create_environment("Pendulum-v1"))
