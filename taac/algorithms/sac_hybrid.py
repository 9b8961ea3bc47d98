"""SAC-Hybrid: closed-loop repetition whose switch does not see the sampled action.

Source: the hybrid policy of Neunert et al., Continuous-Discrete Reinforcement Learning for Hybrid Control in Robotics
(CoRL 2019, arXiv:2001.00449), on SAC, a baseline in TAAC (arXiv:2104.06521).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import trajectories
from taac.algorithms.actor_critic import trainable
from taac.algorithms.taac import TaacAlgorithm
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss
from taac.algorithms.trajectories import Tau
from taac.data_structures import AlgStep, Experience, Nest
from taac.errors import TaacError
from taac.networks import SwitchNetwork
from taac.networks.batch_statistics import refuse_batch_statistics
from taac.specs import TensorSpec


@gin.configurable
class SacHybridAlgorithm(TaacAlgorithm):
    """TAAC with a learnt switching policy `pi_b(b | s, tau_prev)`, sampled independently of the action.

    `pi_b` minimises `sum_b pi_b(b) (alpha_b log pi_b(b) - Q_b)`. `Q_0` and `Q_1` are the minimum over critics at the two
    candidates, treated as constants. Everywhere else `pi_b` replaces beta.

    Targets contain no entropy of the action or the switch, as in TAAC: they are `r + gamma V'(s')` with
    `V'(s) = sum_b pi_b(b) min_i Q'_i(s, tau_b)`. The source's policy evaluation has no entropy either.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        switch_hidden_layers: widths of the switching policy's network.
        taac_arguments: the other arguments of `TaacAlgorithm`; bind them there in gin. `td_loss` is one-step by default.

    Raises:
        TaacError: errors of `TaacAlgorithm`; advantage clipping, which has no meaning here.

    Assumed, because neither is published: one-step targets, and the target entropy of TAAC's beta for pi_b.
    """

    default_td_loss: type[BaseTDLoss] = OneStepTDLoss

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        switch_hidden_layers: Sequence[int] = (256, 256),
        **taac_arguments: Any,
    ):
        super().__init__(observation_spec, action_spec, **taac_arguments)
        if self.b1_advantage_clipping is not None:
            raise TaacError(
                "SacHybridAlgorithm learns its switch, so b1_advantage_clipping has no effect: remove it"
            )
        self.switch_network = SwitchNetwork(self.tau_embedding.output_size, 1, switch_hidden_layers)
        refuse_batch_statistics(self.switch_network)

    def switching_probability(
        self, features: torch.Tensor, embedded: torch.Tensor, tau_prev: Tau, a_hat: torch.Tensor
    ) -> torch.Tensor:
        return torch.sigmoid(self.switch_network(embedded).squeeze(-1))

    def learn_switch(self, embedded: torch.Tensor, q_0: torch.Tensor, q_1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logit = self.switch_network(embedded).squeeze(-1)
        log_pi = nn.functional.logsigmoid(torch.stack([-logit, logit], dim=-1))
        q = torch.stack([q_0, q_1], dim=-1)
        loss = (log_pi.exp() * (self.beta_temperature.alpha() * log_pi - q)).sum(-1)
        return log_pi.exp().detach(), loss

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns TAAC's cloning loss plus the cross-entropy of the switch, which here is a policy of its own."""
        time_step, (tau_prev, b) = nest.index(experience, slice(None, -1))
        embedded = self.tau_embedding(self.actor_features(time_step.observation), tau_prev)
        logit = self.switch_network(embedded).squeeze(-1)
        switch_loss = nn.functional.binary_cross_entropy_with_logits(logit, b.to(logit.dtype), reduction="none")
        if (ended := trajectories.has_ended(self.trajectory, tau_prev)) is not None:
            switch_loss = switch_loss.masked_fill(ended, 0.0)
        return super().cloning_loss(experience) + self.cloned(experience, switch_loss)

    def acting_modules(self) -> list[str]:
        own = [] if self.actor_encoder is None else ["actor_encoder"]
        return ["encoder", *own, "actor", "tau_embedding", "switch_network"]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        # The switch does not see the new action. An encoder of the critics alone is needed nowhere.
        encoder = {} if self.actor_encoder is None else {"encoder": torch.zeros_like(step.decided)}
        return {"actor": step.decided, **encoder}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()
        return {**groups, "actor": [*groups["actor"], *trainable(self.switch_network)]}
