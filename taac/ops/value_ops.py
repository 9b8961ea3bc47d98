"""Returns: the targets that critics regress on.

All share one recursion, backwards from `G[T-1] = value[T-1]`:

    G[t] = reward[t+1] + discount[t+1] * A[t+1],    A[t] = value[t] where stop[t], else bonus[t] + G[t],

and differ in `stop` alone, which always holds at LAST. `bonus[t]` is the entropy bonus of acting at step t, for soft
values: `value[t]` is soft too, so that it already contains `bonus[t]`. Without entropy in the targets it is 0.
`reward[t]` and `discount[t]` are those received on arriving at step `t`; `discount` already includes gamma:
`gamma * TimeStep.discount`. What is computed *at* a LAST frame belongs to no action and must be masked by the caller. No
gradient flows through any argument.
"""

from __future__ import annotations

import torch

from taac.data_structures import StepType
from taac.errors import TaacError


def one_step_return(
    reward: torch.Tensor, value: torch.Tensor, step_type: torch.Tensor, discount: torch.Tensor
) -> torch.Tensor:
    """One-step temporal-difference target, `G[t] = reward[t+1] + discount[t+1] * value[t+1]`.

    Args:
        reward: `[T, B]` or `[T, B, D]`, received on arriving at step t.
        value: same shape, the value of the state at step t.
        step_type: `[T, B]`, a `StepType` each. It does not matter here; it is checked, so that returns are exchangeable.
        discount: `[T, B]` or `[T, B, D]`, gamma times the discount received on arriving at step t.

    Returns:
        `[T-1, B]` or `[T-1, B, D]`, detached.

    Raises:
        TaacError: shapes that do not fit, or T < 2.

    Source: Sutton and Barto, Reinforcement Learning (2nd edition), equation 6.1 and following.
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
    """N-step return to the end of the segment or of the episode, whichever comes first.

    `G[t] = reward[t+1] + discount[t+1] * A[t+1]`, `A[t] = value[t]` where step t is LAST, else `bonus[t] + G[t]`; so
    `G[0] = r[1] + d[1] r[2] + ... + d[1]...d[T-1] value[T-1]` inside an episode without a bonus. It is not corrected for
    the policy that chose the actions.

    The soft return is the same as the hard one (a value without entropy) of the rewards
    `reward[t] + discount[t] * bonus[t]`: each step pays its entropy, and none is paid after a termination.

    Args:
        reward, value, step_type, discount: as `one_step_return`.
        bonus: of reward's shape, the entropy bonus at step t, which `value` contains; None: `value` contains none. That of
            steps 0 and T-1 is never read.

    Returns, errors: as `one_step_return`.

    Source: Sutton and Barto (2nd edition), equation 7.1; with entropy, Haarnoja et al. (arXiv:1812.05905), equation 2.
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
    """The compare-through return of TAAC: multi-step through the steps at which nobody switches.

    `G[t] = reward[t+1] + discount[t+1] * A[t+1]`, `A[t] = value[t]` where step t is LAST or `switch[t]`, else
    `bonus[t] + G[t]`.
    With `switch[t] = b[t] | b~[t]` (the switch that was executed, and one newly sampled from the current policy at the
    replayed state), a target reaches on through step t only where both went on with the same trajectory: there the
    executed action is the one that the current policy takes, so the return needs no importance weights.
    `switch[0]` is never read.

    With `switch` true everywhere it is `one_step_return`; with `switch` true nowhere, `n_step_return`.

    Args:
        reward, value, step_type, discount: as `one_step_return`.
        switch: `[T, B]` bool.
        bonus: as `n_step_return`. TAAC's own targets have none.

    Returns:
        `[T-1, B]` or `[T-1, B, D]`, detached.

    Raises:
        TaacError: shapes that do not fit, or T < 2.

    Source: Yu, Xu and Zhang, TAAC (NeurIPS 2021, arXiv:2104.06521), section 4.3 and algorithm 2.
    """
    discount = _check(reward, value, step_type, discount, bonus)
    if switch.shape != step_type.shape or switch.dtype != torch.bool:
        raise TaacError(
            f"switch must be bool of step_type's shape {list(step_type.shape)}, "
            f"got {switch.dtype} of shape {list(switch.shape)}"
        )
    return _backward(reward, value, (step_type == StepType.LAST) | switch, discount, bonus)


def retrace_return(
    reward: torch.Tensor,
    value: torch.Tensor,
    step_type: torch.Tensor,
    discount: torch.Tensor,
    q: torch.Tensor,
    trace: torch.Tensor,
) -> torch.Tensor:
    """The Retrace target: multi-step, with each further TD error cut by how likely the action is under the policy.

    `G[t] = Q[t] + sum_k (prod_{i=1..k} discount[t+i] c[t+i]) delta[t+k]`, `delta[t] = reward[t+1] + discount[t+1] value[t+1]
    - Q[t]`, with no trace through LAST; computed backwards as

    `G[t] = reward[t+1] + discount[t+1] * (value[t+1] + c[t+1] (G[t+1] - Q[t+1]))`, where the second term is 0 if step t+1
    is LAST or the segment's last.

    With c = 0 everywhere it is `one_step_return`. With c = 1, and `value` the Q of the executed actions, it is
    `n_step_return`. With a soft value, and Q as SAC's (without the entropy of its own action), it is the soft return as it
    stands: `value - Q` contains the bonus of each step that it goes through.

    Args:
        reward, value, step_type, discount: as `one_step_return`; `value` is the policy's expected Q.
        q: `[T-1, B]` or `[T-1, B, D]`, Q of the executed actions of steps 0..T-2; that of step 0 is never read.
        trace: `[T-1, B]`, `c = lambda min(1, pi(a|s) / mu(a|s))` of those actions.

    Returns:
        `[T-1, B]` or `[T-1, B, D]`, detached.

    Raises:
        TaacError: shapes that do not fit, or T < 2.

    Source: Munos et al., Safe and Efficient Off-Policy Reinforcement Learning (arXiv:1606.02647), equations 3 and 4.
    """
    discount = _check(reward, value, step_type, discount)
    if q.shape != reward[1:].shape or trace.shape != step_type[1:].shape:
        raise TaacError(
            f"q and trace are of steps 0..T-2: expected shapes {list(reward[1:].shape)} and {list(step_type[1:].shape)}, "
            f"got {list(q.shape)} and {list(trace.shape)}"
        )
    with torch.no_grad():
        goes_on = trace * (step_type[:-1] != StepType.LAST)
        if reward.dim() == 3:
            goes_on = goes_on.unsqueeze(-1)
        returns = torch.empty_like(value[1:])
        further = torch.zeros_like(value[0])
        for t in range(value.shape[0] - 2, -1, -1):
            returns[t] = reward[t + 1] + discount[t + 1] * (value[t + 1] + further)
            further = goes_on[t] * (returns[t] - q[t])
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
    """The return of every skip that a segment holds: of an action taken at step t and held until step t+j.

    `G_1[t] = reward[t+1] + discount[t+1] * value[t+1]`, and `G_j[t] = reward[t+1] + discount[t+1] * (bonus[t+1] + G_{j-1}[t+1])`:
    j rewards, then the value of the state arrived at. It is one that happened where no new action was chosen at steps
    t+1..t+j-1, and the episode did not end before t+j.

    A soft value contains the entropy of every step from the state arrived at on. `bonus` adds that of the steps in between,
    so that long skips and short ones contain the entropy of the same steps, and compare by their rewards. Without it,
    `G_1 - G_2` would contain the entropy of one step: a negative one would favour holding, a positive one deciding.

    Args:
        reward, value, step_type, discount: as `one_step_return`; the value of step 0 is never read.
        decided: `[T, B]` bool, whether a new action was chosen at a step.
        max_skip: J.
        bonus: of reward's shape, the entropy bonus at step t, which `value` contains; None: `value` contains none. That of
            steps 0 and T-1 is never read.

    Returns:
        `G` `[J, T-1, B]` or `[J, T-1, B, D]`, detached, row j-1 of skips of length j, and whether the skip happened,
        `[J, T-1, B]` bool; `G` is 0 where the segment ends before the skip.

    Raises:
        TaacError: shapes that do not fit, T < 2, or J < 1.

    Source: Biedenkapp et al., TempoRL (ICML 2021, arXiv:2106.05262), section 4: the n-step update of the skip policy, and
    the connectedness graph of a skip's states. The bonus is ours: the paper's values have no entropy.
    """
    discount = _check(reward, value, step_type, discount, bonus)
    if decided.shape != step_type.shape or decided.dtype != torch.bool:
        raise TaacError(
            f"decided must be bool of step_type's shape {list(step_type.shape)}, "
            f"got {decided.dtype} of shape {list(decided.shape)}"
        )
    if max_skip < 1:
        raise TaacError(f"max_skip must be 1 or more, got {max_skip}")
    with torch.no_grad():
        steps = reward.shape[0]
        returns = reward.new_zeros(max_skip, *reward[1:].shape)
        happened = torch.zeros(max_skip, *step_type[1:].shape, dtype=torch.bool, device=step_type.device)
        acts = step_type[:-1] != StepType.LAST
        arrived, until = value, torch.ones_like(decided)
        for j in range(1, min(max_skip, steps - 1) + 1):
            further = arrived[1:] if j == 1 or bonus is None else bonus[1 : steps - j + 1] + arrived[1:]
            arrived = reward[1 : steps - j + 1] + discount[1 : steps - j + 1] * further
            held = until[1:] if j == 1 else until[1:] & ~decided[1 : steps - j + 1]
            until = acts[: steps - j] & held
            returns[j - 1, : steps - j], happened[j - 1, : steps - j] = arrived, until
        return returns, happened


@torch.no_grad()
def _backward(
    reward: torch.Tensor, value: torch.Tensor, stop: torch.Tensor, discount: torch.Tensor, bonus: torch.Tensor | None
) -> torch.Tensor:
    """The recursion of the module's docstring. `discount` is already broadcast."""
    if reward.dim() == 3:
        stop = stop.unsqueeze(-1)
    steps = value.shape[0]
    returns = torch.empty_like(value[1:])
    target = value[-1]
    for t in range(steps - 2, -1, -1):
        if t < steps - 2:
            further = target if bonus is None else bonus[t + 1] + target
            target = torch.where(stop[t + 1], value[t + 1], further)
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
    """Checks the shapes that all returns share; gives the discount with the reward's rank."""
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
        raise TaacError("a return needs at least two steps (T >= 2): the first, and one to arrive at")
    return discount.unsqueeze(-1) if discount.dim() < reward.dim() else discount
