"""Masks of valid choices: their sources, their use, and masks that allow no choice."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac.data_structures import StepType
from taac.environments.create import create_environment
from taac.environments.single import find_spec, make_single
from taac.environments.spaces import action_adapter, observation_spec
from taac.environments.wrappers import ActionMaskFromInfo
from taac.errors import TaacError
from taac.networks import ObservationNormalizer
from taac.specs import ACTION_MASK, AGENT_MASK, AGENT_TRUNCATED, can_act
from tests.environments.toys import Masked, Probe, env_id


def masked(num_envs=2, wrappers=(), asynchronous=False, **kwargs):
    return create_environment(
        env_id("Masked"), num_envs=num_envs, wrappers=wrappers, env_kwargs=kwargs, asynchronous=asynchronous
    )


@pytest.mark.parametrize(
    "space, binary",
    [
        (spaces.MultiBinary(4), True),
        (spaces.Box(0, 1, (4,), np.int8), True),
        (spaces.Box(0, 1, (3, 4), np.int64), True),
        (spaces.Box(0, 2, (4,), np.int8), False),
        (spaces.Box(0.0, 1.0, (4,), np.float32), False),
        (spaces.Discrete(4), False),
    ],
    ids=str,
)
def test_a_binary_mask_is_kept_as_bools_of_one_byte(space, binary):
    masks = dict.fromkeys((ACTION_MASK, AGENT_MASK, AGENT_TRUNCATED), space)
    spec = observation_spec(spaces.Dict({**masks, "flags": spaces.MultiBinary(2)}))
    assert all((spec[key].dtype == torch.bool) == binary and spec[key].shape == space.shape for key in masks)
    assert spec["flags"].dtype == torch.float32
    if binary:
        assert spec[ACTION_MASK].num_bytes == np.prod(space.shape)


def test_the_mask_arrives_as_it_is_and_is_not_normalised():
    environment, reference = masked(num_envs=1), Masked()
    frame, (expected, _) = environment.reset(3), reference.reset(seed=3)
    normalizer = ObservationNormalizer(environment.observation_spec)
    for _ in range(10):
        assert frame.observation[ACTION_MASK].dtype == torch.bool
        assert frame.observation[ACTION_MASK][0].tolist() == expected[ACTION_MASK].astype(bool).tolist()
        normalizer.update(frame.observation)
        assert torch.equal(normalizer(frame.observation)[ACTION_MASK], frame.observation[ACTION_MASK])
        choice = int(frame.observation[ACTION_MASK].int().argmax())
        frame, (expected, *_) = environment.step(torch.tensor([choice])), reference.step(np.int64(choice))
    environment.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_mask_in_the_info_is_moved_to_the_observation_it_came_with(asynchronous):
    """At the first step of an episode it is that of `reset`."""
    ours = masked(wrappers=(ActionMaskFromInfo,), asynchronous=asynchronous, where="info")
    theirs = masked()
    frames = [ours.reset(0), theirs.reset(0)]
    kinds = set()
    for _ in range(45):
        assert torch.equal(frames[0].observation["observation"], frames[1].observation["numbers"])
        assert torch.equal(frames[0].observation[ACTION_MASK], frames[1].observation[ACTION_MASK])
        kinds |= set(frames[0].step_type.tolist())
        choice = frames[0].observation[ACTION_MASK].int().argmax(-1)
        frames = [ours.step(choice), theirs.step(choice)]
    ours.close()
    theirs.close()
    assert kinds == {0, 1, 2}


def test_a_dict_observation_gets_one_leaf_more():
    class Told(gymnasium.Wrapper):
        def reset(self, **kwargs):
            observation, info = self.env.reset(**kwargs)
            return observation, {**info, "legal": [True, False, True]}

    env = Probe(spaces.Dict(a=spaces.Box(0, 1, (2,))), spaces.Discrete(3))
    observation, _ = ActionMaskFromInfo(Told(env), "legal").reset(seed=0)
    assert list(observation) == ["a", "action_mask"] and observation["action_mask"].tolist() == [1, 0, 1]


def test_taxi_reports_its_mask_in_the_info():
    newest = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))  # versions before it are refused
    environment = create_environment(newest, wrappers=(ActionMaskFromInfo,))
    frame = environment.reset(0)
    for _ in range(20):
        mask = frame.observation[ACTION_MASK][0]
        assert mask.shape == (6,) and mask.any() and not mask.all()
        before = frame.observation["observation"]
        moves = [c for c in range(4) if mask[c]]
        frame = environment.step(torch.tensor([moves[0]]))
        assert not torch.equal(frame.observation["observation"], before), "a valid move moves"
    environment.close()


def refused_at(steps, **kwargs):
    environment = masked(**kwargs)
    try:
        frame = environment.reset(0)
        for _ in range(steps):
            frame = environment.step(frame.observation[ACTION_MASK].int().argmax(-1))
    finally:
        environment.close()


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("step", [0, 3])
def test_a_mask_that_forbids_everything_is_refused_with_environment_and_step(step, agents):
    if step:
        refused_at(step - 1, forbids_at=step, agents=agents)
    message = (
        rf"Masked-v0' \(number 0 of 2\) returned an 'action_mask' that forbids every choice at step {step} after reset"
    )
    with pytest.raises(TaacError, match=message):
        refused_at(step, forbids_at=step, agents=agents)


def test_it_is_refused_where_an_episode_is_cut_off_and_not_where_it_terminates():
    refused_at(30, length=4)
    with pytest.raises(TaacError, match="forbids every choice at step 20 after reset"):
        refused_at(20, forbids_at=20)


def test_what_action_mask_from_info_refuses():
    with pytest.raises(TaacError, match="needs Discrete actions"):
        ActionMaskFromInfo(Probe())
    with pytest.raises(TaacError, match=r"equally many choices.*MultiDiscrete"):
        ActionMaskFromInfo(Probe(action_space=spaces.MultiDiscrete([2, 3])))
    with pytest.raises(TaacError, match="already have a part 'action_mask'"):
        ActionMaskFromInfo(Probe(spaces.Dict(action_mask=spaces.MultiBinary(3)), spaces.Discrete(3)))
    with pytest.raises(TaacError, match="the info has no 'action_mask'; it has nothing"):
        ActionMaskFromInfo(Probe(action_space=spaces.Discrete(3))).reset(seed=0)
    with pytest.raises(TaacError, match=r"info\['action_mask'\] must have shape \[5\], one entry a choice, got \[2, 5\]"):
        wrong = make_single(find_spec(env_id("Masked")), {"where": "info", "agents": 2}, (), None)
        wrong.unwrapped.action_space = spaces.Discrete(5)
        ActionMaskFromInfo(wrong.unwrapped).reset(seed=0)


@pytest.mark.parametrize("agents, own_reward", [(None, False), (2, False), (2, True)])
def test_frames_of_agents(agents, own_reward):
    """The toy itself checks that what it gets is in its action space, which starts at 7."""
    environment = masked(agents=agents, own_reward=own_reward, start=7)
    frame = environment.reset(0)
    group = () if agents is None else (agents,)
    for _ in range(25):
        assert frame.prev_action.shape == (2, *group) and frame.prev_action.dtype == torch.int64
        assert frame.reward.shape == (2, *(group if own_reward else ()))
        assert frame.observation["numbers"].shape == frame.observation[ACTION_MASK].shape == (2, *group, 5)
        assert not frame.prev_action[frame.step_type == int(StepType.FIRST)].any()
        choice = frame.observation[ACTION_MASK].int().argmax(-1)
        frame = environment.step(choice)
    environment.close()


def exactly(values):
    """A space of one value."""
    array = np.array(values, np.int8)
    return spaces.Box(array, array, dtype=np.int8)


def refused_at_first(action_space, **observation):
    """Whether an environment may give this observation at its first step."""
    environment = create_environment(
        env_id("Probe"), env_kwargs={"action_space": action_space, "observation_space": spaces.Dict(observation)}
    )
    try:
        environment.reset(0)
        return False
    except TaacError as error:
        assert "a branch that has nothing to do needs a choice that does nothing" in str(error)
        return True
    finally:
        environment.close()


@pytest.mark.parametrize(
    "mask, refused",
    [([1, 0, 0, 1, 0], False), ([1, 1, 0, 0, 0], True), ([0, 0, 1, 1, 1], True), ([0, 1, 0, 0, 1], False)],
)
def test_every_branch_needs_a_valid_choice(mask, refused):
    """Of branches of 2 and 3 choices, in one row; and of two agents with such branches, in a row each."""
    assert refused_at_first(spaces.MultiDiscrete([2, 3]), action_mask=exactly(mask)) == refused
    two, _ = action_adapter(spaces.MultiDiscrete(np.array([[2, 3], [2, 3]])))
    possible = can_act(torch.tensor([[[1] * 5, mask]]).bool(), two)
    assert possible.shape == (1, 2, 2) and possible[:, 0].all() and possible.all() != refused


@pytest.mark.parametrize("present, refused", [([1, 1], True), ([1, 0], False), ([0, 1], True)])
def test_an_absent_agent_needs_no_valid_choice(present, refused):
    masks = {"action_mask": exactly([[1, 0, 0], [0, 0, 0]]), "agent_mask": exactly(present)}
    assert refused_at_first(spaces.MultiDiscrete([3, 3]), **masks) == refused


def test_beside_actions_that_are_numbers_the_name_means_nothing():
    """Zeros there, such as actuators that do not work, forbid nothing."""
    seen = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,)), ACTION_MASK: spaces.MultiBinary(2)})
    environment = create_environment(env_id("Probe"), env_kwargs={"observation_space": seen})
    environment.reset(0)
    masks = [environment.step(torch.zeros(1, 1)).observation[ACTION_MASK].any() for _ in range(20)]
    environment.close()
    assert not all(masks)
