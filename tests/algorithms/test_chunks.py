"""Chunks of actions: what is left of them, and SAC and TAAC on them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from taac import nest
from taac.algorithms import SacAlgorithm, TaacAlgorithm
from taac.algorithms.actor_regularizers import CAPS, L2C2
from taac.algorithms.chunks import ChunkTrajectory, make_chunk
from taac.algorithms.sac_chunk import SacChunkAlgorithm
from taac.algorithms.sac_hybrid import SacHybridAlgorithm
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss, TDLoss
from taac.algorithms.temperature import Temperature
from taac.algorithms.trajectories import QuadraticTrajectory, Tau, follow, part_sizes
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, PrefixCritics
from taac.ops.distributions import squashed_normal_action
from taac.ops.value_ops import prefix_returns
from taac.specs import TensorSpec, bounded
from tests.training.runs import build, trained

FIRST, MID, LAST = (int(kind) for kind in StepType)
SPEC, ACTION = TensorSpec((3,)), bounded((2,), -1.0, 1.0)
GAMMA = 0.9


def chunk_of(*actions, length=3):
    """The chunk `[1]` of these actions of two numbers each, the first of which is executed."""
    flat = torch.zeros(1, 2 * length)
    flat[0, : 2 * len(actions)] = torch.tensor(actions).flatten()
    return make_chunk(flat, torch.tensor([len(actions)]), length)


# The trajectory ---------------------------------------------------------------------------------------------------------------


def test_a_chunk_is_followed_to_its_end():
    trajectory, a, b, c = ChunkTrajectory(3), (0.1, 0.2), (0.3, 0.4), (0.5, 0.6)
    rest = trajectory.zeros(torch.zeros(1, 2))
    assert trajectory.ended(rest).tolist() == [True] and trajectory.proposal_size(2) == 6
    tau = trajectory.start(torch.tensor([[*a, *b, *c]]), rest)
    for expected in (chunk_of(a, b, c), chunk_of(b, c), chunk_of(c)):
        assert all(torch.equal(x, y) for x, y in zip(tau, expected, strict=True))
        assert trajectory.ended(tau).tolist() == [expected.left.item() == 0]
        tau = trajectory.advance(tau)
    assert part_sizes(trajectory, torch.zeros(2)) == [2, 4, 1]
    proposal = trajectory.output_for(torch.tensor([[*a]]), rest)
    assert torch.equal(proposal, torch.tensor([[*a, *a, *a]]))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_as_many_steps_as_actions(length):
    trajectory = ChunkTrajectory(length)
    tau = trajectory.start(torch.rand(4, 2 * length), trajectory.zeros(torch.zeros(4, 2)))
    for _ in range(length - 1):
        assert not trajectory.ended(tau).any()
        tau = trajectory.advance(tau)
    assert trajectory.ended(tau).all()


def test_actions_that_do_not_exist_are_masked():
    chunk = make_chunk(torch.ones(2, 6), torch.tensor([1, 2]), 3)
    assert chunk.rest.tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]] and chunk.left.tolist() == [[0], [0.5]]
    with pytest.raises(TaacError, match="1 or more"):
        ChunkTrajectory(0)


def test_recorded_actions_are_explained_by_chunks():
    """Of three, which are followed to their ends, and begin anew with an episode, whose last action is repeated after it."""
    action = torch.arange(14.0).view(7, 1, 2) / 20
    first = torch.tensor([True, False, False, False, False, True, False, False]).unsqueeze(1)  # frame 5 follows a LAST
    tau, switch = follow(ChunkTrajectory(3), action, first)
    assert switch[[0, 1, 2, 3, 5, 6], 0].tolist() == [True, False, False, True, True, False]  # that at LAST is not read
    assert torch.equal(tau.a[1:5], action[:4]) and torch.equal(tau.a[6:], action[5:]) and not tau.a[5].any()
    assert torch.equal(tau.rest[1, 0], action[1:3].flatten()) and torch.equal(tau.rest[4, 0], action[[3, 3]].flatten())
    assert torch.equal(tau.rest[6, 0], action[[6, 6]].flatten())
    assert (tau.left[1:, 0, 0] * 2).tolist() == [2, 1, 0, 2, 0, 2, 1]


def test_recorded_chunks_do_not_depend_on_the_episodes_beside_them():
    """Episodes of 9 and of 4 frames, padded to one length, against each alone."""
    algorithm, alone = taac(5), [segment([FIRST, *[MID] * (n - 2), LAST]).time_step for n in (9, 4)]
    padded = nest.map_structure(lambda *x: nn.utils.rnn.pad_sequence([leaf[:, 0] for leaf in x]), *alone)
    found = algorithm.demonstrated_info(padded)
    for i, step in enumerate(alone):
        expected, length = algorithm.demonstrated_info(step), len(step.reward)
        assert torch.equal(found.switch[: length - 1, i], expected.switch[: length - 1, 0])
        for x, y in zip(nest.flatten(found.tau_prev), nest.flatten(expected.tau_prev), strict=True):
            assert torch.equal(x[:length, i], y[:, 0])


def test_recorded_chunks_end_where_an_agent_leaves():
    """Its frames after that are LAST, and their actions are none of its own."""
    algorithm = taac(5)
    time_step = segment([FIRST, MID, MID, LAST, LAST, LAST, LAST]).time_step
    action = time_step.prev_action[1:, 0]
    begun = nest.index(algorithm.demonstrated_info(time_step).tau_prev, 1)  # after the first action of the chunk
    assert torch.equal(algorithm.trajectory.proposal(begun)[0], action[[0, 1, 2, 2, 2]].flatten())


def test_the_next_recorded_actions_are_cloned():
    """Where a chunk begins."""
    experience = segment([FIRST, MID, MID, MID, MID])
    algorithm = taac(3)
    experience = experience._replace(rollout_info=algorithm.demonstrated_info(experience.time_step))
    loss = algorithm.cloning_loss(experience)
    action, tau = experience.time_step.prev_action[1:, 0], experience.rollout_info.tau_prev
    mean, _ = algorithm.actor(algorithm.tau_embedding(algorithm.actor_features(experience.time_step.observation), tau))
    expected = torch.zeros(4)
    for frame, plan in {0: [0, 1, 2], 3: [3, 3, 3]}.items():
        expected[frame] = (torch.tanh(mean[frame, 0]) - action[plan].flatten()).square().sum()
    assert expected[0] > 0 and torch.allclose(loss[:4, 0], expected)


def test_random_chunks_to_begin_with_are_refused():
    with pytest.raises(TaacError, match="randomize_first_state_tau does not support ChunkTrajectory"):
        TaacAlgorithm(SPEC, ACTION, trajectory=ChunkTrajectory(3), randomize_first_state_tau=True)


def test_recorded_actions_of_0_begin_a_chunk_where_one_has_ended():
    """A chunk that has ended would go on with 0, but there a switch is forced. At FIRST too: nothing is there to go on with."""
    _, switch = follow(ChunkTrajectory(3), torch.zeros(5, 1, 2))
    assert switch[:, 0].tolist() == [True, False, False, True, False]


# SAC on chunks ----------------------------------------------------------------------------------------------------------------


def sac(length=3, ctor=SacChunkAlgorithm, **more):
    torch.manual_seed(0)
    chunk = {"chunk_length": length} if ctor is SacChunkAlgorithm else {}
    algorithm = ctor(SPEC, ACTION, **{"actor_on_last_frame": False, **chunk, **more})
    algorithm.td_loss.set_gamma(0, GAMMA)
    return algorithm


class Signed(nn.Module):
    output_size = 3

    def __init__(self, observation_spec):
        super().__init__()
        self.sign = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.sign


def segment(kinds, discount=None):
    """One segment `[T, 1]` of steps of these kinds, with rewards 1, 2, 4... on arrival and actions that tell their frame."""
    count = len(kinds)
    torch.manual_seed(1)
    discount = torch.ones(count, 1) if discount is None else torch.tensor(discount).unsqueeze(1)
    reward = (2.0 ** torch.arange(count)).unsqueeze(1) / 2 * (torch.tensor(kinds) != FIRST).unsqueeze(1)
    action = (torch.arange(count) / 10).view(count, 1, 1).expand(count, 1, 2)
    step = TimeStep(
        torch.tensor(kinds, dtype=torch.uint8).unsqueeze(1), reward, discount, torch.randn(count, 1, 3), action,
        torch.ones(count, 1, dtype=torch.int16),
    )  # fmt: skip
    return Experience(step, ())


@pytest.mark.parametrize("joint", [{}, {"combine_critics": "mean"}, {"entropy_in_target": False}])
def test_chunks_of_one_action_are_sac(joint):
    """Loss, gradients and actions, bit for bit."""
    found = []
    for ctor in (SacAlgorithm, SacChunkAlgorithm):
        algorithm = sac(1, ctor, **joint)
        experience = segment([FIRST, MID])
        torch.manual_seed(2)
        loss = algorithm.calc_loss(experience, algorithm.train_step(experience)).loss
        loss.mean().backward()
        state = algorithm.initial_state(1)
        step = algorithm.rollout_step(nest.index(experience.time_step, 1), state)
        assert step.decided.all()
        found.append([loss, step.output, *(p.grad for p in algorithm.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize(
    "kinds, discount, actions, reward, product",
    [
        ([FIRST, MID, MID, MID], None, 3, 1 + 2 * GAMMA + 4 * GAMMA**2, GAMMA**3),
        ([MID, MID, LAST, FIRST], None, 2, 1 + 2 * GAMMA, GAMMA**2),  # truncated: bootstraps there
        ([MID, MID, LAST, FIRST], [1.0, 1.0, 0.0, 1.0], 2, 1 + 2 * GAMMA, 0.0),
        ([MID, LAST, FIRST, MID], [1.0, 0.0, 1.0, 1.0], 1, 1.0, 0.0),
        ([MID, MID, MID, LAST], [1.0, 1.0, 1.0, 0.0], 3, 1 + 2 * GAMMA + 4 * GAMMA**2, 0.0),
    ],
)  # fmt: skip
def test_a_window_by_hand(kinds, discount, actions, reward, product):
    experience = segment(kinds, discount)
    windows = sac().windows(experience)
    step = windows.experience.time_step
    assert windows.num_actions.tolist() == [actions]
    assert windows.bootstrap.reward.item() == pytest.approx(reward)
    assert windows.bootstrap.discount.item() == pytest.approx(product)
    assert torch.equal(step.observation, experience.time_step.observation[[0, actions]])
    assert step.step_type[:, 0].tolist() == [kinds[0], kinds[actions]]
    a, rest, left = sac().action_parts(step.prev_action[1])
    executed, others = torch.cat([a, rest], -1)[0].tensor_split([2 * actions])
    assert torch.equal(executed, experience.time_step.prev_action[1 : actions + 1, 0].flatten())
    if product == 0:  # after a termination anything may follow
        assert left.item() == 1 and len(others.unique()) == len(others) and (others.abs() <= 1).all()
    else:
        assert left.item() == (actions - 1) / 2 and not others.any()


@pytest.mark.slow
@pytest.mark.parametrize("critics", [CriticEnsemble, PrefixCritics])
def test_a_chunk_that_terminates_early_is_worth_what_it_earned(critics):
    """One state; an action above 0.6 earns 1 and ends the episode. The critics are asked for whole chunks alone."""
    torch.manual_seed(0)
    algorithm = SacChunkAlgorithm(
        SPEC, bounded((1,), -1.0, 1.0), chunk_length=3, entropy_in_target=False,
        critic_ctor=functools.partial(critics, hidden_layers=(32, 32)),
        actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)),
    )  # fmt: skip
    algorithm.td_loss.set_gamma(0, GAMMA)
    optimizer = torch.optim.Adam(algorithm.parameters(), 1e-2)
    for update in range(300):
        action = torch.rand(4, 256, 1) * 2 - 1
        wins = (action > 0.6)[..., 0]
        wins[0] = False
        kind = torch.where(wins, LAST, MID).masked_fill(wins.cumsum(0) - wins.long() > 0, FIRST).to(torch.uint8)
        steps = torch.ones(4, 256, dtype=torch.int16)
        experience = Experience(TimeStep(kind, wins.float(), 1.0 - wins.float(), torch.ones(4, 256, 3), action, steps), ())
        optimizer.zero_grad()
        algorithm.calc_loss(experience, algorithm.train_step(experience)).loss.mean().backward()
        optimizer.step()
        algorithm.after_update(update)
    asked = torch.tensor([[0.9, -0.5, -0.5], [0.9, 0.3, -0.9], [-0.5, 0.9, 0.0], [-0.5, -0.5, 0.9]])
    q = algorithm.value_of(algorithm.critics, algorithm.critics(torch.ones(4, 3), *algorithm.action_parts(asked)))
    torch.testing.assert_close(q.mean(0), torch.tensor([1.0, 1.0, GAMMA, GAMMA**2]), atol=0.15, rtol=0)


@pytest.mark.parametrize("best_of", [None, 3])
def test_chunks_that_terminated_by_chance_are_those_that_did_not(best_of):
    """All chunks are of one policy. Half of the episodes end after one action, earning 0; after two the others earn 1."""
    batch = 40_000
    torch.manual_seed(0)
    algorithm = SacChunkAlgorithm(SPEC, bounded((1,), -1.0, 1.0), chunk_length=2, best_of=best_of)
    algorithm.actor.forward = lambda features: (torch.zeros(*features.shape[:-1], 2),) * 2
    algorithm.critics.forward = lambda features, *action: torch.stack([(action[0] * action[1])[..., 0].sign()] * 2)
    taken = algorithm._proposed(torch.ones(batch, 3), torch.zeros(batch, 2), torch.zeros(batch, 2, dtype=torch.bool))
    action = torch.stack([torch.zeros(batch, 1), taken[:, :1], taken[:, 1:]])
    dies = torch.rand(batch) < 0.5
    kind = torch.stack([torch.full((batch,), FIRST), torch.where(dies, LAST, MID), torch.where(dies, FIRST, LAST)])
    reward, discount = torch.zeros(3, batch), torch.ones(3, batch)
    reward[2], discount[1], discount[2] = (~dies).float(), (~dies).float(), dies.float()
    step = TimeStep(kind.to(torch.uint8), reward, discount, torch.ones(3, batch, 3), action, torch.ones(3, batch).short())
    windows = algorithm.windows(Experience(step, ()))
    chunk, value = windows.experience.time_step.prev_action[1, :, :2], windows.bootstrap.reward[0]
    assert torch.equal(chunk[:, 0], taken[:, 0]) and torch.equal(chunk[~dies], taken[~dies])
    alike = chunk.prod(-1) > 0  # signs, as critics like them
    assert alike.float().mean().item() == pytest.approx(0.5 if best_of is None else 7 / 8, abs=0.02)
    for part in (alike, ~alike):
        assert value[part].mean().item() == pytest.approx(0.5, abs=0.03)


def test_prefix_critics_without_prefix_targets_learn_the_whole_chunk():
    critics = PrefixCritics(3 + 7, action_sizes=[2, 4, 1], hidden_layers=(8,))
    prediction, target = torch.randn(2, 4, 5, 3), torch.randn(4, 5)
    expected = sum((whole - target) ** 2 for whole in prediction[..., -1])
    torch.testing.assert_close(critics.loss(prediction, target), expected)


def test_actions_after_the_end_of_an_episode_are_not_cloned():
    algorithm, cut = sac(), segment([MID, LAST, FIRST, MID])
    mean, _ = algorithm.actor(algorithm.actor_features(cut.time_step.observation[0]))
    expected = (torch.tanh(mean)[0, :2] - cut.time_step.prev_action[1, 0]).square().sum()
    assert algorithm.cloning_loss(cut)[0].item() == pytest.approx(expected.item())


def test_the_rest_of_a_chunk_is_chosen_by_critics_that_see_their_own_encoder():
    algorithm = sac(best_of=5, encoder_ctor=Signed)
    algorithm.target_encoder.sign.data.fill_(-1.0)
    seen, best, observation = [], algorithm._best, torch.randn(4, 3)
    algorithm._best = lambda features, samples: seen.append(features) or best(features, samples)
    algorithm._proposed(observation, torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.bool))
    assert torch.equal(seen[0], observation)


def test_of_a_cut_window_the_actions_that_were_taken_are_imitated():
    """By their likelihood, and by cloning."""
    algorithm, cut = sac(best_of=4), segment([MID, MID, LAST, FIRST])
    info = algorithm.train_step(cut)
    step = algorithm.windows(cut).experience.time_step
    mean, log_std = algorithm.actor(algorithm.actor_features(step.observation[:1]))
    action = step.prev_action[1:, :, :-1]
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.atanh(action)) - torch.log(1 - action**2)
    assert algorithm._imitating(info.own, info)[0].item() == pytest.approx(-density[..., :4].sum().item(), rel=1e-5)
    expected = (torch.tanh(mean) - action)[..., :4].square().sum(-1)
    assert torch.allclose(algorithm.cloning_loss(cut)[:1], expected)
    assert expected.item() > 0


@pytest.mark.parametrize("weight, last", [(0.0, False), (0.25, False), (0.25, True)])
def test_replayed_chunks_are_imitated_as_much_as_asked_for(weight, last):
    """Whether or not the actor also learns from the frame after them."""
    algorithm, experience = sac(cloning_weight=weight, actor_on_last_frame=last), segment([FIRST, MID, MID, MID])
    info = algorithm.train_step(experience)
    mean, log_std = algorithm.actor(algorithm.actor_features(experience.time_step.observation[0]))
    action = experience.time_step.prev_action[1:].flatten()
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.atanh(action)) - torch.log(1 - action**2)
    found = algorithm.calc_loss(experience, info).extra["loss/actor"] - sac().calc_loss(experience, info).extra["loss/actor"]
    assert len(info.actor_loss) == 1 + last and found.item() == pytest.approx(-weight * density.sum().item(), rel=1e-4)


def test_a_cut_window_is_left_out_of_the_critics_loss_if_asked_for():
    for kinds, whole in ([MID, LAST, FIRST, MID], False), ([MID, MID, MID, LAST], True), ([MID] * 4, True):
        found = []
        for keep in (True, False):
            algorithm, experience = sac(keep_cut_windows=keep), segment(kinds)
            algorithm._proposed = lambda observation, begun, taken: begun  # draws nothing
            torch.manual_seed(2)
            loss = algorithm.calc_loss(experience, algorithm.train_step(experience))
            loss.loss.mean().backward()
            found.append((loss, [p.grad for p in algorithm.critics.parameters()], [p.grad for p in algorithm.actor.parameters()]))
        (kept, critics, actor), (left, other, same) = found
        torch.testing.assert_close(same, actor)  # it learns at such states, too
        assert (left.extra["loss/critic"] == kept.extra["loss/critic"]) == whole and kept.extra["loss/critic"] > 0
        assert any(g.any() for g in critics) and any(g.any() for g in other) == whole
        assert (left.segment_error > 0).item() == whole  # a priority that no update would lower
    both = nest.map_structure(lambda *x: torch.cat(x, 1), segment([MID] * 4), segment([MID, LAST, FIRST, MID]))
    algorithm = sac(keep_cut_windows=False)
    info = algorithm.train_step(both)
    assert info.regressed[0].tolist() == [True, False]
    algorithm.critics.beyond = lambda target: torch.tensor([[0.25, 1.0]])
    found = algorithm.calc_loss(both, info)
    assert found.extra["critic/beyond"] == 0.25
    assert found.extra["critic/q"] == info.q[:, 0, 0].mean()  # of what is learnt alone
    assert found.detail["regressed"] is info.regressed


@pytest.mark.parametrize("regularizer", [CAPS, L2C2])
def test_regularizers_of_single_actions_are_refused(regularizer):
    """A plan that goes on as it was is another chunk one step later."""
    for make in sac, taac:
        with pytest.raises(TaacError, match=r"supports no actor_regularizers.*most that is built on them"):
            make(actor_regularizers=(regularizer,))


@pytest.mark.parametrize("prefixes", [False, True])
def test_what_targets_value_is_chosen_by_online_critics_on_their_own_features(prefixes):
    """The encoders differ in sign: on the target's features the online critics would like the opposite."""
    critics = {"critic_ctor": PrefixCritics} if prefixes else {}
    algorithm, experience = sac(best_of=50, encoder_ctor=Signed, **critics), segment([MID] * 4)
    algorithm.target_encoder.sign.data.fill_(-1.0)
    seen, liked = [], lambda x, *action: action[0].sum(-1) * x[..., 0].sign() * experience.time_step.observation[-1, 0, 0].sign()

    def valued(x, *action):
        seen.append((x, action[0]))
        return torch.zeros(2, *x.shape[:-1], *([3] if prefixes else []))

    algorithm.q_values = lambda critics, x, *action: liked(x, *action).expand(2, *x.shape[:-1])
    algorithm.target_critics.forward = valued
    algorithm.train_step(experience)
    features, action = seen[-1]
    observation = experience.time_step.observation[-1]
    assert torch.equal(features[-1], -observation) and (action[-1].sum() > 0.5)


def test_targets_value_what_the_online_critics_choose():
    """Of two chunks, all numbers 0.5 or -0.5, the online critics like one, the targets' value is that of the same one."""
    algorithm, experience = sac(best_of=50), segment([MID] * 4)
    algorithm.critics.forward = lambda x, *action: action[0].sum(-1).expand(2, *x.shape[:-1])
    algorithm.target_critics.forward = lambda x, *action: -action[0].sum(-1).expand(2, *x.shape[:-1])
    step = algorithm.critic_step(experience.time_step, algorithm.encoder(experience.time_step.observation), torch.zeros(3, 1, 6))
    seen = experience.time_step.observation[1:]
    value, _ = algorithm.next_value(step, algorithm.encoder(seen), algorithm.actor_features(seen), None, None)
    assert (value < 0).all()  # of the largest sum of 50


@pytest.mark.parametrize("soft", [True, False])
def test_the_target_is_the_return_of_the_chunk(soft):
    """The critics' loss, too: the sum of squared errors at the chunk that was executed."""
    algorithm, experience = sac(combine_critics="mean", entropy_in_target=soft), segment([FIRST, MID, MID, MID])
    torch.manual_seed(5)
    info = algorithm.train_step(experience)
    target = algorithm.targets(info.own.experience, info)
    torch.manual_seed(5)
    with torch.no_grad():
        observation = experience.time_step.observation
        torch.randn(1, 6), torch.randn(1, 1, 6)  # what follows a termination, and the actor's own sample, come first
        mean, log_std = algorithm.actor(algorithm.actor_features(observation[3]))
        noise = torch.randn(1, 6)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_pi = torch.distributions.Normal(0.0, 1.0).log_prob(noise) - log_std - torch.log(1 - action**2 + 1e-12)
        parts = (action[:, :2], action[:, 2:], torch.ones(1, 1))
        value = algorithm.target_critics(algorithm.encoder(observation[3]), *parts).mean(0) - soft * log_pi.sum(-1)
        executed = experience.time_step.prev_action[1:].reshape(1, 6)
        parts = (executed[:, :2], executed[:, 2:], torch.ones(1, 1))
        q = algorithm.critics(algorithm.encoder(observation[0]), *parts)
    expected = (1 + 2 * GAMMA + 4 * GAMMA**2 + GAMMA**3 * value).item()
    assert target.item() == pytest.approx(expected, rel=1e-4)
    loss = algorithm.calc_loss(experience, info).extra["loss/critic"]
    assert loss.item() == pytest.approx(((q - expected) ** 2).sum().item(), rel=1e-4)


def test_a_chunk_is_executed_without_looking_again():
    algorithm = sac()
    state, steps = algorithm.initial_state(2), []
    frame = nest.index(segment([MID] * 8).time_step, slice(0, 8))
    for t in range(7):
        step = nest.map_structure(lambda x, t=t: x[t].repeat(2, *[1] * (x.dim() - 2)), frame)
        steps.append(algorithm.predict_step(step, state))
        state = steps[-1].state
    assert [step.decided.tolist() for step in steps] == [[t % 3 == 0] * 2 for t in range(7)]
    proposed = torch.tanh(algorithm.actor(algorithm.actor_features(frame.observation[3]))[0])[0].detach()
    assert torch.allclose(torch.cat([step.output[0] for step in steps[3:6]]), proposed)
    before, *taken = nest.index((steps[2].state, steps[3], steps[4]), slice(0, 1))
    q, _ = algorithm.action_values(nest.index(frame, 3), before, taken[0])
    parts = (proposed[None, :2], proposed[None, 2:], torch.ones(1, 1))
    expected = algorithm.critics(algorithm.encoder(frame.observation[3]), *parts).amin(0)
    assert q.item() == pytest.approx(expected.item(), abs=1e-6)
    assert algorithm.action_values(nest.index(frame, 4), taken[0].state, taken[1])[0].isnan()


@pytest.mark.parametrize(
    "kinds, expected",
    [
        ([FIRST, MID, MID, MID], [1 + 0.9 * 10, 1 + 0.9 * 2 + 0.81 * 20, 1 + 0.9 * 2 + 0.81 * 4 + 0.729 * 30]),
        ([MID, MID, LAST, FIRST], [1 + 0.9 * 10, 1 + 0.9 * 2 + 0.81 * 20, 1 + 0.9 * 2 + 0.81 * 20]),  # all later ones are LAST's
        ([MID, LAST, FIRST, MID], [1 + 0.9 * 10] * 3),
    ],
)  # fmt: skip
def test_returns_of_prefixes_by_hand(kinds, expected):
    """Rewards 1, 2, 4 on arrival, or 0 at FIRST; values 10, 20, 30 of frames 1, 2, 3."""
    step, value = segment(kinds).time_step, torch.tensor([[99.0], [10.0], [20.0], [30.0]])
    found = prefix_returns(step.reward, value, step.step_type, GAMMA * step.discount)
    assert found[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("soft", [True, False])
def test_targets_of_prefixes_have_the_entropy_bonus(soft):
    """Of the chunk that is newly sampled where a prefix ends."""
    algorithm, experience = sac(critic_ctor=PrefixCritics, entropy_in_target=soft), segment([FIRST, MID, MID, MID])
    algorithm.target_critics.forward = lambda x, *action: torch.zeros(2, *x.shape[:-1], 3)
    torch.manual_seed(5)
    targets = algorithm._prefix_targets(experience).each[0, 0]
    torch.manual_seed(5)
    mean, log_std = algorithm.actor(algorithm.actor_features(experience.time_step.observation[1:]))
    noise = torch.randn_like(mean)
    action = torch.tanh(mean + log_std.exp() * noise)
    log_pi = torch.distributions.Normal(0.0, 1.0).log_prob(noise) - log_std - torch.log(1 - action**2 + 1e-12)
    value = -soft * log_pi.sum(-1)[:, 0]
    returns = [1.0, 1 + 2 * GAMMA, 1 + 2 * GAMMA + 4 * GAMMA**2]
    expected = [returns[k] + GAMMA ** (k + 1) * value[k].item() for k in range(3)]
    assert targets.tolist() == pytest.approx(expected, rel=1e-4)


def test_prefix_critics_value_what_exists():
    torch.manual_seed(0)
    critics = PrefixCritics(3 + 7, action_sizes=[2, 4, 1], hidden_layers=(8, 8), num_critics=3)
    nn.init.normal_(critics.last.weight)
    features, actions = torch.randn(5, 3), torch.rand(5, 6)
    every = critics(features, *make_chunk(actions, 3, 3))
    assert every.shape == (3, 5, 3)
    for k in (1, 2, 3):
        part = critics(features, *make_chunk(actions, k, 3))
        assert torch.allclose(critics.value(part), every[..., k - 1], atol=1e-6)
        assert torch.allclose(part[..., :k], every[..., :k], atol=1e-6)
    changed = actions.clone()
    changed[:, 4:] = 0.5
    assert torch.allclose(critics(features, *make_chunk(changed, 3, 3))[..., :2], every[..., :2])
    assert not torch.allclose(critics(features, *make_chunk(changed, 3, 3))[..., 2], every[..., 2])
    single = PrefixCritics(3 + 2, action_sizes=[2], hidden_layers=(8,))
    assert single(features, actions[:, :2]).shape == (2, 5, 1)


def test_prefix_critics_are_a_gru_of_torch():
    critics = PrefixCritics(3 + 7, action_sizes=[2, 4, 1], hidden_layers=(8,), num_critics=1)
    gru = nn.GRUCell(2, 8)
    with torch.no_grad():
        gru.weight_ih.copy_(critics.of_action.weight[0].T)
        gru.weight_hh.copy_(critics.of_state.weight[0].T)
        gru.bias_ih.copy_(critics.of_action.bias[0, 0])
        gru.bias_hh.copy_(critics.of_state.bias[0, 0])
        features, actions = torch.randn(4, 3), torch.rand(4, 6)
        x = torch.relu(critics.hidden[0](features[None]))[0]
        for k in range(3):
            x = gru(actions[:, 2 * k : 2 * k + 2], x)
            q = critics(features, *make_chunk(actions, 3, 3))[0, :, k]
            assert torch.allclose(q, critics.last(x[None])[0, :, 0], atol=1e-6)


def test_all_prefixes_are_learnt():
    """Of a chunk cut after two actions, the second target counts for the third."""
    algorithm = sac(critic_ctor=PrefixCritics)
    experience = segment([MID, MID, LAST, FIRST], [1.0, 1.0, 0.0, 1.0])
    torch.manual_seed(3)
    info = algorithm.train_step(experience)
    target = algorithm.targets(info.own.experience, info)
    assert target.each[0, 0, 1:].tolist() == pytest.approx([1 + 2 * GAMMA] * 2)
    assert target.each[0, 0, 0].item() != pytest.approx(1.0)
    loss = algorithm.critic_loss(info.prediction, target)[0]
    assert loss.item() == pytest.approx((info.prediction[:, 0, 0] - target.each[0, 0]).square().mean(-1).sum().item())


@pytest.mark.parametrize(
    "more, said",
    [({"length": 0}, "chunk_length.*1 or more"), ({"best_of": 0}, "best_of"), ({"cloning_weight": -1.0}, "cloning_weight"),
     ({"best_of": 4, "cloning_weight": 0.5}, "expected 0 with it, got 0.5")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(more, said):
    with pytest.raises(TaacError, match=said):
        sac(**more)


def test_prefix_critics_need_chunks():
    with pytest.raises(TaacError, match="sac_chunk or taac_chunk"):
        PrefixCritics(5, action_sizes=[2, 1])
    with pytest.raises(TaacError, match="one reward"):
        PrefixCritics(5, 2, action_sizes=[2])
    with pytest.raises(TaacError, match="method's are none, for 4 choices: use it with sac_chunk or taac_chunk"):
        PrefixCritics(5, action_sizes=[], num_choices=4)
    with pytest.raises(TaacError, match="method's are 2, 2, 2: use it"):
        PrefixCritics(9, action_sizes=[2, 2, 2])
    with pytest.raises(TaacError, match="PrefixCritics value chunks, and QuadraticTrajectory proposes none"):
        TaacAlgorithm(SPEC, bounded((1,), -1.0, 1.0), trajectory=QuadraticTrajectory(), critic_ctor=PrefixCritics)


def test_another_way_to_combine_critics_is_refused():
    with pytest.raises(TaacError, match=r"SacChunkAlgorithm\.combine_critics must be 'min' or 'mean', got 'average'"):
        sac(combine_critics="average")


# TAAC on chunks ---------------------------------------------------------------------------------------------------------------


def taac(length=3, other_rests=0.0, **more):
    torch.manual_seed(0)
    algorithm = TaacAlgorithm(SPEC, ACTION, trajectory=ChunkTrajectory(length, other_rests), **more)
    algorithm.td_loss.set_gamma(0, GAMMA)
    return algorithm


def rolled_out(algorithm, kinds):
    """A segment `[T, 1]` of an episode that the algorithm plays, as the replay buffer holds it."""
    frames, infos, action, state = segment(kinds).time_step, [], torch.zeros(1, 2), algorithm.initial_state(1)
    actions = []
    for t in range(len(kinds)):
        actions.append(action)
        step = algorithm.rollout_step(nest.index(frames, t)._replace(prev_action=action), state)
        action, state = step.output, step.state
        infos.append(step.info)
    info = nest.map_structure(lambda *leaves: torch.stack(leaves), *infos)
    return Experience(frames._replace(prev_action=torch.stack(actions)), info)


def test_the_target_entropy_counts_all_numbers_of_a_chunk():
    alone, chunk = taac(1).temperatures()["action"], taac(3).temperatures()["action"]
    assert chunk.target_entropy == pytest.approx(3 * alone.target_entropy)


def test_a_learnt_switch_learns_nothing_where_it_is_forced():
    """Chunks of one action end at every frame: going on has no value there, and nobody can choose it."""
    torch.manual_seed(0)
    algorithm = SacHybridAlgorithm(SPEC, ACTION, trajectory=ChunkTrajectory(1))
    experience = rolled_out(algorithm, [FIRST, MID, MID, LAST])
    switch = list(algorithm.switch_network.parameters())
    for loss in (algorithm.train_step(experience).actor_loss, algorithm.cloning_loss(experience)):
        assert all(not gradient.any() for gradient in torch.autograd.grad(loss.sum(), switch, materialize_grads=True))


@pytest.mark.parametrize("critics", [CriticEnsemble, PrefixCritics])
def test_taac_switches_where_a_chunk_ends(critics):
    algorithm = taac(critic_ctor=critics, b1_advantage_clipping=(-50.0, -50.0))  # it never wants to
    state, decided = algorithm.initial_state(1), []
    for t in range(7):
        step = algorithm.rollout_step(nest.index(segment([FIRST if t == 0 else MID] * 2).time_step, 0), state)
        state = step.state
        decided.append(step.decided.item())
    assert decided == [t % 3 == 0 for t in range(7)], "open loop"


def test_taac_that_never_wants_to_switch_executes_whole_chunks():
    algorithm = taac(b1_advantage_clipping=(-50.0, -50.0))
    frames, state, actions = segment([MID] * 8).time_step, algorithm.initial_state(1), []
    for t in range(6):
        frame = nest.index(frames, t)
        if t % 3 == 0:
            with torch.no_grad():
                embedded = algorithm.tau_embedding(algorithm.encode(frame.observation)[1], state.tau)
                proposed = torch.tanh(algorithm.actor(embedded)[0])
        step = algorithm.predict_step(frame, state)
        state = step.state
        actions.append(step.output)
        torch.testing.assert_close(step.output, proposed[:, 2 * (t % 3) : 2 * (t % 3) + 2])
    assert len(set(map(tuple, torch.cat(actions).tolist()))) == 6


@pytest.mark.parametrize(
    "method, critics", [("taac_chunk", "PrefixCritics"), ("sac_chunk", "PrefixCritics"), ("sac_chunk", None)]
)
@pytest.mark.parametrize("more", [[], ["create_agent.reward_signals = (@RND,)"]])
def test_chunks_are_learnt(method, critics, more):
    """With critics of prefixes, which refuse a vector reward; with two parts of the reward in a batch of 32."""
    params = [*more, "Learner.diagnostics = 'scalars'", *([f"ActorCriticAlgorithm.critic_ctor = @{critics}"] if critics else [])]
    if more and critics:
        with pytest.raises(TaacError, match="PrefixCritics value one reward"):
            build(*params, method=method)
        return
    trainer = build(*params, method=method)
    before = [p.clone() for p in trainer.agent.algorithm.critics.parameters()]
    trainer = trained(trainer, 2)
    assert not any(torch.equal(a, b) for a, b in zip(before, trainer.agent.algorithm.critics.parameters()))


def test_what_diagnostics_are_told_of_a_chunk():
    """Its actions without their number, and no value of the next state where prefixes have one each."""
    for ctor in (CriticEnsemble, PrefixCritics):
        algorithm, experience = sac(critic_ctor=ctor), segment([FIRST, MID, MID, LAST])
        detail = algorithm.calc_loss(experience, algorithm.train_step(experience)).detail
        assert detail["action"][0, 0].tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
        assert ("value" in detail) == (ctor is CriticEnsemble)


def test_where_samples_are_chosen_nothing_has_a_temperature_and_nothing_is_dropped():
    algorithm, experience = sac(best_of=4), segment([FIRST, MID, MID, MID])
    algorithm.critics.train()
    seen, forward = [], algorithm.critics.forward
    algorithm.critics.forward = lambda *inputs: seen.append(algorithm.critics.training) or forward(*inputs)
    info = algorithm.train_step(experience)
    assert "loss/temperature_action" not in algorithm.calc_loss(experience, info).extra
    assert False in seen and True in seen


def test_random_steps_switch_where_a_chunk_ends(monkeypatch):
    algorithm = taac(3)
    monkeypatch.setattr(algorithm, "random_switch", lambda batch: torch.zeros(batch, dtype=torch.bool))  # it never wants to
    state, decided = algorithm.initial_state(1), []
    for _ in range(7):
        step = algorithm.random_step(nest.index(segment([MID, MID]).time_step, 0), state)
        state = step.state
        decided.append(step.decided.item())
    assert decided == [t % 3 == 0 for t in range(7)]


def test_chunks_of_one_action_decide_at_every_step():
    """And the temperature of the switch, 0.5 here, has nothing to learn from."""
    algorithm = taac(1, temperature_ctor=functools.partial(Temperature, initial_value=0.5))
    experience = rolled_out(algorithm, [FIRST, MID, MID, MID, LAST])
    info = algorithm.train_step(experience)
    assert experience.rollout_info.switch.all() and info.switch.all()
    assert (info.beta[..., 1] == 1).all()
    loss = algorithm.calc_loss(experience, info)
    assert loss.extra["loss/temperature_beta"] == 0 and loss.extra["beta/reach_through"] == 0
    # TAAC-1td whose switch is forced to act, from the same parameters
    other = TaacAlgorithm(SPEC, ACTION, td_loss=OneStepTDLoss(gamma=GAMMA), b1_advantage_clipping=(50.0, 50.0))
    other.load_state_dict(algorithm.state_dict())
    rollout_info = experience.rollout_info._replace(tau_prev=Tau(experience.rollout_info.tau_prev.a, (), ()))
    found = []
    for of, seen in ((algorithm, experience), (other, experience._replace(rollout_info=rollout_info))):
        torch.manual_seed(3)
        of.zero_grad()
        told = of.calc_loss(seen, of.train_step(seen))
        told.loss.mean().backward()
        found.append([told.extra[f"loss/{name}"] for name in ("actor", "critic", "temperature_action")])
        found[-1] += [p.grad for of in (of.actor, of.critics) for p in of.parameters()]
    torch.testing.assert_close(*found)


def test_the_return_of_a_chunk_that_goes_on_is_monte_carlos():
    """A chunk of 4 that the rollout and the present policy follow: past all steps until it ends."""
    algorithm = taac(4, b1_advantage_clipping=(-50.0, -50.0))
    experience = rolled_out(algorithm, [FIRST, MID, MID, MID, MID, MID])
    assert experience.rollout_info.switch[:, 0].tolist() == [True, False, False, False, True, False]
    step = experience.time_step._replace(reward=(2.0 ** torch.arange(6)).unsqueeze(1) / 2)
    info = algorithm.train_step(experience._replace(time_step=step))
    target = algorithm.td_loss.targets(step, info.value, info.switch, info.bonus)
    value = info.value[4].item()  # of the state in which the next chunk begins
    expected = sum(GAMMA**i * 2.0**i for i in range(4)) + GAMMA**4 * value
    assert target[0, 0].item() == pytest.approx(expected, rel=1e-4)
    assert np.allclose(info.beta[4, 0].tolist(), [0, 1])


def test_another_rest_has_the_executed_action_and_any_number_of_others():
    trajectory, executed = ChunkTrajectory(3), nest.map_structure(lambda x: x.expand(3000, -1), chunk_of((0.1, 0.2), (0.3, 0.4)))
    torch.manual_seed(0)
    proposal = torch.rand(3000, 6)
    found = trajectory.with_rest(executed, proposal)
    count = (found.left[:, 0] * 2).round().long() + 1
    assert torch.equal(found.a, executed.a) and np.allclose(np.bincount(count) / 3000, [0, *[1 / 3] * 3], atol=0.03)
    exists = torch.arange(2) < (count - 1).unsqueeze(1)
    assert torch.equal(found.rest, proposal[:, 2:] * exists.repeat_interleave(2, dim=1))


def test_rests_are_replaced_by_what_is_proposed_where_the_action_was_taken():
    algorithm = taac(other_rests=1.0)
    experience = rolled_out(algorithm, [FIRST, MID, MID, LAST, FIRST, MID])
    time_step, (tau_prev, b) = experience
    seen = algorithm.encode(time_step.observation)[1]
    torch.manual_seed(1)
    found, switch = algorithm._other_rests(time_step, seen, tau_prev, b)
    assert torch.equal(found.a, tau_prev.a) and switch[[1, 2, 3, 5]].all() and torch.equal(switch[[0, 4]], b[[0, 4]])
    with torch.no_grad():
        before = nest.index(tau_prev, slice(None, -1))
        torch.manual_seed(1)
        proposal = squashed_normal_action(*algorithm.actor(algorithm.tau_embedding(seen[:-1], before)))
    expected = algorithm.trajectory.with_rest(nest.index(tau_prev, slice(1, None)), proposal)
    for new, stored, part in zip(found, tau_prev, expected):
        assert torch.equal(new[[1, 2, 3, 5]], part[[0, 1, 2, 4]]) and torch.equal(new[[0, 4]], stored[[0, 4]])


def test_rests_are_replaced_with_one_step_returns_too():
    algorithm = taac(other_rests=1.0, td_loss=OneStepTDLoss(GAMMA))
    time_step, (tau_prev, b) = rolled_out(algorithm, [FIRST, MID, MID, MID])
    found, switch = algorithm._other_rests(time_step, algorithm.encode(time_step.observation)[1], tau_prev, b)
    assert switch[1:].all() and not torch.equal(found.rest, tau_prev.rest)


class Unstopped(BaseTDLoss):
    """Somebody's own, whose returns may pass any frame."""


@pytest.mark.parametrize("td_loss", [TDLoss(), Unstopped()])
def test_rests_stay_where_a_return_may_pass_them(td_loss):
    algorithm = taac(other_rests=1.0, td_loss=td_loss)
    time_step, (tau_prev, b) = rolled_out(algorithm, [FIRST, MID, MID])
    found, switch = algorithm._other_rests(time_step, algorithm.encode(time_step.observation)[1], tau_prev, b)
    assert found is tau_prev and switch is b


@pytest.mark.parametrize("more", [{}, {"decision_price": 0.1}, {"exact_compare_through": True}])
def test_an_update_with_other_rests_is_one_of_frames_that_hold_them(more):
    algorithm = taac(other_rests=1.0, **more)
    experience = rolled_out(algorithm, [FIRST, MID, MID, MID, LAST, FIRST, MID, MID])
    own, held = algorithm._other_rests, []
    algorithm._other_rests = lambda *given: held.extend([*own(*given), torch.get_rng_state()]) or held[:2]
    found = algorithm.train_step(experience)
    tau_prev, b, random_numbers = held
    algorithm._other_rests, algorithm.trajectory.other_rests = own, 0.0
    torch.set_rng_state(random_numbers)
    info = experience.rollout_info._replace(tau_prev=tau_prev, switch=b)
    expected = algorithm.train_step(experience._replace(rollout_info=info))
    assert not torch.equal(tau_prev.rest, experience.rollout_info.tau_prev.rest)
    for name in ("actor_loss", "prediction", "value", "beta", "switch", "advantage"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_returns_pass_where_the_next_chunk_is_what_is_left_of_this_one():
    """Segments of one episode, half of which have other rests, and a switch that never wants to begin a chunk."""
    algorithm = taac(4, other_rests=0.5, b1_advantage_clipping=(-50.0, -50.0))
    one = rolled_out(algorithm, [FIRST, *[MID] * 7])
    experience = nest.map_structure(lambda x: x.repeat_interleave(40, dim=1), one)
    time_step, (tau_prev, b) = experience
    found, switch = algorithm._other_rests(time_step, algorithm.encode(time_step.observation)[1], tau_prev, b)
    passed = ~switch[1:-1]  # frames 1..T-2
    before, after = (nest.index(found, frames) for frames in (slice(1, -1), slice(2, None)))
    going_on = algorithm.trajectory.advance(before)
    assert 0 < passed.any(0).sum() < 40 and all(torch.equal(x[passed], y[passed]) for x, y in zip(going_on, after))


def test_a_fraction_of_other_rests_is_one():
    with pytest.raises(TaacError, match=r"ChunkTrajectory\.other_rests must be in \[0, 1\], got 1\.5"):
        ChunkTrajectory(3, other_rests=1.5)
    assert ChunkTrajectory(1).other_rests == 0


def test_a_truncated_window_is_masked_though_one_part_of_the_reward_is_not_discounted_on():
    algorithm = sac()
    algorithm.td_loss.discount = lambda step: step.discount.unsqueeze(-1) * torch.tensor([GAMMA, 0.0])
    experience = segment([MID, MID, LAST, FIRST])
    step = experience.time_step
    reward = step.reward.unsqueeze(-1).expand(-1, -1, 2)
    windows = algorithm.windows(experience._replace(time_step=step._replace(reward=reward)))
    assert windows.experience.time_step.prev_action[1, 0, -1] == windows.num_actions == 2
