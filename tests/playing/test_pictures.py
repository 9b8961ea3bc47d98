"""Pictures of `taac play`: for every method, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import gin
import numpy as np
import pytest
from PIL import Image

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.environments.create import create_environment
from taac.environments.durations import DurationCoordinate
from taac.errors import TaacError
from taac.pictures import figures
from taac.playing.pictures import Pictures, action_parts
from taac.specs import TensorSpec
from taac.training import experiment
from tests.environments.toys import env_id
from tests.methods import METHODS, fitting, thinned
from tests.training.test_tensorboard import TINY


def draw(folder, method, *params, file="x.gif", **settings):
    """Pictures of one episode of an untrained agent that samples (so that it both acts and repeats). Returns its steps."""
    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [*TINY, *fitting(method), *params])
    names = {"record_file": file, "film_strip": "strip.png", "timeline": "time.png"}
    given = {k: str(folder / v) for k, v in names.items()}
    pictures = Pictures(**{**given, "record_episodes": 1, "overlay": True, **settings})
    environment = configuration.build(lambda: create_environment(num_envs=1, **pictures.environment_arguments))
    try:
        agent = configuration.build(lambda: experiment.create_agent(environment, experiment.choose_device("cpu")))
        recorder = pictures.begin(environment)
        evaluate(agent, environment, 1, 0, 1.0, recorder)
        pictures.close()
        files = pictures.finish(environment, method)
    finally:
        environment.close()
    assert files == [folder / v for k, v in names.items() if {**given, **settings}[k]]
    return pictures._film.steps


@pytest.mark.parametrize("method", thinned(METHODS, ("sac", "sac_discrete", "taac_q", "temporl")))
def test_every_method_is_drawn(tmp_path, method):
    steps = draw(tmp_path, method)
    assert [s.number for s in steps] == list(range(1, 21))  # also where an action takes several
    with Image.open(tmp_path / "x.gif") as video:
        assert 10 < video.n_frames <= 20 and video.height > video.width == 500  # Pendulum's 500 x 500, and a band
    with Image.open(tmp_path / "strip.png") as strip, Image.open(tmp_path / "time.png") as time:
        assert min(*strip.size, *time.size) > 300
    looked = [s.switch_probability is not None for s in steps]
    decisions = sum(s.decided.any() for s in steps)
    if method.startswith("taac") or method in ("sdar", "sac_hybrid"):
        assert all(looked) and all(0 <= s.switch_probability <= 1 for s in steps)
    else:
        assert not any(looked)
    expected = {"sac_nrep": 7, **dict.fromkeys(("sac", "sac_ntd", "sac_ez"), 20)}
    assert decisions == expected.get(method, decisions) and decisions > 0
    if method in ("taac", "temporl", "sdar", "sac_krep"):
        assert decisions < 20  # something was repeated


def test_the_titles_name_the_method(tmp_path, monkeypatch):
    from taac.pictures import figures

    titles = []
    monkeypatch.setattr(figures, "film_strip", lambda *given: titles.append(given[-1]))
    monkeypatch.setattr(figures, "timeline", lambda *given: titles.append(given[-1]))
    steps = draw(tmp_path, "taac", record_file=None)
    assert titles == [
        f"taac on Pendulum-v1: return {steps[-1].ret:.1f}",
        f"taac on Pendulum-v1: return {steps[-1].ret:.1f}, 20 steps, {sum(s.decided.any() for s in steps)} decisions",
    ]


def test_without_a_video_nothing_is_rendered_for_a_timeline(tmp_path):
    """An environment that cannot be drawn has a timeline all the same; its action has two dimensions, decided alone."""
    steps = draw(
        tmp_path, "sdar", f"create_environment.env_name = '{env_id('Goal')}'", record_file=None, film_strip=None
    )
    assert [p.name for p in tmp_path.iterdir()] == ["time.png"]
    assert all(s.frame is None for s in steps) and all(len(s.decided) == 2 for s in steps)
    assert {tuple(s.decided) for s in steps} > {(True, True)}


def test_agents_decide_for_their_own_dimensions(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(figures, "timeline", lambda *arguments: given.append(arguments))
    pictures = Pictures(None, None, str(tmp_path / "t.png"), 1, True)
    step = SimpleNamespace(decided=np.array([True, False]), switch_probability=None, action=np.zeros(4), reward=0.0, ret=0.0)
    pictures._film = SimpleNamespace(steps=[step])
    pictures.finish(SimpleNamespace(action_spec=TensorSpec((2, 2)), duration_coordinate=False, name="Team"), "taac")
    assert given[0][4].tolist() == [[True, True, False, False]]


def test_a_bare_video_has_the_size_of_the_frames(tmp_path):
    draw(tmp_path, "taac", overlay=False, film_strip=None, timeline=None)
    with Image.open(tmp_path / "x.gif") as video:
        assert video.size == (500, 500)


def test_parts_of_an_action_are_named_in_the_order_in_which_they_are_drawn(tmp_path):
    configuration.load(["gin/tasks/simple_control.gin", "gin/methods/sac_krep.gin"], TINY)
    environment = configuration.build(create_environment)
    assert action_parts(environment) == (["choice 0", "action 1"], [3, None])
    environment.close()
    (step, *_) = draw(tmp_path, "sac_krep", record_file=None, film_strip=None)
    assert step.action[0] in (0, 1, 2) and -1 <= step.action[1] <= 1
    with gin.unlock_config():
        gin.clear_config()
    counter = create_environment(env_id("Counter"))
    assert action_parts(counter) == (["action[0]", "action[1]"], [None, None])
    held = create_environment(env_id("Counter"), action_repeat=2, action_repeat_chosen=DurationCoordinate)
    assert action_parts(held) == (["action[0]", "action[1]", "duration"], [None] * 3)


@pytest.mark.parametrize(
    "files, message",
    [
        ({"record_file": "x.avi"}, "--record_file must end in .gif or .mp4, got"),
        ({"film_strip": "x.jpg"}, "--film_strip must end in .png, got"),
        ({"timeline": "nowhere/x.png"}, "--timeline .*there is no folder"),
        ({"timeline": "old.png"}, "--timeline .* exists; use a new name"),
        ({"timeline": "x.png", "film_strip": "x.png"}, "the same file"),
    ],
)
def test_files_that_cannot_be_written_are_refused(tmp_path, files, message):
    (tmp_path / "old.png").write_text("years of work")
    given = {k: str(tmp_path / v) for k, v in files.items()}
    with pytest.raises(TaacError, match=message):
        Pictures(
            **{"record_file": None, "film_strip": None, "timeline": None, **given}, record_episodes=1, overlay=True
        )
    assert [p.name for p in tmp_path.iterdir()] == ["old.png"]


def test_nothing_asked_for_is_nothing_done():
    pictures = Pictures(None, None, None, 1, True)
    assert pictures.environment_arguments == {} and pictures.begin(None) is None
    pictures.close()
    assert pictures.finish(None, None) == []


def test_the_strip_shows_the_frames_of_the_episode(tmp_path):
    """Counter's frames hold the number of their step: the strip's columns are found again by their grey."""
    decided = draw(tmp_path, "taac", f"create_environment.env_name = '{env_id('Counter')}'", record_file=None)
    picture = np.asarray(Image.open(tmp_path / "strip.png").convert("RGB")).astype(int)
    columns = []
    for k, step in enumerate(decided, 1):
        ys, xs = np.nonzero((picture == k).all(-1))
        assert len(ys) > 1000, k
        columns.append(int(xs.max()))
        if not step.decided[0] and k > 1:
            assert columns[-1] == columns[-2]
    assert len(set(columns)) == sum(bool(s.decided[0]) or s.number == 1 for s in decided)


def test_choices_of_agents_are_drawn_one_by_one(tmp_path):
    environment = create_environment(env_id("Masked"), env_kwargs={"agents": 3})
    environment.close()
    assert action_parts(environment) == (["choice[0]", "choice[1]", "choice[2]"], [5, 5, 5])
    name = f"create_environment.env_name = '{env_id('Masked')}'"
    steps = draw(
        tmp_path,
        "sac_discrete",
        name,
        "create_environment.env_kwargs = {'agents': 3}",
        "create_agent.shared_policy = True",
        record_file=None,
        film_strip=None,
    )
    assert len(steps) == 20 and all(s.action.shape == (3,) for s in steps)
