"""CAPS and L2C2: their losses by hand, whom they train, what is refused, and that they smooth."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from taac import nest
from taac.algorithms import (
    DiscreteSacAlgorithm,
    RecurrentSacAlgorithm,
    SacAlgorithm,
    SdarAlgorithm,
    TaacAlgorithm,
    Td3Algorithm,
    actor_regularizers,
)
from taac.algorithms.actor_regularizers import CAPS, L2C2
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.networks import DeterministicActorNetwork
from taac.specs import bounded
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC
from tests.algorithms.taac_reference import TAAC, experience_of
from tests.methods import thinned

FAMILIES = [SacAlgorithm, Td3Algorithm, TaacAlgorithm]


def made(family, *regularizers, **options):
    shared = reference.networks()
    if family is Td3Algorithm:
        shared["actor_ctor"] = functools.partial(DeterministicActorNetwork, hidden_layers=(5, 4))
    return reference.scrambled(family(VECTOR_SPEC, ACTION_SPEC, actor_regularizers=regularizers, **shared, **options))


def scene(family):
    """Frames that a family can learn from."""
    return experience_of(TAAC) if family is TaacAlgorithm else Experience(reference.replayed(VECTOR_SPEC), ())


def losses_of(algorithm, experience):
    torch.manual_seed(3)
    return algorithm.calc_loss(experience, algorithm.train_step(experience))


@pytest.mark.parametrize(
    "family, options", [*((family, {}) for family in FAMILIES), (SacAlgorithm, {"actor_on_last_frame": False})]
)
def test_what_it_adds_is_the_distance_of_neighbouring_actions(family, options):
    """In time; and with a noise of 0 nothing in space. No pair of frames goes over the end of an episode.

    Where the actor learns on all frames, a pair counts as STEPS / (STEPS - 1) frames.
    """
    experience = scene(family)
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
    all_frames = family is not Td3Algorithm and not options
    weight = STEPS / (STEPS - 1) if all_frames else 1.0
    torch.testing.assert_close(found.loss - plain.loss, weight * expected, rtol=1e-6, atol=1e-9)
    assert found.extra["loss/regularizer_caps"].item() == pytest.approx(expected[:-1][~IS_LAST[:-1]].mean().item())


def patched(monkeypatch, draw):
    """Replaces the u of L2C2. Returns the list of those that were used."""
    used = []
    monkeypatch.setattr(actor_regularizers, "_drawn", lambda x: used.append(draw(x)) or used[-1])
    return used


@pytest.mark.parametrize("family", FAMILIES)
def test_l2c2_moves_each_number_towards_the_next_state_or_away_from_it(monkeypatch, family):
    """One frame and number at a time. The actor of TAAC sees the trajectory too."""
    drawn = actor_regularizers._drawn
    used, experience, algorithm = patched(monkeypatch, drawn), scene(family), made(family)
    loss = L2C2(lower=0.2, upper=0.8)(algorithm.proposal, experience)
    u = used[0]
    assert u.shape == (STEPS - 1, BATCH, 3) and u.min() < -0.8 and u.max() > 0.8
    s, info, v = experience.time_step.observation, experience.rollout_info, (used[1:2] or [None])[0]
    for t in range(STEPS - 1):
        for b in range(BATCH):
            near, here = s.clone(), info
            for i in range(3):
                near[t, b, i] = s[t, b, i] + u[t, b, i] * (s[t + 1, b, i] - s[t, b, i])
            if family is TaacAlgorithm:
                here = nest.map_structure(torch.clone, info)
                for i in range(NUM_ACTIONS):
                    here.tau_prev.a[t, b, i] += v[t, b, i] * (info.tau_prev.a[t + 1, b, i] - info.tau_prev.a[t, b, i])
            before, after = algorithm.proposal(s, experience), algorithm.proposal(near, experience._replace(rollout_info=here))
            epsilon = 0.2 / 0.6
            weight = 0.8 * epsilon / (u[t, b].abs().max().item() + epsilon)
            expected = weight * sum((before[t, b, i] - after[t, b, i]).item() ** 2 for i in range(NUM_ACTIONS))
            assert loss[t, b].item() == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("u, weight", [(0.0, 0.0), (1.0, 0.2)])
def test_at_the_next_state_l2c2_is_caps_in_time_squared(monkeypatch, family, u, weight):
    """With the least weight; and 0 at the state itself."""
    patched(monkeypatch, lambda x: torch.full_like(x, u) if x.is_floating_point() else x)
    experience, algorithm = scene(family), made(family)
    expected = weight * CAPS(spatial=0.0)(algorithm.proposal, experience).square()
    found = L2C2(lower=0.2, upper=0.8)(algorithm.proposal, experience)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


def test_l2c2_is_part_of_the_loss_and_not_over_the_end_of_an_episode(monkeypatch):
    patched(monkeypatch, torch.ones_like)
    experience, plain = scene(SacAlgorithm), made(SacAlgorithm)
    smooth = made(SacAlgorithm, functools.partial(L2C2, lower=0.25))
    smooth.load_state_dict(plain.state_dict())
    added = losses_of(smooth, experience).loss - losses_of(plain, experience).loss
    mu = plain.proposal(experience.time_step.observation, experience)
    expected = (0.25 * STEPS / (STEPS - 1) * (mu[1:] - mu[:-1]).square().sum(-1)).masked_fill(IS_LAST[:-1], 0.0)
    torch.testing.assert_close(added, torch.cat([expected, torch.zeros_like(expected[:1])]), rtol=1e-5, atol=1e-9)


def test_l2c2s_weight_follows_the_farthest_of_all_numbers(monkeypatch):
    """Of an observation of two parts."""
    drawn = iter((0.25, -1.0))
    monkeypatch.setattr(actor_regularizers, "_drawn", lambda x: torch.full_like(x, next(drawn)))
    vector = torch.arange(6.0).reshape(6, 1, 1)
    time_step = reference.replayed(reference.IMAGE_SPEC)._replace(observation={"a": vector, "b": vector})
    found = L2C2(lower=0.2, upper=0.8)(lambda observation, experience: observation["a"], Experience(time_step, ()))
    torch.testing.assert_close(found, torch.full((5, 1), 0.2 * 0.25**2))  # the least weight, which belongs to |u| = 1


def test_l2c2_moves_no_pixels():
    experience = Experience(reference.replayed(reference.IMAGE_SPEC), ())
    seen = []

    def proposal(observation, experience):
        seen.append(observation)
        return observation["vector"]

    L2C2()(proposal, experience)
    assert torch.equal(seen[0]["image"], seen[1]["image"]) and (seen[0]["vector"] != seen[1]["vector"]).any()
    pixels = experience._replace(time_step=experience.time_step._replace(observation=seen[0]["image"]))
    with pytest.raises(TaacError, match="pixels and choices alone"):
        L2C2()(lambda observation, experience: observation, pixels)


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
    torch.manual_seed(0)
    once = CAPS(temporal=0.0, spatial=1.0, noise=0.1)(algorithm.proposal, experience)
    torch.manual_seed(0)
    torch.testing.assert_close(CAPS(temporal=0.0, spatial=3.0, noise=0.1)(algorithm.proposal, experience), 3.0 * once)


def test_weights_of_0_regularize_nothing():
    plain, experience, found = made(SacAlgorithm), scene(SacAlgorithm), []
    for regularizers in ((), (functools.partial(CAPS, temporal=0.0, spatial=0.0),)):
        algorithm = made(SacAlgorithm, *regularizers)
        algorithm.load_state_dict(plain.state_dict())
        losses_of(algorithm, experience).loss.mean().backward()
        found.append([p.grad for p in algorithm.parameters() if p.grad is not None])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("regularizer", [CAPS, L2C2])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_trains_the_actor_alone(family, regularizer):
    algorithm = made(family, regularizer)
    regularizer()(algorithm.proposal, scene(family)).sum().backward()
    trained = {name.split(".")[0] for name, p in algorithm.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == ({"actor", "tau_embedding"} if family is TaacAlgorithm else {"actor"})


@pytest.mark.parametrize("family", thinned(FAMILIES, (SacAlgorithm,)))
@pytest.mark.parametrize(
    "smoother", [functools.partial(CAPS, temporal=300.0, spatial=0.0), functools.partial(L2C2, lower=300.0, upper=1000.0)]
)
def test_the_actor_becomes_smoother(family, smoother):
    """Than the same actor after as many updates without it."""
    plain, experience, smooth = made(family), scene(family), made(family, smoother)
    smooth.load_state_dict(plain.state_dict())
    for algorithm in (plain, smooth):
        optimizer = torch.optim.Adam(algorithm.parameter_groups()["actor"], 1e-2)
        for _ in range(100):
            optimizer.zero_grad()
            losses_of(algorithm, experience).loss.mean().backward()
            optimizer.step()
    before, after = (CAPS(spatial=0.0)(algorithm.proposal, experience).mean().item() for algorithm in (plain, smooth))
    assert after < 0.3 * before


@pytest.mark.parametrize("regularizer", [functools.partial(CAPS, spatial=0.0), L2C2])
def test_equal_states_have_a_gradient_of_zero(regularizer):
    time_step = reference.replayed(VECTOR_SPEC)
    time_step.observation[:] = time_step.observation[:1]
    algorithm = made(SacAlgorithm)
    regularizer()(algorithm.proposal, Experience(time_step, ())).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in algorithm.parameters())


@pytest.mark.parametrize(
    "regularizer, settings, message",
    [(CAPS, {"temporal": -1.0}, r"CAPS\.temporal must be 0 or more, got -1\.0"),
     (CAPS, {"noise": math.inf}, r"CAPS\.noise must be 0"),
     (L2C2, {"lower": 0.0}, r"0 < lower < upper, got lower = 0\.0 and upper = 1\.0"), (L2C2, {"upper": 0.01}, "lower < upper")],
)  # fmt: skip
def test_bad_settings_are_refused(regularizer, settings, message):
    with pytest.raises(TaacError, match=message):
        regularizer(**settings)


@pytest.mark.parametrize("family", [DiscreteSacAlgorithm, RecurrentSacAlgorithm, SdarAlgorithm])
def test_an_actor_that_proposes_nothing_from_a_state_alone_is_refused(family):
    action = bounded((), 0, 2, torch.int64) if family is DiscreteSacAlgorithm else ACTION_SPEC
    with pytest.raises(TaacError, match=rf"{family.__name__} supports no actor_regularizers"):
        family(VECTOR_SPEC, action, actor_regularizers=(CAPS,))
