"""TempoRL: how long actions are held, what is stored, and the skip values' loss beside that of SAC, TD3 or DDPG."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from taac.algorithms import (
    OneStepTDLoss,
    RetraceTDLoss,
    SacAlgorithm,
    Td3Algorithm,
    TDLoss,
    TempoRLAlgorithm,
    TempoRLTd3Algorithm,
)
from taac.algorithms.algorithm import reset_where_first
from taac.algorithms.temporl import TempoRLInfo, TempoRLState
from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, DeterministicActorNetwork
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IMAGE_SPEC, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC, F, L, M

# --- Acting -----------------------------------------------------------------------------------------------------------

J = 4


def temporl(**options):
    return TempoRLAlgorithm(
        VECTOR_SPEC, ACTION_SPEC,
        **{"max_skip": J, "actor_ctor": functools.partial(ActorNetwork, hidden_layers=(8,)),
           "skip_critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(8,), last_init_range=0.5), **options},
    )  # fmt: skip


def prefer(algorithm, *values):
    """Skip values that are the same everywhere."""
    with torch.no_grad():
        algorithm.skip_critic.last.weight.zero_()
        bias = algorithm.skip_critic.last.bias  # a network for each part of the reward, a value for each duration
        bias.copy_(torch.tensor(values).reshape(-1, len(bias)).T.reshape(bias.shape))
    return algorithm


def best_duration(algorithm, observation, action):
    """argmax_j Q_skip(s, a, j), from the raw weights, and its margin."""
    w = reference.weights_of(algorithm)
    x = torch.cat([observation, action], -1).double()
    x = torch.relu(x @ w["skip_critic.hidden.0.weight"][0] + w["skip_critic.hidden.0.bias"][0])
    q = (x @ w["skip_critic.last.weight"][0] + w["skip_critic.last.bias"][0]).detach()
    return q.argmax(-1) + 1


def test_an_action_is_held_for_its_duration_and_no_longer():
    """One environment whose best duration is 3, with an episode's end in between; the policy samples at every frame."""
    algorithm = prefer(temporl(skip_epsilon=0.0), 0.0, 0.0, 1.0, 0.0)
    initial = state = algorithm.initial_state(1)
    assert state.action.tolist() == [[0, 0]] and state.left.tolist() == [0] and state.left.dtype == torch.int64
    #        decides  holds    decides, and the episode ends while it holds; FIRST decides, whatever was left
    kinds = [F, M, M, M, M, L, F, M, M, M, L, F, M]
    new = [1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    left = [2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 2, 1]
    outputs = []
    for kind, decides, remaining in zip(kinds, new, left):
        time_step = reference.frame(1, kind)
        step = algorithm.rollout_step(time_step, reset_where_first(state, initial, time_step))
        state = step.state
        assert step.decided.tolist() == [bool(decides)] and step.decided.dtype == torch.bool
        assert step.info.decided.tolist() == [bool(decides)]
        assert state.left.tolist() == [remaining]
        assert torch.equal(state.action, step.output)
        outputs.append(step.output)
    for t, decides in enumerate(new[1:], 1):
        assert torch.equal(outputs[t], outputs[t - 1]) == (not decides), t


@pytest.mark.parametrize("how", ["rollout", "predict", "random"])
def test_rows_hold_and_decide_by_themselves(how):
    algorithm, batch = temporl(skip_epsilon=0.0), 300
    torch.nn.init.normal_(
        algorithm.actor.head.bias
    )  # no state whose mode is exactly 0, as the state's action is at first
    state = algorithm.initial_state(batch)
    held, left = torch.zeros(batch, NUM_ACTIONS), torch.zeros(batch, dtype=torch.int64)
    seen = set()
    for _ in range(12):
        time_step = reference.frame(batch)
        step = getattr(algorithm, f"{how}_step")(time_step, state)
        decides = left == 0
        assert torch.equal(step.decided, decides)
        assert torch.equal(step.output[~decides], held[~decides])
        assert (step.output[decides] != held[decides]).any(-1).all()
        if how != "random":
            chosen = best_duration(algorithm, time_step.observation, step.output)
            left = torch.where(decides, chosen, left) - 1
            assert torch.equal(step.state.left, left)
        left, state, held = step.state.left, step.state, step.output
        seen |= set((left[decides] + 1).tolist())
        assert torch.equal(state.action, held) and step.info == TempoRLInfo(step.decided)
    assert seen <= {1, 2, 3, 4} and len(seen) > 1


def test_the_proposed_action_is_sacs_own():
    """The same draw and the same mode as SAC's; only whether it is taken up differs."""
    algorithm, time_step = temporl(), reference.frame(40)
    state = TempoRLState(torch.full((40, NUM_ACTIONS), 7.0), torch.arange(40) % 2)
    decides = torch.arange(40) % 2 == 0
    plain = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)))
    plain.actor.load_state_dict(algorithm.actor.state_dict())
    for step, more in (("rollout_step", ()), ("predict_step", ()), ("predict_step", (0.5,))):
        torch.manual_seed(1)
        expected = getattr(plain, step)(time_step, (), *more).output
        torch.manual_seed(1)
        output = getattr(algorithm, step)(time_step, state, *more).output
        assert torch.equal(output[decides], expected[decides]) and (output[~decides] == 7.0).all()


def test_the_duration_is_of_the_action_that_is_executed():
    """Skip values that depend on the action's sign alone: Q(s, a, 4) = a_0, the others 0; a tie is the shortest."""
    algorithm = temporl(skip_epsilon=0.0, skip_critic_ctor=functools.partial(CriticEnsemble, hidden_layers=()))
    with torch.no_grad():
        algorithm.skip_critic.last.weight.zero_()
        algorithm.skip_critic.last.weight[0, 3, J - 1] = 1.0  # three features come before the action
    step = algorithm.rollout_step(reference.frame(200), algorithm.initial_state(200))
    expected = torch.where(step.output[:, 0] > 0, J, 1) - 1
    assert torch.equal(step.state.left, expected) and 0 < (expected > 0).sum() < 200


@pytest.mark.parametrize("how, epsilon", [("rollout", 0.4), ("rollout", 0.0), ("predict", 0.0), ("predict", 0.2)])
def test_durations_are_epsilon_greedy(how, epsilon):
    """Uniform over 1..J with the probability; in evaluation, epsilon times that of exploring (here 1/2)."""
    count = 20_000
    algorithm = prefer(temporl(skip_epsilon=epsilon if how == "rollout" else 0.5), 0.0, 1.0, 0.0, 0.5)
    state = algorithm.initial_state(count)
    if how == "rollout":
        step = algorithm.rollout_step(reference.frame(count), state)
    else:
        step = algorithm.predict_step(reference.frame(count), state, 2 * epsilon)
    for j in range(1, J + 1):
        p = epsilon / J + (1 - epsilon) * (j == 2)
        assert (step.state.left == j - 1).double().mean().item() == pytest.approx(
            p, abs=4 * math.sqrt(p * (1 - p) / count)
        )


def test_the_duration_is_by_the_weighted_sum_of_the_rewards_parts():
    """Values (5, 4), (1, -1), (3, 3) and (9, 8) with weights (1, -1): 1, 2, 0 and 1, so two steps; by their sum, four."""
    algorithm = temporl(skip_epsilon=0.0, reward_dim=2, reward_weights=(1.0, -1.0))
    prefer(algorithm, 5.0, 4.0, 1.0, -1.0, 3.0, 3.0, 9.0, 8.0)
    for step in (algorithm.rollout_step, algorithm.predict_step):
        assert (step(reference.frame(5), algorithm.initial_state(5)).state.left == 1).all()


def test_random_step_is_uniform_in_action_and_duration():
    count = 20_000
    step = temporl().random_step(reference.frame(count), temporl().initial_state(count))
    reference.check_uniform(step.output, count)
    for j in range(J):
        assert (step.state.left == j).double().mean().item() == pytest.approx(1 / J, abs=4 * math.sqrt(3 / 16 / count))
    assert torch.equal(step.info.decided, torch.ones(count, dtype=torch.bool))


def test_with_one_duration_it_acts_as_sac():
    algorithm = temporl(max_skip=1, skip_epsilon=1.0)
    state = algorithm.initial_state(5)
    for how in ("rollout", "predict", "random"):
        step = getattr(algorithm, f"{how}_step")(reference.frame(5), state)
        assert step.decided.all() and not step.state.left.any()


# --- Learning ---------------------------------------------------------------------------------------------------------


def learner(max_skip=3, spec=VECTOR_SPEC, reward_weights=None, gamma=0.875, num_critics=2, **own):
    """SAC and TempoRL of the same networks, in float64."""
    options = {
        "reward_dim": len(reward_weights) if reward_weights else None, "reward_weights": reward_weights,
        "td_loss": OneStepTDLoss(gamma), **reference.networks(num_critics),
    }  # fmt: skip
    skip = functools.partial(CriticEnsemble, hidden_layers=(5,))
    tested = TempoRLAlgorithm(spec, ACTION_SPEC, max_skip=max_skip, skip_critic_ctor=skip, **own, **options)
    plain = SacAlgorithm(spec, ACTION_SPEC, **options)
    reference.scrambled(tested)
    reference.scrambled(plain)
    plain.load_state_dict({name: tested.state_dict()[name] for name in plain.state_dict()})
    return tested, plain


def stored(spec=VECTOR_SPEC, reward_dim=None, probability=0.3):
    time_step = reference.replayed(spec, reward_dim)
    decided = torch.rand(STEPS, BATCH) < probability
    return Experience(time_step, TempoRLInfo(decided | (time_step.step_type == F)))


def losses_of(algorithm, experience, seed=3):
    torch.manual_seed(seed)
    info = algorithm.train_step(experience)
    return algorithm.calc_loss(experience, info), info


def skip_reference(w, experience, value, bonus, max_skip, gamma, spec_name="encoder"):
    """The skip loss of each frame `[T][B]`: sum over the durations it is an example of, mean over the reward's parts.

    A duration of j has T - j places in a segment of T frames, one step T - 1; with J steps a skip has (J + 1) / 2 for each.

    The entropy `bonus` of the frames that are passed through is paid; that of the frame arrived at is in its `value`.
    """
    time_step, decided = experience.time_step, experience.rollout_info.decided
    loss = [[torch.zeros((), dtype=torch.float64) for _ in range(BATCH)] for _ in range(STEPS)]
    for t in range(STEPS - 1):
        for b in range(BATCH):
            obs = reference.encode(w, spec_name, time_step.observation, t, b).detach()
            q = reference.critics(w, "skip_critic", obs, time_step.prev_action[t + 1, b])[0].reshape(max_skip, -1)
            errors, target, factor = [], 0.0, torch.ones(len(gamma), dtype=torch.float64)
            for j in range(1, max_skip + 1):
                end = t + j
                # the action of t goes on through t+j-1: there is one, and no new one was chosen after t
                if end >= STEPS or IS_LAST[end - 1, b] or (j > 1 and decided[end - 1, b]):
                    break
                if j > 1:
                    target = target + factor * bonus[end - 1, b].reshape(-1)
                target = target + factor * time_step.reward[end, b].reshape(-1)
                factor = factor * torch.tensor(gamma, dtype=torch.float64) * time_step.discount[end, b]
                error = ((q[j - 1] - target - factor * value[end, b].reshape(-1)) ** 2).mean()
                errors.append(error * (STEPS - 1) / (STEPS - j) * 2 / (max_skip + 1))
            if errors:
                loss[t][b] = torch.stack(errors).sum()
    return loss


CASES = [
    pytest.param({}, id="defaults"),
    pytest.param({"max_skip": 1}, id="J=1"),
    pytest.param({"max_skip": 9}, id="J-beyond-the-segment"),
    pytest.param({"reward_weights": (1.0, -0.5, 2.0), "gamma": (0.875, 0.5, 0.75)}, id="vector-reward"),
    pytest.param({"spec": IMAGE_SPEC}, id="image"),
]


@pytest.mark.parametrize("settings", CASES)
@pytest.mark.parametrize("probability", [0.3, 0.0])
def test_a_loss_is_sacs_and_that_of_the_skip_values(settings, probability):
    tested, plain = learner(**settings)
    parts = len(settings.get("reward_weights", ())) or None
    gamma = settings.get("gamma", 0.875)
    experience = stored(settings.get("spec", VECTOR_SPEC), parts, probability)
    loss, _ = losses_of(tested, experience)
    expected, info = losses_of(plain, Experience(experience.time_step, ()))
    w = reference.weights_of(tested)
    # What the value contains of entropy: the same draws without it in the target.
    plain.entropy_in_target = False
    bonus = info.value - losses_of(plain, Experience(experience.time_step, ()))[1].value
    gammas = gamma if parts else (gamma,)
    skip = skip_reference(w, experience, info.value, bonus, settings.get("max_skip", 3), gammas)
    skip = torch.stack([torch.stack(row) for row in skip])
    assert (skip > 0).sum() > STEPS * BATCH / 3 and not skip[IS_LAST].any() and not skip[-1].any()
    torch.testing.assert_close(loss.loss, expected.loss + skip, rtol=1e-5, atol=1e-7)
    assert not loss.loss[IS_LAST].any()
    assert loss.extra["loss/skip"].item() == pytest.approx(skip[:-1][~IS_LAST[:-1]].mean().item(), rel=1e-6)

    # Gradients: SAC's own parameters as without skip values; theirs are the skip loss's, which trains nothing else.
    loss.loss.mean().backward()
    expected.loss.mean().backward()
    of_skips = torch.autograd.grad(skip.mean(), [w[n] for n, p in tested.named_parameters() if "skip" in n])
    of_skips = dict(zip([n for n, _ in tested.named_parameters() if "skip" in n], of_skips))
    assert len(of_skips) == 4
    for name, parameter in tested.named_parameters():
        if name in of_skips:
            assert of_skips[name].abs().max() > 1e-5
            torch.testing.assert_close(parameter.grad, of_skips[name], rtol=1e-5, atol=1e-7)
        elif parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [4, 7])
def test_skips_count_as_if_they_were_drawn_from_a_buffer_of_their_own(steps, monkeypatch):
    """Segments begin at every frame of a ring of holds. Each pair i < j of a hold's states counts alike, whatever j - i is."""
    tested, _ = learner()
    holds = torch.tensor([1, 3, 2, 3, 1, 2, 3, 3])
    frames = int(holds.sum())
    decided = torch.zeros(frames, dtype=torch.bool)
    decided[holds.cumsum(0) - holds] = True
    ring = (torch.arange(frames) + torch.arange(steps).unsqueeze(1)) % frames  # [T, B]
    time_step = TimeStep(
        torch.full(ring.shape, M, dtype=torch.uint8), torch.ones(ring.shape).double(), torch.ones(ring.shape).double(),
        torch.randn(*ring.shape, *VECTOR_SPEC.shape).double(), torch.zeros(*ring.shape, NUM_ACTIONS).double(),
        torch.ones(ring.shape, dtype=torch.int16),
    )  # fmt: skip
    experience = Experience(time_step, TempoRLInfo(decided[ring]))
    info = tested.train_step(experience)
    for duration in (1, 2, 3):
        asked = []

        def error(critics, prediction, target, asked=asked, duration=duration):
            asked += [None] if critics is tested.skip_critic else []
            return torch.full_like(target, float(critics is tested.skip_critic and len(asked) == duration))

        monkeypatch.setattr(tested, "value_error", error)
        found = tested.calc_loss(experience, info).extra["loss/skip"].item() * ring[:-1].numel()
        pairs = int((holds - duration + 1).clamp(min=0).sum())
        assert found == pytest.approx(pairs * (steps - 1) * 2 / (3 + 1)), duration


@pytest.mark.parametrize("reward_weights", [None, (1.0, -0.5, 2.0)], ids=str)
@pytest.mark.parametrize("entropy", [True, False])
def test_a_skip_saves_the_price_of_the_decisions_inside(reward_weights, entropy):
    """The critics learn the value of deciding at every step at a price of 0.5 each; a skip pays where it arrives."""
    tested, plain = learner(reward_weights=reward_weights, decision_price=0.5)
    tested.entropy_in_target = plain.entropy_in_target = entropy
    experience = stored(reward_dim=reward_weights and len(reward_weights))
    (loss, info), (_, free) = losses_of(tested, experience), losses_of(plain, Experience(experience.time_step, ()))
    weights = torch.tensor(reward_weights or [1.0], dtype=torch.float64)
    share = 0.5 * weights / weights.square().sum()
    paid = share if reward_weights else share.squeeze()
    torch.testing.assert_close(info.value[1:], free.value[1:] - paid)
    assert loss.extra["decision/price"].item() == 0.5
    bonus = torch.zeros_like(free.value) if free.bonus is None else free.bonus
    torch.testing.assert_close(info.bonus[1:], bonus[1:] - paid)  # what a multi-step return adds: its steps are decisions
    w = reference.weights_of(tested)
    skip = skip_reference(w, experience, info.value, bonus, 3, (0.875,) * len(weights))
    skip = torch.stack([torch.stack(row) for row in skip])
    assert loss.extra["loss/skip"].item() == pytest.approx(skip[:-1][~IS_LAST[:-1]].mean().item(), rel=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_a_learnt_price_rises_while_rollouts_decide_too_often(rate):
    tested, _ = learner(target_decision_rate=0.5)
    tested.decision_price.rate.fill_(rate)
    loss, _ = losses_of(tested, stored())
    loss.loss.mean().backward()
    assert tested.decision_price.log_price.grad.item() == pytest.approx((0.5 - rate) * (~IS_LAST).double().mean().item())
    assert set(map(id, tested.decision_price.parameters())) <= set(map(id, tested.parameter_groups()["temperature"]))


def test_what_is_observed():
    """Three frames held throughout: frame 0 is an example of 1 and 2 steps, frame 1 of 1. With a decision at 1, one each."""
    tested, _ = learner()
    time_step = reference.replayed(VECTOR_SPEC)
    three = type(time_step)(*[x[:3, :1] for x in time_step])._replace(
        step_type=torch.tensor([[F], [M], [M]], dtype=torch.uint8)
    )
    # LAST is no example of any, and does not count: frame 0 of F M L alone holds 1 and 2 steps, frame 1 one; of M L F 1 and 0.
    ends = three._replace(step_type=torch.tensor([[F], [M], [L]], dtype=torch.uint8))
    begins = three._replace(step_type=torch.tensor([[M], [L], [F]], dtype=torch.uint8))
    cases = [([1, 0, 0], three, 1.5), ([1, 1, 0], three, 1.0), ([1, 0, 1], three, 1.5), ([1, 0, 0], ends, 1.5),
             ([1, 0, 1], begins, 1.0)]  # fmt: skip
    for decided, time_step, expected in cases:
        info = TempoRLInfo(torch.tensor(decided, dtype=torch.bool).unsqueeze(1))
        loss, _ = losses_of(tested, Experience(time_step, info))
        assert loss.extra["skip/observed"].item() == expected
    assert set(tested.summary_tags()) == {"loss/skip", "skip/observed"}
    assert all(x.dim() == 0 and not x.requires_grad for x in loss.extra.values())


DDPG = {"num_critics": 1, "target_noise": 0.0}


def on_td3(num_critics=2, reward_weights=None, td_loss=None, target_noise=0.2, **own):
    """TD3 and TempoRL of the same networks, in float64."""
    options = {
        "reward_dim": len(reward_weights) if reward_weights else None, "reward_weights": reward_weights,
        "td_loss": td_loss or OneStepTDLoss(0.875), "target_noise": target_noise, **reference.networks(num_critics),
        "actor_ctor": functools.partial(DeterministicActorNetwork, hidden_layers=(5, 4)),
    }  # fmt: skip
    skip = functools.partial(CriticEnsemble, hidden_layers=(5,))
    tested = reference.scrambled(TempoRLTd3Algorithm(VECTOR_SPEC, ACTION_SPEC, skip_critic_ctor=skip, **own, **options))
    plain = reference.scrambled(Td3Algorithm(VECTOR_SPEC, ACTION_SPEC, **options))
    plain.load_state_dict({name: tested.state_dict()[name] for name in plain.state_dict()})
    return tested, plain


@pytest.mark.parametrize("settings", [DDPG, {}, {"reward_weights": (1.0, -0.5, 2.0)}], ids=["ddpg", "td3", "vector-reward"])
def test_on_td3_a_loss_is_its_own_and_that_of_the_skip_values(settings):
    tested, plain = on_td3(**settings)
    weights = settings.get("reward_weights")
    experience = stored(reward_dim=weights and len(weights))
    loss, _ = losses_of(tested, experience)
    expected, info = losses_of(plain, Experience(experience.time_step, ()))
    w, value = reference.weights_of(tested), info.value
    if settings is DDPG:  # the published target, Q'(s, mu'(s)), from the raw weights
        for t in range(1, STEPS):
            for b in range(BATCH):
                x = obs = reference.encode(w, "target_encoder", experience.time_step.observation, t, b)
                for layer in reference.hidden(w, "target_actor"):
                    x = torch.relu(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"])
                x = torch.tanh(w["target_actor.head.weight"] @ x + w["target_actor.head.bias"])
                torch.testing.assert_close(value[t, b], reference.critics(w, "target_critics", obs, x)[0].squeeze().detach())
    skip = skip_reference(w, experience, value, torch.zeros_like(value), 3, (0.875,) * len(weights or (1,)))
    skip = torch.stack([torch.stack(row) for row in skip])
    torch.testing.assert_close(loss.loss, expected.loss + skip, rtol=1e-5, atol=1e-7)
    loss.loss.mean().backward()
    expected.loss.mean().backward()
    for name, parameter in tested.named_parameters():
        if "skip" in name:
            assert parameter.grad.abs().max() > 1e-5
        elif parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("td_loss", [OneStepTDLoss, TDLoss])
def test_on_td3_every_step_of_a_return_is_a_decision(td_loss):
    tested, plain = on_td3(**DDPG, td_loss=td_loss(1.0), decision_price=0.5)
    time_step = reference.replayed(VECTOR_SPEC)
    step_type = torch.full_like(time_step.step_type, int(M))
    experience = Experience(
        time_step._replace(step_type=step_type, discount=torch.ones_like(time_step.discount)),
        TempoRLInfo(torch.zeros(STEPS, BATCH, dtype=torch.bool)),
    )
    (loss, _), (free, _) = losses_of(tested, experience), losses_of(plain, Experience(experience.time_step, ()))
    decisions = 1 if td_loss is OneStepTDLoss else STEPS / 2  # 1 .. T-1 of them, by the frame
    expected = free.extra["critic/target"].item() - 0.5 * decisions
    assert loss.extra["critic/target"].item() == pytest.approx(expected)


def test_on_td3_it_explores_by_td3s_noise():
    tested, plain = on_td3(max_skip=1)
    time_step, state = reference.frame(30), tested.initial_state(30)
    for step in ("rollout_step", "predict_step"):
        torch.manual_seed(1)
        expected = getattr(plain, step)(time_step, ()).output
        torch.manual_seed(1)
        found = getattr(tested, step)(time_step, state)
        assert torch.equal(found.output, expected) and found.decided.all()


def test_the_shortest_segment_holds_the_longest_duration():
    assert temporl(max_skip=4).min_segment_length == 5 and temporl(max_skip=1).min_segment_length == 2


def test_groups_hold_every_trainable_parameter_once():
    tested, _ = learner(spec=IMAGE_SPEC)
    reference.check_groups(tested, ("actor.",), ("encoder.", "critics.", "skip_critic."))
    # One network of skip values, whatever the number of critics: there is no minimum to take.
    assert temporl(critic_ctor=functools.partial(CriticEnsemble, num_critics=3)).skip_critic.num_critics == 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_skip": 0}, "max_skip must be 1 or more, got 0"),
        ({"skip_epsilon": 1.1}, "skip_epsilon must be in"),
        ({"skip_epsilon": -0.1}, "skip_epsilon must be in"),
        ({"td_loss": RetraceTDLoss()}, "TempoRLAlgorithm does not store"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        temporl(**settings)
