"""Returns: the targets that critics regress on.

Most of them share one recursion, backwards from `G[T-1] = value[T-1]`:

    G[t] = reward[t+1] + discount[t+1] * A[t+1],    A[t] = value[t] where stop[t], else bonus[t] + G[t],

and differ only in `stop`, which always holds at LAST. `bonus[t]` is what acting at step t adds besides rewards: the entropy
bonus that soft values contain, less the price of a decision. `retrace_return` and `skip_returns` have
recursions of their own.

`reward[t]` and `discount[t]` are received on arriving at step t. `discount` includes gamma: `gamma * TimeStep.discount`.
No action is taken at a LAST frame, so the caller must mask the result there. No gradient flows through any argument.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from taac import nest
from taac.data_structures import StepType
from taac.errors import TaacError


def one_step_return(
    reward: torch.Tensor, value: torch.Tensor, step_type: torch.Tensor, discount: torch.Tensor
) -> torch.Tensor:
    """Computes the one-step temporal-difference target, `G[t] = reward[t+1] + discount[t+1] * value[t+1]`.

    Args:
        reward: `[T, B]` or `[T, B, D]`, received on arriving at step t.
        value: same shape, the value of the state at step t.
        step_type: `[T, B]`, a `StepType` each. It is checked but not used, so that all returns can be called alike.
        discount: `[T, B]` or `[T, B, D]`, gamma times the discount received on arriving at step t.

    Returns:
        `[T-1, B]` or `[T-1, B, D]`, detached.

    Raises:
        TaacError: shapes that do not fit, or T < 2.

    Source: Sutton and Barto, Reinforcement Learning (2nd edition), equation 6.2.
    """
    discount = _check(reward, value, step_type, discount)
    with torch.no_grad():
        return reward[1:] + discount[1:] * value[1:]


def n_step_return(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    bonus: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes the N-step return to the end of the segment or of the episode, whichever comes first.

    `G[t] = reward[t+1] + discount[t+1] * A[t+1]`, `A[t] = value[t]` where step t is LAST, else `bonus[t] + G[t]`. Inside an
    episode and without a bonus, `G[0] = r[1] + d[1] r[2] + ... + d[1]...d[T-1] value[T-1]`. There is no off-policy
    correction.

    The soft return equals the hard return of the rewards `reward[t] + discount[t] * bonus[t]` with values `value - bonus`.
    Each step earns its entropy bonus, and none is earned after a termination.

    Args:
        reward, value, step_type, discount: as in `one_step_return`.
        bonus: reward's shape, what acting at step t adds: the entropy bonus that `value` contains, less the price of decisions
            (in TAAC `-c b[t]`, whose expectation `-c beta_1` the value contains). None: nothing. The entries at steps 0 and T-1
            are never read.

    Returns, errors: as in `one_step_return`.

    Source: Sutton and Barto (2nd edition), equation 7.1; with entropy, Haarnoja et al. (arXiv:1812.05905), equations 2 and 3.
    """
    discount = _check(reward, value, step_type, discount, bonus)
    return _backward(reward, value, step_type == StepType.LAST, discount, bonus)


def compare_through_return(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    switch: torch.Tensor,
    bonus: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes the compare-through return of TAAC: a multi-step return that bootstraps at the first switch.

    `G[t] = reward[t+1] + discount[t+1] * A[t+1]`, `A[t] = value[t]` where step t is LAST or `switch[t]`, else `bonus[t] + G[t]`.
    TAAC calls it with `switch[t] = b[t] | b~[t]`: `b` is the executed switch, `b~` is sampled anew from the current policy
    at the replayed state. A target then extends beyond step t only if neither switches. There the current policy takes the
    executed action, so the return needs no importance weights. `switch[0]` is never read.

    With `switch` true everywhere it equals `one_step_return`; with `switch` false everywhere, `n_step_return`.

    Args:
        reward, value, step_type, discount: as in `one_step_return`.
        switch: `[T, B]` bool.
        bonus: as in `n_step_return`. TAAC has none, or the price of decisions.

    Returns, errors: as in `one_step_return`.

    Source: Yu, Xu and Zhang, TAAC (NeurIPS 2021, arXiv:2104.06521), section 4.3 and algorithm 2.
    """
    discount = _check(reward, value, step_type, discount, bonus)
    _check_bool("switch", switch, step_type)
    return _backward(reward, value, (step_type == StepType.LAST) | switch, discount, bonus)


class Bootstrap(NamedTuple):
    """What a return consists of: `G = reward + discount * value[frame]`, each `[T-1, B]` or `[T-1, B, D]`."""

    reward: torch.Tensor  # the sum of discounted rewards and bonuses up to the frame
    discount: torch.Tensor  # the product of the discounts up to it
    frame: torch.Tensor  # int64


@torch.no_grad()
def bootstraps(
    reward: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    stop: torch.Tensor,
    bonus: torch.Tensor | None = None,
) -> Bootstrap:
    """Decomposes the returns of the recursion above, so that the value may be a distribution.

    With a `value` it holds that `G = reward + discount * value[frame]` for `one_step_return` (`stop` true everywhere),
    `n_step_return` (at LAST), and `compare_through_return` (at LAST and where `switch`).

    Args:
        reward: `[T, B]` or `[T, B, D]`, received on arriving at step t.
        step_type, discount, bonus: as in `n_step_return`.
        stop: `[T, B]` bool, where a return that arrives bootstraps. It always does at T-1.

    Returns:
        A `Bootstrap`, `[T-1, B]` or `[T-1, B, D]` each, detached.

    Raises:
        TaacError: shapes that do not fit.
    """
    discount = _check(reward, reward, step_type, discount, bonus)
    _check_bool("stop", stop, step_type)
    steps = len(reward)
    summed, product, frame = (torch.empty_like(reward[1:]) for _ in range(3))
    for t in range(steps - 2, -1, -1):
        summed[t], product[t], frame[t] = reward[t + 1], discount[t + 1], float(t + 1)
        if t < steps - 2:
            goes_on = nest.broadcast(~stop[t + 1], reward[t])
            further = summed[t + 1] if bonus is None else bonus[t + 1] + summed[t + 1]
            summed[t] += torch.where(goes_on, discount[t + 1] * further, 0.0)
            product[t] *= torch.where(goes_on, product[t + 1], 1.0)
            frame[t] = torch.where(goes_on, frame[t + 1], frame[t])
    return Bootstrap(summed, product, frame.to(torch.int64))


def prefix_returns(
    reward: torch.Tensor, value: torch.Tensor, step_type: torch.Tensor, discount: torch.Tensor
) -> torch.Tensor:
    """Computes the returns from frame 0 that bootstrap after 1, 2, ..., T-1 steps.

    `G_k = sum_{i=1..k} d_1..d_{i-1} r_i + d_1..d_k value[k]`. From LAST on, all equal the return that ends at LAST.

    Args:
        reward, value, discount: `[T, B]`, as in `one_step_return`.
        step_type: `[T, B]`.

    Returns:
        `[T-1, B]`, detached.

    Source: T-SAC (arXiv:2503.03660), its n-step targets; SEAR (arXiv:2603.01891).
    """
    ends = range(2, len(reward) + 1)
    return torch.stack([n_step_return(reward[:n], value[:n], step_type[:n], discount[:n])[0] for n in ends])


def retrace_return(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    q: torch.Tensor,
    trace: torch.Tensor,
) -> torch.Tensor:
    """Computes the Retrace target: a multi-step return whose later TD errors are weighted by truncated importance ratios.

    `G[t] = Q[t] + sum_k (prod_{i=1..k} discount[t+i] c[t+i]) delta[t+k]`, `delta[t] = reward[t+1] + discount[t+1] value[t+1]
    - Q[t]`, with no trace through LAST; computed backwards as

    `G[t] = reward[t+1] + discount[t+1] * (value[t+1] + c[t+1] (G[t+1] - Q[t+1]))`, where the second term is 0 if step t+1
    is LAST or the segment's last.

    With c = 0 everywhere it equals `one_step_return`. With c = 1 and `value` the Q of the executed actions it equals
    `n_step_return`. Soft values need no `bonus`: SAC's Q excludes the entropy of its own action and the soft `value`
    includes it, so `value - Q` contains the bonus of each step that the trace passes.

    Args:
        reward, value, step_type, discount: as in `one_step_return`; `value` is the policy's expected Q.
        q: `[T-1, B]` or `[T-1, B, D]`, Q of the executed actions at steps 0..T-2. The entry at step 0 is never read.
        trace: `[T-1, B]`, `c = lambda min(1, pi(a|s) / mu(a|s))` of those actions.

    Returns, errors: as in `one_step_return`.

    Source: Munos et al., Safe and Efficient Off-Policy Reinforcement Learning (arXiv:1606.02647), equations 3 and 4.
    """
    discount = _check(reward, value, step_type, discount)
    if q.shape != reward[1:].shape or trace.shape != step_type[1:].shape:
        raise TaacError(
            f"q and trace must cover steps 0..T-2: expected shapes {list(reward[1:].shape)} and {list(step_type[1:].shape)}, "
            f"got {list(q.shape)} and {list(trace.shape)}"
        )
    with torch.no_grad():
        trace = trace * (step_type[:-1] != StepType.LAST)
        if reward.dim() == 3:
            trace = trace.unsqueeze(-1)
        returns = torch.empty_like(value[1:])
        correction = torch.zeros_like(value[0])
        for t in range(value.shape[0] - 2, -1, -1):
            returns[t] = reward[t + 1] + discount[t + 1] * (value[t + 1] + correction)
            correction = trace[t] * (returns[t] - q[t])
        return returns


def skip_returns(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    decided: torch.Tensor,
    max_skip: int,
    bonus: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the returns of all skips in a segment. Skip j at step t holds the action of step t, old or new, until t+j.

    `G_1[t] = reward[t+1] + discount[t+1] * value[t+1]`, and
    `G_j[t] = reward[t+1] + discount[t+1] * (bonus[t+1] + G_{j-1}[t+1])`: j rewards, then the value of the state at t+j.
    Skip j happened if no new action was chosen at t+1..t+j-1 and the episode did not end before t+j.

    A soft value contains the entropy of every step from its state on. `bonus` adds the entropy of the steps in between, so
    that long and short skips contain the entropy of the same steps and differ only in their rewards. Without it,
    `G_1 - G_2` would contain the entropy of one step: negative entropy would favour long skips, positive entropy short ones.

    Args:
        reward, value, step_type, discount: as in `one_step_return`. The value at step 0 is never read.
        decided: `[T, B]` bool, whether a new action was chosen at a step.
        max_skip: J.
        bonus: as in `n_step_return`.

    Returns:
        `G`, `[J, T-1, B]` or `[J, T-1, B, D]`, detached; row j-1 holds the skips of length j, with 0 where the segment ends
        before t+j. And whether each skip happened, `[J, T-1, B]` bool.

    Raises:
        TaacError: shapes that do not fit, T < 2, or J < 1.

    Source: Biedenkapp et al., TempoRL (ICML 2021, arXiv:2106.05262), section 4: the n-step update of the skip policy, and
    the connectedness graph of a skip's states. The bonus is our addition, as the paper's values have no entropy.
    """
    discount = _check(reward, value, step_type, discount, bonus)
    _check_bool("decided", decided, step_type)
    if max_skip < 1:
        raise TaacError(f"max_skip must be 1 or more, got {max_skip}")
    with torch.no_grad():
        steps = reward.shape[0]
        returns = reward.new_zeros(max_skip, *reward[1:].shape)
        happened = discount.new_zeros(max_skip, *step_type[1:].shape)  # not bool, whose slices inductor cannot set in C++
        acts = step_type[:-1] != StepType.LAST
        target, valid = value, torch.ones_like(decided)
        for j in range(1, min(max_skip, steps - 1) + 1):
            following = target[1:] if j == 1 or bonus is None else bonus[1 : steps - j + 1] + target[1:]
            target = reward[1 : steps - j + 1] + discount[1 : steps - j + 1] * following
            held = valid[1:] if j == 1 else valid[1:] & ~decided[1 : steps - j + 1]
            valid = acts[: steps - j] & held
            returns[j - 1, : steps - j], happened[j - 1, : steps - j] = target, valid
        return returns, happened > 0


def first_window(begins: torch.Tensor, step_type: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds the first whole window of each segment. A window ends where the next one begins, or at LAST.

    Args:
        begins: `[T, B]` bool, whether a window begins at a step. At LAST, where no action is taken, it is not read.
        step_type: `[T, B]`.

    Returns:
        The steps at which the window begins and ends, `[B]` int64, with `begin < end`; and whether there is one, `[B]` bool.
        Where there is none, the steps are 0 and 1.

    Raises:
        TaacError: shapes that do not fit.
    """
    _check_bool("begins", begins, step_type)
    steps, last = len(step_type), step_type == StepType.LAST
    at = torch.arange(steps, device=step_type.device).unsqueeze(1).expand(step_type.shape)
    begin = torch.where(begins & ~last, at, steps).amin(0)
    end = torch.where((begins | last) & (at > begin), at, steps).amin(0)
    found = end < steps
    return torch.where(found, begin, 0), torch.where(found, end, 1), found


def _check_bool(name: str, given: torch.Tensor, step_type: torch.Tensor) -> None:
    if given.shape != step_type.shape or given.dtype != torch.bool:
        raise TaacError(
            f"{name} must be bool of step_type's shape {list(step_type.shape)}, got {given.dtype} of shape {list(given.shape)}"
        )


@torch.no_grad()
def _backward(
    reward: torch.Tensor, value: torch.Tensor, stop: torch.Tensor, discount: torch.Tensor, bonus: torch.Tensor | None
) -> torch.Tensor:
    """Computes the recursion in the module's docstring. `discount` already has the reward's rank."""
    if reward.dim() == 3:
        stop = stop.unsqueeze(-1)
    steps = value.shape[0]
    returns = torch.empty_like(value[1:])
    target = value[-1]
    for t in range(steps - 2, -1, -1):
        if t < steps - 2:
            following = target if bonus is None else bonus[t + 1] + target
            target = torch.where(stop[t + 1], value[t + 1], following)
        target = reward[t + 1] + discount[t + 1] * target
        returns[t] = target
    return returns


def _check(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    bonus: torch.Tensor | None = None,
) -> torch.Tensor:
    """Checks the shapes that all returns share. Returns the discount with the reward's rank."""
    if reward.dim() not in (2, 3):
        raise TaacError(f"reward must be [T, B] or [T, B, D], got shape {list(reward.shape)}")
    if value.shape != reward.shape:
        raise TaacError(f"value must have reward's shape {list(reward.shape)}, got {list(value.shape)}")
    if bonus is not None and bonus.shape != reward.shape:
        raise TaacError(f"bonus must have reward's shape {list(reward.shape)}, got {list(bonus.shape)}")
    time_batch = reward.shape[:2]
    if step_type.shape != time_batch:
        raise TaacError(f"step_type must have shape {list(time_batch)}, got {list(step_type.shape)}")
    if discount.shape not in (time_batch, reward.shape):
        raise TaacError(
            f"discount must have shape {list(time_batch)} or reward's {list(reward.shape)}, got {list(discount.shape)}"
        )
    if reward.shape[0] < 2:
        raise TaacError(f"a return needs at least two steps (T >= 2), got T = {reward.shape[0]}")
    return discount.unsqueeze(-1) if discount.dim() < reward.dim() else discount
