"""Demonstrations in the buffer, and as half of each batch."""

from __future__ import annotations

import pytest
import torch

from taac import nest, specs
from taac.data_structures import Experience, StepType, TimeStep
from taac.demonstrations.replay import HalfDemonstrations, SqilReplay, prefilled
from taac.errors import TaacError
from taac.replay import Batch, ReplayBuffer
from tests.replay.saved import held, restore

F, M, L = (int(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))


def frames(kinds, start=0.0, reward=None):
    """Frames `[F]` whose observation is their number, from `start` on."""
    count = len(kinds)
    number = torch.arange(count, dtype=torch.float32) + start
    return Experience(
        TimeStep(
            step_type=torch.tensor([{"F": F, "M": M, "L": L}[k] for k in kinds], dtype=torch.uint8),
            reward=number * 10 if reward is None else reward,
            discount=torch.ones(count),
            observation=number.unsqueeze(-1),
            prev_action=number.unsqueeze(-1) / 1000,
            duration=torch.ones(count, dtype=torch.int16),
        ),
        {"switch": torch.arange(count) % 2 == 0},
    )


def buffer(num_envs=1, length=50):
    spec = nest.map_structure(specs.spec_of, frames("FL"))
    return ReplayBuffer(spec, num_envs, length)


def filled(count, **arguments):
    """With `count` frames of one endless episode, numbered from 1000 on, in every environment."""
    made = buffer(**arguments)
    own = frames("F" + "M" * (count - 1), start=1000)
    for t in range(count):
        made.add(nest.map_structure(lambda x: x[t].expand(made.num_envs, *x.shape[1:]), own))  # noqa: B023
    return made


# Prefilled ------------------------------------------------------------------------------------------------------------


def test_the_first_frames_of_a_buffer():
    given = frames("FMMLFML")
    replay = buffer()
    assert prefilled(replay, given) is replay
    state = held(replay)
    assert replay.size == 7
    for path, leaf in nest.flatten_with_path(given):
        assert torch.equal(state[f"frames/{path}"][:, 0], leaf), path


def test_dealt_to_several_environments_each_part_ends_as_a_truncation():
    """Seven frames for three environments: two each, the last left out."""
    replay = prefilled(buffer(num_envs=3), frames("FMMLFML"))
    state = held(replay)
    assert state["frames/time_step/observation"][..., 0].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert state["frames/time_step/step_type"].tolist() == [[F, M, F], [L, L, L]]
    assert state["frames/time_step/discount"].eq(1).all()
    assert state["frames/rollout_info/switch"].tolist() == [[True] * 3, [False] * 3]


def test_they_give_way_to_newer_frames():
    replay = prefilled(buffer(length=8), frames("FMMLFML"))
    for number in range(4):
        replay.add(nest.index(frames("F", start=1000 + number), slice(0, 1)))
    seen = {int(x) for x in replay.sample(200, 2).time_step.observation.flatten()}
    assert seen == {3, 4, 5, 6, 1000, 1001, 1002, 1003}


@pytest.mark.parametrize("num_envs, length, kinds", [(1, 6, "FMMLFML"), (4, 50, "FMMLFML")])
def test_demonstrations_that_do_not_fit_are_refused(num_envs, length, kinds):
    with pytest.raises(TaacError, match=rf"7 frames of demonstrations are \d for each of {num_envs} environments"):
        prefilled(buffer(num_envs, length), frames(kinds))


# SQIL -----------------------------------------------------------------------------------------------------------------


def test_halves_with_their_own_rewards():
    plain, replay = SqilReplay(filled(20), frames("FMMMLFMML")), HalfDemonstrations(filled(20), frames("FMMMLFMML"))
    batches = []
    for each in (plain, replay):
        torch.manual_seed(0)
        batches.append(each.sample_batch(9, 2).experience)
    sqil, half = batches
    assert torch.equal(sqil.time_step.observation, half.time_step.observation)
    assert set(sqil.time_step.reward.unique().tolist()) == {0.0, 1.0}
    stored = replay.demonstrations.frames(0, 9)["frames/time_step/reward"]
    assert set(half.time_step.reward[:, :5].flatten().tolist()) <= set(stored.flatten().tolist())
    assert set(half.time_step.reward[:, 5:].flatten().tolist()) <= set(replay.agents.stored().time_step.reward.flatten().tolist())


@pytest.mark.parametrize("batch_size, demonstrated", [(8, 4), (9, 5), (1, 1)])
@pytest.mark.parametrize("length", [2, 4])
def test_half_of_each_batch(batch_size, demonstrated, length):
    replay = SqilReplay(filled(20), frames("FMMMLFMML"))
    batch = replay.sample_batch(batch_size, length).experience.time_step
    assert batch.observation.shape == (length, batch_size, 1)
    assert (batch.observation[:, :demonstrated] < 1000).all() and (batch.observation[:, demonstrated:] >= 1000).all()
    assert (batch.observation.diff(dim=0) == 1).all()  # segments
    first = batch.step_type == F
    assert torch.equal(batch.reward[:, :demonstrated], (~first[:, :demonstrated]).float())
    assert batch.reward[:, demonstrated:].eq(0).all()
    assert batch.reward.dtype == torch.float32


def test_the_task_s_rewards_stay_in_the_buffer():
    replay = SqilReplay(own := filled(20), frames("FMMMLFMML"))
    replay.sample_batch(8, 2)
    assert replay.sample(8, 2).time_step.reward.min() >= 10_000
    assert own.sample(8, 2).time_step.reward.min() >= 10_000
    assert replay.demonstrations.sample(8, 2).time_step.reward.max() > 1


def test_every_demonstrated_segment_is_drawn():
    replay = SqilReplay(filled(20), frames("FMMMLFMML"))
    starts = replay.sample_batch(400, 2).experience.time_step.observation[0, :200, 0]
    assert set(starts.tolist()) == set(range(8))


@pytest.mark.parametrize("burn_in", [0, 1])
def test_demonstrated_segments_that_would_teach_nothing_are_drawn_anew_as_the_agent_s_are(burn_in):
    """One that learns from LAST alone, frame 4, is drawn again up to four times: 1 of 8 becomes 1 of 8^5."""
    torch.manual_seed(0)
    own = filled(20)
    own.burn_in, own.learns_on_last_frame = burn_in, False
    batch = SqilReplay(own, frames("FMMMLFMML")).sample_batch(400, 2 + burn_in)
    learnt_from = batch.experience.time_step.observation[burn_in, :200, 0]
    assert set(learnt_from.tolist()) == {*range(burn_in, 8)} - {4}


def test_state_is_saved_and_restored():
    replay = SqilReplay(filled(20), frames("FMMMLFMML"))
    other = SqilReplay(buffer(), frames("FMMMLFMML"))
    restore(other, held(replay))
    torch.manual_seed(3)
    expected = replay.sample_batch(8, 3).experience
    torch.manual_seed(3)
    found = other.sample_batch(8, 3).experience
    nest.map_structure(lambda x, y: torch.testing.assert_close(x, y, rtol=0, atol=0), found, expected)


def test_other_demonstrations_than_the_run_began_with_are_refused():
    state = SqilReplay(filled(20), frames("FMMMLFMML")).state_dict()
    changed = frames("FMMMLFMML")
    changed.time_step.prev_action[3] += 0.125
    other = SqilReplay(buffer(), changed)
    with pytest.raises(TaacError, match="not those that the run began with"):
        other.load_state_dict(state)
    assert other.agents.size == 0
    computed = frames("FMMMLFMML")._replace(rollout_info={"switch": torch.ones(9, dtype=torch.bool)})
    SqilReplay(buffer(), computed).load_state_dict(state)  # what the algorithm computes may be rounded otherwise elsewhere


def test_a_vector_reward_is_refused():
    with pytest.raises(TaacError, match="the environment's reward is a vector"):
        SqilReplay(buffer(), frames("FMML", reward=torch.zeros(4, 2)))


class Weighs(ReplayBuffer):
    """Weighs its segments, and keeps the errors it is given."""

    def sample_batch(self, batch_size, length, progress):
        weights = progress * torch.arange(1, batch_size + 1)
        return Batch(self.sample(batch_size, length), weights, torch.arange(batch_size))

    def update_priorities(self, batch, error):
        self.errors = error


def test_weights_and_errors_are_of_the_agent_s_half():
    """Demonstrations are drawn uniformly and count 1; with an odd batch they are one more.

    The agent's weights are 0.5, 1, 1.5 and 2 over their mean, 1.25: both halves count alike.
    """
    replay = SqilReplay(filled(20), frames("FMMMLFMML"))
    batch = replay.sample_batch(9, 2, 0.5)
    assert batch.weights is None and batch.indices is None
    replay.update_priorities(batch, None)
    replay.agents.__class__ = Weighs
    batch = replay.sample_batch(9, 2, 0.5)
    assert batch.weights.tolist() == pytest.approx([1, 1, 1, 1, 1, 0.4, 0.8, 1.2, 1.6])
    replay.sample_batch(4, 2, 0.5)  # a batch drawn between changes nothing
    replay.update_priorities(batch, torch.arange(9.0))
    assert replay.agents.errors.tolist() == [5, 6, 7, 8]
    replay.update_priorities(batch, None)
    assert replay.agents.errors is None
