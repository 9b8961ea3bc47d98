"""The price of a decision: what is refused, schedules, and the multiplier. Whole updates with a price stand in each method's
file, against its slow reference.
"""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch

from taac import configuration
from taac.algorithms.decision_price import INITIAL_PRICE, MAX_PRICE, MIN_PRICE
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule
from taac.training import experiment
from taac.training.checks import check_decision_price
from tests.algorithms.taac_reference import TAAC, experience_of, small, taac
from tests.training.runs import built, learn_until


def test_without_a_price_there_is_none():
    algorithm, experience = taac(TAAC), experience_of(TAAC)
    info = algorithm.train_step(experience)
    assert algorithm.decision_price is None and info.bonus is None
    assert "decision/price" not in algorithm.calc_loss(experience, info).extra


def test_a_scheduled_price_is_what_an_update_uses():
    algorithm, experience = taac(TAAC | {"price": LinearSchedule(0.5, 1.5, env_steps=10)}), experience_of(TAAC)
    (scheduled,) = algorithm.scheduled
    assert scheduled.name == "TaacAlgorithm.decision_price" and not list(algorithm.decision_price.parameters())
    told = []
    for price in (0.5, 1.25):
        scheduled.set(price)
        info = algorithm.train_step(experience)
        told.append(algorithm.calc_loss(experience, info).extra["decision/price"])
        assert torch.equal(info.bonus[1:], -price * experience.rollout_info.switch[1:].double())
    assert [price.item() for price in told] == [0.5, 1.25]  # what was reported stays as it was


@pytest.mark.parametrize("start, expected", [(0.0, INITIAL_PRICE), (2.0, 2.0)])
def test_a_learnt_price_starts_where_it_is_told_and_rises_where_decisions_are_too_many(start, expected):
    algorithm = small(decision_price=start, target_decision_rate=0.25)
    price = algorithm.decision_price
    assert price().item() == pytest.approx(expected) and not price().requires_grad
    price.observe(decisions=600, env_steps=1000)
    rate = 0.25 / math.e + 0.6 * (1 - 1 / math.e)
    price.loss().backward()
    assert price.log_price.grad.item() == pytest.approx(0.25 - rate)
    assert any(parameter is price.log_price for parameter in algorithm.parameter_groups()["temperature"])


def test_the_multiplier_brings_the_rate_to_its_target():
    """Of a policy that decides with probability 1 / (1 + 2 c): a rate of 1/5 asks for a price of 2."""
    price = small(target_decision_rate=0.2).decision_price
    descent = torch.optim.SGD(price.parameters(), lr=0.5)
    for _ in range(400):
        descent.zero_grad()
        price.observe(int(1e6 / (1 + 2 * price())), int(1e6))
        price.loss().backward()
        descent.step()
    assert price().item() == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("decides, end", [(False, MIN_PRICE), (True, MAX_PRICE)])
def test_a_learnt_price_stays_in_its_range(decides, end):
    """Also for a policy that no price brings to its target."""
    algorithm = small(target_decision_rate=0.2)
    price = algorithm.decision_price
    descent = torch.optim.Adam(price.parameters(), lr=1.0)
    for update in range(30):
        descent.zero_grad()
        price.observe(1000 * decides, 1000)
        price.loss().backward()
        descent.step()
        algorithm.after_update(update)
    assert price().item() == pytest.approx(end)


def test_one_thousand_steps_are_averaged_whatever_the_parts_they_come_in():
    whole, parts = (small(target_decision_rate=0.5).decision_price for _ in range(2))
    whole.observe(200, 1000)
    for _ in range(500):
        parts.observe(0, 1)
        parts.observe(0, 0)  # an iteration of resets
    for _ in range(500):
        parts.observe(0, 1)
    zero = small(target_decision_rate=0.5).decision_price
    zero.observe(0, 1000)
    torch.testing.assert_close(parts.rate, zero.rate)
    torch.testing.assert_close(whole.rate, torch.tensor(0.5 / math.e + 0.2 * (1 - 1 / math.e)))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"decision_price": -0.1}, r"TaacAlgorithm\.decision_price must be 0 or more at every step, got -0\.1"),
        ({"decision_price": math.nan}, "decision_price must be 0 or more"),
        ({"decision_price": math.inf}, "decision_price must be 0 or more"),
        ({"decision_price": LinearSchedule(1.0, -1.0, env_steps=9)}, "decision_price must be 0 or more"),
        ({"target_decision_rate": 0.0}, r"TaacAlgorithm\.target_decision_rate must be between 0 and 1, or None, got 0\.0"),
        ({"target_decision_rate": 1.0}, "target_decision_rate must be between 0 and 1"),
        ({"decision_price": LinearSchedule(1.0, 0.0, env_steps=9), "target_decision_rate": 0.5}, "bind a number"),
        ({"decision_price": 1000.0, "target_decision_rate": 0.5}, r"0 or in \[0\.0001, 100\] where it is learnt, got 1000"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        small(**settings)


def test_a_price_where_nobody_chooses_how_long_an_action_lasts_is_refused():
    params = ["create_environment.env_name = 'Pendulum-v1'", "MixedSacAlgorithm.decision_price = 0.1"]
    configuration.load(["gin/tasks/simple_control.gin", "gin/methods/sac_krep.gin"], [*params, "action_repeat = 1"])
    with pytest.raises(TaacError, match=r"every action lasts 1 step\(s\) here: use the method sac_krep"):
        configuration.build(experiment.create_experiment)
    trainer = built(["gin/tasks/simple_control.gin", "gin/methods/sac_krep.gin"], [*params, "action_repeat = 4"])
    trainer.close()
    with pytest.raises(TaacError, match=r"every action lasts 4 step\(s\) here"):
        check_decision_price(trainer.agent.algorithm, SimpleNamespace(durations=(4, 4)))


@pytest.mark.parametrize("method", ["taac_1td", "taac_ntd", "sac_hybrid"])
def test_exact_compare_through_needs_returns_that_compare(method):
    files = ["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"]
    configuration.load(files, ["create_environment.env_name = 'Pendulum-v1'", "TaacAlgorithm.exact_compare_through = True"])
    with pytest.raises(TaacError, match=r"exact_compare_through needs a td_loss whose returns go on where b~ repeats"):
        configuration.build(experiment.create_experiment)


@pytest.mark.parametrize(
    "method, algorithm, least, told, params",
    [
        ("temporl", "TempoRLAlgorithm", 1 / (0.9 * 3 + 0.1 * 2), "max_skip = 3 and skip_epsilon = 0.1", []),
        ("sac_krep", "MixedSacAlgorithm", 1 / 3, "actions that last up to 3 steps", []),
        ("tla", "TlaAlgorithm", 0.95 / 3 + 0.05, "slow_steps = 3 and gate_epsilon = 0.1", []),
        ("taac_chunk", "TaacAlgorithm", 1 / 5, "a trajectory's length of 5", []),
        ("taac", "TaacAlgorithm", 1 / 12, "max_repeat_steps of 3",
         ["TaacAlgorithm.max_repeat_steps = 3", "create_environment.action_repeat = 4"]),
    ],
)  # fmt: skip
def test_a_rate_that_cannot_be_reached_is_refused(method, algorithm, least, told, params):
    params = ["create_environment.env_name = 'Pendulum-v1'", *params]
    setting = f"{algorithm}.target_decision_rate = {0.999 * least}"
    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [setting, *params])
    told = rf"{algorithm}\.target_decision_rate must be above {least:.3g}, the least rate of rollouts with {told}, got"
    with pytest.raises(TaacError, match=told):
        configuration.build(experiment.create_experiment)
    with contextlib.closing(create_environment(num_envs=1)) as environment:  # a finished run may be played
        experiment.create_agent(environment, torch.device("cpu"), role="act")


@pytest.mark.parametrize(
    "method, algorithm, wanted",
    [
        ("taac", "TaacAlgorithm", 0.02), ("temporl", "TempoRLAlgorithm", 0.9),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            ("sac_hybrid", "TaacAlgorithm", 0.02), ("sdar", "SdarAlgorithm", 0.02), ("sac_krep", "MixedSacAlgorithm", 0.9),
            ("temporl_ddpg", "TempoRLTd3Algorithm", 0.9), ("tla", "TlaAlgorithm", 0.9),
        )),
    ],
)  # fmt: skip
def test_a_price_is_learnt_in_a_training(method, algorithm, wanted):
    """Untrained policies decide at about half of the steps."""
    params = ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 20", "num_env_steps = 10000",
              "batch_size = 16", "hidden_layers = (8,)", "replay_length = 1000", "learning_rate = 0.01",
              f"{algorithm}.target_decision_rate = {wanted}"]  # fmt: skip
    trainer = built(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], params)
    start = trainer.agent.algorithm.decision_price()
    try:
        learn_until(trainer, 40)
        price = trainer.agent.algorithm.decision_price()
    finally:
        trainer.close()
    assert start == pytest.approx(1.0 if method == "tla" else INITIAL_PRICE)
    assert price > start if wanted < 0.5 else price < start


def test_random_steps_are_no_decisions_of_the_policy():
    params = ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 20", "num_env_steps = 10000",
              "hidden_layers = (8,)", "replay_length = 1000", "TaacAlgorithm.target_decision_rate = 0.3"]  # fmt: skip
    trainer = built(["gin/tasks/simple_control.gin", "gin/methods/taac.gin"], params)
    rate = trainer.agent.algorithm.decision_price.rate
    while trainer.env_steps < 20:
        trainer.collect()
    assert 0 < trainer.collector.decisions < 20 and rate.item() == pytest.approx(0.3)
    trainer.collect()
    trainer.close()
    assert rate.item() != pytest.approx(0.3)
