"""Trajectories: tables worked by hand from docs/equations.md#trajectories, gradients, selection."""

import pytest
import torch

from taac import nest
from taac.algorithms.trajectories import (
    ConstantTrajectory,
    LinearTrajectory,
    QuadraticTrajectory,
    Tau,
    follow,
    uniform_like,
)

# Every number in the tables is a sum of powers of two, so that they hold exactly in float32.
ALL = [
    ConstantTrajectory(),
    LinearTrajectory(),
    LinearTrajectory(inverse_mode=False),
    QuadraticTrajectory(),
    QuadraticTrajectory(inverse_mode=False),
]


def t(*values):
    return torch.tensor(values, dtype=torch.float32)


def parts(tau):
    """Each part as a list of numbers, `()` where it holds nothing."""
    assert isinstance(tau, Tau)
    return tuple(part.tolist() if isinstance(part, torch.Tensor) else part for part in tau)


# --- Constant -------------------------------------------------------------------------------------
def test_constant_repeats():
    trajectory = ConstantTrajectory()
    tau = Tau(t(0.25, -1.0), (), ())
    assert parts(trajectory.advance(tau)) == ([0.25, -1.0], (), ())
    assert parts(trajectory.start(t(1.0, 0.5), tau)) == ([1.0, 0.5], (), ())


# --- Linear: a <- clamp(a + 2v) -------------------------------------------------------------------
@pytest.mark.parametrize(
    "a, v, expected",
    [
        (0.25, 0.125, 0.5),  # 0.25 + 0.25
        (0.25, -0.5, -0.75),  # 0.25 - 1
        (0.5, 0.25, 1.0),  # to the bound exactly
        (0.5, 0.5, 1.0),  # 1.5, clamped
        (-0.5, -1.0, -1.0),  # -2.5, clamped
        (-1.0, 1.0, 1.0),  # from one bound to the other
        (1.0, -0.25, 0.5),  # back off the bound
        (0.75, 0.0, 0.75),
    ],
)
@pytest.mark.parametrize("inverse_mode", [True, False])
def test_linear_advance(inverse_mode, a, v, expected):
    tau = LinearTrajectory(inverse_mode).advance(Tau(t(a), t(v), ()))
    assert parts(tau) == ([expected], [v], ())  # v stays, also where a is held at the bound


@pytest.mark.parametrize(
    "a_old, a_hat, v",
    [(0.0, 0.5, 0.25), (0.5, 0.25, -0.125), (-1.0, 1.0, 1.0), (1.0, -1.0, -1.0), (0.25, 0.25, 0.0)],
)
def test_linear_start_inverse(a_old, a_hat, v):
    old = Tau(t(a_old), t(0.75), ())  # the old velocity does not matter
    assert parts(LinearTrajectory().start(t(a_hat), old)) == ([a_hat], [v], ())


def test_linear_start_inverse_goes_on_by_the_same_difference():
    # 0 -> 0.25 chosen, so 0.5, 0.75, 1, 1 follow.
    trajectory = LinearTrajectory()
    tau = trajectory.start(t(0.25), trajectory.zeros(t(0.0)))
    actions = [tau.a.item()]
    for _ in range(4):
        tau = trajectory.advance(tau)
        actions.append(tau.a.item())
    assert actions == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    "a_old, a_hat, a",
    [
        (0.25, 0.125, 0.5),  # 0.25 + 2 * 0.125
        (0.25, -0.25, -0.25),
        (0.5, 1.0, 1.0),  # 2.5, clamped
        (-0.5, -1.0, -1.0),
        (-1.0, 1.0, 1.0),
    ],
)
def test_linear_start_direct(a_old, a_hat, a):
    old = Tau(t(a_old), t(0.75), ())
    assert parts(LinearTrajectory(inverse_mode=False).start(t(a_hat), old)) == ([a], [a_hat], ())


# --- Quadratic: v <- clamp(v + 2u), a <- clamp(a + 2v) --------------------------------------------
@pytest.mark.parametrize(
    "a, v, u, a_next, v_next",
    [
        (0.0, 0.125, 0.0625, 0.5, 0.25),  # v = 0.125 + 0.125; a = 0 + 2 * 0.25, with the *new* v
        (0.5, -0.25, 0.125, 0.5, 0.0),  # the turning point: v = 0
        (0.5, 0.25, -0.25, 0.0, -0.25),
        (0.5, 0.25, 0.0, 1.0, 0.25),  # a to the bound exactly
        (0.5, 0.25, 0.125, 1.0, 0.5),  # a = 1.5, clamped
        (0.0, 0.75, 0.5, 1.0, 1.0),  # v = 1.75, clamped; a = 2, clamped
        (0.0, -0.75, -0.5, -1.0, -1.0),
        (-1.0, 0.5, 0.25, 1.0, 1.0),  # v to its bound exactly; a = -1 + 2
        (-1.0, 0.5, 1.0, 1.0, 1.0),  # v = 2.5, clamped; a = -1 + 2
        (1.0, -1.0, 1.0, 1.0, 1.0),  # v = -1 + 2 = 1; a = 3, clamped
        # No a in [-1, 1] tells whether the clamped v or the unclamped moved it, so here is one outside:
        (-3.0, 0.75, 0.5, -1.0, 1.0),  # -3 + 2 * 1 = -1; with v = 1.75 it would be 0.5
        (2.5, -0.75, -0.5, 0.5, -1.0),  # 2.5 - 2 * 1 = 0.5; with v = -1.75 it would be -1
    ],
)
@pytest.mark.parametrize("inverse_mode", [True, False])
def test_quadratic_advance(inverse_mode, a, v, u, a_next, v_next):
    tau = QuadraticTrajectory(inverse_mode).advance(Tau(t(a), t(v), t(u)))
    assert parts(tau) == ([a_next], [v_next], [u])  # u stays


def test_quadratic_never_clamps_the_acceleration():
    tau = QuadraticTrajectory().advance(Tau(t(0.0, 0.0), t(0.0, 0.0), t(3.0, -3.0)))
    assert parts(tau) == ([1.0, -1.0], [1.0, -1.0], [3.0, -3.0])
    tau = QuadraticTrajectory(inverse_mode=False).start(t(3.0, -3.0), tau)
    assert tau.u.tolist() == [3.0, -3.0]


@pytest.mark.parametrize(
    "a_old, a_hat, v, u",
    [
        (0.0, 0.5, 0.25, 0.125),
        (0.5, 0.25, -0.125, -0.0625),
        (-1.0, 1.0, 1.0, 0.5),
        (1.0, -1.0, -1.0, -0.5),
        (0.25, 0.25, 0.0, 0.0),
    ],
)
def test_quadratic_start_inverse(a_old, a_hat, v, u):
    old = Tau(t(a_old), t(0.75), t(-0.5))  # the old velocity and acceleration do not matter
    assert parts(QuadraticTrajectory().start(t(a_hat), old)) == ([a_hat], [v], [u])


def test_quadratic_start_inverse_goes_on_along_a_parabola():
    # From rest at -1 to -1 + 1/8: differences grow by as much again each step, 1/8, 2/8, 3/8, 4/8, 5/8:
    # -1 + 1/8, + 3/8, + 6/8, + 10/8, + 15/8.
    trajectory = QuadraticTrajectory()
    old = Tau(t(-1.0), t(0.0), t(0.0))
    tau = trajectory.start(t(-0.875), old)
    actions = [tau.a.item()]
    for _ in range(4):
        tau = trajectory.advance(tau)
        actions.append(tau.a.item())
    assert actions == [-0.875, -0.625, -0.25, 0.25, 0.875]
    # Starting is what advancing from rest with that acceleration gives.
    assert parts(trajectory.advance(old._replace(u=tau.u))) == parts(trajectory.start(t(-0.875), old))


@pytest.mark.parametrize(
    "a_old, a_hat, a, v",
    [
        (0.25, 0.125, 0.75, 0.25),  # v = 0 + 2 * 0.125; a = 0.25 + 2 * 0.25
        (0.25, -0.125, -0.25, -0.25),
        (0.5, 0.25, 1.0, 0.5),  # a = 1.5, clamped
        (0.0, 1.0, 1.0, 1.0),  # v = 2, clamped; a = 2, clamped
        (-1.0, -0.75, -1.0, -1.0),
    ],
)
def test_quadratic_start_direct(a_old, a_hat, a, v):
    old = Tau(t(a_old), t(0.75), t(-0.5))  # the new trajectory starts from rest
    assert parts(QuadraticTrajectory(inverse_mode=False).start(t(a_hat), old)) == ([a], [v], [a_hat])


# --- All ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trajectory, used", list(zip(ALL, [1, 2, 2, 3, 3])))
def test_parts_without_use_hold_nothing(trajectory, used):
    action = torch.full((3, 2, 4), 0.5, dtype=torch.float64)
    zeros = trajectory.zeros(action)
    for tau in (zeros, trajectory.advance(zeros), trajectory.start(action, zeros)):
        assert isinstance(tau, Tau)
        for part in tau[:used]:
            assert part.shape == (3, 2, 4) and part.dtype == torch.float64
        assert tau[used:] == ((),) * (3 - used)


@pytest.mark.parametrize("trajectory", ALL)
def test_at_rest(trajectory):
    """The zero trajectory is zero, takes nothing from the action it was shaped by, and stays zero."""
    action = torch.full((2, 3), 0.5, requires_grad=True)
    zeros = trajectory.zeros(action)
    for tau in (zeros, trajectory.advance(zeros)):
        for part in tau:
            if isinstance(part, torch.Tensor):
                assert part.tolist() == torch.zeros(2, 3).tolist()
                assert not part.requires_grad
    tensors = [part for part in zeros if isinstance(part, torch.Tensor)]
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)  # writing one leaves the others


@pytest.mark.parametrize("trajectory", ALL)
def test_inputs_are_left_alone(trajectory):
    tau = uniform_like(trajectory.zeros(torch.zeros(5)))
    action = torch.full((5,), 0.75)
    before = parts(tau)
    trajectory.advance(tau)
    trajectory.start(action, tau)
    assert parts(tau) == before
    assert action.tolist() == [0.75] * 5


@pytest.mark.parametrize("trajectory", ALL)
def test_any_trajectory_stays_in_the_box(trajectory):
    old = uniform_like(trajectory.zeros(torch.zeros(200, 3)))
    action = uniform_like(Tau(torch.zeros(200, 3), (), ())).a
    started = trajectory.start(action, old)
    for tau in (trajectory.advance(old), started, trajectory.advance(started)):
        for part in tau:
            assert part == () or part.abs().max() <= 1


# --- which trajectory is followed, uniform_like ---------------------------------------------------


def test_switches_with_time_and_batch():
    """[T, B] switches of [T, B, A] trajectories with T = B = A: no dimension may be taken for another."""
    switch = torch.tensor([[True, False, False], [True, True, False], [False, False, True]])
    ones, zeros = torch.ones(3, 3, 3), torch.zeros(3, 3, 3)
    tau = nest.where(switch, Tau(ones, ones, ones), Tau(zeros, zeros, zeros))
    for part in tau:
        for time in range(3):
            for batch in range(3):
                assert part[time, batch].tolist() == [float(switch[time, batch])] * 3


def test_gradients_go_through_to_what_was_taken():
    new, old = torch.zeros(2, 1, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    tau = nest.where(torch.tensor([True, False]), Tau(new, (), ()), Tau(old, (), ()))
    tau.a.sum().backward()
    assert new.grad.flatten().tolist() == [1, 0]
    assert old.grad.flatten().tolist() == [0, 1]


def test_uniform_like():
    n = 20_000
    like = Tau(torch.full((n, 2), 7.0, dtype=torch.float64), torch.full((n, 3), 7.0), ())
    tau = uniform_like(like)
    assert isinstance(tau, Tau) and tau.u == ()
    assert tau.a.dtype == torch.float64 and tau.a.shape == (n, 2)
    assert tau.v.dtype == torch.float32 and tau.v.shape == (n, 3)
    for part in (tau.a, tau.v):
        assert part.abs().max() <= 1
        assert part.min() < -0.99 and part.max() > 0.99
        # Moments 0, 1/3 and 1/5; standard deviations of x, x^2 and x^4: 0.577, 0.298 and 0.267.
        for power, moment in [(1, 0.0), (2, 1 / 3), (4, 1 / 5)]:
            assert (part.pow(power).mean(0) - moment).abs().max() < 5 * 0.577 / n**0.5
    assert (tau.a[:, 0] * tau.a[:, 1]).mean().abs() < 5 / 3 / n**0.5  # elements are drawn each for itself
    assert (tau.a[:, 0] * tau.v[:, 0]).mean().abs() < 5 / 3 / n**0.5
    assert (like.a == 7).all() and (like.v == 7).all()


# Explaining recorded actions ------------------------------------------------------------------------------------------

# Recorded actions, then what is told of each: b, and the parts of the trajectory executed.
FOLLOWED = {
    "constant": (
        ConstantTrajectory(),
        [0.5, 0.5, -0.25, 0.5, 0.5],
        [True, False, True, True, False],
        [(a,) for a in (0.5, 0.5, -0.25, 0.5, 0.5)],
    ),
    "constant, at rest": (ConstantTrajectory(), [0.0, 0.0, 0.5], [False, False, True], [(0.0,), (0.0,), (0.5,)]),
    # 0.25 from rest has v = 1/8: 0.5 and 0.75 go on, 1.0 too, and then 1.0 is where the clamp holds it.
    "linear": (
        LinearTrajectory(),
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.5],
        [True, False, False, False, False, True],
        [(0.25, 0.125), (0.5, 0.125), (0.75, 0.125), (1.0, 0.125), (1.0, 0.125), (0.5, -0.25)],
    ),
    "linear, direct": (
        LinearTrajectory(inverse_mode=False),
        [0.25, 0.5, 0.25],
        [True, False, True],
        [(0.25, 0.125), (0.5, 0.125), (0.25, -0.125)],
    ),
    # 0.25 from rest has v = 1/8, u = 1/16; then v = 1/4, a = 0.75; then v = 3/8 and a would be 1.5.
    "quadratic": (
        QuadraticTrajectory(),
        [0.25, 0.75, 1.0, 0.5],
        [True, False, False, True],
        [(0.25, 0.125, 0.0625), (0.75, 0.25, 0.0625), (1.0, 0.375, 0.0625), (0.5, -0.25, -0.125)],
    ),
    # u = a / 4 = 1/16 from rest; v = 0 + 2u = 1/8, a = 1/4; then v = 1/4, a = 3/4. A new one begins with v = 2u.
    "quadratic, direct": (
        QuadraticTrajectory(inverse_mode=False),
        [0.25, 0.75, 0.25],
        [True, False, True],
        [(0.25, 0.125, 0.0625), (0.75, 0.25, 0.0625), (0.25, -0.25, -0.125)],
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_recorded_actions_are_taken_for(name):
    trajectory, actions, switches, executed = FOLLOWED[name]
    tau_prev, switch = follow(trajectory, t(*actions).reshape(-1, 1, 1))
    assert switch.shape == (len(actions), 1) and switch[:, 0].tolist() == switches
    told = [p[:, 0, 0] for p in tau_prev if isinstance(p, torch.Tensor)]
    assert all(len(part) == len(actions) + 1 and part[0] == 0 for part in told)  # from rest
    assert list(zip(*(part[1:].tolist() for part in told))) == executed


def test_going_on_means_in_every_dimension():
    actions = torch.tensor([[0.5, 0.5], [0.5, 0.25], [0.5, 0.25]]).unsqueeze(1)
    assert follow(ConstantTrajectory(), actions)[1][:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("trajectory", ALL, ids=lambda t: f"{type(t).__name__}-{getattr(t, 'inverse_mode', True)}")
def test_a_rollout_is_found_again_in_its_actions(trajectory):
    """Whatever was drawn, in float32, several episodes side by side."""
    tau = trajectory.zeros(torch.zeros(8, 2))
    before, switches = [tau], []
    for _ in range(40):
        switch = torch.rand(8) < 0.3
        a_hat = torch.rand(8, 2) * 2 - 1
        tau = nest.where(switch, trajectory.start(a_hat, tau), trajectory.advance(tau))
        before.append(tau)
        switches.append(switch)
    actions = torch.stack([tau.a for tau in before[1:]])
    told, told_switch = follow(trajectory, actions)
    for number, tau in enumerate(before):
        assert torch.equal(told.a[number], tau.a)
    agree = told_switch == torch.stack(switches)
    # In direct mode and where clamps act, an action can be both: then it goes on. Never the other way round.
    assert not (told_switch & ~torch.stack(switches)).any()
    assert agree.float().mean() > (0.99 if isinstance(trajectory, ConstantTrajectory) else 0.6)


def test_rounding_is_no_decision_and_does_not_add_up():
    """An action recorded in [-2, 3] and brought back is not the float it was."""
    exact = [0.0, 0.01]
    for _ in range(60):
        exact.append(2 * exact[-1] - exact[-2])
    rescaled = torch.tensor([((a + 1) / 2 * 5 - 2) for a in exact[1:]], dtype=torch.float32)
    back = ((rescaled.double() + 2) / 5 * 2 - 1).float()
    tau_prev, switch = follow(LinearTrajectory(), back.reshape(-1, 1))
    assert switch.tolist() == [True] + [False] * (len(back) - 1)
    assert torch.equal(tau_prev.a[1:, 0], back)  # what was taken, not what the straight line says
    bent = back + 1e-5 * torch.arange(len(back)) ** 2  # its speed changes by 2e-5 a step
    assert follow(LinearTrajectory(), bent.reshape(-1, 1))[1].float().mean() > 0.9
