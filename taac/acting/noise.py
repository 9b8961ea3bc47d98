"""Noise that is correlated in time: replaces the independent normal noise in a policy's continuous actions."""

from __future__ import annotations

import math
from typing import NamedTuple

import gin
import torch

from taac import nest
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.algorithms.memories import Memories
from taac.data_structures import TimeStep
from taac.errors import TaacError, refuse_below


class NoiseState(NamedTuple):
    """The state of a noise in each environment."""

    values: torch.Tensor  # [B, ...], a sequence, the last number, or a matrix
    left: torch.Tensor  # [B] int64, steps for which they still serve; 0: they are drawn anew


class Noise:
    """Draws eps of the action `tanh(mean + std * eps)` of a rollout, or of TD3's `tanh(mean) + exploration_noise * eps`.

    At each step eps is standard normal, so that an action alone has the policy's distribution. Neighbouring ones are correlated.
    Environments and dimensions are independent of each other, and an episode begins a new sequence. It takes the place of an
    explorer, `create_collector.explorer`, after the first random steps, and draws before the policy acts: TAAC's switch, a
    duration and what is stored follow from the action that is made of it. Learning and evaluation are as without it.
    """

    def check(self, algorithm: Algorithm) -> None:
        """Raises TaacError if the algorithm does not act with given noise."""
        if not algorithm.takes_noise:
            raise TaacError(
                f"create_collector.explorer {type(self).__name__} draws the noise of continuous actions, which "
                f"{type(algorithm).__name__} does not take: its actions are discrete, it proposes chunks of them, or it "
                "needs the probabilities of independent ones. Remove it"
            )

    def initial_state(self, agent: Agent, batch_size: int) -> NoiseState:
        """Returns the state at the start of an episode."""
        agents = () if agent.agents is None else (agent.agents.count,)
        blank = torch.zeros(batch_size, *agents, agent.algorithm.action_size, device=agent.device)  # [B(, N), A]
        values = self._blank_values(blank, agent)
        return NoiseState(values, torch.zeros(batch_size, dtype=torch.int64, device=agent.device))

    def draw(self, agent: Agent, time_step: TimeStep, state: NoiseState) -> tuple[torch.Tensor, NoiseState]:
        """Returns eps `[B(, N), A]` at frames `[B]`, and the next state.

        Where an episode begins, the state passed in is the initial one.
        """
        raise NotImplementedError

    def _blank_values(self, blank: torch.Tensor, agent: Agent) -> torch.Tensor:
        return blank

    def _renewed(self, state: NoiseState, period: int | torch.Tensor) -> NoiseState:
        """Draws the values anew of environments that have none left, as at the start of an episode."""
        new = state.left == 0
        if not bool(new.any()):
            return state
        values = state.values.clone()
        values[new] = self._drawn(torch.randn_like(values[new]))
        return NoiseState(values, torch.where(new, period, state.left))

    def _drawn(self, white: torch.Tensor) -> torch.Tensor:
        return white


@gin.configurable
class ColoredNoise(Noise):
    """Noise with the power spectrum `S(f) proportional to f^-beta`: white at beta = 0, pink at 1, red at 2.

    A sequence is white noise whose Fourier coefficients at f = k / length are multiplied by `max(f, 1 / length)^(-beta / 2)`, and
    scaled to variance 1. After `length` steps of an episode another begins.

    Args:
        beta: 0 or more.
        length: steps of a sequence, best those of an episode; `1 / length` is the lowest frequency.

    Raises:
        TaacError: an argument is out of range.

    Source: Eberhard, Hollenstein, Pinneri and Martius, Pink Noise Is All You Need (ICLR 2023), whose sequences are those of
    Timmer and Koenig (1995). Unlike in its code, the variance of 1 includes that of a sequence's mean.
    """

    def __init__(self, beta: float = 1.0, length: int = 1000):
        refuse_below(2, "ColoredNoise", length=length)
        if not 0 <= beta < math.inf:
            raise TaacError(f"ColoredNoise.beta must be 0 or more, got {beta}")
        self.beta, self.length = beta, length
        number = torch.arange(length, dtype=torch.float64)
        power = torch.minimum(number, length - number).clamp(min=1.0) ** -beta  # of all `length` coefficients
        self._gain = (power / power.mean()).sqrt()[: length // 2 + 1].float()

    def draw(self, agent: Agent, time_step: TimeStep, state: NoiseState) -> tuple[torch.Tensor, NoiseState]:
        values, left = self._renewed(state, self.length)
        noise = values[torch.arange(len(left), device=left.device), self.length - left]
        return noise, NoiseState(values, left - 1)

    def _blank_values(self, blank: torch.Tensor, agent: Agent) -> torch.Tensor:
        return blank.unsqueeze(1).repeat_interleave(self.length, 1)

    def _drawn(self, white: torch.Tensor) -> torch.Tensor:
        coefficients = torch.fft.rfft(white, dim=1)
        gain = self._gain.to(white.device).reshape(-1, *(1,) * (white.dim() - 2))
        return torch.fft.irfft(coefficients * gain, n=self.length, dim=1)


@gin.configurable
class AutoregressiveNoise(Noise):
    """`eps_t = rho eps_{t-1} + sqrt(1 - rho^2) white_t`: the Ornstein-Uhlenbeck process, whose autocorrelation is `rho^k`.

    Args:
        rho: correlation of neighbouring steps, in [0, 1); `exp(-theta dt)` for a rate of theta. 0 is what policies draw anyway.

    Raises:
        TaacError: rho is out of range.

    Source: Uhlenbeck and Ornstein (1930), as in DDPG (Lillicrap et al., arXiv:1509.02971), whose theta = 0.15 is the default.
    """

    def __init__(self, rho: float = 0.86):
        if not 0 <= rho < 1:
            raise TaacError(f"AutoregressiveNoise.rho must be in [0, 1), got {rho}")
        self.rho = rho

    def draw(self, agent: Agent, time_step: TimeStep, state: NoiseState) -> tuple[torch.Tensor, NoiseState]:
        white = torch.randn_like(state.values)
        correlated = self.rho * state.values + math.sqrt(1 - self.rho**2) * white
        noise = nest.where(state.left == 0, white, correlated)
        return noise, NoiseState(noise, torch.ones_like(state.left))


@gin.configurable
class HeldNoise(Noise):
    """White noise that is held for n steps, `P(n) proportional to n^-2` for n up to `longest`: 2.1 steps on average.

    For TAAC it matters where the switch draws a new action.

    Args:
        longest: the largest n.

    Raises:
        TaacError: `longest` is out of range.

    Source: FlashSAC's published code, where one n counts for all environments and goes on over the ends of episodes.
    """

    def __init__(self, longest: int = 16):
        refuse_below(1, "HeldNoise", longest=longest)
        self._odds = torch.arange(1, longest + 1, dtype=torch.float32) ** -2.0

    def draw(self, agent: Agent, time_step: TimeStep, state: NoiseState) -> tuple[torch.Tensor, NoiseState]:
        steps = 1 + torch.multinomial(self._odds.to(state.left.device), len(state.left), replacement=True)
        values, left = self._renewed(state, steps)
        return values, NoiseState(values, left - 1)


@gin.configurable
class StateDependentNoise(Noise):
    """`eps_i = sum_j W_ji phi_ji / |phi_i|`, a function of the state: equal states have equal noise until W is drawn anew.

    All elements of W are standard normal. With `ActorNetwork.gsde_log_std`, phi_ji is `h_j sigma_ji` of the actor's last hidden
    layer and the learnt sigma, so that `std * eps` is gSDE's noise. Without, or for an actor that sees the trajectory or actions
    before, too, phi are the actor's features and a 1.

    Args:
        period: steps after which W is drawn anew.

    Raises:
        TaacError: period is out of range.

    Source: Raffin, Kober and Stulp, Smooth Exploration for Robotic Reinforcement Learning (gSDE, CoRL 2021, arXiv:2005.05719).
    """

    def __init__(self, period: int = 8):
        refuse_below(1, "StateDependentNoise", period=period)
        self.period = period

    def check(self, algorithm: Algorithm) -> None:
        super().check(algorithm)
        if isinstance(algorithm, Memories):
            name = type(algorithm).__name__
            raise TaacError(f"StateDependentNoise needs features of a state alone, which {name} lacks: remove it")

    def draw(self, agent: Agent, time_step: TimeStep, state: NoiseState) -> tuple[torch.Tensor, NoiseState]:
        matrix, left = self._renewed(state, self.period)
        noise = (torch.nn.functional.normalize(agent.noise_basis(time_step), dim=-2) * matrix).sum(-2)
        return noise, NoiseState(matrix, left - 1)

    def _blank_values(self, blank: torch.Tensor, agent: Agent) -> torch.Tensor:
        basis = agent.algorithm.noise_basis(blank.new_zeros(1, agent.algorithm.actor_feature_size))
        return blank.unsqueeze(-2).repeat_interleave(basis.shape[-2], -2)
