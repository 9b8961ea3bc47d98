"""What `taac check` says of a configuration: where values come from, memory, and what looks wrong."""

from __future__ import annotations

import pytest

from taac import configuration
from taac.checking.advice import advice, random_endings, shares
from taac.checking.description import describe
from taac.configuration import RunRequest
from taac.demonstrations.episode_files import EpisodeWriter
from taac.environments.create import create_environment
from taac.machine import products
from taac.training import experiment
from tests.demonstrations.test_episodes import played
from tests.learning.test_optimizers import CAMERA

LIMITED, NORMALIZED = "create_environment.max_episode_steps = 9", "create_agent.normalize_observations = True"
ENVIRONMENT = "taac.environments.create.create_environment"
FILES = ["gin/tasks/simple_control.gin", "gin/methods/sac.gin"]
PENDULUM = ["create_environment.env_name = 'Pendulum-v1'", "hidden_layers = (8,)"]


def advised(*params, files=FILES):
    loaded = configuration.load(files, [*PENDULUM, *params])
    trainer = configuration.build(experiment.create_experiment)
    memory = shares(trainer)
    trainer.close()
    loaded.check_used()
    return advice(trainer, loaded.settings(ENVIRONMENT), memory), trainer, memory, loaded


def test_nothing_looks_wrong_with_what_is_shipped():
    assert advised()[0] == []


@pytest.mark.parametrize(
    "params, message",
    [
        (["num_env_steps = 20000"], "UpdateRatio.initial_collect_steps 10000 is half of Intervals.num_env_steps 20000 or more"),
        (["evaluation_interval = 200000"], "200000 is above Intervals.num_env_steps 100000: the only evaluations are at"),
        (["evaluation_interval = 200000", "Evaluator.initial_evaluation = False"], "the only evaluation is at the end"),
        (["checkpoint_interval = 200000"], "a killed run starts over"),
        (["Intervals.summary_interval = 200000"], "there are no summaries"),
        (["Intervals.summary_interval = 3", "unroll_length = 4"], "summary_interval 3 is below the 4 environment steps"),
        (["create_environment.env_name = 'tests.toy_tasks:taac-test/PointMass-v0'"], "declares no time limit: unless its"),
        (["replay_length = 5000"], "fewer than those of UpdateRatio.initial_collect_steps 10000"),
        (["create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", LIMITED], "such as taac+her"),
        (["evaluation_episodes = 2"], "is below create_experiment.evaluation_envs 5: 3 of them"),
        (["action_min_prob = 0.95"], "within 0.05 nats a dimension of the uniform policy"),
        (["SacAlgorithm.target_entropy = -11.0"], "11.7 nats a dimension below the uniform policy's"),
        (
            ["create_environment.action_repeat = 2", "gamma = 0.9"],
            "action_repeat_gamma 0.99 is not the learner's gamma 0.9",
        ),
        (["create_environment.step_timeout = 2.0"], "step_timeout has no effect"),
        (
            ["create_environment.env_name = 'tests.toy_tasks:taac-test/Countdown-v0'", LIMITED, NORMALIZED],
            "normalize_observations has no effect",
        ),
    ],
)
def test_what_looks_wrong(params, message):
    found = advised(*params)[0]
    assert len(found) == 1 and message in found[0], found


@pytest.mark.parametrize(
    "params",
    [
        ["checkpoint_interval = 100"],  # a checkpoint changes nothing
        ["evaluation_episodes = 5"],
        ["action_min_prob = 0.9"],
        ["create_environment.action_repeat = 2", "gamma = 0.9", "create_environment.action_repeat_gamma = %gamma"],
        ["create_environment.action_repeat = 2", "gamma = 0.9", "create_environment.action_repeat_gamma = 1.0"],
        ["create_environment.action_repeat = 2", "gamma = 0.9", "create_environment.action_repeat_plain_sum = True"],
        ["action_min_prob = 0.99", "Temperature.tuning = 'fixed'"],
    ],
)
def test_what_is_just_right(params):
    assert advised(*params)[0] == []


@pytest.mark.parametrize("method, param", [("taac_chunk", "ChunkTrajectory.length = 20"), ("sac_chunk", "action_min_prob = 0.6")])
def test_the_entropy_of_chunks_is_that_of_each_number(method, param):
    files = [FILES[0], f"gin/methods/{method}.gin"]
    assert advised(param, files=files)[0] == []
    assert "within 0.05 nats a dimension" in advised(param, "action_min_prob = 0.95", files=files)[0][0]


def test_random_endings_where_processes_of_their_own_have_the_environments():
    configuration.load(FILES, [*PENDULUM, "create_experiment.collectors = 1", "num_envs = 2"])
    trainer = configuration.build(experiment.create_experiment)
    assert random_endings(trainer) == (0, 5)  # in the environments of evaluations, five here
    trainer.close()


@pytest.mark.parametrize("normalized", [True, False])
def test_rewards_less_their_mean_where_episodes_terminate(normalized):
    """Of InvertedPendulum's random episodes all terminate, of Pendulum's none."""

    def told(env_name):
        params = [f"create_environment.env_name = '{env_name}'", f"normalize_rewards = {normalized}", "reward_clip = None"]
        configuration.load(FILES, [*PENDULUM[1:], *params])
        trainer = configuration.build(experiment.create_experiment)
        endings = random_endings(trainer)
        trainer.close()
        return endings, advice(trainer, {}, [], endings)

    (terminated, ended), found = told("InvertedPendulum-v5")
    assert terminated == ended >= 20
    assert [f"{ended} of {ended} random episodes terminated" in line for line in found] == [True] * normalized
    assert told("Pendulum-v1") == ((0, 9), [])  # of 201 frames each


@pytest.mark.parametrize(
    "task, settings, warned",
    [
        ("Pendulum-v1", ("num_envs=8",), True),
        ("Pendulum-v1", ("create_environment.num_envs=8",), True),
        ("Pendulum-v1", ("num_envs=8", "updates_per_iteration=4"), False),  # on purpose
        ("Pendulum-v1", ("num_envs=8", "UpdateRatio.updates_per_env_step=1"), False),
        ("Pendulum-v1", ("num_envs=1", "unroll_length=4"), False),
        ("terrain", (), False),  # as published
    ],
)
def test_environments_that_divide_the_updates(task, settings, warned):
    lines = describe(RunRequest(task, "sac", settings=("hidden_layers=8,", "num_env_steps=30000", *settings)))
    assert any("num_envs = 8 divides the updates by 8, to 0.125 a step" in line for line in lines) == warned


def test_an_actor_that_clones_from_images_needs_an_encoder_of_its_own(tmp_path):
    environment = create_environment(CAMERA[0].split("'")[1])
    writer = EpisodeWriter(tmp_path / "camera.npz", environment)
    played(environment, 31, writer)
    writer.save()
    environment.close()
    files, given = [*FILES, "gin/cloning.gin"], f"create_experiment.demonstrations = '{writer.path}'"
    (found,) = advised(*CAMERA, LIMITED, NORMALIZED, given, files=files)[0]
    assert "cloning trains the actor alone" in found and "actor_encoder_ctor = @ObservationEncoder" in found
    assert advised(*CAMERA, LIMITED, given, "SacAlgorithm.actor_encoder_ctor = @ObservationEncoder", files=files)[0] == []
    assert advised(*CAMERA, LIMITED)[0] == []


def test_images_of_floats_that_are_not_scaled():
    floats = "create_environment.env_kwargs = {'floats': %s}"
    (found,) = advised(*CAMERA, LIMITED, floats % 255)[0]
    assert found.startswith("the observation 'camera' is an image of floats in [0, 255], which are not scaled")
    assert advised(*CAMERA, LIMITED, floats % 1)[0] == advised(*CAMERA, LIMITED, floats % 255, NORMALIZED)[0] == []


def test_too_little_memory(monkeypatch):
    from taac.checking import advice as module

    monkeypatch.setattr(module, "available_bytes", lambda device: 1_000_000)
    (found,) = advised()[0]
    assert found.startswith("the run will use") and found.endswith("1.0 MB are free")


def test_memory_by_hand():
    """A frame: step_type 1, reward 4, discount 4, observation 12, prev_action 4, duration 2 bytes."""
    *_, memory, _ = advised("replay_length = 1000", "initial_collect_steps = 500", "batch_size = 32")
    told = {share.what: share.bytes for share in memory}
    assert told["replay buffer"] == 27 * 1000 and told["a batch, as sampled"] == 27 * 32 * 2
    # Actor: 3x8+8, and two heads 8x1+1. Critics, two: 4x8+8, 8x1+1. The temperature.
    trained = 4 * ((3 * 8 + 8) + 2 * 9 + 2 * ((4 * 8 + 8) + 9) + 1)
    assert told["gradients and the optimizer's moments, as of Adam"] == 3 * trained
    assert told["actions of the running episodes, at most"] == 2 * 4 * 200
    assert told["networks, targets and normalisers"] >= trained + 4 * 2 * 49
    assert not any("processes" in what for what in told)


def test_what_the_guard_keeps_on_a_gpu_is_counted():
    """Each batch twice, as it was sampled and as it was prepared."""
    configuration.load(FILES, [*PENDULUM, "batch_size = 32"])
    trainer = configuration.build(experiment.create_experiment)
    trainer.learner.guard.interval = 20
    told = {share.what: share.bytes for share in shares(trainer)}
    trainer.close()
    assert told["20 batches that the guard keeps, as sampled and as prepared"] == 20 * 2 * 27 * 32 * 2


def test_processes_of_environments_count():
    *_, memory, _ = advised("create_environment.asynchronous = True", "num_envs = 2")
    (share,) = [share for share in memory if share.what.startswith("2 processes of environments")]
    assert share.bytes > 2 * 10_000_000


def test_where_each_value_came_from(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("\nbatch_size = 7\nLearner.epsilon = 1e-5\nLinearSchedule.start = 3e-4\nLinearSchedule.end = 0.2\n")
    rate = ["Learner.learning_rate = @rate/LinearSchedule()", "rate/LinearSchedule.end = 1e-4", "LinearSchedule.updates = 9"]
    loaded = advised("gamma = 0.5", *rate, files=[*FILES, str(path)])[3]
    origins = dict(loaded.origins())
    assert origins["batch_size = 7"] == f"{path}:2" and origins["Learner.epsilon = 1e-05"] == f"{path}:3"
    assert origins["gamma = 0.5"] == origins["rate/LinearSchedule.end = 0.0001"] == "--gin_param"
    assert origins["rate/LinearSchedule.start = 0.0003"] == f"{path}:4"
    assert origins["Trainer.batch_size = %batch_size"].startswith("gin/common.gin:")
    assert origins["Learner.max_grad_norm = None"] == "default"
    assert origins["create_agent.algorithm_ctor = @SacAlgorithm"].startswith("gin/methods/sac.gin:")
    # Together they are the configuration: what they say builds the same again.
    configuration.load([], list(origins))
    configuration.build(experiment.create_experiment).close()
    assert dict(loaded.origins()).keys() == origins.keys()


def test_a_slow_product_looks_wrong(monkeypatch):
    monkeypatch.setattr(products.amx, "processor", lambda: {"GenuineIntel", "avx"})
    (line,) = advised("Learner.matmul = 'bfloat16'", "create_experiment.device = 'cpu'")[0]
    assert "is slower than float32 on this processor" in line


@pytest.mark.parametrize(
    "params, wrong, right, told",
    [
        (
            ["CriticEnsemble.returns = @CategoricalReturns()"], "normalize_rewards = False", "normalize_rewards = 'bounded'",
            "critics predict returns from -5 to 5, and rewards are not scaled",
        ),
        (
            ["CriticEnsemble.returns = @CategoricalReturns()", "Temperature.tuning = 'fixed'", "normalize_rewards = 'scale'"],
            "Temperature.initial_value = 0.1", "Temperature.initial_value = 0.01",
            "a nat of entropy a step is worth a return of 10; critics predict returns up to 5",
        ),
        (
            ["CriticEnsemble.returns = @CategoricalReturns()", "gamma = 1.0"], "normalize_rewards = False",
            "normalize_rewards = 'scale'", "rewards are not scaled to fit",
        ),
        (
            ["CriticEnsemble.body = @MlpBody", "MlpBody.unit_weights = True"],
            "Learner.weight_decay = {'critic': 0.1}", "Learner.weight_decay = {'actor': 0.1}",
            "the weights of the critic decay by 0.1 and are set back to norm 1",
        ),
    ],
)  # fmt: skip
def test_critics_that_look_wrong(params, wrong, right, told):
    found, mended = ([line for line in advised(*params, last)[0] if "critic" in line] for last in (wrong, right))
    assert len(found) == 1 and told in found[0] and mended == []


@pytest.mark.parametrize(
    "delay, updates, told",
    [
        (20, 1, ["once in 20 environment steps"]), (20, 5, []), (3, 0.25, []), (5, 1, ["once in 5"]),
        (20, "@LinearSchedule()\nLinearSchedule.start = 0\nLinearSchedule.end = 20\nLinearSchedule.env_steps = 5000", []),
    ],
)  # fmt: skip
def test_an_actor_that_hardly_moves(delay, updates, told):
    params = (f"ActorCriticAlgorithm.policy_delay = {delay}", f"UpdateRatio.updates_per_env_step = {updates}")
    found = [line for line in advised(*params)[0] if "the actor moves" in line]
    assert len(found) == len(told) and all(words in line for words, line in zip(told, found))


def test_entropy_that_no_critic_learns_is_worth_nothing():
    params = ("CriticEnsemble.returns = @CategoricalReturns()", "normalize_rewards = 'scale'", "Temperature.tuning = 'fixed'")
    for valued in (True, False):
        found = advised(*params, "Temperature.initial_value = 0.1", f"SacAlgorithm.entropy_in_target = {valued}")[0]
        assert any("a nat of entropy" in line for line in found) == valued


def test_a_range_that_somebody_chose_is_not_questioned():
    params = ("CriticEnsemble.returns = @CategoricalReturns()", "normalize_rewards = False", "CategoricalReturns.low = -20.0")
    assert [line for line in advised(*params)[0] if "not scaled to fit" in line] == []


def test_ranges_of_critics_where_rewards_may_not_be_scaled():
    """Hindsight refuses 'bounded' and 'scale', and is not told to take them."""
    files = ["gin/tasks/goals.gin", "gin/methods/sac.gin", "gin/her.gin"]
    params = [
        "CriticEnsemble.returns = @CategoricalReturns()", "create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'",
        "create_environment.wrappers = (@SuccessEndsEpisode,)",
    ]  # fmt: skip
    (line,) = [line for line in advised(*params, files=files)[0] if "not scaled to fit" in line]
    assert "'bounded'" not in line and "CategoricalReturns.low and high" in line
