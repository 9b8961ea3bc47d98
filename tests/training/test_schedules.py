"""Hyper-parameters that follow schedules in a run: what is in force when, exact resuming, summaries, and refusals."""

from __future__ import annotations

import pytest
import torch

from taac import configuration
from taac.analysis.readers import events
from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule, PiecewiseSchedule, Schedules
from taac.playing.saved_agent import load_saved
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, build, curves, run


def linear(scope, start, end, more):
    return [
        f"{scope}/LinearSchedule.start = {start}",
        f"{scope}/LinearSchedule.end = {end}",
        f"{scope}/LinearSchedule.{more}",
    ]


def steps(scope, values, counts, unit="env_steps"):
    return [f"{scope}/PiecewiseSchedule.values = {values}", f"{scope}/PiecewiseSchedule.{unit} = {counts}"]


RATE = ["Learner.learning_rate = @rate/ExponentialSchedule()", "rate/ExponentialSchedule.start = 0.01",
        "rate/ExponentialSchedule.end = 0.0001", "rate/ExponentialSchedule.updates = 200"]  # fmt: skip
TARGET = [
    "TaacAlgorithm.beta_target_entropy = @target/LinearSchedule()",
    *linear("target", 0.6, 0.1, "env_steps = 600"),
]
STRENGTHS = ["create_agent.reward_signals = (@RND,)", "create_agent.task_strength = @task/LinearSchedule()",
             *linear("task", 0.0, 1.0, "env_steps = 500"), "RND.strength = @novelty/LinearSchedule()",
             *linear("novelty", 2.0, -0.5, "updates = 150"), "RND.learning_rate = @model/LinearSchedule()",
             *linear("model", 0.01, 0.0, "updates = 100")]  # fmt: skip
SIZES = ["batch_size = @size/PiecewiseSchedule()", *steps("size", "(8, 16)", "(0, 450)")]
RATIO = ["UpdateRatio.updates_per_env_step = @ratio/LinearSchedule()", *linear("ratio", 0.1, 0.9, "env_steps = 300"),
         "ratio/LinearSchedule.begin = 250"]  # fmt: skip
EVERYTHING = [*RATE, *TARGET, *STRENGTHS, *SIZES, *RATIO]
NAMES = {
    "Learner.learning_rate", "TaacAlgorithm.beta_target_entropy", "create_agent.task_strength", "RND.strength",
    "RND.learning_rate", "Trainer.batch_size", "UpdateRatio.updates_per_env_step",
}  # fmt: skip


def trained(trainer, env_steps):
    while trainer.env_steps < env_steps:
        trainer.collect()
        trainer.learn()
    return trainer


# In force -------------------------------------------------------------------------------------------------------------


def test_each_is_in_force_where_it_is_used():
    """At updates 0, 1, ...: of 8 to 16 segments, rates of both optimizers' groups, the target and the weights."""
    trainer, seen = build(*EVERYTHING, "Learner.actor_learning_rate = 0.5"), []
    algorithm, groups = trainer.agent.algorithm, trainer.learner.optimizer.param_groups
    update = trainer.learner.update

    def spied(experience, *more):
        seen.append((
            trainer.env_steps, trainer.learner.num_updates, [g["lr"] for g in groups], experience.time_step.reward.shape[1],
            float(algorithm.beta_temperature.target_entropy), algorithm.weights.tolist(), algorithm.signs.tolist(),
        ))  # fmt: skip
        return update(experience, *more)

    trainer.learner.update = spied
    trained(trainer, 545).close()
    assert [s[1] for s in seen] == list(range(trainer.learner.num_updates)) and len(seen) > 50
    for env_steps, updates, rates, size, target, weights, signs in seen:
        rate = 0.01 * 0.01 ** min(1, updates / 200)
        assert rates == pytest.approx(
            [0.5, rate, rate, 0.01 * (1 - min(1, updates / 100))]
        )  # actor, critic, temperature, RND
        assert size == (8 if env_steps < 450 else 16)
        assert target == pytest.approx(0.6 - 0.5 * env_steps / 600)
        expected = [min(1, env_steps / 500), 2.0 - 2.5 * min(1, updates / 150)]
        assert weights == pytest.approx(expected, abs=1e-6) and signs == [1, 1 if expected[1] >= 0 else -1]
    assert seen[-1][-1] == [1, -1]  # the novelty's weight has gone below 0


def test_exploration_follows_at_each_step_of_collecting():
    params = ["create_collector.explorer = @ZetaExplorer()", "ZetaExplorer.epsilon = @epsilon/LinearSchedule()",
              "unroll_length = 5", *linear("epsilon", 1.0, 0.0, "env_steps = 400")]  # fmt: skip
    trainer, seen = build(*params, method="sac"), []
    step = trainer.collector.explorer.step
    trainer.collector.explorer.step = lambda *args: seen.append((args[3], trainer.collector.explorer.epsilon)) or step(*args)
    trained(trainer, 410).close()
    assert seen[:2] == [(300, 0.25), (301, pytest.approx(1 - 301 / 400))]
    assert all(epsilon == pytest.approx(max(0.0, 1 - env_steps / 400)) for env_steps, epsilon in seen)
    assert seen[-1][1] == 0.0


@pytest.mark.slow
def test_an_evaluation_samples_as_often_as_its_schedule_says(monkeypatch):
    trainer = build("Evaluator.evaluation_epsilon = @epsilon/LinearSchedule()", *linear("epsilon", 1.0, 0.0, "env_steps = 400"))
    seen, predict = [], trainer.agent.predict_step
    monkeypatch.setattr(trainer.agent, "predict_step", lambda t, s, epsilon: seen.append(epsilon) or predict(t, s, epsilon))
    for _ in range(3):
        trainer.evaluator.run(trainer.env_steps)
        trained(trainer, trainer.env_steps + 200)
    trainer.close()
    assert list(dict.fromkeys(seen)) == [1.0, 0.5, 0.0]


def test_what_follows_an_iteration_has_the_values_of_its_end():
    """An evaluation, which a resumed run may have to repeat, depends on the counts that are saved."""
    trainer = trained(build(*TARGET, *STRENGTHS), 320)
    trainer.close()
    assert trainer.learner.num_updates == 20
    assert trainer.agent.algorithm.weights.tolist() == pytest.approx([320 / 500, 2.0 - 2.5 * 20 / 150])
    assert float(trainer.agent.algorithm.beta_temperature.target_entropy) == pytest.approx(0.6 - 0.5 * 320 / 600)


def test_an_evaluation_that_a_resumed_run_repeats_has_the_values_of_its_counts(tmp_path):
    trainer, folder, seen = build(*STRENGTHS), RunFolder(tmp_path / "run"), []
    folder.begin(configuration.operative_config(), {})
    trainer.collector.env_steps, trainer.learner.num_updates, trainer.evaluator.unfinished = 250, 75, True  # as restored
    trainer.evaluate = lambda *_: seen.append(trainer.agent.algorithm.weights.tolist())
    trainer.train(folder, stop=lambda: True)
    trainer.close()
    assert seen[0] == [0.5, 0.75]


def test_the_least_favourable_critic_is_the_greatest_where_a_weight_has_gone_below_0():
    """By the weights at the start, which are all above, it would be the smallest in both parts for ever."""
    trainer = build(*STRENGTHS)
    trainer.close()
    trainer.schedules.move(250, 150)
    q = torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]]])
    assert trainer.agent.algorithm.over_critics(q).tolist() == [[1.0, 2.0]]
    assert trainer.agent.algorithm.weighted(q[0]).tolist() == [0.0]  # 0.5 - 0.5


SAME = [
    ("Learner.learning_rate", 0.003, "updates", "taac", []),
    ("Learner.critic_learning_rate", 0.003, "env_steps", "taac", []),
    ("Learner.max_grad_norm", 0.5, "updates", "taac", []),
    ("TaacAlgorithm.action_target_entropy", -0.7, "env_steps", "taac", []),
    ("SacAlgorithm.target_entropy", -0.7, "updates", "sdar", []),
    ("SdarAlgorithm.beta_target_entropy", 0.3, "updates", "sdar", []),
    ("Trainer.batch_size", 12, "env_steps", "sac", ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"]),
    ("TaacAlgorithm.target_update_tau", 0.1, "updates", "taac", []),
    ("DiscreteSacAlgorithm.target_update_tau", 0.1, "env_steps", "sac_discrete",
     ["create_environment.env_name = 'CartPole-v1'"]),
]  # fmt: skip
SAME = [*SAME[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in SAME[2:])]


@pytest.mark.parametrize("name, value, unit, method, more", SAME)
def test_a_schedule_that_stays_is_the_number_bit_for_bit(name, value, unit, method, more):
    trainers = [
        trained(build(*more, *params, method=method), 320)
        for params in (
            [f"{name} = {value}"],
            [f"{name} = @same/PiecewiseSchedule()", *steps("same", (value, value), (0, 30), unit)],
            [f"{name} = @same/PiecewiseSchedule()", *steps("same", (value, value / 2), (0, 15), unit)],
        )
    ]
    for trainer in trainers:
        trainer.close()
    assert_same_parameters(*trainers[:2])
    with pytest.raises(AssertionError):  # so it matters
        assert_same_parameters(trainers[0], trainers[2])
    assert trainers[0].agent.state_dict().keys() == trainers[1].agent.state_dict().keys()


def test_prioritised_replay_with_batches_that_grow():
    params = ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer",
              "batch_size = @size/LinearSchedule()", *linear("size", 4, 12.4, "updates = 20")]  # fmt: skip
    trainer, sizes = build(*params), []
    update = trainer.replay_buffer.update_priorities
    trainer.replay_buffer.update_priorities = lambda batch, error: sizes.append(len(error)) or update(batch, error)
    trained(trainer, 325).close()
    assert sizes == [round(4 + 8.4 * min(1, number / 20)) for number in range(25)] and sizes[-1] == 12
    assert trainer.batch_sizes == (4, 12)


# Ratio ----------------------------------------------------------------------------------------------------------------


def test_a_resumed_run_makes_up_no_updates(tmp_path):
    """Without its frames it fills the buffer again first, and then goes on at the ratio at which it was stopped."""
    params = [*RATIO, "Saving.save_replay = False", "Intervals.checkpoint_interval = 50", "num_env_steps = 800",
              "initial_collect_steps = 100", "evaluation_interval = 800"]  # fmt: skip
    killed = run(tmp_path / "run", *params, until=410)
    learnt = killed.update_ratio.updates_due(400)
    trainer = build(*params)
    trainer.resume(RunFolder(tmp_path / "run"))
    assert (trainer.env_steps, trainer.learner.num_updates) == (400, learnt)
    while trainer.env_steps < 520:
        trainer.collect()
        trainer.learn()
        assert trainer.learner.num_updates == max(learnt, killed.update_ratio.updates_due(trainer.env_steps - 100))
    trainer.close()
    assert 5 < trainer.learner.num_updates - learnt < 15


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    params = (*EVERYTHING, "Intervals.checkpoint_interval = 70", "evaluation_interval = 150", "num_envs = 2",
              "replay_length = 150", "TAACTDLoss.gamma = 0.9", "num_env_steps = 480", "evaluation_episodes = 1")  # fmt: skip
    whole, resumed = assert_resumes_exactly(tmp_path, *params, until=[310, 452], stop=[465])
    assert curves(tmp_path / "whole") == curves(tmp_path / "cut")
    assert torch.equal(whole.agent.algorithm.weights, resumed.agent.algorithm.weights)
    assert resumed.learner.num_updates == whole.learner.num_updates == whole.update_ratio.updates_due(480)


@pytest.mark.slow
def test_summaries_show_what_is_in_force(tmp_path):
    trainer = run(tmp_path / "run", *EVERYTHING)
    scalars = events.read(tmp_path / "run").scalars
    assert {tag for tag in scalars if tag.startswith("schedule/")} == {f"schedule/{name}" for name in NAMES}
    at = scalars["schedule/create_agent.task_strength"]
    assert at.env_steps.tolist() == [100, 200, 300, 400, 500, 600]
    assert at.value.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert scalars["schedule/Trainer.batch_size"].value.tolist() == [8, 8, 8, 8, 16, 16]
    updates = [trainer.update_ratio.updates_due(n) for n in at.env_steps.tolist()]
    rates = [0.01 * 0.01 ** min(1, n / 200) for n in updates]
    assert scalars["schedule/Learner.learning_rate"].value.tolist() == pytest.approx(rates)
    assert scalars["schedule/UpdateRatio.updates_per_env_step"].value.tolist() == pytest.approx(
        [0.1, 0.1, 7 / 30, 0.5, 23 / 30, 0.9]
    )
    earning = [max(1, n - 300) for n in at.env_steps.tolist()]
    assert scalars["count/update_ratio"].value.tolist() == pytest.approx([n / m for n, m in zip(updates, earning)])


@pytest.mark.slow
def test_a_run_without_schedules_has_none(tmp_path):
    run(tmp_path / "run", "num_env_steps = 400")
    assert not [tag for tag in events.read(tmp_path / "run").scalars if tag.startswith("schedule/")]


def test_an_agent_that_plays_follows_too():
    """TAAC's switch goes by the weights that the reward has at the checkpoint."""
    trainer = build(*STRENGTHS)
    trainer.close()
    agent = configuration.build(lambda: experiment.create_agent(trainer.environment, torch.device("cpu"), role="act"))
    assert agent.algorithm.weights.tolist() == [0.0, 2.0]
    Schedules(agent).move(250, 150)
    assert agent.algorithm.weights.tolist() == [0.5, -0.5]


def test_demonstrations_are_cloned_with_the_weight_in_force():
    from taac.learning.side_losses import Cloning

    cloning = Cloning(weight=PiecewiseSchedule((0.0, 2.0), env_steps=(0, 10)))
    schedules = Schedules(cloning)
    schedules.move(9, 100)
    assert cloning.weight == 0.0
    schedules.move(10, 100)
    assert cloning.weight == 2.0 and schedules.summaries() == {"schedule/Cloning.weight": 2.0}
    assert Cloning(3).scheduled == []
    for words, wrong in (
        ("replaces initial_weight", {"initial_weight": 1.0, "weight": LinearSchedule(1, 0, 5)}),
        ("0 or more at every step", {"weight": LinearSchedule(1, -1, 5)}),
        ("does nothing", {"weight": LinearSchedule(0, 0, 5)}),
    ):
        with pytest.raises(TaacError, match=words):
            Cloning(**wrong)


# Refusals -------------------------------------------------------------------------------------------------------------

NOVELTY = "create_agent.reward_signals = (@RND,)"
ANY = "@any/LinearSchedule()"
FALLING = linear("any", 1.0, 0.0, "env_steps = 100")


@pytest.mark.parametrize(
    "method, params, words",
    [
        ("taac", ["Evaluator.evaluation_epsilon = " + ANY, *linear("any", 0.5, 1.5, "updates = 5")],
         r"evaluation_epsilon must be in \[0, 1\], got 0.5 to 1.5"),
        ("taac", ["Intervals.summary_interval = " + ANY], r"summary_interval cannot follow a LinearSchedule; what can: .*"
         r"Learner\.learning_rate.*UpdateRatio\.updates_per_env_step.*create_agent\.task_strength"),
        ("taac", ["gamma = " + ANY], r"gamma cannot follow a LinearSchedule"),
        ("taac", ["UpdateRatio.updates_per_iteration = " + ANY], "updates_per_iteration cannot follow"),
        ("taac", ["Learner.learning_rate = @LinearSchedule"], "wrong type"),
        ("taac", ["Learner.learning_rate = " + ANY, *linear("any", 1.0, -1.0, "updates = 5")], "must be above 0, got 1 to -1"),
        ("taac", ["Learner.learning_rate = " + ANY, *linear("any", 0.0, 0.0, "updates = 5")], "must be above 0"),
        ("taac", ["Learner.learning_rate = " + ANY, *[f"Learner.{n}_learning_rate = 0.1" for n in ("actor", "critic")],
                  "Learner.temperature_learning_rate = 0.2", *FALLING], r"Learner\.learning_rate follows a schedule, but "
         r"no trainable parameter.*in use are Learner\.actor_learning_rate"),
        ("taac", ["Learner.temperature_learning_rate = " + ANY, "Temperature.tuning = 'fixed'", *FALLING],
         "no temperature to train"),
        ("taac", ["Learner.max_grad_norm = " + ANY, *FALLING], "max_grad_norm must be above 0"),
        ("taac", ["TaacAlgorithm.beta_target_entropy = " + ANY, *FALLING], r"beta_target_entropy 1 to 0 in a straight line over "
         r"environment steps 0 to 100 nats cannot be reached.*0\.6931"),
        ("taac", ["TaacAlgorithm.beta_target_entropy = " + ANY, *linear("any", 0.5, -0.1, "updates = 5")], "is negative"),
        ("sac", ["SacAlgorithm.target_entropy = " + ANY, *linear("any", -1.0, 5.0, "updates = 5")], "cannot be reached"),
        ("sac", ["SacAlgorithm.target_entropy = " + ANY, *linear("any", -1.0, -2.0, "updates = 5"),
                 "Temperature.tuning = 'fixed'"], "no effect if Temperature.tuning is 'fixed'"),
        ("taac", ["create_agent.task_strength = " + ANY, *FALLING], "no effect without create_agent.reward_signals"),
        ("taac", ["create_agent.task_strength = " + ANY, NOVELTY, "RND.strength = @b/LinearSchedule()",
                  *linear("b", 1.0, 0.0, "env_steps = 50"), *FALLING], "at least one must differ from 0"),
        ("taac", ["RND.strength = " + ANY, NOVELTY, *linear("any", 0.0, 0.0, "updates = 5")],
         "RND.strength must be a number other than 0"),
        ("taac", ["RND.learning_rate = " + ANY, NOVELTY, *linear("any", 1.0, -0.1, "updates = 5")],
         "RND.learning_rate must be above 0"),
        ("sac", ["SacAlgorithm.target_update_tau = " + ANY, *FALLING], r"target_update_tau must be in \(0, 1\], got 1 to 0"),
        ("sac_ez", ["ZetaExplorer.epsilon = " + ANY, *linear("any", 0.5, 2.0, "updates = 5")], r"epsilon must be in \[0, 1\]"),
        ("taac", ["batch_size = " + ANY, *linear("any", 10, 0, "updates = 5")], "batch_size must be 1 or more.*got 0"),
        ("taac", ["batch_size = " + ANY, *linear("any", 10, 20, "updates = 5"), "create_agent.compile = True"],
         "compiles the update for each batch size"),
        ("taac", ["UpdateRatio.updates_per_env_step = " + ANY, *linear("any", 1.0, 0.5, "updates = 100")],
         "a number or a schedule in environment steps"),
        ("taac", ["UpdateRatio.updates_per_env_step = " + ANY, *linear("any", 1.0, -0.5, "env_steps = 100")], "must be above 0"),
        ("taac", ["UpdateRatio.updates_per_env_step = " + ANY, *FALLING], "gives no update"),
        ("taac", [*RATIO, "UpdateRatio.update_clock = 'transitions'"], "update_clock is 'transitions'"),
        ("taac", [*RATIO, "TaacAlgorithm.target_update_env_steps = 5"], "a constant ratio of updates"),
        ("taac", ["Learner.learning_rate = " + ANY, *FALLING, "any/LinearSchedule.begin = 600"],
         r"Learner\.learning_rate would keep its value: .* first changes at 601 environment steps, but the run has only 600"),
        ("taac", ["Learner.learning_rate = @any/PiecewiseSchedule()", *steps("any", (0.1, 0.2), (0, 300), "updates")],
         "first changes at 300 updates, but the run has only 300"),
    ],
)  # fmt: skip
def test_refused(method, params, words):
    with pytest.raises(TaacError, match=words):
        build(*params, method=method)


def test_a_saved_agent_acts_by_the_weights_of_the_moment_it_was_saved(tmp_path):
    run(tmp_path / "a", *STRENGTHS, "num_env_steps = 400", "evaluation_episodes = 1")  # 100 updates
    saved = load_saved(tmp_path / "a", trusted=True)
    saved.environment.close()
    assert saved.agent.algorithm.weights.tolist() == pytest.approx([400 / 500, 2.0 - 2.5 * 100 / 150])
