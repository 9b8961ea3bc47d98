"""TD losses: a table, identities between the three, shapes, refusals."""

import pytest
import torch

from taac.algorithms.td_losses import OneStepTDLoss, RetraceTDLoss, TAACTDLoss, TDLoss
from taac.data_structures import StepType, TimeStep
from taac.errors import TaacError

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
ALL = [OneStepTDLoss, TDLoss, TAACTDLoss]


def time_steps(step_type, reward, discount):
    return TimeStep(step_type, reward, discount, (), (), torch.ones_like(discount))


def random_segment(steps=6, batch=40, reward_dim=None, num_critics=2):
    parts = [reward_dim] if reward_dim else []
    step_type = torch.randint(0, 3, (steps, batch), dtype=torch.uint8)
    reward, value = torch.randn(steps, batch, *parts), torch.randn(steps, batch, *parts)
    discount = torch.where(step_type == L, torch.randint(0, 2, (steps, batch)), 1).float()
    q = torch.randn(num_critics, steps - 1, batch, *parts, requires_grad=True)
    return q, time_steps(step_type, reward, discount), value


def switches(probability, like):
    return torch.rand(like.step_type.shape) < probability


# One environment, one episode that terminates at 3 and the next one's first frames; gamma = 1/2.
#   t         0     1     2     3     4     5
#   type      F     M     M     L     F     M
#   reward    -     1     2     4     0     8
#   discount  -     1     1     0     1     1
#   value     -    10    20    40    60    80
#   switch    -     -     b     -     -     -
STEP_TYPE = torch.tensor([F, M, M, L, F, M], dtype=torch.uint8).unsqueeze(1)
REWARD = torch.tensor([float("nan"), 1, 2, 4, 0, 8]).unsqueeze(1)
DISCOUNT = torch.tensor([float("nan"), 1, 1, 0, 1, 1]).unsqueeze(1)
VALUE = torch.tensor([float("nan"), 10, 20, 40, 60, 80]).unsqueeze(1)
SWITCH = torch.tensor([True, False, True, False, False, False]).unsqueeze(1)


def learnt(td_loss, q, time_step, value, switch):
    """The loss of frames 0..T-2 and the targets."""
    target = td_loss.returns(time_step, value, switch)
    return td_loss.error(q, target), target


@pytest.mark.parametrize(
    "td_loss, ignore_done, expected",
    [
        # 1 + 10/2,  2 + 20/2,  4 + 0,  (at LAST),  8 + 80/2
        (OneStepTDLoss, False, [6, 12, 4, None, 48]),
        # The termination ignored: 4 + 40/2
        (OneStepTDLoss, True, [6, 12, 24, None, 48]),
        # G2 = 4,  G1 = 2 + 4/2 = 4,  G0 = 1 + 4/2 = 3
        (TDLoss, False, [3, 4, 4, None, 48]),
        # LAST still ends the return: G2 = 4 + 40/2 = 24,  G1 = 2 + 24/2 = 14,  G0 = 1 + 14/2 = 8
        (TDLoss, True, [8, 14, 24, None, 48]),
        # The switch at 2 stops: G1 = 2 + 20/2 = 12,  G0 = 1 + 12/2 = 7
        (TAACTDLoss, False, [7, 12, 4, None, 48]),
        (TAACTDLoss, True, [7, 12, 24, None, 48]),
    ],
)
def test_a_table(td_loss, ignore_done, expected):
    time_step = time_steps(STEP_TYPE, REWARD, DISCOUNT)
    q = torch.tensor([[1.0, 2, 3, 4, 5], [0.0, 0, 0, 0, 0]]).unsqueeze(-1)
    loss, target = learnt(td_loss(0.5, ignore_done), q, time_step, VALUE, SWITCH)
    assert loss.shape == (5, 1) and target.shape == (5, 1)
    for t, number in enumerate(expected):
        if number is not None:
            assert target[t, 0] == number
            assert loss[t, 0] == (number - (t + 1)) ** 2 + number**2  # the sum over critics, without 1/2


@pytest.mark.parametrize("at_the_end, expected", [(1, 24), (2, 14), (3, 9)])
def test_ignoring_terminations_leaves_the_discount_of_repeated_actions(at_the_end, expected):
    """Repeated three times with gamma 1/2, the frames' discount is 1/4: 1 + 10/8, 2 + 20/8; where it terminated it is 0:
    after one step 4 + 40/2, after two 4 + 40/4, after three 4 + 40/8.
    """
    discount = torch.where(DISCOUNT == 1, 0.25, DISCOUNT)
    duration = torch.tensor([0, 3, 3, at_the_end, 0, 3], dtype=torch.int16).unsqueeze(1)
    time_step = time_steps(STEP_TYPE, REWARD, discount)._replace(duration=duration)
    td_loss = OneStepTDLoss(0.5, ignore_done=True).fitted(None, repeat_gamma=0.5)
    assert td_loss.returns(time_step, VALUE, SWITCH).flatten()[:3].tolist() == [2.25, 4.5, expected]


@pytest.mark.parametrize("ignore_done", [False, True])
def test_after_a_repeated_action_each_part_is_discounted_by_its_own_gamma(ignore_done):
    """Gammas of 1/2 (the environment's), 1/4, 0 and 1 after 2 steps, 3 steps, and 2 that terminate; then FIRST, and 1 step."""
    duration = torch.tensor([[0], [2], [3], [2], [0], [1]], dtype=torch.int16)
    discount = torch.tensor([[1.0], [0.5], [0.25], [0.0], [1.0], [1.0]])
    time_step = time_steps(STEP_TYPE, REWARD, discount)._replace(duration=duration)
    loss = OneStepTDLoss((0.5, 0.25, 0.0, 1.0), ignore_done)
    once, twice, thrice, done = [1 / 2, 1 / 4, 0, 1], [1 / 4, 1 / 16, 0, 1], [1 / 8, 1 / 64, 0, 1], [0, 0, 0, 0]
    expected = [twice, thrice, twice if ignore_done else done, once, once]
    assert loss.fitted(4, repeat_gamma=0.5).discount(time_step)[1:, 0].tolist() == expected
    # a plain sum: one gamma a decision
    plain = loss.fitted(4).discount(time_step._replace(discount=(discount > 0).float()))[1:, 0].tolist()
    assert plain == [once, once, once if ignore_done else done, once, once]


@pytest.mark.parametrize("reward_dim, gamma", [(None, 0.9), (3, 0.9), (3, (0.9, 0.0, 1.0))])
@pytest.mark.parametrize("ignore_done", [False, True])
def test_identities(reward_dim, gamma, ignore_done):
    q, time_step, value = random_segment(reward_dim=reward_dim)

    def run(td_loss, probability):
        return learnt(td_loss(gamma, ignore_done), q, time_step, value, switches(probability, time_step))

    for got, expected in [
        (run(TAACTDLoss, 1.0), run(OneStepTDLoss, 0.5)),  # everybody switches: one step
        (run(TAACTDLoss, 0.0), run(TDLoss, 0.5)),  # nobody does: all the way
        (run(TDLoss, 0.0), run(TDLoss, 1.0)),  # these two do not look at switches
        (run(OneStepTDLoss, 0.0), run(OneStepTDLoss, 1.0)),
    ]:
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert not torch.equal(run(TAACTDLoss, 0.5)[1], run(OneStepTDLoss, 0.5)[1])
    assert not torch.equal(run(TAACTDLoss, 0.5)[1], run(TDLoss, 0.5)[1])


@pytest.mark.parametrize("td_loss", ALL)
def test_a_vector_gamma_is_a_gamma_for_each_part(td_loss):
    q, time_step, value = random_segment(reward_dim=3)
    switch = switches(0.4, time_step)
    _, together = learnt(td_loss((0.9, 0.0, 0.5)), q, time_step, value, switch)
    for d, gamma in enumerate((0.9, 0.0, 0.5)):
        alone = time_step._replace(reward=time_step.reward[..., d])
        _, target = learnt(td_loss(gamma), q[..., d], alone, value[..., d], switch)
        torch.testing.assert_close(together[..., d], target)


@pytest.mark.parametrize("td_loss", ALL)
@pytest.mark.parametrize("gamma", [-0.1, 1.0001, float("nan"), (0.5, 1.5), ((0.5, 0.5), (0.5, 0.5))], ids=str)
def test_a_bad_gamma_is_refused(td_loss, gamma):
    with pytest.raises(TaacError, match="gamma"):
        td_loss(gamma)


def test_gamma_is_099_unless_told():
    time_step = time_steps(STEP_TYPE, REWARD, DISCOUNT)
    target = OneStepTDLoss().returns(time_step, VALUE, SWITCH)
    assert target[0, 0].item() == pytest.approx(1 + 0.99 * 10)


@pytest.mark.parametrize("td_loss", ALL)
def test_a_vector_gamma_of_another_length_than_the_reward_is_refused(td_loss):
    _, time_step, value = random_segment(reward_dim=3)
    with pytest.raises(TaacError, match="discount"):
        td_loss((0.9, 0.5)).returns(time_step, value, switches(0.5, time_step))


def test_a_table_of_hubers_error():
    """The targets of `test_a_table`, 6, 12, 4, -, 48, from q of 1, 2, 3, 4, 5 and of 0, with delta 2:
    2 (2 5 - 2) + 2 (2 6 - 2) = 36,  2 (2 10 - 2) + 2 (2 12 - 2) = 80,  1 + 2 (2 4 - 2) = 13,  2 (2 43 - 2) + 2 (2 48 - 2) = 356
    """
    q = torch.tensor([[1.0, 2, 3, 4, 5], [0.0, 0, 0, 0, 0]]).unsqueeze(-1)
    time_step = time_steps(STEP_TYPE, REWARD, DISCOUNT)
    loss, target = learnt(OneStepTDLoss(0.5, huber_delta=2.0), q, time_step, VALUE, SWITCH)
    assert [loss[t, 0].item() for t in (0, 1, 2, 4)] == [36, 80, 13, 356]
    assert target[0, 0] == 6


@pytest.mark.parametrize("td_loss", [*ALL, RetraceTDLoss])
@pytest.mark.parametrize("delta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_delta_must_be_above_0(td_loss, delta):
    assert td_loss(huber_delta=0.5).huber_delta == 0.5 and td_loss().huber_delta is None
    with pytest.raises(TaacError, match=rf"{td_loss.__name__}.huber_delta must be above 0, or None, got {delta}"):
        td_loss(huber_delta=delta)


def test_the_discounts_of_the_parts_that_are_learnt():
    """Of five parts the last two come from signals; part 1 has weight 0 and is not learnt."""
    loss, learnt_parts = OneStepTDLoss(0.5), torch.tensor([0, 2, 3, 4])
    assert loss.fitted(5, learnt_parts, (None, 0.25)).gamma.tolist() == [0.5, 0.5, 0.5, 0.25]
    assert loss.fitted(5, learnt_parts, (None, 0.25)).gammas == "[0.5, 0.5, 0.5, 0.25]"  # which compiled programs watch
    assert OneStepTDLoss((0.1, 0.2, 0.3, 0.4, 0.5)).fitted(5, learnt_parts, (0.75, None)).gamma.tolist() == pytest.approx(
        [0.1, 0.3, 0.75, 0.5]
    )
    assert loss.fitted(5, learnt_parts, (None, None)).gamma.item() == 0.5
    assert loss.gamma.dim() == 0 and loss.repeat_gamma == 1.0  # the loss itself stays as it was bound


def test_compare_through_pays_the_bonus_of_each_step_that_it_passes():
    _, frames, value = random_segment()
    bonus = torch.randn_like(value)
    never = torch.zeros_like(value, dtype=torch.bool)
    torch.testing.assert_close(TAACTDLoss().returns(frames, value, never, bonus), TDLoss().returns(frames, value, never, bonus))
