"""Agents that hold only what their role needs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from taac import configuration, nest
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.runs import checkpoint
from taac.training import experiment
from tests.learning.test_learner import make_agent
from tests.methods import REPRESENTATIVES, fitting

CPU = torch.device("cpu")


@pytest.fixture(params=[*REPRESENTATIVES, "sac_krep", "sac_value"])
def make(request):
    """Makes agents of a method on a toy; all of one seed, so of the same parameters."""
    configuration.load(
        ["gin/tasks/simple_control.gin", f"gin/methods/{request.param}.gin"],
        [
            "create_environment.env_name = 'tests.toy_tasks:taac-test/PointMass-v0'", "num_envs = 3",
            "hidden_layers = (8,)", "create_agent.normalize_observations = True",
            *fitting(request.param),
        ],
    )  # fmt: skip
    environment = configuration.build(experiment.create_environment)

    def make(role, seed=0):
        torch.manual_seed(seed)
        return configuration.build(lambda: experiment.create_agent(environment, CPU, role=role))

    make.method, make.environment = request.param, environment
    yield make
    environment.close()


def steps(agent, environment, *kinds):
    """What an agent does in a few steps of each kind, from one seed."""
    torch.manual_seed(3)
    found = []
    for kind in kinds:
        time_step, state = environment.reset(5), agent.initial_state(3)
        for _ in range(4):
            step = (
                agent.predict_step(time_step, state, 0.5)
                if kind == "predict"
                else getattr(agent, kind)(time_step, state)
            )
            state = step.state
            found += nest.flatten(tuple(step))
            time_step = environment.step(step.output)
    return found


def assert_same(left, right):
    assert len(left) == len(right) > 0
    assert all(torch.equal(a, b) for a, b in zip(left, right))


def test_every_role_acts_as_the_whole_agent_does(make):
    ways = ("predict", "rollout_step", "random_step", "predict")
    whole, collecting, acting = make("learn"), make("collect"), make("act")
    assert_same(steps(whole, make.environment, *ways), steps(collecting, make.environment, *ways))
    # Collecting has moved the statistics of observations; acting takes them over with everything else.
    state = acting.own_state(whole.state_dict())
    assert set(state) < set(whole.state_dict())
    acting.load_state_dict(state)
    assert_same(steps(whole, make.environment, "predict"), steps(acting, make.environment, "predict"))
    assert torch.equal(whole.observation_normalizer.count, acting.observation_normalizer.count)


def test_a_role_holds_no_more_than_it_needs(make):
    """Each module that is held is needed for acting; encoders, targets and optimised temperatures that are not, are gone."""
    whole, acting = make("learn"), make("act")
    held = [name for name, _ in acting.algorithm.named_children()]
    gone = {name for name, _ in whole.algorithm.named_children()} - set(held)
    assert {"target_encoder", "target_value" if make.method == "sac_value" else "target_critics"} <= gone
    assert ("critics" in held) == (make.method in ("taac_q", "sac_krep"))
    assert acting.reward_normalizer is None
    for name in held:
        agent = make("collect")
        delattr(agent.algorithm, name)
        with pytest.raises(AttributeError, match=name):
            steps(agent, make.environment, "predict", "rollout_step")


def test_values_of_replayed_actions_are_those_that_training_learns(make):
    """Frame by frame, with the state and the decision of the rollout, where new actions begin and where old ones continue."""
    whole, time_step = make("learn"), make.environment.reset(5)
    disturb(whole)
    whole.count(time_step)
    whole.gathers_statistics = False  # so that memories of the rollout are those of the replay
    state, states, steps, frames = whole.initial_state(3), [], [], []
    for _ in range(7):
        step = whole.rollout_step(time_step, state)
        states, steps, frames = [*states, state], [*steps, step], [*frames, Experience(time_step, step.info)]
        time_step, state = make.environment.step(step.output), step.state
    experience = nest.map_structure(lambda *leaves: torch.stack(leaves), *frames)
    info = whole.algorithm.train_step(whole.prepare(experience))
    expected = whole.algorithm.least_value(getattr(info, "sac", info).q).detach()
    burn_in, valuing = whole.algorithm.burn_in, make("value", seed=1)
    valuing.load_state_dict(valuing.own_state(whole.state_dict()))
    found = []
    with torch.inference_mode():
        for (time_step, _), before, step in list(zip(frames, states, steps))[burn_in:-1]:
            asked = valuing.predict_step(time_step, before)._replace(output=step.output, decided=step.decided)
            found.append(valuing.algorithm.action_values(valuing._seen(time_step), before, asked)[0])
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape == (6 - burn_in, 3) and expected.std() > 0.1


def disturb(agent):
    """All that can be learnt or counted, moved."""
    with torch.no_grad():
        for tensor in (*agent.algorithm.parameters(), *agent.algorithm.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.3)


def test_a_collecting_agent_acts_on_what_a_learner_hands_over(make):
    """Between any two steps, and again after the learner has moved on."""
    whole, collecting = make("learn"), make("collect", seed=1)
    ways = ("rollout_step", "predict")
    for _ in range(2):
        disturb(whole)
        with pytest.raises(AssertionError):
            assert_same(steps(whole, make.environment, "predict"), steps(collecting, make.environment, "predict"))
        collecting.load_acting_state(whole.acting_state())
        assert_same(steps(whole, make.environment, *ways), steps(collecting, make.environment, *ways))
    state = whole.acting_state()
    held = {name.split(".")[1] for name in state if name.startswith("algorithm.") and name.count(".") > 1}
    children = collecting.algorithm.named_children()
    assert held == {name for name, module in children if [*module.parameters(), *module.buffers()]}
    before = [tensor.clone() for tensor in state.values()]
    disturb(whole)
    assert all(map(torch.equal, state.values(), before)), "they are copies"

    # Statistics of observations are among them.
    whole.observation_normalizer.count += 100
    collecting.load_acting_state(whole.acting_state())
    assert collecting.observation_normalizer.count == whole.observation_normalizer.count

    # Another agent's is refused as a whole.
    name = next(iter(state))
    before = [value.clone() for value in collecting.acting_state().values()]
    lacking, short, more = ({**whole.acting_state()} for _ in range(3))
    del lacking[name]
    short[name] = short[name][..., :-1]
    more["algorithm.other"] = torch.zeros(())
    for wrong, message in (
        (lacking, "is missing, expected"),
        (short, "expected torch.float32"),
        (more, "expected nothing"),
    ):
        with pytest.raises(TaacError, match=f"of another agent: .*{message}"):
            collecting.load_acting_state(wrong)
    assert all(map(torch.equal, before, collecting.acting_state().values()))


def test_a_state_is_never_silently_loaded_to_less_than_is_needed(tmp_path):
    whole, acting = make_agent(), Agent(make_agent().algorithm, role="act")
    state = acting.own_state(whole.state_dict())
    with pytest.raises(TaacError, match=r"Missing key.*target_critics"):
        checkpoint.load_into(make_agent(), state, tmp_path / "actor.pt")
    state.pop(next(name for name in state if name.startswith("algorithm.actor.")))
    with pytest.raises(TaacError, match=r"Missing key.*algorithm\.actor\."):
        checkpoint.load_into(acting, acting.own_state(state), tmp_path / "actor.pt")


def test_what_a_role_is_not_for_is_refused():
    algorithm = make_agent().algorithm
    for role in ("value", "act"):
        acting = Agent(algorithm, role=role)
        for step in (acting.rollout_step, acting.random_step):
            with pytest.raises(TaacError, match=f"'{role}' does not explore"):
                step(SimpleNamespace(observation=()), ())
    for role in ("value", "act", "collect"):
        with pytest.raises(TaacError, match=f"an agent with role '{role}' cannot learn"):
            Learner(Agent(make_agent().algorithm, role=role))
    with pytest.raises(TaacError, match="role must be"):
        Agent(algorithm, role="watch")


def test_a_role_is_not_for_gin_files():
    with pytest.raises(TaacError, match="role"):
        configuration.load(["gin/tasks/simple_control.gin", "gin/methods/sac.gin"], ["create_agent.role = 'act'"])
