"""The engine envpool, against tables derived by hand from a module that behaves as envpool does, and against envpool itself."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from taac import configuration, nest
from taac.acting.action_log import ActionLog, ReplayMismatch
from taac.analysis.readers import comparable, run_records
from taac.campaigns.comparison import Comparison
from taac.data_structures import LAST, StepType
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import NotTrusted, TaacError
from taac.playing.pictures import Pictures
from tests.analysis.campaigns import make_run
from tests.environments import envpool_stand_in
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, run

INSTALLED = importlib.util.find_spec("envpool") is not None
needs_envpool = pytest.mark.skipif(not INSTALLED, reason="envpool is not installed: taac's extra 'envpool'")
FIRST, MID, END = (int(t) for t in StepType)


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", envpool_stand_in)


def create(num_envs: int = 1, task: str = "Script-v0", **settings: Any) -> VectorEnvironment:
    return create_environment(task, num_envs, engine="envpool", **settings)


def action_at(step: int, num_envs: int = 1) -> torch.Tensor:
    return torch.tensor([[step / 100, -step / 100]]).repeat(num_envs, 1)


# Time -----------------------------------------------------------------------------------------------------------------


def test_frames_over_a_termination_a_truncation_and_both_at_once(stand_in):
    env = create(3, env_kwargs={"lengths": (2, 9, 3)}, max_episode_steps=3)
    frames = [env.reset(5), *(env.step(action_at(t, 3)) for t in range(1, 7))]
    # Of each frame: type, reward, discount, step, number of the action that led here (0 for none).
    tables = [
        [(FIRST, 0, 1, 0, 0), (MID, 1, 1, 1, 1), (END, 2, 0, 2, 2),  # terminated
         (FIRST, 0, 1, 0, 0), (MID, 11, 1, 1, 4), (END, 12, 0, 2, 5), (FIRST, 0, 1, 0, 0)],  # actions 3 and 6 went nowhere
        [(FIRST, 0, 1, 0, 0), (MID, 1, 1, 1, 1), (MID, 2, 1, 2, 2), (END, 3, 1, 3, 3),  # truncated: it bootstraps from step 3
         (FIRST, 0, 1, 0, 0), (MID, 11, 1, 1, 5), (MID, 12, 1, 2, 6)],
        [(FIRST, 0, 1, 0, 0), (MID, 1, 1, 1, 1), (MID, 2, 1, 2, 2), (END, 3, 1, 3, 3),  # both: envpool says truncated
         (FIRST, 0, 1, 0, 0), (MID, 11, 1, 1, 5), (MID, 12, 1, 2, 6)],
    ]  # fmt: skip
    for i, table in enumerate(tables):
        for t, (frame, (kind, reward, discount, step, action)) in enumerate(zip(frames, table, strict=True)):
            assert (frame.step_type[i], frame.reward[i], frame.discount[i]) == (kind, reward, discount), (i, t)
            assert torch.equal(frame.prev_action[i], action_at(action)[0]), (i, t)
            assert frame.observation[i, 1] == step, (i, t)
            assert torch.allclose(frame.observation[i, 2:], action_at(action)[0] * torch.tensor([1, 2])), (i, t)
            assert frame.duration[i] == (0 if kind == FIRST else 1)
    assert env.episodes.tolist() == [2, 1, 1]
    assert env.max_episode_steps == 3 and create(task="Endless-v0").max_episode_steps is None


def test_bounds_that_envpool_does_not_have_are_infinite(stand_in):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = create(2, "DictScript-v0")
        frame = env.reset(0)
    assert np.allclose(env.observation_space["all"].low, [0, 0, -1.1, -np.inf])
    assert np.allclose(env.observation_space["all"].high, [1, 1000, 1.1, np.inf])
    assert frame.observation["all"].shape == (2, 4) and frame.observation["step"].shape == (2, 1)


# Seeds and restoring --------------------------------------------------------------------------------------------------


def played(env: VectorEnvironment, steps: int, seed: int) -> tuple[list, list, list]:
    """Time steps, and before each the log's state and the numbers of the episodes."""
    log, time_step = ActionLog(env), env.reset(seed)
    frames, logs, episodes = [time_step], [log.state_dict()], [env.episodes.copy()]
    for t in range(1, steps):
        last, action = time_step.step_type.numpy() == LAST, action_at(t, env.num_envs)
        time_step = env.step(action)
        log.append(action, last)
        frames.append(time_step), logs.append(log.state_dict()), episodes.append(env.episodes.copy())
    return frames, logs, episodes


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(nest.flatten(first), nest.flatten(second), strict=True))


def test_an_environment_depends_on_its_own_seed_alone(stand_in):
    several, again, alone = (played(create(n), 9, seed)[0] for n, seed in ((3, 4), (3, 4), (1, 6)))
    assert same(several, again)
    assert same([f.observation[2:] for f in several], [f.observation for f in alone])
    assert len({float(f.observation[i, 0]) for f in several for i in range(3)}) == 3 * 3  # a draw for each episode
    create().reset(2**32 - 1)  # seeds of `taac play` exceed those of envpool


@pytest.mark.parametrize("task", ["Script-v0", "DictScript-v0"])
def test_episodes_are_restored_at_every_step(stand_in, task):
    env = functools.partial(create, 3, task, env_kwargs={"lengths": (2, 3, 7)}, max_episode_steps=5)
    frames, logs, episodes = played(env(), 14, 8)
    for t, (frame, held, numbers) in enumerate(zip(frames, logs, episodes)):
        log = ActionLog(restored := env())
        log.load_state_dict(held)
        assert same(log.replay_actions(restored, 8, numbers, nest.flatten(frame)), frame)
        for later in range(t + 1, len(frames)):
            assert same(restored.step(action_at(later, 3)), frames[later]), (t, later)
        assert same(restored.replay(8, numbers, [log.state_dict()[i][0] for i in range(3)]), frame)


def test_simulators_that_draw_while_they_step_are_found_elsewhere(stand_in):
    env = functools.partial(create, 1, env_kwargs={"draws": 1})
    frames, logs, episodes = played(env(), 7, 8)
    log = ActionLog(env())
    log.load_state_dict(logs[2])
    assert same(log.replay_actions(env(), 8, episodes[2], nest.flatten(frames[2])), frames[2])  # the first episode
    log.load_state_dict(logs[6])
    with pytest.raises(ReplayMismatch, match="engine = 'gymnasium'"):
        log.replay_actions(env(), 8, episodes[6], nest.flatten(frames[6]))


def test_a_replay_ends_where_the_episode_ends_too_early(stand_in):
    env = create(2, env_kwargs={"lengths": (2, 9)})
    frame = env.replay(0, np.zeros(2, dtype=np.int64), [torch.zeros(4, 2), torch.zeros(3, 2)])
    assert frame.step_type.tolist() == [END, MID] and frame.observation[:, 1].tolist() == [2, 3]
    env = create(1)
    frame = env.replay(0, np.zeros(1, dtype=np.int64), [torch.zeros(9, 2)])
    assert frame.step_type.tolist() == [END] and frame.discount == 0 and env.step(action_at(1)).step_type.tolist() == [FIRST]
    env = create(1, max_episode_steps=2)  # which truncates
    frame = env.replay(0, np.zeros(1, dtype=np.int64), [torch.zeros(9, 2)])
    assert frame.step_type.tolist() == [END] and frame.discount == 1 and frame.observation[:, 1].tolist() == [2]


SCRIPT = (
    "create_environment.env_name = 'Script-v0'", "create_environment.engine = 'envpool'", "num_envs = 2",
    "hidden_layers = (8,)", "num_env_steps = 240", "initial_collect_steps = 100", "batch_size = 8", "replay_length = 200",
    "checkpoint_interval = 80", "evaluation_interval = 120",
)  # fmt: skip


def test_a_run_that_was_stopped_ends_as_the_run_that_was_not(stand_in, tmp_path, capsys):
    asked = (*SCRIPT, "create_environment.env_kwargs = {'lengths': (7, 11)}")
    assert_resumes_exactly(tmp_path, *asked, method="sac", stop=[131])
    assert "another state" not in capsys.readouterr().err


def test_where_episodes_cannot_be_restored_they_are_truncated_in_the_replay_buffer(stand_in, tmp_path, capsys):
    kwargs = "create_environment.env_kwargs = {'lengths': (1000,), 'draws': 1}"
    asked = (*SCRIPT, kwargs, "create_environment.max_episode_steps = 50")
    stopped = run(tmp_path / "run", *asked, method="sac", stop=131)
    steps, cut = stopped.env_steps, stopped.replay_buffer.size  # the frame reached is the next to be stored
    shutil.copytree(tmp_path / "run", tmp_path / "twin")
    resumed, twin = (run(tmp_path / name, *asked, method="sac") for name in ("run", "twin"))
    assert_same_parameters(resumed, twin)
    assert f"at {steps} environment steps: 'Script-v0' reached another state" in capsys.readouterr().err
    assert resumed.collector.num_restarts == 1
    held = resumed.replay_buffer.frames(0, resumed.replay_buffer.size)
    kind, step = (held[f"frames/time_step/{name}"].numpy() for name in ("step_type", "observation"))
    step = step[..., 1]
    assert 51 < cut < 101 and (step[: cut + 1, 0] == [*range(51), *range(cut - 50)]).all()
    assert (step[cut + 1 : cut + 52, 0] == range(51)).all()  # another episode, from its beginning
    assert (step[:, 0] == step[:, 1]).all()
    ends = np.flatnonzero(kind[:, 0] == END).tolist()
    assert ends[:3] == [50, cut, cut + 51] and (kind[np.array(ends[:2]) + 1] == FIRST).all()
    assert (held["frames/time_step/discount"] == 1).all()


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, settings, message",
    [
        ("Script-v1", {}, "envpool has no environment 'Script-v1'; its most similar names are Script-v0, DictScript-v0"),
        ("Q", {}, "envpool has no environment 'Q' among its 4"),
        ("module:Script-v0", {}, "envpool has no environment 'module:Script-v0'"),
        ("Chess-v0", {}, "is a game of 2 players"),
        ("Script-v0", {"env_kwargs": {"nothing": 1}}, "has no argument nothing, only draws, lengths, num_threads, players"),
        ("Script-v0", {"env_kwargs": {"draws": "a"}}, "its defaults, of the types that it takes: draws=0"),
        ("Script-v0", {"env_kwargs": {"seed": 3, "base_path": "/"}}, "may not hold base_path, seed"),
        ("Script-v0", {"env_kwargs": {"num_threads": 0}}, "num_threads .* must be 1 or more, got 0"),
        ("Script-v0", {"max_episode_steps": 0}, "max_episode_steps must be 1 or more"),
        ("Script-v0", {"num_envs": 0}, "num_envs must be 1 or more"),
        ("Script-v0", {"asynchronous": True}, "does not have asynchronous, got True: remove the setting, or bind"),
        ("Script-v0", {"wrappers": (gymnasium.Wrapper,)}, "does not have wrappers"),
        ("Script-v0", {"action_repeat": 2}, "does not have action_repeat"),
        ("Script-v0", {"action_repeat_chosen": True}, "does not have action_repeat"),
        ("Script-v0", {"remake": True}, "does not have remake"),
        ("Script-v0", {"step_timeout": 1.0}, "does not have step_timeout"),
        ("Script-v0", {"render_mode": "rgb_array"}, "does not have render_mode"),
        ("Script-v0", {"recorded": True}, r"does not have recorded steps \(such as evaluation_video\)"),
    ],
)
def test_bad_input(stand_in, task, settings, message):
    with pytest.raises(TaacError, match=message):
        create(**{"task": task, **settings})


def test_what_envpool_cannot_create_says_why(stand_in, monkeypatch):
    def refuse(*_, **__):
        raise ImportError("EnvPool Procgen requires Qt 5")

    monkeypatch.setattr(envpool_stand_in, "make_spec", refuse)
    with pytest.raises(TaacError, match="envpool cannot create 'Script-v0': EnvPool Procgen requires Qt 5"):
        create()


def test_without_envpool_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(TaacError, match=r"needs envpool: pip install envpool \(taac's extra 'envpool'\)"):
        create(task="Pendulum-v1")


# Around it ------------------------------------------------------------------------------------------------------------


def _config(tmp_path, *lines: str) -> configuration.ReadFile:
    path = tmp_path / "config.gin"
    path.write_text("\n".join(("create_environment.env_name = 'CheetahRun-v1'", *lines)))
    return configuration.ReadFile(path, path.read_text())


def test_names_that_only_envpool_knows_need_no_trust(tmp_path, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Foreign-v0", entry_point="elsewhere:Evil")
    monkeypatch.setitem(gymnasium.registry, "Foreign-v0", spec)
    engine = "create_environment.engine = 'envpool'"
    configuration.load_untrusted(_config(tmp_path, engine))
    for lines in (), ("create_environment.engine = 'gymnasium'",):
        with pytest.raises(TaacError, match="CheetahRun"):
            configuration.load_untrusted(_config(tmp_path, *lines))
    for name in "Foreign-v0", "elsewhere:Evil":
        with pytest.raises(NotTrusted):
            configuration.load_untrusted(_config(tmp_path, engine, f"create_environment.env_name = '{name}'"))


@pytest.mark.parametrize("kwargs", ["{'cfg_path': 'names a program'}", "{'game_args': '-exec file'}", "{'a': [1, ('x',)]}"])
def test_words_need_trust(tmp_path, kwargs):
    lines = ("engine = 'envpool'", "create_environment.engine = %engine", f"create_environment.env_kwargs = {kwargs}")
    with pytest.raises(NotTrusted, match="expected numbers, True, False, None, or lists of them"):
        configuration.load_untrusted(_config(tmp_path, *lines))
    configuration.load_untrusted(_config(tmp_path, *lines[:2], "create_environment.env_kwargs = {'num_threads': 2}"))


def test_pictures_are_of_gymnasiums_environment(tmp_path):
    configuration.load([_config(tmp_path, "create_environment.engine = 'envpool'")])
    pictures = Pictures(None, None, str(tmp_path / "timeline.png"), 1, True)
    environment = configuration.build(lambda: create_environment("Pendulum-v1", **pictures.environment_arguments))
    assert environment.recorded
    environment.close()


def test_gymnasium_may_have_actions_of_another_precision():
    """As HalfCheetah's are of float32 there, and of float64 in envpool. Other bounds are other actions."""
    environment = create_environment("Pendulum-v1")
    of_envpool = {path: text.replace("float32", "float64") for path, text in environment.state_dict().items()}
    environment.load_state_dict(of_envpool, precision=False)
    with pytest.raises(TaacError, match="its spaces have changed"):
        environment.load_state_dict(of_envpool)
    with pytest.raises(TaacError, match="its spaces have changed"):
        environment.load_state_dict({path: text.replace("2.0", "3.0") for path, text in of_envpool.items()}, precision=False)
    environment.close()


@needs_envpool
def test_an_agent_of_envpools_mujoco_is_filmed_in_gymnasiums():
    pool, single = create(1, "HalfCheetah-v5"), create_environment("HalfCheetah-v5")
    single.load_state_dict(pool.state_dict(), precision=False)
    pool.close(), single.close()


def test_a_comparison_asks_gymnasium_only_for_its_own_environments():
    held = Comparison(methods=("sac",), tasks=("CheetahRun-v1",), seeds=(0,))
    held.check(held, configuration.RunRequest(settings=("engine=envpool",)))
    with pytest.raises(TaacError, match="CheetahRun-v1"):
        held.check(held)


def test_runs_of_another_engine_are_not_comparable(tmp_path):
    for seed in range(4):
        make_run(tmp_path / f"sac_{seed}", seed=seed, extra_gin="create_environment.engine = 'gymnasium'\n")
    assert comparable.mixtures(run_records.find(tmp_path)) == []
    make_run(tmp_path / "odd", method="taac", extra_gin="create_environment.engine = 'envpool'\n")
    (found,) = comparable.mixtures(run_records.find(tmp_path))
    assert "create_environment.engine on Hopper-v5: 'gymnasium' in 4 run(s), but odd has 'envpool'" in found


# envpool itself -------------------------------------------------------------------------------------------------------


def _limits(module: Any, task: str, steps: int, limit: int | None, seeds: list[int]) -> tuple[list, list, list]:
    """Ends of episodes: (step, environment, terminated, truncated); all observations; and all rewards."""
    arguments = {} if limit is None else {"max_episode_steps": limit}
    pool = module.make(task, env_type="gymnasium", num_envs=2, batch_size=2, num_threads=1, seed=seeds, **arguments)
    observation, info = pool.reset()
    assert info["elapsed_step"].tolist() == [0, 0] and info["env_id"].tolist() == [0, 1]
    space = module.make_spec(task).gymnasium_action_space
    generator, done = np.random.default_rng(0), np.zeros(2, dtype=bool)
    ends, seen, paid, elapsed = [], [observation.copy()], [], np.zeros(2, dtype=int)
    for t in range(steps):
        action = generator.uniform(space.low, space.high, (2, *space.shape)).astype(space.dtype)
        action[done] = 0.0  # one that differs from the one of a run without it: it is ignored
        observation, reward, terminated, truncated, info = pool.step(action)
        elapsed = np.where(done, 0, elapsed + 1)
        assert info["elapsed_step"].tolist() == elapsed.tolist() and info["env_id"].tolist() == [0, 1]
        assert not (reward[done].any() or terminated[done].any() or truncated[done].any()) and reward.dtype == np.float32
        done = terminated | truncated
        ends += [(t, i, bool(terminated[i]), bool(truncated[i])) for i in np.flatnonzero(done)]
        seen.append(observation.copy()), paid.append(reward.copy())
    pool.close()
    return ends, seen, paid


@pytest.mark.parametrize("name, task", [("stand-in", "Script-v0"), pytest.param("envpool", "Hopper-v5", marks=needs_envpool)])
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_conventions(name, task):
    """What the stand-in says of envpool is what envpool does."""
    module = envpool_stand_in if name == "stand-in" else importlib.import_module("envpool")
    assert task in module.list_all_envs()
    config = module.make_spec(task).config
    assert config.max_episode_steps == 1000 and config.max_num_players == 1
    assert set(envpool_stand_in._DEFAULTS) - {"lengths", "draws", "players"} <= set(config._fields)
    for wrong in {"nothing": 1}, {"max_episode_steps": "a"}:
        with pytest.raises(TypeError):
            module.make_spec(task, **wrong)
    ends, seen, paid = _limits(module, task, 300, None, [5, 9])
    assert len(ends) > 4 and all(terminated and not truncated for _, _, terminated, truncated in ends)
    # The step after an end begins an episode, and seeds alone decide.
    again = _limits(module, task, 300, None, [5, 9])
    assert ends == again[0] and all(np.array_equal(a, b) for a, b in zip(seen + paid, again[1] + again[2]))
    assert not np.array_equal(_limits(module, task, 1, None, [5, 8])[1][0][1], seen[0][1])
    assert np.array_equal(_limits(module, task, 1, None, [5, 8])[1][0][0], seen[0][0])
    # A termination at the very step of the limit counts as a truncation, one step before it does not.
    step, i = ends[0][:2]
    for limit, terminated in ((step, False), (step + 1, False), (step + 2, True)):
        first = next(end for end in _limits(module, task, step + 1, limit, [5, 9])[0] if end[1] == i)
        assert first == (min(step, limit - 1), i, terminated, not terminated)
    # Episodes can be begun one by one, and some environments be stepped.
    pool = module.make(task, env_type="gymnasium", num_envs=2, batch_size=2, num_threads=1, seed=[5, 9])
    pool.reset()
    index = np.array([i], dtype=np.int32)
    observation, info = pool.reset(index)
    assert info["env_id"].tolist() == [i] and np.array_equal(observation[0], seen[step + 2][i])
    observation, *_, info = pool.step(np.zeros((1, *module.make_spec(task).gymnasium_action_space.shape)), index)
    assert observation.shape == (1, *seen[0].shape[1:]) and info["elapsed_step"].tolist() == [1]
    pool.close()


@needs_envpool
@pytest.mark.parametrize("task", ["Pendulum-v1", "HalfCheetah-v5", "CheetahRun-v1", "FetchReach-v4"])
def test_envpools_own_episodes_are_restored(task):
    env = functools.partial(create, 2, task, max_episode_steps=20)
    one, several = env(), create(2, task, max_episode_steps=20, env_kwargs={"num_threads": 2})
    generator = torch.Generator().manual_seed(0)
    log, frames, logs, episodes, actions = ActionLog(one), [one.reset(3)], [], [], []
    assert same(several.reset(3), frames[0])
    for _ in range(50):
        logs.append(log.state_dict()), episodes.append(one.episodes.copy())
        actions.append(torch.rand(2, *one.action_spec.shape, generator=generator) * 2 - 1)
        last = frames[-1].step_type.numpy() == LAST
        frames.append(one.step(actions[-1]))
        assert same(several.step(actions[-1]), frames[-1])
        log.append(actions[-1], last)
    for t in 10, 20, 21, 45:
        log.load_state_dict(logs[t])
        log.replay_actions(restored := env(), 3, episodes[t], nest.flatten(frames[t]))
        for later in range(t, 50):
            assert same(restored.step(actions[later]), frames[later + 1]), (t, later)
        restored.close()
    one.close(), several.close()
