"""The first number that is not finite stops the run before it reaches a parameter, and is named, saved and explained."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, LossInfo, StepType, TimeStep
from taac.errors import DivergedError, NotFiniteError, TaacError
from taac.learning.guard import CUDA_INTERVAL, GrowthWatch
from taac.learning.learner import Learner
from taac.networks import RewardNormalizer
from taac.runs import inspection
from taac.runs.checkpoint import Checkpoints
from taac.runs.files import Damaged
from taac.runs.run_folder import RunFolder
from taac.specs import bounded
from tests.training.runs import assert_same_parameters, build, run


def make_learner(**settings):
    torch.manual_seed(0)
    return Learner(Agent(SacAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1))), 1e-3, matmul="plain", **settings)


def make_batch(reward=None):
    shape = (2, 4)
    time_step = TimeStep(
        torch.full(shape, int(StepType.MID), dtype=torch.uint8),
        torch.randn(shape) if reward is None else reward,
        torch.ones(shape),
        torch.randn(*shape, 3),
        torch.zeros(*shape, 2),
        torch.ones(shape, dtype=torch.int16),
    )
    return Experience(time_step, ())


def parameters(learner):
    return {name: p.detach().clone() for name, p in learner.agent.named_parameters()}


@pytest.mark.parametrize("value, clip", [(float("nan"), None), (float("inf"), 1.0)])
def test_a_loss_that_is_not_finite_is_not_learnt_from(value, clip):
    learner = make_learner(max_grad_norm=clip)
    learner.update(make_batch())
    before = parameters(learner)
    moments = learner.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    batch = make_batch()
    batch.time_step.reward[1, 2] = value
    with pytest.raises(DivergedError) as error:
        learner.update(batch)
    message = str(error.value)
    assert "update 2 was not taken" in message and "loss/critic" in message and "the first [t, b] = [0, 2]" in message
    assert "'algorithm.critics." in message
    assert "loss/actor" not in message  # which does not look at rewards
    assert all(torch.equal(p, before[name]) for name, p in learner.agent.named_parameters())
    assert torch.equal(learner.optimizer.state_dict()["state"][0]["exp_avg"], moments) and learner.num_updates == 1
    evidence = error.value.evidence
    assert torch.equal(evidence["sampled/time_step/reward"], batch.time_step.reward) or np.isnan(value)
    assert evidence["loss"].shape == (2, 4) and not evidence["loss"][0, 2].isfinite()


def test_a_gradient_that_is_not_finite_though_the_loss_is(monkeypatch):
    learner = make_learner()
    name, parameter = next(iter(learner.agent.algorithm.actor.named_parameters()))
    original = learner.agent.algorithm.calc_loss

    def calc_loss(experience, info):  # sqrt at 0 is 0, with an infinite slope
        found = original(experience, info)
        return LossInfo(found.loss + (parameter.sum() * 0).abs().sqrt(), found.extra, found.segment_error)

    monkeypatch.setattr(learner.agent.algorithm, "calc_loss", calc_loss)
    before = parameters(learner)
    with pytest.raises(DivergedError) as error:
        learner.update(make_batch())
    assert f"not finite: the gradients of 'algorithm.actor.{name}'. Training" in str(error.value)
    assert all(torch.equal(p, before[name]) for name, p in learner.agent.named_parameters())
    lines = inspection.describe(inspection.Inspection(str(error.value), 5, error.value.evidence))
    assert lines[-1] == "all of these are finite: only gradients were not"


@pytest.mark.parametrize("where", range(3))
def test_each_parameter_is_watched(where):
    learner = make_learner()
    watched = learner.optimizer.param_groups[where]["params"][-1]
    watched.register_hook(lambda g: torch.where(torch.arange(g.numel()).reshape(g.shape) == 0, torch.nan, g))
    with pytest.raises(DivergedError, match="the gradients of"):
        learner.update(make_batch())


def test_a_sum_that_overflows_is_no_reason_to_stop():
    learner = make_learner()
    weight = learner.optimizer.param_groups[0]["params"][0]
    weight.register_hook(lambda g: torch.full_like(g, 2e38))  # whose sum float32 cannot hold
    learner.update(make_batch())
    assert learner.num_updates == 1 and all(bool(p.isfinite().all()) for p in parameters(learner).values())


def test_gradients_that_are_infinite_and_nothing_is_a_nan():
    learner = make_learner()
    weight = learner.optimizer.param_groups[1]["params"][0]
    weight.register_hook(lambda g: torch.full_like(g, torch.inf))
    with pytest.raises(DivergedError, match="the gradients of 'algorithm"):
        learner.update(make_batch())


def test_a_loss_that_is_infinite_though_no_gradient_is(monkeypatch):
    learner = make_learner()
    original = learner.agent.algorithm.calc_loss

    def calc_loss(experience, info):
        found = original(experience, info)
        return found._replace(loss=found.loss + torch.inf)

    monkeypatch.setattr(learner.agent.algorithm, "calc_loss", calc_loss)
    with pytest.raises(DivergedError, match=r"not finite: the loss \(of its parts: loss/total\), 8 of 8 frames"):
        learner.update(make_batch())


def test_a_parameter_whose_sum_overflows_is_saved():
    learner = make_learner()
    with torch.no_grad():
        next(learner.agent.algorithm.critics.parameters()).fill_(2e38)
    learner.guard.check_parameters()


def test_looking_at_intervals_keeps_parameters_as_they_were():
    """As on a GPU: the bad update is found later, with the batch that it was, and it and those after it change nothing."""
    learner = make_learner()
    learner.guard.interval = CUDA_INTERVAL
    batches = [make_batch() for _ in range(1 + CUDA_INTERVAL)]
    batches[4].time_step.reward[0, 1] = float("nan")  # arrives before the first transition: nothing is learnt from it
    batches[7].time_step.reward[1, 3] = float("nan")
    told = ""
    for number, batch in enumerate(batches, 1):
        if number == 8:
            before = parameters(learner)
        try:
            learner.update(batch)
        except DivergedError as error:
            told = str(error)
            assert torch.equal(error.evidence["sampled/time_step/observation"], batches[7].time_step.observation)
            break
    assert number == 1 + CUDA_INTERVAL and "update 8 was not taken" in told and "[0, 3]" in told
    now = parameters(learner)
    targets = [name for name in now if "target" in name]  # go on following parameters that stand still
    assert targets and all(torch.equal(now[name], before[name]) for name in now if name not in targets)
    assert all(bool(p.isfinite().all()) for p in now.values())


def test_looking_at_intervals_changes_no_bits_of_a_run_that_is_fine():
    first, second = make_learner(), make_learner()
    second.guard.interval = 7
    for number in range(10):
        for learner in (first, second):
            torch.manual_seed(number)
            learner.update(make_batch())
    second.guard.flush()
    assert all(torch.equal(a, b) for a, b in zip(parameters(first).values(), parameters(second).values()))


def test_what_waits_is_looked_at_before_saving():
    learner = make_learner()
    learner.guard.interval = CUDA_INTERVAL
    learner.update(make_batch())
    learner.update(make_batch(torch.full((2, 4), float("nan"))))
    with pytest.raises(DivergedError, match="update 2 was not taken"):
        learner.guard.check_parameters()


def test_a_parameter_that_is_not_finite_is_not_saved():
    learner = make_learner()
    learner.guard.check_parameters()
    with torch.no_grad():
        next(iter(learner.agent.algorithm.target_critics.parameters())).view(-1)[3] = float("inf")
    with pytest.raises(DivergedError, match=r"parameters are not finite: 'algorithm\.target_critics\..*no checkpoint"):
        learner.guard.check_parameters()


# A whole run ---------------------------------------------------------------------------------------------------------


SHORT = ("initial_collect_steps = 60", "num_env_steps = 130", "Intervals.checkpoint_interval = 100", "evaluation_episodes = 1",
         "Intervals.summary_interval = 20", "hidden_layers = (8,)")  # fmt: skip


def test_a_run_that_diverges_is_saved_explained_and_can_go_on(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", *SHORT, method="sac")
    original = SacAlgorithm.calc_loss
    calls = 0

    def calc_loss(self, experience, info):
        nonlocal calls
        calls += 1
        found = original(self, experience, info)
        return found._replace(loss=found.loss * float("nan")) if calls == 50 else found

    monkeypatch.setattr(SacAlgorithm, "calc_loss", calc_loss)
    with pytest.raises(DivergedError, match=r"update 50 was not taken.*taac check --batch .*diverged-110\.json"):
        run(tmp_path / "run", *SHORT, method="sac")
    found = inspection.read(tmp_path / "run" / "diverged-110.json")
    assert found.env_steps == 110 and found.evidence["sampled/time_step/reward"].shape == (2, 32)
    text = "\n".join(inspection.describe(found))
    assert "NOT FINITE: 64 of 64, the first at [0, 0] is nan" in text
    assert "the batch as it was sampled is finite: networks or normalisers made the numbers of 'loss'" in text
    assert RunFolder(tmp_path / "run").checkpoints.newest().env_steps == 100
    resumed = run(tmp_path / "run", *SHORT, method="sac")  # now nothing goes wrong
    assert_same_parameters(whole, resumed)


def test_a_reward_that_is_not_finite_is_saved_too(tmp_path):
    name = "create_environment.env_name = 'tests.toy_tasks:taac-test/BreaksDown-v0'"
    with pytest.raises(NotFiniteError, match=r"a reward that is not finite at step .*taac check --batch") as error:
        run(tmp_path / "run", name, "Evaluator.initial_evaluation = False", method="sac")
    (path,) = (tmp_path / "run").glob("diverged-*.json")
    assert str(path) in str(error.value)
    text = "\n".join(inspection.describe(inspection.read(path)))
    assert "given " in text and "NOT FINITE: 1 of 1, the first at [0] is nan" in text and "action/" in text


def test_what_was_saved_is_whole_or_refused(tmp_path):
    error = NotFiniteError("it", {"sampled/reward": torch.tensor([1.0, float("nan")]), "empty": torch.zeros(0)})
    path = inspection.write(tmp_path, 7, error)
    lines = inspection.describe(inspection.read(path))
    assert lines[0] == "at 7 environment steps: it"
    assert any("1 to 1, mean 1; NOT FINITE: 1 of 2, the first at [1] is nan" in line for line in lines)
    found = inspection.Inspection("it", 7, {"x" * 1000: torch.zeros(1), "y": torch.tensor([[0.0, 1.0], [math.inf, math.nan]])})
    *_, line, _, _ = inspection.describe(found)
    assert len(line) < 200 and "NOT FINITE: 2 of 4, the first at [1, 0] is inf" in line
    assert lines[-1] == "the first field that is not finite is 'sampled/reward'"
    whole = path.read_bytes()
    for data in (whole[:-3], whole.replace(b'"it"', b'"at"'), b"", b"{}"):
        path.write_bytes(data)
        with pytest.raises(Damaged):
            inspection.read(path)
    path.write_bytes(whole)
    (tmp_path / "diverged-7.safetensors").unlink()
    with pytest.raises(Damaged, match="cannot be read"):
        inspection.read(path)
    Checkpoints(tmp_path / "saved").save(1, {"agent": {}})
    checkpoint = next((tmp_path / "saved").glob("*.json"))
    with pytest.raises(TaacError, match="holds no batch"):
        inspection.read(checkpoint)


# Growth --------------------------------------------------------------------------------------------------------------


def watched(reward, summaries, gamma=0.9, updates=GrowthWatch.PATIENCE):
    watch = GrowthWatch(gamma)
    for _ in range(updates):
        watch.observe(torch.tensor(reward))
    return [watch.warnings(s) for s in summaries]


def test_values_beyond_what_rewards_can_sum_to_are_warned_of_once():
    """Rewards of at most 2 a step at gamma 0.9 sum to 20 at most, and a bonus of 0.5 x 2 nats a step to 10 more."""
    told = watched(
        [[0.5, -2.0]],
        [{"critic/q": q, "policy/alpha": 0.5, "policy/entropy": 2.0} for q in (30.0, 89.0, -91.0, 200.0)],
    )
    assert [len(found) for found in told] == [0, 0, 1, 0]
    assert "critic/q is -91" in told[2][0] and "cannot sum to more than 30" in told[2][0]


def test_the_bound_knows_what_decisions_cost():
    """Rewards of at most 2 and a price of 0.5 a step sum to 25 at gamma 0.9."""
    within, beyond = watched([[0.5, -2.0]], [{"critic/q": q, "decision/price": 0.5} for q in (-74.0, -76.0)])
    assert within == [] and "cannot sum to more than 25" in beyond[0]


def test_the_bound_knows_what_tla_pays_for_jerk():
    """A price of 1 on a mean distance of actions in [-1, 1]: up to 2 a step, and 20 at gamma 0.9."""
    trainer = build("gamma = 0.9", "TlaAlgorithm.jerk_price = 1.0", method="tla")
    trainer.close()
    growth = trainer.learner.growth
    for _ in range(GrowthWatch.PATIENCE):
        growth.observe(torch.tensor([[0.0]]))
    assert growth.warnings({"critic/q": -59.0}) == []
    (told,) = growth.warnings({"critic/q": -61.0})
    assert "cannot sum to more than 20" in told


def test_the_bound_knows_what_values_learn_of_a_bonus():
    """Of a bonus of 0.5 x 2 nats a step, values of a part of weight 0.1 learn ten times as much: (2 + 10) / 0.1, three times."""
    watch, alpha = GrowthWatch(0.9), {"policy/alpha": 0.5, "policy/entropy": 2.0}
    for _ in range(GrowthWatch.PATIENCE):
        watch.observe(torch.tensor([[0.5, -2.0]]))
    assert watch.warnings({"critic/q": 359.0, **alpha}, share=10.0) == []
    (told,) = watch.warnings({"critic/q": 361.0, **alpha}, share=10.0)
    assert "cannot sum to more than 120" in told


def test_the_bound_is_of_the_rewards_that_critics_learn():
    """`SacValueAlgorithm` multiplies rewards by 5: rewards of 1 at gamma 0.9 sum to 50, and 3 x 50 is what warns."""
    trainer = build(
        "gamma = 0.9", "SacValueAlgorithm.reward_scale = 5.0", "normalize_rewards = False", method="sac_value"
    )
    trainer.close()
    growth = trainer.learner.growth
    for _ in range(GrowthWatch.PATIENCE):
        growth.observe(torch.tensor([[1.0]]))
    summaries = {"policy/alpha": 0.0, "policy/entropy": 0.0}
    assert growth.warnings({"critic/q": 149.0, **summaries}) == []
    (told,) = growth.warnings({"critic/q": 151.0, **summaries})
    assert "rewards of at most 5 a step" in told


@pytest.mark.parametrize(
    "params, scale",
    [([], 1.0), (["normalize_rewards = False"], 5.0), (["create_agent.normalize_rewards = False"], 5.0)],
)
def test_normalised_rewards_are_not_scaled_again(params, scale):
    """`gin/tasks/simple_control.gin` normalises."""
    trainer = build(*params, method="sac_value")
    trainer.close()
    algorithm, learner = trainer.agent.algorithm, trainer.learner
    assert algorithm.reward_scale == learner.growth.reward_scale == scale
    assert f"rewards are multiplied by {scale:g} " in algorithm.describe()[-1]


def test_a_bound_once_reached_stays():
    quiet = {"policy/alpha": 0.0, "policy/entropy": 1.0}
    told = watched(
        [[0.0]], [{"critic/q": 1.0, "policy/alpha": 1.0, "policy/entropy": 1.0}, {"critic/q": 29.0, **quiet}]
    )
    assert told == [[], []]  # critics may still hold what the bonus was


@pytest.mark.parametrize("gamma, updates", [(1.0, 1000), (None, 1000), (0.9, 999)])
def test_values_are_not_judged_without_a_bound_or_too_early(gamma, updates):
    assert watched([[1.0]], [{"critic/q": 1e9}], gamma, updates) == [[]]


def test_what_was_too_early_to_judge_is_warned_of_later():
    watch, told = GrowthWatch(0.9), []
    for _ in range(GrowthWatch.PATIENCE):
        watch.observe(torch.tensor([[1.0]]))
        told.append(len(watch.warnings({"critic/q": 1e9})))
    assert told == [0] * (GrowthWatch.PATIENCE - 1) + [1]


def test_a_temperature_that_leaves_rewards_no_say_is_warned_of_once():
    told = watched([[3.0]], [{"beta/alpha": a, "beta/entropy": 0.0} for a in (1.0, 299.0, 301.0, 500.0)])
    assert [len(found) for found in told] == [0, 0, 1, 0]
    assert "beta/alpha has grown to 301, from 1" in told[2][0]


def test_a_resumed_run_judges_as_one_that_was_never_stopped():
    """It warns of nothing twice, and knows bounds, rewards and temperatures from before."""
    high = {"critic/q": 1e6, "policy/alpha": 1.0, "policy/entropy": 0.5, "beta/alpha": 1.0}
    whole, stopped = GrowthWatch(0.9), GrowthWatch(0.9)
    for watch in (whole, stopped):
        watch.observe(torch.tensor([[5.0]]))
        watch.warnings({**high, "critic/q": 0.0})
    resumed = GrowthWatch(0.9)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    for summaries in ({**high, "beta/alpha": 400.0}, high, {**high, "beta/alpha": 900.0}):
        for watch in (whole, resumed):
            for _ in range(GrowthWatch.PATIENCE // 2):
                watch.observe(torch.tensor([[1.0]]))
        assert whole.warnings(summaries) == resumed.warnings(summaries)
        again = GrowthWatch(0.9)
        again.load_state_dict(resumed.state_dict())
        resumed = again
    assert resumed.state_dict() == whole.state_dict() and resumed.state_dict()["warned"] == ["beta/alpha", "critic/q"]
    GrowthWatch(0.9).load_state_dict(GrowthWatch(0.9).state_dict())


def test_what_a_run_was_warned_of_and_what_is_not_finite_at_a_checkpoint(tmp_path):
    stopped = run(tmp_path / "run", *SHORT, method="sac", stop=120)
    resumed = build(*SHORT, method="sac")
    resumed.resume(RunFolder(tmp_path / "run"))
    assert resumed.learner.growth.state_dict() == stopped.learner.growth.state_dict()
    assert resumed.learner.growth.num_seen == stopped.learner.num_updates > 0
    with torch.no_grad():
        next(resumed.agent.algorithm.actor.parameters()).view(-1)[0] = torch.nan
    before = RunFolder(tmp_path / "run").checkpoints.saved()
    with pytest.raises(DivergedError, match="no checkpoint is written"):
        resumed.save(RunFolder(tmp_path / "run"))
    assert RunFolder(tmp_path / "run").checkpoints.saved() == before == [120, 100]
    resumed.close()


def test_warnings_reach_the_terminal_and_the_log(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(GrowthWatch, "PATIENCE", 1)
    monkeypatch.setattr(GrowthWatch, "FACTOR", 1e-9)
    run(tmp_path / "run", *SHORT, method="sac")
    err = capsys.readouterr().err
    assert err.count("warning, at ") == 1 and "critic/q is" in err
    written = [path.read_bytes() for path in (tmp_path / "run").glob("events.out.tfevents.*")]
    assert any(b"warning/text_summary" in data and b"cannot sum to more than" in data for data in written)


def test_the_bound_is_of_rewards_as_they_are_learnt():
    agent = Agent(
        SacAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1)), reward_normalizer=RewardNormalizer(clip=1.0)
    )
    learner = Learner(agent)
    learner.update(make_batch(100 * torch.randn(2, 4)))
    assert learner.growth.state_dict()["greatest"] == pytest.approx(1.0)
