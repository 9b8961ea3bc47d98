"""Agents that share a policy: as so many agents alone, in any order, one as none; those that come and go."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from taac import nest
from taac.algorithms import DiscreteSacAlgorithm, RecurrentSacAlgorithm, SacAlgorithm, TaacAlgorithm, TDLoss
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import reset_where_first
from taac.algorithms.reward_signals import GAIL, ICM, RND
from taac.algorithms.reward_signals.signal import transitions
from taac.algorithms.shared_policy import AgentBatch
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import (
    ActorNetwork,
    CategoricalActorNetwork,
    CriticEnsemble,
    GRUMemory,
    LocalEncoder,
    RecurrentEncoder,
)
from taac.networks.normalizers import ObservationNormalizer, RewardNormalizer
from taac.specs import ACTION_MASK, AGENT_MASK, AGENT_TRUNCATED, GLOBAL_STATE, TensorSpec, bounded

F, M, L = (int(kind) for kind in StepType)
N, T = 3, 6
ENVIRONMENTS = [[F, M, M, M, M, M], [M, M, L, F, M, M], [M, M, M, M, M, L], [L, F, M, M, L, F]]
STEP_TYPE = torch.tensor(ENVIRONMENTS, dtype=torch.uint8).T
B = len(ENVIRONMENTS)
X, X_OF_ONE = bounded((N, 4), -5.0, 5.0), bounded((4,), -5.0, 5.0)
BOX, BOX_OF_ONE = bounded((N, 2), -1.0, 1.0), bounded((2,), -1.0, 1.0)
CHOICES = bounded((N,), 0, 3, torch.int64)
BRANCHES = TensorSpec((N, 2), torch.int64, np.zeros((N, 2), dtype=np.int64), np.array([[1, 2]] * N))
PRESENCE = bounded((N,), 0, 1, torch.bool)
SMALL = {"critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(8,), last_init_range=0.5)}
DISCRETE = {**SMALL, "actor_ctor": functools.partial(CategoricalActorNetwork, hidden_layers=(8,))}
CONTINUOUS = {**SMALL, "actor_ctor": functools.partial(ActorNetwork, hidden_layers=(8,))}
MEMORY = functools.partial(RecurrentEncoder, memory_ctor=functools.partial(GRUMemory, output_size=5))
METHODS = {
    "sac": (BOX, functools.partial(SacAlgorithm, **CONTINUOUS)),
    "sac, n-step": (BOX, functools.partial(SacAlgorithm, td_loss=TDLoss(), **CONTINUOUS)),
    "taac": (BOX, functools.partial(TaacAlgorithm, **CONTINUOUS)),
    "recurrent": (BOX, functools.partial(RecurrentSacAlgorithm, memory_ctor=MEMORY, burn_in=1, **CONTINUOUS)),
    "discrete": (CHOICES, functools.partial(DiscreteSacAlgorithm, **DISCRETE)),
    "branches": (BRANCHES, functools.partial(DiscreteSacAlgorithm, **DISCRETE)),
}


def one_alone(spec):
    """The specs of a team of one."""
    return nest.map_structure(
        lambda s: TensorSpec(
            (1, *s.shape[1:]), s.dtype, np.broadcast_to(s.minimum, s.shape)[:1], np.broadcast_to(s.maximum, s.shape)[:1]
        ),
        spec,
    )


def build(method, spec=X, own_reward=True, **more):
    action_spec, ctor = METHODS[method]
    agents = AgentBatch(spec, action_spec, N if own_reward else None)
    torch.manual_seed(0)
    return Agent(ctor(agents.observation, agents.action), agents=agents, **more), action_spec


def frames(action_spec, own_reward=True, present=None, **more):
    torch.manual_seed(1)
    first = STEP_TYPE == F
    if action_spec.is_categorical:
        action = (torch.rand(T, B, *action_spec.shape) * (torch.tensor(action_spec.maximum) + 1)).long()
    else:
        action = torch.rand(T, B, *action_spec.shape) * 2 - 1
    observation = torch.randn(T, B, N, 4)
    if present is not None or more:
        observation = {"x": observation, **more}
        if present is not None:
            observation[AGENT_MASK] = present
    return TimeStep(
        step_type=STEP_TYPE,
        reward=torch.randn(T, B, *((N,) if own_reward else ())).masked_fill(
            first.unsqueeze(-1) if own_reward else first, 0
        ),
        discount=torch.where(STEP_TYPE == L, 0.0, 1.0),
        observation=observation,
        prev_action=action.masked_fill(first.reshape(T, B, *(1,) * (action.dim() - 2)), 0),
        duration=(~first).to(torch.int16),
    )


def rolled(agent, time_step):
    """The experience that a rollout through these frames would have stored, and what it did."""
    torch.manual_seed(2)
    initial = agent.initial_state(B)
    state, infos, steps = initial, [], []
    for t in range(T):
        frame = nest.index(time_step, t)
        step = agent.rollout_step(frame, reset_where_first(state, initial, frame))
        infos.append(step.info)
        steps.append(step)
        state = step.state
    stored = nest.map_structure(lambda *x: torch.stack(x).clone(), *infos)
    return Experience(time_step, stored), steps


def update(agent, experience):
    """Loss and gradients of an update."""
    torch.manual_seed(3)
    algorithm = agent.algorithm
    prepared = agent.prepare(experience)
    loss = algorithm.calc_loss(prepared, algorithm.train_step(prepared))
    algorithm.zero_grad()
    loss.loss.mean().backward()
    gradients = {name: p.grad.clone() for name, p in algorithm.named_parameters() if p.grad is not None}
    return loss, gradients


def assert_same(found, expected):
    (loss, gradients), (other, others) = found, expected
    assert torch.equal(loss.loss, other.loss) and torch.equal(loss.segment_error, other.segment_error)
    assert loss.extra.keys() == other.extra.keys() and gradients.keys() == others.keys() and len(gradients) > 3
    for tag, value in other.extra.items():
        assert torch.equal(loss.extra[tag], value), tag
    for name, value in others.items():
        assert torch.equal(gradients[name], value), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("own_reward", [True, False])
def test_agents_learn_as_so_many_alone(method, own_reward):
    """What the algorithm sees of N agents is a batch of N times as many segments, each of an agent alone."""
    agent, action_spec = build(method, own_reward=own_reward)
    experience, _ = rolled(agent, frames(action_spec, own_reward))
    seen = agent.prepare(experience)
    for n in range(N):
        time_step = experience.time_step
        alone = Experience(
            time_step._replace(
                observation=time_step.observation[:, :, n], prev_action=time_step.prev_action[:, :, n],
                reward=time_step.reward[..., n] if own_reward else time_step.reward,
            ),
            nest.map_structure(lambda x, n=n: x[:, :, n], experience.rollout_info),
        )  # fmt: skip
        nest.map_structure(lambda x, y, n=n: torch.testing.assert_close(x[:, n::N], y, rtol=0, atol=0), seen, alone)
    loss, _ = update(agent, experience)
    assert loss.loss.shape[1] == B * N and torch.isfinite(loss.loss).all()
    assert agent.agents.mean_over_agents(loss.segment_error).shape == (B,)
    torch.testing.assert_close(agent.agents.mean_over_agents(loss.segment_error)[1], loss.segment_error[N : 2 * N].mean())
    assert agent.agents.repeat_for_agents(torch.arange(2.0)).tolist() == [0.0] * N + [1.0] * N


@pytest.mark.parametrize("method", METHODS)
def test_one_agent_is_the_plain_algorithm_to_the_bit(method):
    action_spec, ctor = METHODS[method]
    agents = AgentBatch(one_alone(X), one_alone(action_spec), None)
    results = []
    for shared in (agents, None):
        torch.manual_seed(0)
        agent = Agent(ctor(agents.observation, agents.action), agents=shared)
        time_step = frames(one_alone(action_spec), own_reward=False)
        time_step = time_step._replace(observation=time_step.observation[:, :, :1])
        if shared is None:
            time_step = time_step._replace(
                observation=time_step.observation[:, :, 0], prev_action=time_step.prev_action[:, :, 0]
            )
        experience, steps = rolled(agent, time_step)
        torch.manual_seed(5)
        greedy = agent.predict_step(nest.index(time_step, 1), agent.initial_state(B), 0.5).output
        uniform = agent.random_step(nest.index(time_step, 1), agent.initial_state(B)).output
        outputs = [step.output for step in steps] + [greedy, uniform]
        results.append((update(agent, experience), [x[:, 0] if shared is not None else x for x in outputs]))
    (one, acted), (plain, also_acted) = results
    assert_same(one, plain)
    assert all(torch.equal(x, y) for x, y in zip(acted, also_acted, strict=True))


def test_each_agent_has_its_own_mask_of_valid_choices():
    spec = {"x": X, ACTION_MASK: bounded((N, 4), 0, 1, torch.bool)}
    agents = AgentBatch(spec, CHOICES, None)
    agent = Agent(DiscreteSacAlgorithm(agents.observation, agents.action), agents=agents)
    mask = torch.rand(T, B, N, 4) < 0.5
    mask.scatter_(-1, torch.randint(4, (T, B, N, 1)), True)
    time_step = frames(CHOICES, own_reward=False, **{ACTION_MASK: mask})
    for t in range(T):
        for step in (agent.random_step, agent.rollout_step, agent.predict_step):
            output = step(nest.index(time_step, t), agent.initial_state(B)).output
            assert mask[t].gather(-1, output.unsqueeze(-1)).all()


def test_observations_of_agents_that_differ_in_range_are_encoded_alike():
    """Choices 0 to 2 of one agent and 3 to 6 of the other are seven choices to the network that both use."""
    kind = TensorSpec((2, 1), torch.int64, np.array([[3], [0]]), np.array([[6], [2]]))
    agents = AgentBatch({"kind": kind, "free": TensorSpec((2, 3))}, bounded((2,), 0, 3, torch.int64), None)
    algorithm = DiscreteSacAlgorithm(agents.observation, agents.action)
    observation = {"kind": torch.tensor([[[6], [0]]]), "free": torch.zeros(1, 2, 3)}
    encoded = algorithm.encoder(agents.fold_observation(observation, 0))
    assert encoded.shape == (2, 10) and encoded[0].argmax() == 6 and encoded[1].argmax() == 0


# --- Agents that come and go ------------------------------------------------------------------------------------------

MASKED = {"x": X, AGENT_MASK: PRESENCE}
# By agent, at the six frames of each environment: p present, . absent.
SCRIPT = [["pp.p..", "pppppp", "..pp.p"], ["p.pppp", "ppp..p", "...ppp"], ["pppp.p", "p.p.pp", "pppppp"],
          ["pp.ppp", ".ppp.p", "pppp.."]]  # fmt: skip
PRESENT = torch.tensor([[[c == "p" for c in agent] for agent in env] for env in SCRIPT]).permute(2, 0, 1)


def test_the_frames_of_an_agent_that_comes_and_goes():
    """By hand: absent is LAST; what comes back begins with FIRST, but where the environment's frame is its own FIRST or LAST."""
    agents = AgentBatch(MASKED, BOX, N)
    time_step = frames(BOX, present=PRESENT)._replace(discount=torch.ones(T, B))
    seen = agents.fold_experience(Experience(time_step, ())).time_step
    expected = [
        ["FMLFLL", "FMMMMM", "LLFMLF"],
        ["MLLFMM", "MMLLLF", "LLLFMM"],  # agent 0 is back at the environment's LAST
        ["MMMMLL", "MLFLFL", "MMMMML"],
        ["LFLFLF", "LFMMLF", "LFMMLL"],
    ]
    letters = {F: "F", M: "M", L: "L"}
    found = [["".join(letters[x] for x in seen.step_type[:, b * N + n].tolist()) for n in range(N)] for b in range(B)]
    assert found == expected
    late = PRESENT.clone()
    late[0, 0, 0] = False  # comes at the frame after the environment's FIRST
    seen_late = agents.fold_experience(Experience(frames(BOX, present=late), ())).time_step
    assert "".join(letters[x] for x in seen_late.step_type[:, 0].tolist()) == "LFLFLL"
    assert torch.equal(seen.discount == 0, ~PRESENT.flatten(1)) and AGENT_MASK not in seen.observation
    assert torch.equal(seen.reward, time_step.reward.flatten(1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("own_reward", [True, False])
def test_what_an_absent_agent_would_see_changes_neither_loss_nor_gradient(method, own_reward):
    agent, action_spec = build(method, MASKED, own_reward)
    experience, _ = rolled(agent, frames(action_spec, own_reward, PRESENT))
    expected = update(agent, experience)
    absent = ~PRESENT.unsqueeze(-1)
    other = {**experience.time_step.observation, "x": torch.where(absent, 7.0, experience.time_step.observation["x"])}
    changed = experience._replace(time_step=experience.time_step._replace(observation=other))
    found = update(agent, changed)
    assert_same(found, expected)
    loss = found[0].loss.unflatten(1, (B, N))
    later = PRESENT[agent.algorithm.min_segment_length - 2 :]
    assert not loss[~later].any() and loss[later].any()
    other["x"] = torch.where(absent, other["x"], 7.0)  # of those that are present it does
    assert not torch.equal(update(agent, changed)[0].loss, expected[0].loss)


@pytest.mark.parametrize("kind", [ICM, RND, GAIL])
def test_signals_see_an_agent_leave_and_nothing_of_its_absence(kind):
    """Its reward for each transition, its loss, its statistics and an episode's sum."""
    torch.manual_seed(0)
    signal, (agent, action_spec) = kind(X_OF_ONE, BOX_OF_ONE, normalize=True), build("sac", MASKED)
    given = frames(action_spec, present=PRESENT)

    def seen(observation):
        changed = given._replace(observation={**given.observation, "x": observation})
        time_step = agent.agents.fold_experience(Experience(changed, ())).time_step
        torch.manual_seed(4)
        signal.mean_square.zero_(), signal.num_batches.zero_()
        loss = signal.loss(time_step, time_step)
        return [loss, signal(time_step), signal.mean_square.clone(), signal.total(time_step)], time_step

    x, left = given.observation["x"], torch.zeros_like(PRESENT)
    left[1:] = PRESENT[:-1] & ~PRESENT[1:]
    expected, time_step = seen(x)
    found, _ = seen(torch.where((~PRESENT & ~left).unsqueeze(-1), 7.0, x))
    assert all(map(torch.equal, found, expected))
    arrives = torch.cat([torch.zeros_like(time_step.is_last()[:1]), transitions(time_step)])
    assert torch.equal(expected[1] != 0, arrives) and (left.flatten(1) & arrives).any()
    assert not torch.equal(seen(torch.where(PRESENT.unsqueeze(-1), 7.0, x))[0][1], expected[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut_off", [False, True])
def test_an_agent_that_leaves_is_as_one_whose_episode_terminates_or_is_truncated(method, cut_off):
    """Its last reward counts, and nothing after it: the loss is that of frames that say so by themselves."""
    present = torch.ones(T, B, N, dtype=torch.bool)
    present[3:, 0, 1] = False
    limited = {AGENT_TRUNCATED: ~present} if cut_off else {}
    agent, action_spec = build(method, {**MASKED, **dict.fromkeys(limited, PRESENCE)})
    assert AGENT_TRUNCATED not in agent.agents.observation
    experience, _ = rolled(agent, frames(action_spec, present=present, **limited))
    loss, _ = update(agent, experience)
    plain = agent.agents.fold(
        experience.time_step._replace(
            observation={**experience.time_step.observation, AGENT_MASK: torch.ones_like(present)}
        ),
        1,
    )
    plain.step_type[3:, 1], plain.discount[3:, 1] = L, float(cut_off)
    by_hand = Experience(plain, nest.map_structure(lambda x: x.flatten(1, 2), experience.rollout_info))
    torch.manual_seed(3)
    algorithm = agent.algorithm
    assert torch.equal(loss.loss, algorithm.calc_loss(by_hand, algorithm.train_step(by_hand)).loss)
    if cut_off:  # the value of what it observes there counts, and of nothing later
        observed = experience.time_step.observation
        for t, matters in ((3, True), (4, False)):
            x = observed["x"].clone()
            x[t, 0, 1] += 1.0
            other = experience._replace(time_step=experience.time_step._replace(observation={**observed, "x": x}))
            assert torch.equal(update(agent, other)[0].loss, loss.loss) != matters
    rewarded = experience.time_step.reward.clone()
    for t, matters in ((3, True), (4, False)):
        reward = rewarded.clone()
        reward[t, 0, 1] += 5.0
        other, _ = update(agent, experience._replace(time_step=experience.time_step._replace(reward=reward)))
        assert torch.equal(other.loss, loss.loss) != matters


@pytest.mark.parametrize("method", METHODS)
def test_absent_agents_do_nothing_and_come_back_as_new(method):
    agent, action_spec = build(method, MASKED)
    experience, steps = rolled(agent, frames(action_spec, present=PRESENT))
    fresh = agent.agents._unfold(agent.algorithm.initial_state(B * N), 0)
    for t, step in enumerate(steps):
        absent = ~PRESENT[t]
        assert not step.output[absent].any() and torch.equal(step.state.present, PRESENT[t])
        assert not step.decided[absent].any(), "what they are sent is no decision"
        nest.map_structure(
            lambda s, i, absent=absent: torch.testing.assert_close(s[absent], i[absent]), step.state.inner, fresh
        )
    moved = [s for s in nest.flatten(steps[0].state.inner) if s.is_floating_point()]
    assert all(s[PRESENT[0]].any() for s in moved)
    for step in (agent.predict_step, agent.random_step):
        frame = nest.index(experience.time_step, 3)
        assert not step(frame, agent.initial_state(B)).output[~PRESENT[3]].any()


def test_a_memory_replays_to_what_it_was_wherever_a_segment_begins():
    """A GRU that an agent's coming back resets, in acting and in training alike."""
    agent, action_spec = build("recurrent", MASKED)
    time_step = frames(action_spec, present=PRESENT)
    time_step = time_step._replace(prev_action=time_step.prev_action.clone())
    time_step.prev_action[1:][~PRESENT[:-1]] = 0.0  # they did nothing
    seen = []
    agent.algorithm.actor.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    experience, _ = rolled(agent, time_step)
    acted = torch.stack(seen)
    for start in range(T - 2):
        segment = agent.prepare(nest.index(experience, slice(start, None)))
        with torch.no_grad():
            first = nest.index(segment.rollout_info, 0).actor
            unrolled = agent.algorithm.actor_encoder.unroll(segment.time_step, first)
        there = (PRESENT & (STEP_TYPE != L).unsqueeze(-1))[start:].flatten(1)  # at LAST nothing is learnt
        torch.testing.assert_close(unrolled[there], acted[start:][there])


def test_statistics_leave_out_who_is_absent():
    agent, action_spec = build("sac", MASKED)
    agent.observation_normalizer = ObservationNormalizer(agent.agents.observation)
    agent.reward_normalizer = RewardNormalizer()
    time_step = frames(action_spec, present=PRESENT)
    for t in range(T):
        agent.observe(nest.index(time_step.observation, t))
    normalizer = agent.observation_normalizer
    torch.testing.assert_close(normalizer.mean_0, time_step.observation["x"][PRESENT].double().mean(0))
    assert normalizer.count == PRESENT.sum()
    time_step = time_step._replace(duration=torch.randint(1, 5, (T, B), dtype=torch.int16).masked_fill(STEP_TYPE == F, 0))
    agent.prepare(Experience(time_step, ()))
    # A reward counts on arriving at who is there, and at who just left: not after an environment's LAST, nor at frame 0.
    left = torch.zeros_like(PRESENT)
    left[1:] = PRESENT[:-1] & ~PRESENT[1:] & (STEP_TYPE[:-1] != L).unsqueeze(-1)
    last = (STEP_TYPE == L).unsqueeze(-1)
    arrives_last = torch.zeros_like(PRESENT)
    arrives_last[1:] = PRESENT[1:] & last[1:] & PRESENT[:-1]
    counted = (PRESENT & ~last) | left | arrives_last
    a_step = time_step.reward.double() / time_step.duration.clamp(min=1).unsqueeze(-1)
    torch.testing.assert_close(agent.reward_normalizer.mean, a_step[counted].mean())
    nobody = nest.map_structure(torch.clone, time_step)
    nobody.observation[AGENT_MASK][:] = False
    before = agent.reward_normalizer.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    agent.prepare(Experience(nobody, ()))
    agent.observe(nest.index(nobody.observation, 0))
    assert all(torch.equal(before[name], value) for name, value in agent.reward_normalizer.state_dict().items())


@pytest.mark.parametrize(
    "spec, action_spec, reward_dim, message",
    [
        (X, bounded((), 0, 3, torch.int64), None, "needs actions with the dimension of agents first"),
        (bounded((4,), -1, 1), CHOICES, None, r"of 3 agents.*must be \[3, \.\.\.\], got float32\[4\]"),
        ({"x": X, "more": bounded((2,), 0, 1)}, CHOICES, None, r"but 'global_state' must be \[3, \.\.\.\]"),
        (X, TensorSpec((N,), torch.int64, np.zeros(3), np.array([1, 2, 2])), None, "need equal actions.*shared_policy = False"),
        (X, CHOICES, 2, "must be one number, or 3, one an agent; it has 2 parts"),
        ({"x": X, AGENT_MASK: bounded((2,), 0, 1, torch.bool)}, CHOICES, None, r"\[3\], one entry an agent; got bool\[2\]"),
        ({"x": X, AGENT_MASK: bounded((N,), 0, 1)}, CHOICES, None, "must be binary"),
        ({**MASKED, AGENT_TRUNCATED: bounded((N,), 0, 1)}, CHOICES, None, "'agent_truncated' must be binary"),
        ({"x": X, AGENT_TRUNCATED: PRESENCE}, CHOICES, None, "no 'agent_mask', which says which agents have left: add it"),
        (X, (CHOICES, bounded((2, 2), -1, 1)), None, r"got float32\[2, 2\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(spec, action_spec, reward_dim, message):
    with pytest.raises(TaacError, match=message):
        AgentBatch(spec, action_spec, reward_dim)


def test_a_leave_that_is_ignored_is_refused():
    agents = AgentBatch(MASKED, BOX, None)
    algorithm = SacAlgorithm(agents.observation, agents.action, td_loss=TDLoss(ignore_done=True))
    with pytest.raises(TaacError, match=r"agent_mask.*bind ignore_done = False"):
        Agent(algorithm, agents=agents)


# --- Critics that see more than the actor -----------------------------------------------------------------------------

CENTRAL = {"x": X, GLOBAL_STATE: bounded((2,), -1, 1)}


@pytest.mark.parametrize("method", ["sac", "taac", "discrete", "branches"])
def test_critics_learn_from_the_global_state_and_the_actor_ignores_it(method):
    action_spec, ctor = METHODS[method]
    agents = AgentBatch(CENTRAL, action_spec, None)
    torch.manual_seed(0)
    agent = Agent(ctor(agents.observation, agents.action, actor_encoder_ctor=LocalEncoder), agents=agents)
    assert agents.centralised and agent.algorithm.actor_encoder.output_size == 4
    state = torch.randn(T, B, 2)
    time_step = frames(action_spec, own_reward=False, **{GLOBAL_STATE: state})
    experience, _ = rolled(agent, time_step)
    prepared = agent.prepare(experience)
    seen = prepared.time_step.observation[GLOBAL_STATE].requires_grad_()
    algorithm = agent.algorithm
    info = algorithm.train_step(prepared)
    (reached,) = torch.autograd.grad(info.q.sum(), seen, retain_graph=True)
    assert (reached[:-1].abs().sum(-1) > 0).all()
    parameters = algorithm.parameter_groups()["actor"]
    gradients = torch.autograd.grad(info.actor_loss.sum(), [*parameters, *algorithm.actor_encoder.parameters(), seen],
                                    allow_unused=True)  # fmt: skip
    assert gradients[-1] is None and any(g.abs().sum() > 0 for g in gradients[:-1])
    other = time_step._replace(observation={**time_step.observation, GLOBAL_STATE: state + 1.0})
    policies = []
    for x in (time_step, other):
        features = algorithm.actor_features(agents.fold_observation(x.observation, 1))
        policies.append(features)
    assert torch.equal(*policies)
    if method != "taac":  # whose switch needs the critics
        for step in (agent.predict_step, agent.rollout_step):
            outputs = []
            for x in (time_step, other):
                torch.manual_seed(4)
                outputs.append(step(nest.index(x, 1), agent.initial_state(B)).output)
            assert torch.equal(*outputs)
        assert set(algorithm.acting_modules()) == {"actor_encoder", "actor"}


@pytest.mark.parametrize(
    "spec, message",
    [
        (X, "out of a Dict observation with other keys"),
        ({GLOBAL_STATE: X}, "with other keys"),
        ({"x": X, "y": X}, "which has only x, y"),
    ],
)
def test_a_local_encoder_needs_something_to_leave_out(spec, message):
    with pytest.raises(TaacError, match=message):
        LocalEncoder(spec)


def test_privileged_keys_are_those_that_are_named():
    spec = {"x": X, "mass": bounded((2,), 0, 1), "friction": bounded((1,), 0, 1)}
    encoder = LocalEncoder(spec, privileged=("mass", "friction"))
    observation = {"x": torch.rand(5, *X.shape), "mass": torch.rand(5, 2), "friction": torch.rand(5, 1)}
    assert torch.equal(encoder(observation), encoder({**observation, "mass": None, "friction": None}))
    assert encoder.output_size == X.numel and LocalEncoder(spec, privileged="mass").output_size == X.numel + 1
    with pytest.raises(TaacError, match="leaves 'gravity' out of the observation, which has only x, mass, friction"):
        LocalEncoder(spec, privileged=("mass", "gravity"))
    with pytest.raises(TaacError, match="leaves 'x', 'mass', 'friction' out of a Dict observation with other keys"):
        LocalEncoder(spec, privileged=tuple(spec))
