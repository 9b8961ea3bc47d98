"""The temperature: its three tunings, which way it moves, target entropies."""

import functools
import math

import pytest
import torch

from taac.algorithms import (
    DiscreteSacAlgorithm,
    MixedSacAlgorithm,
    SacAlgorithm,
    SacHybridAlgorithm,
    SdarAlgorithm,
    TaacAlgorithm,
    Temperature,
)
from taac.errors import TaacError
from taac.specs import bounded

ENTROPY = torch.tensor([[-1.0, 0.5], [2.0, 3.0]])


@pytest.mark.parametrize("tuning", ["log", "direct", "fixed"])
@pytest.mark.parametrize("initial", [0.01, 1.0, 7.0])
def test_alpha_begins_at_its_initial_value_and_is_a_constant(tuning, initial):
    alpha = Temperature(-1.0, initial, tuning).alpha()
    assert alpha.item() == pytest.approx(initial)
    assert alpha.shape == () and not alpha.requires_grad


@pytest.mark.parametrize("tuning", ["log", "direct", "fixed"])
def test_what_was_told_of_alpha_does_not_follow_it(tuning):
    """An update reports the alpha that it computed with, and takes its step before anybody reads that."""
    temperature = Temperature(-1.0, 2.0, tuning)
    told = temperature.alpha()
    temperature.set_alpha(5.0)
    assert told.item() == pytest.approx(2.0) and temperature.alpha().item() == pytest.approx(5.0)


@pytest.mark.parametrize("tuning, scale", [("log", math.log(2.0)), ("direct", 2.0)])
def test_the_loss_and_its_gradient(tuning, scale):
    """scale * (H - H_target), scale log alpha or alpha; the gradient is H - H_target, H a constant."""
    temperature = Temperature(0.25, 2.0, tuning)
    entropy = ENTROPY.clone().requires_grad_()
    loss = temperature.loss(entropy)
    expected = [[scale * -1.25, scale * 0.25], [scale * 1.75, scale * 2.75]]
    torch.testing.assert_close(loss, torch.tensor(expected))
    loss.sum().backward()
    assert temperature.value.grad.item() == pytest.approx(-1.25 + 0.25 + 1.75 + 2.75)
    assert entropy.grad is None


def test_fixed_is_not_trained():
    temperature = Temperature(0.25, 2.0, "fixed")
    loss = temperature.loss(ENTROPY)
    assert loss.shape == ENTROPY.shape and not loss.any() and not loss.requires_grad
    assert [p for p in temperature.parameters() if p.requires_grad] == []
    temperature.value.fill_(-1.0)
    temperature.project()
    assert temperature.value.item() == -1.0


def test_project_keeps_a_direct_temperature_at_or_above_0_and_leaves_a_log_one_alone():
    for value, kept in [(-0.3, 0.0), (0.0, 0.0), (0.3, 0.3)]:
        direct = Temperature(-1.0, tuning="direct")
        direct.value.data.fill_(value)
        direct.project()
        assert direct.value.item() == pytest.approx(kept)
    log = Temperature(-1.0)
    log.value.data.fill_(-0.3)
    log.project()
    assert log.value.item() == pytest.approx(-0.3)
    assert log.alpha().item() == pytest.approx(math.exp(-0.3))


@pytest.mark.parametrize("before", ["log", "direct", "fixed"])
@pytest.mark.parametrize("tuning", ["log", "direct", "fixed"])
def test_what_is_taken_over_is_alpha_however_it_was_tuned(before, tuning):
    state = Temperature(-1.0, 0.04, before).state_dict()
    other = Temperature(-1.0, 1.0, tuning)
    other.load_state_dict(state)
    assert other.alpha().item() == pytest.approx(0.04)
    assert other.state_dict()["is_log"].item() == (tuning == "log")
    again = Temperature(-1.0, 1.0, before)
    again.load_state_dict(other.state_dict())
    assert again.alpha().item() == pytest.approx(0.04)
    assert before != tuning or torch.equal(again.value, state["value"]), "bit for bit"


def test_a_temperature_of_0_has_no_logarithm():
    direct = Temperature(-1.0, tuning="direct")
    direct.value.data.fill_(0.0)
    with pytest.raises(TaacError, match="value is 0, which has no logarithm"):
        Temperature(-1.0).load_state_dict(direct.state_dict())
    Temperature(-1.0, tuning="fixed").load_state_dict(direct.state_dict())


@pytest.mark.parametrize("initial", [0.0, -1.0, float("nan")])
def test_an_initial_value_must_be_above_0(initial):
    with pytest.raises(TaacError, match="initial_value"):
        Temperature(-1.0, initial)


def test_an_unknown_tuning_is_refused():
    with pytest.raises(TaacError, match="'auto'"):
        Temperature(-1.0, tuning="auto")


def test_target_entropies_of_the_actor_and_of_beta():
    algorithm = TaacAlgorithm(bounded((3,), -1.0, 1.0), bounded((2,), -1.0, 1.0))  # min_prob 0.1 and 0.05
    assert algorithm.action_temperature.target_entropy == pytest.approx(2 * math.log(0.2))
    assert algorithm.beta_temperature.target_entropy == pytest.approx(0.1985, abs=5e-5)
    described = algorithm.describe()
    assert len(described) == 2
    assert "action" in described[0] and f"{2 * math.log(0.2):.4f} nats" in described[0]
    assert "beta" in described[1] and "0.1985 nats" in described[1]


# Each target in nats: the algorithm, the parameter, which temperature it is of, and the greatest entropy possible of two
# dimensions in [-1, 1] (2 log 2), of a coin (log 2), of a coin a dimension (2 log 2), of three choices (log 3).
PLANE, CHOICE = bounded((2,), -1.0, 1.0), bounded((), 0, 2, torch.int64)
ONE = bounded((), 0, 0, torch.int64)
TARGETS = [
    (SacAlgorithm, PLANE, "target_entropy", "action", 2 * math.log(2)),
    (TaacAlgorithm, PLANE, "action_target_entropy", "action", 2 * math.log(2)),
    (TaacAlgorithm, PLANE, "beta_target_entropy", "beta", math.log(2)),
    (SacHybridAlgorithm, PLANE, "beta_target_entropy", "beta", math.log(2)),
    (SdarAlgorithm, PLANE, "target_entropy", "action", 2 * math.log(2)),
    (SdarAlgorithm, PLANE, "beta_target_entropy", "beta", 2 * math.log(2)),
    (MixedSacAlgorithm, (CHOICE, PLANE), "target_entropy", "action", 2 * math.log(2)),
    (MixedSacAlgorithm, (CHOICE, PLANE), "choice_target_entropy", "choice", math.log(3)),
    (DiscreteSacAlgorithm, CHOICE, "target_entropy", "action", math.log(3)),
]


@pytest.mark.parametrize("algorithm, actions, name, which, greatest", TARGETS)
def test_a_target_entropy_may_be_given_in_nats(algorithm, actions, name, which, greatest):
    def described(**settings):
        made = algorithm(bounded((3,), -1.0, 1.0), actions, **settings)
        lines = dict(zip(made.temperatures(), made.describe(), strict=True))
        return {key: t.target_entropy for key, t in made.temperatures().items()}, lines

    by_default, _ = described()
    for nats in (0.3, greatest):
        targets, lines = described(**{name: nats})
        assert targets == {**by_default, which: nats}, "the others stay as they are"
        assert f"target entropy {nats:.4f} nats = " in lines[which] and f".{name}" in lines[which]
    for nats in (greatest + 1e-4, float("nan"), float("-inf"), float("inf")):
        with pytest.raises(TaacError, match=rf"\.{name} {nats} nats (cannot be reached|is negative)"):
            described(**{name: nats})


@pytest.mark.parametrize("algorithm, actions, name, which, greatest", [t for t in TARGETS if t[3] != "action"])
def test_a_negative_target_is_for_continuous_actions_alone(algorithm, actions, name, which, greatest):
    with pytest.raises(TaacError, match=rf"{name} -0.5 nats is negative.*\[0, {greatest:.4f}\]"):
        algorithm(bounded((3,), -1.0, 1.0), actions, **{name: -0.5})


def test_one_choice_has_no_entropy():
    one = MixedSacAlgorithm(bounded((3,), -1.0, 1.0), (ONE, PLANE), choice_target_entropy=0.0)
    assert one.choice_temperature.target_entropy == 0.0
    with pytest.raises(TaacError, match=r"choice_target_entropy 0\.1 nats cannot be reached"):
        MixedSacAlgorithm(bounded((3,), -1.0, 1.0), (ONE, PLANE), choice_target_entropy=0.1)


def test_a_fixed_temperature_is_told_without_a_target():
    fixed = functools.partial(Temperature, tuning="fixed", initial_value=0.2)
    made = SacAlgorithm(bounded((3,), -1.0, 1.0), PLANE, temperature_ctor=fixed)
    assert made.describe() == ["action: alpha 0.2, fixed"]
