"""CAPS: its loss by hand, whom it trains, what is refused, and that it smooths."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from taac.algorithms import (
    DiscreteSacAlgorithm,
    RecurrentSacAlgorithm,
    SacAlgorithm,
    SdarAlgorithm,
    TaacAlgorithm,
    Td3Algorithm,
)
from taac.algorithms.actor_regularizers import CAPS
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.specs import bounded
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC
from tests.algorithms.taac_reference import TAAC, experience_of

FAMILIES = [SacAlgorithm, Td3Algorithm, TaacAlgorithm]


def made(family, *regularizers, **options):
    shared = {name: ctor for name, ctor in reference.networks().items() if name != "actor_ctor" or family is not Td3Algorithm}
    return reference.scrambled(family(VECTOR_SPEC, ACTION_SPEC, actor_regularizers=regularizers, **shared, **options))


def losses_of(algorithm, experience):
    torch.manual_seed(3)
    return algorithm.calc_loss(experience, algorithm.train_step(experience))


@pytest.mark.parametrize(
    "family, options", [*((family, {}) for family in FAMILIES), (SacAlgorithm, {"actor_on_last_frame": False})]
)
def test_what_it_adds_is_the_distance_of_neighbouring_actions(family, options):
    """In time; and with a noise of 0 nothing in space. No pair of frames goes over the end of an episode."""
    experience = experience_of(TAAC) if family is TaacAlgorithm else Experience(reference.replayed(VECTOR_SPEC), ())
    plain_algorithm = made(family, **options)
    smooth = made(family, functools.partial(CAPS, temporal=0.75, spatial=2.0, noise=0.0), **options)
    smooth.load_state_dict(plain_algorithm.state_dict())
    plain, found = losses_of(plain_algorithm, experience), losses_of(smooth, experience)
    mu = plain_algorithm.proposal(experience.time_step.observation, experience)
    expected = torch.zeros(STEPS, BATCH, dtype=torch.float64)
    for t in range(STEPS - 1):
        for b in range(BATCH):
            if not IS_LAST[t, b]:
                expected[t, b] = 0.75 * math.sqrt(sum((mu[t, b, i] - mu[t + 1, b, i]).item() ** 2 for i in range(NUM_ACTIONS)))
    torch.testing.assert_close(found.loss - plain.loss, expected, rtol=1e-6, atol=1e-9)
    assert found.extra["loss/regularizer_caps"].item() == pytest.approx(expected[:-1][~IS_LAST[:-1]].mean().item())


def test_noise_is_drawn_for_numbers_and_not_for_pixels():
    algorithm = reference.scrambled(SacAlgorithm(reference.IMAGE_SPEC, ACTION_SPEC, **reference.networks()))
    seen = []

    def proposal(observation, experience):
        seen.append(observation)
        return algorithm.proposal(observation, experience)

    experience = Experience(reference.replayed(reference.IMAGE_SPEC), ())
    loss = CAPS(temporal=0.0, spatial=1.0, noise=0.1)(proposal, experience)
    own, near = seen
    assert torch.equal(own["image"], near["image"]) and loss.shape == (STEPS - 1, BATCH) and (loss > 0).all()
    assert (near["vector"] - own["vector"]).std().item() == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_trains_the_actor_alone(family):
    algorithm = made(family, CAPS)
    experience = experience_of(TAAC) if family is TaacAlgorithm else Experience(reference.replayed(VECTOR_SPEC), ())
    CAPS()(algorithm.proposal, experience).sum().backward()
    trained = {name.split(".")[0] for name, p in algorithm.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == ({"actor", "tau_embedding"} if family is TaacAlgorithm else {"actor"})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_actor_becomes_smoother(family):
    algorithm = made(family, functools.partial(CAPS, temporal=300.0, spatial=0.0))
    experience = experience_of(TAAC) if family is TaacAlgorithm else Experience(reference.replayed(VECTOR_SPEC), ())
    optimizer = torch.optim.Adam(algorithm.parameter_groups()["actor"], 3e-3)
    before = CAPS(spatial=0.0)(algorithm.proposal, experience).mean().item()
    for _ in range(100):
        optimizer.zero_grad()
        losses_of(algorithm, experience).loss.mean().backward()
        optimizer.step()
    assert CAPS(spatial=0.0)(algorithm.proposal, experience).mean().item() < 0.3 * before


def test_equal_states_have_a_gradient_of_zero():
    time_step = reference.replayed(VECTOR_SPEC)
    time_step.observation[:] = time_step.observation[:1]
    algorithm = made(SacAlgorithm)
    CAPS(spatial=0.0)(algorithm.proposal, Experience(time_step, ())).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in algorithm.parameters())


@pytest.mark.parametrize(
    "settings, message",
    [({"temporal": -1.0}, r"CAPS\.temporal must be 0 or more, got -1\.0"), ({"noise": math.inf}, r"CAPS\.noise must be 0"),
     ({"temporal": 0.0, "spatial": 0.0}, "both 0")],
)  # fmt: skip
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        CAPS(**settings)


@pytest.mark.parametrize("family", [DiscreteSacAlgorithm, RecurrentSacAlgorithm, SdarAlgorithm])
def test_an_actor_that_proposes_nothing_from_a_state_alone_is_refused(family):
    action = bounded((), 0, 2, torch.int64) if family is DiscreteSacAlgorithm else ACTION_SPEC
    with pytest.raises(TaacError, match=rf"{family.__name__} supports no actor_regularizers"):
        family(VECTOR_SPEC, action, actor_regularizers=(CAPS,))
