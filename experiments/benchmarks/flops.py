"""Floating-point operations of an update's matrix products, counted from the shapes.

A multiplication with the addition that follows it counts as two. Everything else (activations, losses, optimizer, targets)
is left out: it is memory traffic, not products.

Two counts are given. The plain one takes a backward pass as twice the forward pass of the same layers, whatever is
differentiated; by it SAC's update is the 0.59 GFLOP usually named. The strict one leaves out the products that nobody
needs: the gradient with respect to a first layer's input, or to that part of it that is no action. It is some 2% lower.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def layers(input_size: int, hidden_layers: Sequence[int], output_size: int) -> int:
    """Multiplications of one row through a network: the sum over layers of inputs x outputs."""
    return sum(fan_in * fan_out for fan_in, fan_out in itertools.pairwise([input_size, *hidden_layers, output_size]))


def sac(
    observation_size: int = 17,
    action_size: int = 6,
    hidden_layers: Sequence[int] = (256, 256),
    batch_size: int = 256,
    segment_length: int = 2,
    actor_on_last_frame: bool = False,
    num_critics: int = 2,
    strict: bool = False,
) -> int:
    """One SAC update with one-step targets over segments of T frames; T = 2 is a transition (s, s').

    Args:
        actor_on_last_frame: the actor learns at all T frames of a segment; else at all but the last, as SAC is usually
            written.
    """
    critic_input = observation_size + action_size
    actor = layers(observation_size, hidden_layers, 2 * action_size)
    critics = num_critics * layers(critic_input, hidden_layers, 1)
    taught = segment_length if actor_on_last_frame else segment_length - 1  # frames at which the actor learns
    transitions = segment_length - 1
    total = segment_length * actor  # actions at s and at s'
    total += taught * 2 * actor  # their gradient, where the actor learns
    total += transitions * 3 * critics  # Q(s, a), and its gradient
    total += taught * 2 * critics  # Q(s, a~), and its gradient with respect to a~
    total += transitions * critics  # the target critics at s'
    if strict:
        first = hidden_layers[0]
        total -= taught * observation_size * first + transitions * num_critics * critic_input * first
        total -= taught * num_critics * observation_size * first
    return 2 * batch_size * total


def taac(
    observation_size: int = 17,
    action_size: int = 6,
    hidden_layers: Sequence[int] = (256, 256),
    batch_size: int = 256,
    segment_length: int = 4,
    num_parts: int = 1,
    num_critics: int = 2,
    strict: bool = False,
) -> int:
    """One TAAC update over segments of T frames.

    Args:
        num_parts: of a trajectory: 1 constant, 2 linear, 3 quadratic.
    """
    frames, transitions = segment_length, segment_length - 1
    critic_input = observation_size + num_parts * action_size
    embedding = num_parts * action_size * observation_size
    actor_input = (1 + num_parts) * observation_size
    actor = embedding + layers(actor_input, hidden_layers, 2 * action_size)
    critics = num_critics * layers(critic_input, hidden_layers, 1)
    total = frames * 3 * actor  # the actor, and its gradient
    total += frames * critics  # Q(s, tau_0)
    total += frames * 2 * critics  # Q(s, tau_1), and its gradient with respect to a_hat
    total += transitions * 2 * critics  # the target critics at both candidates
    total += transitions * 3 * critics  # Q(s, tau), and its gradient
    if strict:
        first = hidden_layers[0]
        total -= frames * (embedding + observation_size * first)  # inputs of the embedding, and the features beside it
        total -= transitions * num_critics * critic_input * first
        total -= frames * num_critics * observation_size * first
    return 2 * batch_size * total
