"""Following episodes for pictures: which steps are recorded, with what, and for how long the current action has run."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torch.nn as nn
from PIL import Image

from taac.acting.evaluation import evaluate
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.data_structures import AlgStep, Nest, TimeStep
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.pictures.video import (
    ACT,
    NARROWEST,
    REPEAT,
    EpisodeStep,
    EpisodeVideo,
    Film,
    Overlay,
    Recorder,
    VideoFile,
    band_texts,
    shrink,
)  # fmt: skip
from tests.environments.toys import env_id


class Scripted(Algorithm):
    """At position k of an episode (counting LAST) returns the action (k/100, 0), and decides as its table says. Beta is k/10."""

    def __init__(self, decided: list) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.decided = decided

    def initial_state(self, batch_size: int) -> Nest:
        return torch.zeros(batch_size, dtype=torch.int64)

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        place = state.float()
        decided = torch.tensor([self.decided[k % len(self.decided)] for k in state.tolist()])
        beta = (place / 10).reshape(-1, *(1,) * (decided.dim() - 1)).expand(decided.shape)
        return AlgStep(torch.stack([place / 100, 0 * place], -1), state + 1, (), decided, beta)


def follow(scripts, decided, num_episodes=1, film_every=1, num_envs=1, episodes=3, **settings):
    """The recorded steps of the first episodes of `scripts`, whose rewards are 10 e + k at step k of episode e."""
    environment = create_environment(
        env_id("Counter"), num_envs, env_kwargs={"scripts": scripts}, render_mode="rgb_array", recorded=True, **settings
    )
    seen: list[EpisodeStep] = []
    recorder = Recorder(environment, [seen.append], num_episodes, film_every)
    evaluate(Agent(Scripted(decided)), environment, episodes, seed=0, on_step=recorder)
    return seen


def test_each_step_is_shown_with_the_action_that_led_there():
    """A step's frame and reward are of arriving at it, its action and beta of the frame before; runs count from 1."""
    seen = follow((("5t",),), [True, False, False, True, False])
    assert [s.number for s in seen] == [1, 2, 3, 4, 5]
    assert [int(s.frame[0, 0, 0]) for s in seen] == [1, 2, 3, 4, 5]
    assert [s.reward for s in seen] == [1, 2, 3, 4, 5]
    assert [s.ret for s in seen] == [1, 3, 6, 10, 15]
    assert np.allclose([s.action for s in seen], [(k / 100, 0) for k in range(5)])
    assert [s.decided.tolist() for s in seen] == [[True], [False], [False], [True], [False]]
    assert [s.run.tolist() for s in seen] == [[1], [2], [3], [1], [2]]
    assert np.allclose([s.switch_probability for s in seen], [[k / 10] for k in range(5)])


def test_an_episode_that_begins_without_a_decision_counts_its_run_from_one():
    assert [s.run.tolist() for s in follow((("4u",),), [False, False, True, False])] == [[1], [2], [1], [2]]


def test_the_requested_number_of_episodes_is_followed_each_from_step_1():
    """Episodes of 2, 3 and 2 steps, of which the first two are followed; the action at LAST is never recorded."""
    seen = follow((("2t", "3u", "2t"),), [False, False, True], num_episodes=2)
    assert [s.number for s in seen] == [1, 2, 1, 2, 3]
    assert [s.reward for s in seen] == [1, 2, 11, 12, 13]
    assert [s.ret for s in seen] == [1, 3, 11, 23, 36]
    assert [s.run.tolist() for s in seen] == [[1], [2], [1], [2], [1]]


def test_only_the_first_environment_is_followed():
    seen = follow((("3t",), ("2t",)), [True], num_envs=2, episodes=4)
    assert [s.number for s in seen] == [1, 2, 3]


def test_dimensions_that_decide_alone_run_alone():
    seen = follow((("3t",),), [(True, True), (False, True), (False, False)])
    assert [s.run.tolist() for s in seen] == [[1, 1], [2, 1], [3, 2]]
    assert np.allclose([s.switch_probability for s in seen], [(k / 10, k / 10) for k in range(3)])


def test_steps_of_an_action_repeated_inside_the_environment_are_shown_each():
    """An action of 3 steps, in an episode of 5: at the second and third nothing is decided, and beta is not looked at."""
    seen = follow((("5t",),), [True], action_repeat=3)
    assert [s.number for s in seen] == [1, 2, 3, 4, 5]
    assert [s.decided.tolist() for s in seen] == [[True], [False], [False], [True], [False]]
    assert [s.run.tolist() for s in seen] == [[1], [2], [3], [1], [2]]
    assert [s.ret for s in seen] == [1, 3, 6, 10, 15]
    assert [int(s.frame[0, 0, 0]) for s in seen] == [1, 2, 3, 4, 5]
    assert [None if s.switch_probability is None else round(float(s.switch_probability[0]), 3) for s in seen] == [
        0.0, None, None, 0.1, None,
    ]  # fmt: skip


def test_every_other_step_is_filmed_and_all_are_shown():
    seen = follow((("5t",),), [True], film_every=2)
    assert [s.frame is not None for s in seen] == [True, False, True, False, True]
    assert all(s.frame is None for s in follow((("5t",),), [True], film_every=0))


def test_an_environment_that_cannot_render_is_refused():
    environment = create_environment(env_id("Noise"), recorded=True)
    recorder = Recorder(environment, [], film_every=1)
    with pytest.raises(TaacError, match=r"failed at step 1: .*cannot be rendered: NotImplementedError") as error:
        evaluate(Agent(Scripted([True])), environment, 1, seed=0, on_step=recorder)
    assert "taac check" not in str(error.value)  # which does not try to render


def test_a_film_keeps_the_first_episode_alone():
    film = Film(side=6)
    environment = create_environment(
        env_id("Counter"), env_kwargs={"scripts": (("2t", "3t"),)}, render_mode="rgb_array", recorded=True
    )
    evaluate(Agent(Scripted([True])), environment, 2, 0, on_step=Recorder(environment, [film], 2, film_every=1))
    assert [s.number for s in film.steps] == [1, 2]  # not the third step of the second episode
    assert [s.frame.shape for s in film.steps] == [(4, 6, 3)] * 2  # 2 x 3 twice as large


def test_the_video_of_an_evaluation_is_thinned_out_evenly(monkeypatch):
    """With room for 4 frames, 11 steps are shown as steps 1, 5 and 9: every 4th, each four times as long."""
    monkeypatch.setattr(EpisodeVideo, "MOST", 4)
    monkeypatch.setattr("taac.pictures.video.Overlay", lambda: lambda step: step.frame)
    environment = create_environment(
        env_id("Counter"), env_kwargs={"scripts": (("11t",),)}, render_mode="rgb_array", recorded=True
    )
    video = EpisodeVideo(environment)
    evaluate(Agent(Scripted([True])), environment, 2, seed=0, on_step=video.on_step)
    content, size = video.gif()
    with Image.open(io.BytesIO(content)) as gif:
        assert gif.n_frames == 3 and (gif.height, gif.width) == size == (160, 240)
        values, milliseconds = [], []
        for number in range(3):
            gif.seek(number)
            values.append(int(np.asarray(gif.convert("RGB"))[0, 0, 0]))
            milliseconds.append(gif.info["duration"])
    assert values == [1, 5, 9]
    assert milliseconds == [330] * 3  # 4 / 12 s, in hundredths


# --- drawing ----------------------------------------------------------------------


def episode_step(number=3, decided=(False,), run=(2,), beta=(0.25,), ret=-1.5, frame=None):
    probability = None if beta is None else np.array(beta)
    return EpisodeStep(number, np.zeros(1), np.array(decided), np.array(run), probability, 1.0, ret, frame)


def test_band_texts():
    assert band_texts(episode_step()) == ("REPEAT", "2 steps", "beta 0.25", "step 3   return -1.5")
    assert band_texts(episode_step(decided=(True,), run=(1,), beta=None)) == ("ACT", "1 step", "", "step 3   return -1.5")
    several = episode_step(decided=(True, False, True), run=(1, 7, 1), beta=(0.9, 0.1, 0.8))
    assert band_texts(several)[:3] == ("ACT 2/3", "7 steps", "beta 0.60")
    assert band_texts(episode_step(decided=(False, False), run=(4, 2), beta=(0, 0)))[0] == "REPEAT"


@pytest.mark.parametrize("height, width", [(2, 3), (96, 96), (400, 600), (151, 601)])
@pytest.mark.parametrize("parts", [1, 6])
def test_the_overlay_hides_nothing_and_says_act_or_repeat(height, width, parts):
    frame = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    overlay = Overlay()
    acting = overlay(episode_step(1, (True,) * parts, (1,) * parts, (1.0,) * parts, frame=frame))
    repeating = overlay(episode_step(2, (False,) * parts, (2,) * parts, (0.0,) * parts, frame=frame))
    times = -(-NARROWEST // width)
    for drawn in (acting, repeating):
        assert drawn.shape[1] == width * times and drawn.shape == acting.shape and drawn.dtype == np.uint8
        assert np.array_equal(drawn[: height * times : times, ::times], frame)

    def count(drawn, color):
        return int((drawn[height * times :] == color).all(-1).sum())

    assert count(acting, ACT) > 200 and count(acting, REPEAT) == 0
    assert count(repeating, REPEAT) > 200
    assert 0 < count(repeating, ACT) < count(acting, ACT)  # the step before, on the tape


def test_the_tape_restarts_with_an_episode_and_includes_steps_that_are_not_filmed():
    frame = np.zeros((300, 300, 3), np.uint8)
    overlay = Overlay()
    assert overlay(episode_step(1, (True,))) is None
    second = overlay(episode_step(2, (False,), frame=frame))
    again = overlay(episode_step(1, (False,), frame=frame))

    def acts(drawn):
        return int((drawn == ACT).all(-1).sum())

    assert acts(second) > 0 and acts(again) == 0


def test_frames_are_shrunk_in_proportion_and_small_ones_enlarged_whole():
    assert shrink(np.zeros((400, 600, 3), np.uint8), 120).shape == (80, 120, 3)
    small = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(shrink(small, 11)[::2, ::2], small) and shrink(small, 11).shape == (4, 8, 3)


@pytest.mark.parametrize("overlay", [True, False])
def test_a_video_file_holds_each_filmed_step(tmp_path, overlay):
    video = VideoFile(tmp_path / "x.gif", 10, overlay)
    for number, grey in ((1, 10), (2, None), (3, 200)):
        frame = None if grey is None else np.full((40, 260, 3), grey, np.uint8)
        video(episode_step(number, frame=frame))
    video.close()
    with Image.open(tmp_path / "x.gif") as gif:
        assert gif.n_frames == 2 and gif.width == 260
        assert (gif.height == 40) is not overlay
        for number, grey in enumerate((10, 200)):
            gif.seek(number)
            assert int(np.asarray(gif.convert("RGB"))[0, 0, 0]) == pytest.approx(grey, abs=3)


def test_frames_of_a_fast_environment_are_shown_no_shorter_than_viewers_do(tmp_path):
    video = VideoFile(tmp_path / "x.gif", 125)
    for number in (1, 2):
        video(episode_step(number, frame=np.full((40, 260, 3), 50 * number, np.uint8)))
    video.close()
    with Image.open(tmp_path / "x.gif") as gif:
        assert gif.info["duration"] == 20


@pytest.mark.parametrize("overlay", [True, False])
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_of_frames_that_change_their_size_is_refused(tmp_path, suffix, overlay):
    path = tmp_path / f"x{suffix}"
    video = VideoFile(path, 10, overlay)
    video(episode_step(1, frame=np.zeros((40, 260, 3), np.uint8)))
    video(episode_step(2))  # not filmed
    with pytest.raises(TaacError, match=r"frames change their size, from 260 x 40 pixels to 250 x 60 pixels at step 3 of an"):
        video(episode_step(3, frame=np.zeros((60, 250, 3), np.uint8)))
    video.close()  # as whoever made it does
    assert not path.exists()
