"""TLA: windows, gate and what is stored; its transitions against the loop of the published code; both policies against TD3."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from taac.algorithms import OneStepTDLoss, Td3Algorithm, TDLoss, TlaAlgorithm
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import reset_where_first
from taac.algorithms.tla import TlaInfo, TlaState
from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.networks import CriticEnsemble, DeterministicActorNetwork
from taac.ops.schedules import LinearSchedule
from taac.ops.value_ops import first_window
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, IMAGE_SPEC, NAN, NUM_ACTIONS, VECTOR_SPEC, F, L, M

K = 3
COST = {"reward_dim": 3, "reward_weights": (1.0, -0.5, 2.0), "td_loss": OneStepTDLoss((0.875, 0.5, 0.75))}


def networks(**options):
    return {
        "td_loss": OneStepTDLoss(0.875), **reference.networks(),
        "actor_ctor": functools.partial(DeterministicActorNetwork, hidden_layers=(5, 4)), **options,
    }  # fmt: skip


def tla(spec=VECTOR_SPEC, **options):
    """In float64, with weights that matter."""
    own = {"slow_steps": K, "gate_critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(5,))}
    algorithm = reference.scrambled(TlaAlgorithm(spec, ACTION_SPEC, **{**own, **networks(**options)}))
    algorithm.slow.encoder.float()
    algorithm.slow.target_encoder.float()
    return algorithm


def td3(like, spec=VECTOR_SPEC, **options):
    """TD3 with the weights of a policy of TLA."""
    plain = Td3Algorithm(spec, ACTION_SPEC, **networks(**options)).double()
    plain.encoder.float()
    plain.target_encoder.float()
    plain.load_state_dict({name: like.state_dict()[name] for name in plain.state_dict()})
    return plain


def prefer(algorithm, *values):
    """Values of a gate that is closed, and open, that are the same everywhere."""
    with torch.no_grad():
        algorithm.gate_critic.last.weight.zero_()
        algorithm.gate_critic.last.bias.copy_(torch.tensor(values).reshape(algorithm.gate_critic.last.bias.shape))
    return algorithm


def always(is_open, **options):
    return prefer(tla(gate_epsilon=0.0, **options), *((0.0, 1.0) if is_open else (1.0, 0.0)))


# --- Acting -----------------------------------------------------------------------------------------------------------


def test_windows_last_k_steps_and_begin_anew_with_each_episode():
    """The gate opens where the observation's first number is above 0, and is asked at the beginning of a window only."""
    algorithm = tla(gate_epsilon=0.0, gate_critic_ctor=functools.partial(CriticEnsemble, hidden_layers=()))
    with torch.no_grad():
        algorithm.gate_critic.last.weight.zero_()
        algorithm.gate_critic.last.bias.zero_()
        algorithm.gate_critic.last.weight[0, 0, 1] = 1.0
    initial = state = algorithm.initial_state(1)
    assert state.left.dtype == torch.int64 and state.open.dtype == torch.bool and state.slow_action.tolist() == [[0, 0]]
    kinds = [F, M, M, M, M, L, F, M, M, M, M, M, L, F, M]
    above = [1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1]
    begin = [1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0]
    opens = [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0]
    for t, (kind, positive) in enumerate(zip(kinds, above)):
        frame = reference.frame(1, kind)
        observation = frame.observation.abs() * torch.tensor([1.0 if positive else -1.0, 1.0, 1.0])
        frame = frame._replace(observation=observation)
        before = reset_where_first(state, initial, frame)
        torch.manual_seed(t)
        step = algorithm.rollout_step(frame, before)
        torch.manual_seed(t)
        fast, slow = Td3Algorithm.rollout_step(algorithm, frame, ()), algorithm.slow.rollout_step(frame, ())
        held = slow.output if begin[t] else before.slow_action
        assert step.info.begins.tolist() == [bool(begin[t])] and step.info.open.tolist() == [bool(opens[t])], t
        assert step.decided.tolist() == [bool(begin[t] or opens[t])]
        assert torch.equal(step.info.slow_action, held) and torch.equal(step.state.slow_action, held)
        assert torch.equal(step.output, fast.output if opens[t] else held)
        state = step.state


@pytest.mark.parametrize("how", ["rollout", "predict", "random"])
def test_rows_keep_windows_of_their_own(how):
    algorithm, rows = tla(gate_epsilon=0.5), 200
    state = TlaState(torch.rand(rows, NUM_ACTIONS).double(), torch.rand(rows) < 0.5, torch.arange(rows) % K)
    step = getattr(algorithm, f"{how}_step")(reference.frame(rows), state)
    begins = state.left == 0
    assert torch.equal(step.info.begins, begins) and torch.equal(step.decided, begins | step.info.open)
    assert torch.equal(step.info.open[~begins], state.open[~begins])
    assert torch.equal(step.info.slow_action[~begins], state.slow_action[~begins])
    assert torch.equal(step.state.left, torch.where(begins, K, state.left) - 1)
    closed = ~step.info.open
    assert torch.equal(step.output[closed], step.info.slow_action[closed])
    assert (step.output != step.info.slow_action).any(-1)[~closed].all()
    assert 0 < step.info.open[begins].sum() < begins.sum() or how == "predict"


def greedy(algorithm, frames):
    state, outputs, decided = algorithm.initial_state(4), [], []
    for frame in frames:
        step = algorithm.predict_step(frame, state)
        state = step.state
        outputs.append(step.output)
        decided.append(step.decided)
    return torch.stack(outputs), torch.stack(decided)


@pytest.mark.parametrize("is_open", [True, False])
def test_an_open_gate_is_the_fast_policy_and_a_closed_one_repeats_the_slow_policys_actions(is_open):
    algorithm, frames = always(is_open), [reference.frame(4) for _ in range(7)]
    outputs, decided = greedy(algorithm, frames)
    if is_open:
        plain = td3(algorithm)
        expected = [plain.predict_step(frame, ()).output for frame in frames]
        torch.manual_seed(1)
        explored = plain.rollout_step(frames[0], ()).output
        torch.manual_seed(1)
        assert torch.equal(algorithm.rollout_step(frames[0], algorithm.initial_state(4)).output, explored)
        assert decided.all()
    else:
        plain = td3(algorithm.slow)
        expected = [plain.predict_step(frames[t - t % K], ()).output for t in range(7)]
        assert torch.equal(decided[:, 0], torch.arange(7) % K == 0)
    assert torch.equal(outputs, torch.stack(expected))


@pytest.mark.parametrize("how, epsilon", [("rollout", 0.4), ("predict", 0.0), ("predict", 0.2), ("random", 1.0)])
def test_gates_are_coins_with_a_probability(how, epsilon):
    """In evaluation epsilon times that of exploring, here 1/2."""
    count = 20_000
    algorithm = prefer(tla(gate_epsilon=epsilon if how == "rollout" else 0.5), 1.0, 0.0)
    more = (2 * epsilon,) if how == "predict" else ()
    step = getattr(algorithm, f"{how}_step")(reference.frame(count), algorithm.initial_state(count), *more)
    p = epsilon / 2
    assert step.info.open.double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count))
    if how == "random":
        reference.check_uniform(step.output, count)


def test_the_gate_is_asked_about_the_slow_action_that_is_executed():
    """It opens where a_s is above 0 in its first dimension, exploration included; a tie leaves it closed."""
    algorithm = tla(gate_epsilon=0.0, gate_critic_ctor=functools.partial(CriticEnsemble, hidden_layers=()))
    with torch.no_grad():
        algorithm.gate_critic.last.weight.zero_()
        algorithm.gate_critic.last.bias.zero_()
        algorithm.gate_critic.last.weight[0, 3, 1] = 1.0  # three features come before the action
        algorithm.slow.actor.head.weight.zero_()
        algorithm.slow.actor.head.bias.zero_()  # what is left is noise
    step = algorithm.rollout_step(reference.frame(200), algorithm.initial_state(200))
    assert torch.equal(step.info.open, step.info.slow_action[:, 0] > 0) and 0 < step.info.open.sum() < 200
    assert not prefer(algorithm, 1.0, 1.0).rollout_step(reference.frame(9), algorithm.initial_state(9)).info.open.any()


def test_a_gate_of_a_vector_reward_compares_weighted_sums():
    """Values (5, 4) and (1, -1) with weights (1, -1): 1 and 2."""
    algorithm = tla(gate_epsilon=0.0, reward_dim=2, reward_weights=(1.0, -1.0))
    with torch.no_grad():
        algorithm.gate_critic.last.weight.zero_()
        bias = algorithm.gate_critic.last.bias  # a network for each part of the reward, a value for each gate
        bias.copy_(torch.tensor([[5.0, 1.0], [4.0, -1.0]]).reshape(bias.shape))
    assert algorithm.rollout_step(reference.frame(5), algorithm.initial_state(5)).info.open.all()


# --- Transitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, begins, expected",
    [
        ("FMMMMMM", "1001001", (0, 3)), ("MMMMMMM", "0010010", (2, 5)), ("MMMMMLF", "0010001", (2, 5)),
        ("MLFMMMM", "0010010", (2, 5)), ("MMLFMLF", "0011011", (3, 5)),  # begins, if at all, after LAST
        ("MMMMMMM", "0000010", None), ("LFMMMMM", "1100100", (1, 4)), ("MMMMMLF", "0000111", (4, 5)),
        ("MMMMMMM", "0000001", None), ("MMMMMML", "0000001", None),
    ],
)  # fmt: skip
def test_the_first_whole_window_of_a_segment(word, begins, expected):
    step_type = torch.tensor([[{"F": F, "M": M, "L": L}[letter]] for letter in word], dtype=torch.uint8)
    begin, end, found = first_window(torch.tensor([[letter == "1"] for letter in begins]), step_type)
    assert found.item() == (expected is not None)
    assert (begin.item(), end.item()) == (expected or (0, 1))


def test_windows_of_other_shapes_are_refused():
    with pytest.raises(TaacError, match="begins must be bool of step_type's shape"):
        first_window(torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.uint8))


def test_what_policies_and_gate_are_paid():
    """K = 2, p = 0.5, j = 4, gamma 1: windows of an episode of three steps, an open one and one that the end cuts short."""
    algorithm = tla(slow_steps=2, decision_price=0.5, jerk_price=4.0, td_loss=OneStepTDLoss(1.0))
    kinds, rewards = [F, M, M, L, F], [NAN, 1.0, 2.0, 4.0, 0.0]
    executed = [[NAN, NAN], [0.5, 0.0], [0.0, 0.5], [1.0, 1.0], [0.0, 0.0]]
    slow = [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.25, 0.25]]
    column = lambda x, dtype=torch.float64: torch.tensor(x, dtype=dtype).unsqueeze(1)  # noqa: E731
    time_step = TimeStep(
        column(kinds, torch.uint8), column(rewards), column([NAN, 1.0, 1.0, 0.0, 1.0]),
        column([[float(t)] * 3 for t in range(5)]), column(executed), column([0, 1, 1, 1, 0]),
    )  # fmt: skip
    info = TlaInfo(column([1, 0, 1, 0, 1], torch.bool), column([1, 1, 0, 0, 1], torch.bool), column(slow))
    fast, whole, opened = algorithm.transitions(Experience(time_step, info))
    assert fast.time_step.reward[1].item() == 1 - 4 * 0.25 and fast.time_step.prev_action[1].tolist() == [executed[1]]
    # 1 + 2 - 4 (0.25 + 0.25) - 0.5 * 2
    assert opened.tolist() == [True] and whole.time_step.reward[1].tolist() == [0.0]
    assert whole.time_step.observation[:, 0, 0].tolist() == [0.0, 2.0] and whole.time_step.prev_action[1].tolist() == [slow[0]]
    later = Experience(*(type(x)(*(leaf[1:] for leaf in x)) for x in (time_step, info)))
    fast, whole, opened = algorithm.transitions(later)
    assert fast.time_step.reward[1].item() == 2 - 4 * 0.25
    assert opened.tolist() == [False] and whole.time_step.reward[1].tolist() == [4.0]
    assert whole.time_step.discount[1].tolist() == [0.0] and whole.time_step.observation[:, 0, 0].tolist() == [2.0, 3.0]


def published_transitions(frames, price, jerk):
    """The loop of the published code over one environment's frames: transitions `(from, to, action, gate, reward)` by kind."""
    fast, slow, position = {}, [], 0
    at = action = gate = total = None
    for t in range(len(frames.time_step.step_type) - 1):
        if frames.time_step.step_type[t, 0] == L:
            continue
        if position % K == 0:
            if position:
                slow.append((at, t, action, gate, total))
            at, action, gate = t, frames.rollout_info.slow_action[t, 0], bool(frames.rollout_info.open[t, 0])
            total = -price * K * gate
        reward = frames.time_step.reward[t + 1, 0]
        if gate:
            reward = reward - jerk * (frames.time_step.prev_action[t + 1, 0] - action).abs().mean()
        total = total + reward
        fast[t] = (t + 1, reward)
        position += 1
        if frames.time_step.step_type[t + 1, 0] == L:
            slow.append((at, t + 1, action, gate, total))
            position = 0
    return fast, slow


def collected(algorithm, words):
    """Frames `[T, 1]` of episodes as an algorithm explores them. Each observation holds the number of its frame."""
    letters, state = "".join(words), algorithm.initial_state(1)
    initial, frames, previous = state, [], torch.zeros(1, NUM_ACTIONS).double()
    for t, letter in enumerate(letters):
        first = letter == "F"
        time_step = TimeStep(
            torch.tensor([{"F": F, "M": M}.get(letter, L)], dtype=torch.uint8), torch.zeros(1).double() if first else
            torch.randn(1).double(), torch.tensor([float(letter != "L")]).double(), torch.tensor([[float(t), *torch.randn(2)]]),
            torch.zeros(1, NUM_ACTIONS).double() if first else previous, torch.tensor([0 if first else 1]),
        )  # fmt: skip
        step = algorithm.rollout_step(time_step, reset_where_first(state, initial, time_step))
        frames.append(Experience(time_step, step.info))
        state, previous = step.state, step.output
    return Experience(
        TimeStep(*map(torch.stack, zip(*(frame.time_step for frame in frames)))),
        TlaInfo(*map(torch.stack, zip(*(frame.rollout_info for frame in frames)))),
    )


EPISODES = ["FMMMMMMMl", "FMMMMML", "FMML", "FL", "FMl", "FMMMMMMMMMML", "FMMMMM"]


def segments(frames, length):
    """All of a stream's segments, one beside the other."""
    count = len(frames.time_step.step_type) - length + 1
    cut = lambda x: torch.stack([x[start : start + length, 0] for start in range(count)], 1)  # noqa: E731
    return Experience(TimeStep(*map(cut, frames.time_step)), TlaInfo(*map(cut, frames.rollout_info)))


@pytest.mark.parametrize("length", [2 * K + 1, 2 * K + 4])
def test_every_segment_holds_transitions_of_the_published_loop(length):
    algorithm = tla(gate_epsilon=1.0, decision_price=0.7, jerk_price=0.3)
    frames = collected(algorithm, EPISODES)
    fast, slow = published_transitions(frames, 0.7, 0.3)
    assert len({gate for *_, gate, _ in slow}) == 2
    found_fast, found_slow, opened = algorithm.transitions(segments(frames, length))
    seen = set()
    for start in range(len(opened)):
        one, whole = (Experience(TimeStep(*(x[:, start] for x in e.time_step)), ()) for e in (found_fast, found_slow))
        if start in fast:
            to, reward = fast[start]
            assert one.time_step.observation[:, 0].tolist() == [start, to]
            assert one.time_step.reward[1].item() == pytest.approx(reward.item())
        else:
            assert one.time_step.step_type[0] == L
        at, to, action, gate, reward = next(transition for transition in slow if transition[0] >= start)
        seen.add(at)
        assert whole.time_step.step_type[0] != L and whole.time_step.observation[:, 0].tolist() == [at, to]
        assert whole.time_step.reward[1].item() == pytest.approx(float(reward)) and bool(opened[start]) == gate
        assert torch.equal(whole.time_step.prev_action[1], action)
        for name in ("discount", "step_type", "duration"):  # where the window ends: a truncated episode bootstraps there
            assert getattr(whole.time_step, name)[1] == getattr(frames.time_step, name)[to, 0]
    assert length > 2 * K + 1 or seen == {at for at, *_ in slow}


# --- Learning ---------------------------------------------------------------------------------------------------------


def batch_of(algorithm, spec=VECTOR_SPEC, reward_dim=None):
    """Every fifth of a stream's segments."""
    chosen = segments(collected(algorithm, EPISODES), 2 * K + 1)
    chosen = Experience(*(type(x)(*(leaf[:, ::5] for leaf in x)) for x in chosen))
    size = chosen.time_step.step_type.shape
    reward = torch.randn(*size, *([reward_dim] if reward_dim else [])).double()
    seen = reference.observation(spec, *size)
    return chosen._replace(time_step=chosen.time_step._replace(observation=seen, reward=reward))


def losses_of(algorithm, experience, seed=5):
    torch.manual_seed(seed)
    return algorithm.calc_loss(experience, algorithm.train_step(experience))


@pytest.mark.parametrize(
    "spec, options",
    [
        pytest.param(VECTOR_SPEC, {}, id="defaults"), pytest.param(VECTOR_SPEC, COST, id="vector-reward"),
        pytest.param(IMAGE_SPEC, {"decision_price": 0.0}, id="image"),
    ],
)  # fmt: skip
def test_an_update_is_td3s_on_both_kinds_of_transitions_and_the_gates(spec, options):
    plain_options = {name: value for name, value in options.items() if name != "decision_price"}
    algorithm, weights = tla(spec, **options), options.get("reward_weights", (1.0,))
    experience = batch_of(algorithm if spec is VECTOR_SPEC else tla(**options), spec, options.get("reward_dim"))
    info_fast, info_slow, opened = algorithm.transitions(experience)
    of_fast, of_slow = td3(algorithm, spec, **plain_options), td3(algorithm.slow, spec, **plain_options)
    torch.manual_seed(5)
    steps = [(plain, e, plain.train_step(e)) for plain, e in ((of_fast, info_fast), (of_slow, info_slow))]
    fast, slow = (plain.calc_loss(e, info).loss for plain, e, info in steps)
    w, seen = reference.weights_of(algorithm), info_slow.time_step
    gate = torch.zeros_like(fast)
    gammas = torch.tensor(options["td_loss"].gamma.tolist() if len(weights) > 1 else [0.875]).double()
    for b in range(fast.shape[1]):
        if seen.is_last()[0, b]:
            continue
        obs = reference.encode(w, "slow.encoder", seen.observation, 0, b).detach()
        values = reference.critics(w, "gate_critic", obs, seen.prev_action[1, b])[0].reshape(2, -1)
        after = reference.encode(w, "slow.target_encoder", seen.observation, 1, b)
        action = after
        for layer in reference.hidden(w, "slow.target_actor"):
            action = torch.relu(w[f"{layer}.weight"] @ action + w[f"{layer}.bias"])
        action = torch.tanh(w["slow.target_actor.head.weight"] @ action + w["slow.target_actor.head.bias"])
        first = reference.critics(w, "slow.target_critics", after, action)[0][: len(weights)]  # the second critic's follow
        target = seen.reward[1, b].reshape(-1) + gammas * seen.discount[1, b] * first.detach()
        gate[0, b] = ((values[int(opened[b])] - target) ** 2).mean()
    assert gate[0].ne(0).sum() == (~seen.is_last()[0]).sum() > 4
    loss = losses_of(algorithm, experience)
    torch.testing.assert_close(loss.loss, fast + slow + gate, rtol=1e-5, atol=1e-7)
    assert loss.extra["loss/gate"].item() == pytest.approx(gate.sum().item() / (~seen.is_last()[0]).sum().item(), rel=1e-5)

    # Gradients: each policy's are TD3's alone; the gate's are those of its own loss, which trains nothing else.
    loss.loss.mean().backward()
    (fast.mean() + slow.mean()).backward()
    names = [name for name, _ in algorithm.gate_critic.named_parameters()]
    of_gate = dict(zip(names, torch.autograd.grad(gate.mean(), [w[f"gate_critic.{name}"] for name in names])))
    for name, parameter in algorithm.named_parameters():
        if name.startswith("gate_critic."):
            expected = of_gate[name.removeprefix("gate_critic.")]
            assert expected.any()
        elif not parameter.requires_grad:
            continue
        elif name.startswith("slow."):
            expected = of_slow.get_parameter(name.removeprefix("slow.")).grad
        else:
            expected = of_fast.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def test_with_open_gates_and_no_price_the_fast_policy_learns_as_td3_to_the_bit():
    algorithm = always(True, jerk_price=0.0)
    experience, plain = batch_of(algorithm), td3(algorithm)
    learner, other = (Learner(Agent(each), 1e-3, matmul="plain") for each in (algorithm, plain))
    pairs = Experience(TimeStep(*(x[:2] for x in experience.time_step)), ())
    torch.manual_seed(7)
    learner.update(experience)
    torch.manual_seed(7)
    other.update(pairs)
    for name, expected in plain.state_dict().items():
        assert torch.equal(algorithm.state_dict()[name], expected), name


def test_with_closed_gates_the_slow_policy_learns_as_td3_whose_actions_are_held_to_the_bit():
    algorithm = always(False, target_noise=0.0)
    plain = td3(algorithm.slow, target_noise=0.0)
    experience = batch_of(algorithm)
    rows, held = [], []  # of an environment that holds each action for K steps and sums their rewards: a frame for each window
    for b in range(experience.time_step.step_type.shape[1]):
        frames = TimeStep(*(x[:, b] for x in experience.time_step))
        begin = int(experience.rollout_info.begins[:, b].nonzero()[0])
        if frames.is_last()[: begin + 1].any():
            continue
        ends = frames.is_last()[begin + 1 : begin + K + 1].nonzero().flatten().tolist()
        end = begin + (ends[0] + 1 if ends else K)
        assert (frames.prev_action[begin + 1 : end + 1] == frames.prev_action[begin + 1]).all()
        pair = TimeStep(*(x[[begin, end]] for x in frames))
        pair.reward[1] = frames.reward[begin + 1 : end + 1].sum()
        rows.append(b)
        held.append(pair)
    assert len(rows) > 4
    batch = Experience(*(type(x)(*(leaf[:, rows] for leaf in x)) for x in experience))
    Learner(Agent(algorithm), 1e-3, matmul="plain").update(batch)
    Learner(Agent(plain), 1e-3, matmul="plain").update(
        Experience(TimeStep(*(torch.stack(leaves, 1) for leaves in zip(*held))), ())
    )
    for name, expected in plain.state_dict().items():
        assert torch.equal(algorithm.slow.state_dict()[name], expected), name


def test_rows_do_not_influence_one_another():
    algorithm = tla()
    experience = batch_of(algorithm)
    before = losses_of(algorithm, experience).loss.sum(0)
    disturbed = experience.time_step._replace(
        reward=experience.time_step.reward.clone(), observation=experience.time_step.observation.clone()
    )
    disturbed.reward[:, 2] += 1.0
    disturbed.observation[:, 2] += 1.0
    after = losses_of(algorithm, experience._replace(time_step=disturbed)).loss.sum(0)
    assert torch.equal((before != after).nonzero().flatten(), torch.tensor([2]))


def test_a_segment_without_a_whole_window_teaches_the_fast_policy_alone():
    algorithm = tla()
    experience = batch_of(algorithm)
    info = experience.rollout_info._replace(begins=torch.zeros_like(experience.rollout_info.begins))
    time_step = experience.time_step._replace(step_type=torch.full_like(experience.time_step.step_type, int(M)))
    losses_of(algorithm, Experience(time_step, info)).loss.mean().backward()
    for name, parameter in algorithm.named_parameters():
        if parameter.requires_grad and parameter.numel() and not name.startswith("encoder"):
            alone = name.startswith(("slow.", "gate_critic."))
            assert (parameter.grad is None or not parameter.grad.any()) == alone, name


def test_the_price_of_a_schedule_is_what_windows_pay():
    algorithm = tla(decision_price=LinearSchedule(0.5, 1.5, env_steps=10), gate_epsilon=1.0)
    experience = batch_of(algorithm)
    (scheduled,) = algorithm.scheduled
    _, free, opened = always(True, decision_price=0.0).transitions(experience)
    assert scheduled.name == "TlaAlgorithm.decision_price" and 0 < opened.sum() < len(opened)
    for price in (0.5, 1.25):
        scheduled.set(price)
        _, slow, _ = algorithm.transitions(experience)
        torch.testing.assert_close(free.time_step.reward[1] - slow.time_step.reward[1], price * K * opened.double())


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_a_learnt_price_rises_while_rollouts_decide_too_often(rate):
    algorithm = always(True, target_decision_rate=0.5)
    algorithm.decision_price.rate.fill_(rate)
    experience = batch_of(algorithm)
    losses_of(algorithm, experience).loss.mean().backward()
    acted = (~experience.time_step.is_last()[0]).double().mean() / 2  # of two frames
    assert algorithm.decision_price.log_price.grad.item() == pytest.approx((0.5 - rate) * acted.item())
    assert set(map(id, algorithm.decision_price.parameters())) <= set(map(id, algorithm.parameter_groups()["temperature"]))


def test_both_policies_are_delayed_and_have_targets_that_move():
    algorithm = tla(policy_delay=2, target_update_period=2)
    learner = Learner(Agent(algorithm), 1e-3, matmul="plain")
    experience, moved = batch_of(algorithm), []
    for _ in range(2):
        before = {name: p.clone() for name, p in algorithm.named_parameters() if p.dim()}
        learner.update(experience)
        changed = {name for name, p in algorithm.named_parameters() if p.dim() and not torch.equal(p, before[name])}
        moved.append({name.split(".hidden")[0].split(".head")[0].split(".last")[0] for name in changed})
    critics = {"critics", "slow.critics", "gate_critic"}
    actors = {"actor", "slow.actor"}
    assert moved == [critics, critics | actors | {"target_critics", "target_actor", "slow.target_critics", "slow.target_actor"}]


def test_groups_hold_every_trainable_parameter_once():
    algorithm = tla(IMAGE_SPEC)
    actors = ("actor.", "slow.actor.")
    critics = ("encoder.", "critics.", "slow.encoder.", "slow.critics.", "gate_critic.")
    name_of = {id(p): name for name, p in algorithm.named_parameters()}
    found = {group: sorted(name_of[id(p)] for p in of) for group, of in algorithm.parameter_groups().items()}
    trainable = sorted(name for name, p in algorithm.named_parameters() if p.requires_grad)
    assert found["actor"] == [name for name in trainable if name.startswith(actors)]
    assert found["critic"] == [name for name in trainable if name.startswith(critics)]
    assert sum(map(len, found.values())) == len(trainable)


def test_what_an_update_reports():
    algorithm = tla()
    extra = losses_of(algorithm, batch_of(algorithm)).extra
    assert set(algorithm.summary_tags()) == {"loss/slow_critic", "loss/slow_actor", "loss/gate", "critic/slow_q"}
    assert set(algorithm.summary_tags()) < set(extra) and all(x.dim() == 0 and not x.requires_grad for x in extra.values())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"slow_steps": 0}, "slow_steps must be 1 or more, got 0"), ({"gate_epsilon": 1.1}, "gate_epsilon must be in"),
        ({"jerk_price": -1.0}, "jerk_price must be 0 or more, got -1"), ({"jerk_price": NAN}, "jerk_price must be 0 or more"),
        ({"decision_price": -1.0}, r"TlaAlgorithm\.decision_price must be 0 or more"),
        ({"target_decision_rate": 1.0}, "target_decision_rate must be between 0 and 1"),
        ({"td_loss": TDLoss()}, "learns from single transitions: bind OneStepTDLoss instead of TDLoss"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        tla(**settings)


def test_the_shortest_segment_holds_a_whole_window():
    assert tla(slow_steps=4).min_segment_length == 9


# --- Vector rewards ---------------------------------------------------------------------------------------------------


def test_parts_of_a_reward_share_the_price_of_jerk_and_of_an_open_window():
    """So that their weighted sum pays it once."""
    priced, free = (tla(gate_epsilon=1.0, jerk_price=0.3, decision_price=price, **COST) for price in (0.5, 0.0))
    experience = batch_of(priced, reward_dim=3)
    (fast, slow, opened), (_, unpriced, _) = priced.transitions(experience), free.transitions(experience)
    distance = (experience.time_step.prev_action[1] - experience.rollout_info.slow_action[0]).abs().mean(-1)
    jerk = priced.weighted(experience.time_step.reward[1] - fast.time_step.reward[1])
    torch.testing.assert_close(jerk, 0.3 * distance)
    assert opened.any() and not opened.all()
    paid = priced.weighted(unpriced.time_step.reward[1] - slow.time_step.reward[1])
    torch.testing.assert_close(paid, 0.5 * K * opened.double())
