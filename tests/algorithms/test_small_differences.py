"""Small differences that a line makes: what acts, what is masked, what targets follow. Each was once in no other test."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from taac import nest
from taac.algorithms import Td3Algorithm
from taac.networks import PrefixCritics
from taac.networks.bodies import projections
from tests.algorithms import reference
from tests.algorithms.taac_reference import NEVER, small, state_of
from tests.algorithms.test_backbones import CATEGORICAL, with_backbone
from tests.algorithms.test_chunks import MID, sac, segment
from tests.algorithms.test_critic_step import joint  # noqa: F401
from tests.algorithms.test_own_encoders import LinearEncoder
from tests.algorithms.test_td3 import td3
from tests.algorithms.test_temporl import temporl
from tests.algorithms.test_tla import always, batch_of, tla
from tests.methods import fitting, thinned
from tests.training.runs import build, learn_until


def test_the_rate_of_decisions_is_saved():
    first, again = (small(target_decision_rate=0.25) for _ in range(2))
    first.decision_price.observe(decisions=600, env_steps=1000)
    again.load_state_dict(first.state_dict())
    assert again.decision_price.rate == first.decision_price.rate != 0.25


def test_candidates_after_an_end_count_for_no_statistics(joint):  # noqa: F811
    algorithm, time_step, features, tau = joint
    last = time_step._replace(step_type=time_step.step_type.clone())
    last.step_type[0, 0] = 2
    found, half = [], torch.full((2, *tau.shape[:2]), 0.5)
    for shift in (0.0, 100.0):
        state = copy.deepcopy(algorithm.critics.state_dict())
        step = algorithm.critic_step(last, features, tau)
        following = features[1:].expand(2, *features[1:].shape).clone()
        following[:, 0, 0] += shift
        step.bootstrap(following, torch.stack([tau, tau]), weights=half)
        step.prediction()
        found.append(copy.deepcopy(algorithm.critics.state_dict()))
        algorithm.critics.load_state_dict(state)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("method", ["sac_value", "sdar"])
def test_an_encoder_of_the_actor_is_held_with_it(method):
    encoders = (f"ActorCriticAlgorithm.{name}encoder_ctor = @LinearEncoder" for name in ("", "actor_"))
    trainer = build("hidden_layers = (8,)", "ActorCriticAlgorithm.policy_delay = 3", *encoders, *fitting(method), method=method)
    learn_until(trainer, 1)
    moved = []
    for n in range(2, 7):
        before = [p.clone() for p in trainer.agent.algorithm.actor_encoder.parameters()]
        learn_until(trainer, n)
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, trainer.agent.algorithm.actor_encoder.parameters())))
    trainer.close()
    assert moved == [False, True, False, False, True]


def test_the_advantage_is_of_the_action_that_is_compared():
    trainer = with_backbone("taac", "flash", "TaacAlgorithm.decision_price = 0.7")
    learn_until(trainer, 4)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    info = algorithm.train_step(batch)
    torch.testing.assert_close(info.beta[..., 1], torch.sigmoid(info.advantage / algorithm.beta_temperature.alpha()))
    trainer.close()


METHODS = ["sac", "taac", "td3", "temporl", "tla", "sac_chunk", "sac_krep", "sac_value", "sdar"]


@pytest.mark.parametrize("method", thinned(METHODS, ("sac", "taac", "temporl")))
def test_ends_count_for_no_statistics(method):
    """Of any network that learns: actor, critics, durations, gate."""
    trainer = with_backbone(method, "flash_small")
    learn_until(trainer, 2 * trainer.agent.algorithm.policy_delay)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(32, trainer.segment_length))
    batch.time_step.step_type[0, 0] = 2
    if method == "tla":
        batch.rollout_info.begins[:, 0] = False  # no whole window
    state, found = copy.deepcopy(algorithm.state_dict()), []
    for shift in (0.0, 100.0):
        observation = batch.time_step.observation.clone()
        observation[0, 0] += shift
        algorithm.load_state_dict(state)
        torch.manual_seed(0)
        algorithm.train_step(batch._replace(time_step=batch.time_step._replace(observation=observation)))
        found.append({name: b.clone() for name, b in algorithm.named_buffers() if name.endswith((".mean", ".variance"))})
    trainer.close()
    assert any(not torch.equal(b, state[name]) for name, b in found[0].items())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("terminates", [True, False])
def test_windows_that_are_left_out_count_for_no_statistics_of_critics(terminates):
    trainer = with_backbone("sac_chunk", "flash_small", "SacChunkAlgorithm.keep_cut_windows = False")
    learn_until(trainer, 2 * trainer.agent.algorithm.policy_delay)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(32, trainer.segment_length))
    batch.time_step.step_type[:3, 0] = torch.tensor([1, 1, 2])  # of row 0, after two actions
    batch.time_step.discount[:3, 0] = torch.tensor([1.0, 1.0, 0.0 if terminates else 1.0])
    state, found = copy.deepcopy(algorithm.state_dict()), []
    for row in (0, 0, 1):
        action = batch.time_step.prev_action.clone()
        action[1:, row] -= 0.5 * len(found)
        algorithm.load_state_dict(state)
        torch.manual_seed(0)
        algorithm.train_step(batch._replace(time_step=batch.time_step._replace(prev_action=action)))
        found.append({name: b.clone() for name, b in algorithm.critics.named_buffers() if name.endswith((".mean", ".variance"))})
    trainer.close()
    torch.testing.assert_close(found[0], found[1])
    assert any(not torch.allclose(b, found[2][name]) for name, b in found[0].items())


def test_the_value_of_an_action_that_is_asked_for_is_of_a_new_trajectory():
    algorithm = small("linear", NEVER)
    frame, state = reference.frame(6), state_of("linear", 6)
    step = algorithm.predict_step(frame, state)
    assert not step.decided.any()
    asked = step._replace(decided=torch.ones_like(step.decided))
    q, _ = algorithm.action_values(frame, state, asked)
    new = algorithm.trajectory.start(algorithm.trajectory.output_for(step.output, state.tau), state.tau)
    features = algorithm.critic_features(frame, state)
    torch.testing.assert_close(q, algorithm.least_value(algorithm.q_values(algorithm.critics, features, *nest.flatten(new))))
    assert not torch.allclose(q, algorithm.action_values(frame, state, step)[0])


def test_what_acts_pays_the_price():
    free, priced = small(), small(decision_price=0.5)
    priced.load_state_dict(free.state_dict())
    frame, state = reference.frame(6), state_of("constant", 6)
    for how in ("predict_step", "rollout_step"):
        found = []
        for a in (free, priced):
            torch.manual_seed(0)
            found.append(torch.logit(getattr(a, how)(frame, state).switch_probability))
        torch.testing.assert_close(found[1], found[0] - 0.5 / free.beta_temperature.alpha(), rtol=1e-3, atol=1e-3)


def test_the_target_actor_sees_by_its_own_encoder():
    algorithm = td3(actor_encoder_ctor=LinearEncoder, encoder_ctor=LinearEncoder).float()
    for p in algorithm.actor_encoder.parameters():
        p.data.add_(torch.rand_like(p))
    algorithm.after_pretraining_step()  # targets are copies
    observation = reference.replayed(reference.VECTOR_SPEC).observation.float()
    features, action = algorithm.target_action(observation)
    torch.testing.assert_close(action, torch.tanh(algorithm.actor(algorithm.actor_features(observation))))
    torch.testing.assert_close(features, algorithm.encoder(observation))


def test_targets_begin_as_copies():
    encoders = {"encoder_ctor": LinearEncoder, "actor_encoder_ctor": LinearEncoder}
    algorithm = Td3Algorithm(reference.VECTOR_SPEC, reference.ACTION_SPEC, **encoders)
    pairs = algorithm.target_networks()
    assert len(pairs) == 4
    for target, network in pairs:
        assert all(map(torch.equal, target.state_dict().values(), network.state_dict().values()))


def test_the_error_of_a_segment_is_of_both_policies_of_tla():
    algorithm = tla()
    experience = batch_of(algorithm)
    info = algorithm.train_step(experience)
    fast = Td3Algorithm.calc_loss(algorithm, info.own.fast, info).segment_error
    expected = fast + algorithm.slow.calc_loss(info.own.slow, info.own.slow_info).segment_error
    torch.testing.assert_close(algorithm.calc_loss(experience, info).segment_error, expected)


def test_the_policy_told_is_the_one_that_acts():
    for is_open in (False, True):
        algorithm = always(is_open)
        step = algorithm.predict_step(reference.frame(5), algorithm.initial_state(5))
        torch.testing.assert_close(torch.tanh(step.policy[0]), step.output)


def test_noise_is_that_of_the_policy_that_acts():
    for is_open in (False, True):
        algorithm, frame = always(is_open), reference.frame(5)
        state = algorithm.initial_state(5)
        greedy = algorithm.predict_step(frame, state).output
        torch.testing.assert_close(algorithm.rollout_step(frame, state, torch.zeros_like(greedy)).output, greedy)


def test_targets_follow_what_was_projected():
    trainer = with_backbone("taac", "flash", "target_tau = 1.0")
    learn_until(trainer, 3)
    for target, network in trainer.agent.algorithm.target_networks():
        for p, q in zip(target.parameters(), network.parameters()):
            assert torch.equal(p, q)
    trainer.close()


def test_targets_are_not_projected():
    trainer = with_backbone("taac", "flash")
    algorithm = trainer.agent.algorithm
    trainer.close()
    own = {id(part) for part in projections(algorithm)}
    for target, _ in algorithm.target_networks():
        assert not any(id(part) in own for part in target.modules())
    assert own


def test_prefix_targets_of_the_best_of_samples_contain_no_entropy():
    algorithm = sac(critic_ctor=PrefixCritics, best_of=4)
    experience = segment([MID] * 4)
    found = []
    for alpha in (1.0, 50.0):
        algorithm.temperature.value.data.fill_(alpha)
        torch.manual_seed(0)
        found.append(algorithm._prefix_targets(experience).each)
    torch.testing.assert_close(*found)


def test_prefix_targets_value_what_the_online_critics_choose():
    algorithm = sac(critic_ctor=PrefixCritics, best_of=4)
    asked, min_q = [], algorithm.min_q
    algorithm.min_q = lambda critics, *args: asked.append(critics) or min_q(critics, *args)
    algorithm._prefix_targets(segment([MID] * 4))
    assert asked == [algorithm.critics]


def test_networks_are_needed_where_a_chunk_begins():
    algorithm = sac()
    frame = reference.frame(2)
    step = algorithm.predict_step(frame, algorithm.initial_state(2))
    needed = algorithm.needed_modules(step)
    assert set(needed) == set(algorithm.acting_modules()) and all(where.all() for where in needed.values())
    needed = algorithm.needed_modules(algorithm.predict_step(frame, step.state))
    assert needed and not any(where.any() for where in needed.values())


def test_a_random_step_leaves_nothing_of_a_chunk():
    algorithm = sac()
    frame = reference.frame(2)
    state = algorithm.predict_step(frame, algorithm.initial_state(2)).state
    assert (state.left == 2).all()
    assert (algorithm.random_step(frame, state).state.left == 0).all()


def test_durations_are_those_of_the_greatest_value():
    algorithm, frame = temporl(), reference.frame(4)
    state = algorithm.initial_state(4)
    step = algorithm.predict_step(frame, state)
    _, durations = algorithm.action_values(frame, state, step)
    assert torch.equal(durations.argmax(-1), step.state.left) and durations.shape == (4, algorithm.max_skip)


def test_what_is_executed_is_the_best_of_samples():
    algorithm = sac(best_of=200)
    nn.init.normal_(algorithm.critics.last.weight)
    frame, state = reference.frame(8), algorithm.initial_state(8)
    step = algorithm.rollout_step(frame, state)
    samples = torch.tanh(step.policy[0] + step.policy[1].exp() * torch.randn(500, *step.policy[0].shape))
    features = algorithm.encoder(frame.observation)

    def value(chunks):
        seen = features.expand(*chunks.shape[:-1], -1)
        return algorithm.least_value(algorithm.q_values(algorithm.critics, seen, *algorithm.action_parts(chunks)))

    chunk = torch.cat([step.output, step.state.actions[:, :-2]], -1)
    assert (value(chunk) >= value(samples).quantile(0.9, 0)).all()


def test_what_is_beyond_is_of_frames_that_are_learnt():
    trainer = build(CATEGORICAL, "normalize_rewards = False", "reward_clip = None", method="sac")
    learn_until(trainer, 1)
    batch = trainer.replay_buffer.sample(8, trainer.segment_length)
    batch.time_step.step_type[:] = 1
    batch.time_step.step_type[:-1, ::2] = 2  # LAST: nothing is learnt there
    batch.time_step.reward[:] = 0.0
    batch.time_step.reward[:, ::2] = 20.0
    assert trainer.learner.update(batch).extra["critic/beyond"].item() == pytest.approx(0.0, abs=0.1)
    trainer.close()
