"""Pictures: brought to one form, stacked, stored once, and shifted."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac import nest
from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.environments import images
from taac.environments.create import create_environment
from taac.environments.images import FrameStack, Pictures
from taac.errors import TaacError
from taac.learning.side_losses import Cloning, SideLosses
from taac.ops.pictures import random_shift
from tests.training.runs import assert_resumes_exactly, build, built, learn_until, trained


class Drift(gymnasium.Env):
    """A bright column drifts left or right; an action of its sign is worth 1. One picture does not tell which.

    Pictures are 12 x 12 bytes: `[H, W, 1]`, grey without channel, colours with channels first, or a part of a Dict. An episode
    has ten steps, or terminates earlier by chance.
    """

    def __init__(self, form: str = "last", chance: float = 0.0):
        self.form, self.chance = form, chance
        shape = {"grey": (12, 12), "first": (3, 12, 12)}.get(form, (12, 12, 1))
        picture = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = spaces.Dict(camera=picture, x=spaces.Box(-1.0, 1.0, (1,))) if form == "dict" else picture
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def _observation(self):
        picture = np.zeros((12, 12), np.uint8)
        picture[:, self._at % 12] = 200
        if self.form == "dict":
            return {"camera": picture[..., None], "x": np.array([0.5], np.float32)}
        return {"grey": picture, "first": np.stack([picture] * 3), "last": picture[..., None]}[self.form]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._speed, self._t = int(self.np_random.integers(12)), int(self.np_random.choice([-1, 1])), 0
        return self._observation(), {}

    def step(self, action):
        reward = float(self._speed * action[0] > 0)
        self._at, self._t = self._at + self._speed, self._t + 1
        return self._observation(), reward, bool(self.np_random.random() < self.chance), self._t >= 10, {}


gymnasium.register("taac-test/Drift-v0", Drift)
NAME = "tests.environments.test_images:taac-test/Drift-v0"
RUN = [
    f"create_environment.env_name = '{NAME}'", "hidden_layers = (32,)", "ImageEncoder.channels = (8,)",
    "ImageEncoder.kernels = (4,)", "ImageEncoder.strides = (2,)", "replay_length = 60", "initial_collect_steps = 100",
    "num_env_steps = 160", "evaluation_interval = 80",
]  # fmt: skip


def stacked(env, num_frames):
    env = FrameStack(env, num_frames)
    observation, _ = env.reset(seed=0)
    seen = [observation]
    for _ in range(5):
        seen.append(env.step(np.zeros(1))[0])
    return env, seen


def test_a_stack_holds_the_last_frames_the_newest_last():
    single, stack = Drift(), stacked(Drift(), 3)
    alone = [single.reset(seed=0)[0], *(single.step(np.zeros(1))[0] for _ in range(5))]
    env, seen = stack
    assert env.observation_space.shape == (12, 12, 3) and all(env.observation_space.contains(x) for x in seen)
    for t in range(6):
        expected = np.concatenate([alone[max(0, t - back)] for back in (2, 1, 0)], axis=-1)
        assert np.array_equal(seen[t], expected)


def test_masks_are_no_pictures():
    space = spaces.Dict({"camera": spaces.Box(0, 255, (4, 4), np.uint8), "action_mask": spaces.Box(0, 1, (2, 3), np.uint8)})
    mask = np.array([[1, 0, 1], [1, 1, 1]], np.uint8)
    seen = images.map_pictures(space, {"camera": np.zeros((4, 4), np.uint8), "action_mask": mask}, lambda x: x[..., None])
    made = images.map_picture_spaces(space, "Pictures", lambda x: x[..., None])
    assert seen["camera"].shape == (4, 4, 1) == made["camera"].shape
    assert seen["action_mask"] is mask and made["action_mask"] == space["action_mask"]


def test_pictures_inside_a_dict_are_stacked_alone():
    env, seen = stacked(Drift("dict"), 2)
    assert env.observation_space["camera"].shape == (12, 12, 2) and env.observation_space["x"].shape == (1,)
    assert seen[-1]["camera"].shape == (12, 12, 2) and seen[-1]["x"].shape == (1,)


@pytest.mark.parametrize(
    "form, grayscale, channels", [("grey", False, 1), ("first", False, 3), ("first", True, 1), ("last", False, 1)]
)
def test_pictures_come_to_one_form(form, grayscale, channels):
    env = Pictures(Drift(form), grayscale)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == observation.shape == (12, 12, channels) and observation.dtype == np.uint8
    column = Drift().reset(seed=0)[0][..., 0] > 0
    assert np.array_equal(observation[..., 0] > 0, column) and abs(int(observation.max()) - 200) <= 1


def test_grey_is_how_bright_a_colour_looks():
    """Green counts most, blue least."""
    env = Pictures(Drift("first"), grayscale=True)
    for channel, expected in enumerate((60, 117, 23)):  # 200 times 0.299, 0.587 and 0.114
        picture = np.zeros((3, 12, 12), np.uint8)
        picture[channel] = 200
        assert (env.observation(picture) == expected).all()


def test_colours_of_bools_are_grey_where_one_is_true():
    bools = spaces.Box(0, 1, (3, 12, 12), np.bool_)
    env = Pictures(gymnasium.wrappers.TransformObservation(Drift("first"), lambda x: x > 0, bools), grayscale=True)
    assert env.observation_space.high.max() == 1
    for channel in range(3):
        picture = np.zeros((3, 12, 12), bool)
        picture[channel, :, 4] = True
        assert np.array_equal(env.observation(picture)[..., 0], picture.any(0))


def test_what_has_no_colours_cannot_be_made_grey():
    with pytest.raises(TaacError, match=r"Pictures\.grayscale needs pictures of 3 channels"):
        Pictures(Drift("last"), grayscale=True)


@pytest.mark.parametrize("channels, first", [(1, True), (4, True), (5, False)])
def test_up_to_four_channels_may_come_first(channels, first):
    space = gymnasium.spaces.Box(0, 255, (channels, 12, 12), np.uint8)
    env = Pictures(Drift("first"))
    assert env._picture(space.sample()).shape == ((12, 12, channels) if first else (channels, 12, 12))


def test_what_has_no_pictures_is_refused():
    with pytest.raises(TaacError, match="frame_stack needs pictures"):
        create_environment("Pendulum-v1", frame_stack=2)
    with pytest.raises(TaacError, match=r"\[H, W, C\].*@Pictures"):
        create_environment(NAME, frame_stack=2, env_kwargs={"form": "grey"})
    with pytest.raises(TaacError, match="frame_stack must be 1 or more"):
        create_environment(NAME, frame_stack=0)


@pytest.mark.parametrize("buffer", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_each_frame_is_stored_once_and_stacked_as_it_was_seen(buffer):
    """In a ring that has wrapped, with episodes of up to 11 frames, others in each environment; also over their first frames."""
    trainer = build(
        *RUN, "create_environment.frame_stack = 3", "create_environment.env_kwargs = {'chance': 0.15}",
        f"create_experiment.replay_buffer_ctor = @{buffer}", "num_envs = 2", method="sac",
    )  # fmt: skip
    seen = {}
    replay, add = trainer.replay_buffer, trainer.replay_buffer.add

    def watched(experience):
        seen[replay.added] = nest.map_structure(lambda x: torch.as_tensor(np.array(x)), experience.time_step.observation)
        add(experience)

    replay.add = watched
    learn_until(trainer, 60)
    assert replay.added > replay.length and replay.frames(0, 1)["frames/time_step/observation"].shape[1:] == (2, 12, 12, 1)
    oldest, checked = replay.added - replay.size, 0
    for _ in range(20):
        batch = replay.sample_batch(16, 4)
        shown = batch.experience.time_step.observation
        assert shown.shape == (4, 16, 12, 12, 3)
        for i, (env, first) in enumerate(zip(batch.environment.tolist(), batch.first.tolist())):
            for t in range(4):
                if buffer == "ReplayBuffer" or first + t >= oldest + 2:  # else the oldest frames repeat one
                    assert torch.equal(shown[t, i], seen[first + t][env])
                    checked += 1
    assert checked > 1000
    trainer.close()


def test_a_shift_moves_a_picture_and_repeats_its_edge():
    torch.manual_seed(0)
    x = torch.arange(2 * 6 * 5 * 4 * 3, dtype=torch.uint8).view(2, 6, 5, 4, 3)
    found, kinds = random_shift(x, 2), set()
    padded = torch.nn.functional.pad(x.float().movedim(-1, -3).flatten(0, 1), (2, 2, 2, 2), mode="replicate")
    for n, picture in enumerate(found.flatten(0, 1)):
        crops = {
            (i, j): torch.equal(padded[n, :, i : i + 5, j : j + 4].movedim(0, -1), picture.float())
            for i in range(5) for j in range(5)
        }  # fmt: skip
        assert any(crops.values())
        kinds |= {place for place, equal in crops.items() if equal}
    assert len(kinds) > 6
    assert torch.equal(random_shift(x, 0), x)


@pytest.mark.slow
@pytest.mark.parametrize("more, solved", [([], False), (["create_environment.frame_stack = 2"], True)])
def test_what_one_picture_hides_is_learnt_from_two(more, solved):
    """Two pictures tell the direction in 9 of 10 steps; one is as good as a coin."""
    params = [
        *RUN, "replay_length = 5000", "batch_size = 64", "learning_rate = 3e-3", "gamma = 0.0", "target_tau = 1.0", *more,
        "Temperature.initial_value = 0.05",
    ]  # fmt: skip
    trainer = trained(build(*params, method="sac"), 600)
    result = summarize(evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=1)).return_mean
    assert result > 8 if solved else result < 7.5


@pytest.mark.slow
def test_pendulum_is_learnt_from_pictures():
    """About -200 after 5,000 steps, as from its numbers; standing still is -1,200."""
    trainer = built(
        ["gin/tasks/default.gin", "gin/methods/sac.gin", "experiments/pixels/pixel_pendulum.gin"],
        ["create_environment.env_name = 'experiments.pixel_pendulum:PixelPendulum'"],
    )
    trained(trainer, 6000)
    assert summarize(evaluate(trainer.agent, trainer.evaluation_environment, 10, seed=1)).return_mean > -400


@pytest.mark.slow
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    params = [
        *RUN, "create_environment.frame_stack = 3", "create_agent.random_shift = 1", "Intervals.checkpoint_interval = 20",
        "normalize_rewards = False", "reward_clip = None",
    ]  # fmt: skip
    assert_resumes_exactly(tmp_path, *params, until=[130])


def test_pictures_of_bools_become_bytes():
    """As those of MinAtar, with a channel for each kind of object."""

    class Objects(gymnasium.Env):
        observation_space = spaces.Box(0, 1, (6, 6, 4), np.bool_)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.eye(6, dtype=bool)[..., None].repeat(4, -1), {}

    for env in (Pictures(Objects()), FrameStack(Objects(), 2)):
        observation, _ = env.reset()
        assert observation.dtype == np.uint8 and observation.max() == 1 and env.observation_space.contains(observation)
        assert env.observation_space.high.max() == 1  # so that networks see them as they are
    assert observation.shape == (6, 6, 8)


def test_sampled_pictures_are_shifted_each_frame_by_a_number_of_its_own():
    trainer = build(*RUN, "create_agent.random_shift = 3", "normalize_rewards = False", "reward_clip = None", method="sac")
    learn_until(trainer, 1)
    batch = trainer.replay_buffer.sample(32, 2)
    picture = batch.time_step.observation
    picture[1] = picture[0]  # twice the same, before it is shifted
    seen = trainer.agent.prepare(batch).time_step.observation
    assert not torch.equal(seen, picture) and not torch.equal(seen[0], seen[1])
    # What cloning and signals learn from is shifted alike, demonstrations too; what signals are told of rollouts is not.
    assert torch.equal(trainer.agent.prepare_observations(batch).time_step.observation, picture)
    demonstrations = SimpleNamespace(sample=lambda *_: batch)
    side = SideLosses(trainer.agent, Cloning(weight=1.0), lambda: demonstrations)
    shown = side.demonstrated(32, 2).time_step.observation
    assert not torch.equal(shown, picture) and not torch.equal(shown[0], shown[1])
    own = SimpleNamespace(needs_demonstrations=False)  # a signal with batches of its own
    frames, _ = side._new_frames(own, 32, 2, SimpleNamespace(sample=lambda *_: batch))
    assert not torch.equal(frames.observation, picture)
    trainer.close()


def test_a_shift_of_no_picture_is_refused():
    for pixels in (-1, 12):
        with pytest.raises(TaacError, match="from 0 to 11 pixels for pictures of this size"):
            build(*RUN, f"create_agent.random_shift = {pixels}", method="sac")
    with pytest.raises(TaacError, match=r"random_shift moves pictures of bytes \[H, W, C\], and the observations have none"):
        build("create_agent.random_shift = 4")


@pytest.mark.slow
def test_collectors_bring_stacks():
    trainer = build(*RUN, "create_environment.frame_stack = 3", "create_experiment.collectors = 1", "normalize_rewards = False",
                    "reward_clip = None", method="sac")  # fmt: skip
    try:
        learn_until(trainer, 2)
        step = trainer.replay_buffer.sample(16, 2).time_step
        stack, goes_on = step.observation, ~step.is_first()[1]
        assert stack.shape == (2, 16, 12, 12, 3) and torch.equal(stack[1, goes_on, ..., 1], stack[0, goes_on, ..., 2])
    finally:
        trainer.close()
