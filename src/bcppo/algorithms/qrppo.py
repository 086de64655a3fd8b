"""QR PPO: BCPPO's loop and controller, with the upper tail of an action-conditioned quantile cost critic.

    cost branch: A_c + β · mean{ q_i(s, a) : τ_i ≥ α },   τ_i = (i + ½) / N_q,   detached

The critic's N_q heads descend the pinball loss against the scalar TD target y of BCPPO. A Huber loss of width 1 would,
at these cost scales, fit expectiles instead of quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms.ppo import NoSignal
from bcppo.math.quantile import pinball_loss, quantile_levels
from bcppo.nets import Stack
from bcppo.settings import QRPPOConfig
from bcppo.streams import Streams


class QuantileTail(NoSignal):
    """The cost signal of QR PPO."""

    shared_fields = ("quantiles",)

    def __init__(
        self, configs: Sequence[QRPPOConfig], widths: tuple[int, int], streams: Sequence[Streams], device: torch.device
    ):
        first = configs[0]
        sizes = (sum(widths), *first.hidden, first.quantiles)
        self.critic = Stack(sizes, 1, [stream.init for stream in streams], device)
        self.optimizer = Adam(self.critic, [c.learning_rate for c in configs], first.max_grad_norm)
        self._levels = quantile_levels(first.quantiles, device)
        alphas = torch.tensor([c.alpha for c in configs], dtype=torch.float64, device=device)
        in_tail = (self._levels >= alphas[:, None]).float()  # [R, N_q]
        self._tail_mean = (in_tail / in_tail.sum(1, keepdim=True)).unsqueeze(1)  # [R, 1, N_q]
        self._beta = torch.tensor([c.beta for c in configs], dtype=torch.float32, device=device).unsqueeze(1)

    def shape(self, observation: Tensor, executed: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        quantiles = self.critic(torch.cat([observation, executed], dim=-1)).squeeze(1)  # [R, B, N_q]
        detached = quantiles.detach()
        tail = (detached * self._tail_mean).sum(-1)
        return self._beta * tail, quantiles, {"mu_c": detached.mean((1, 2)), "tail": tail.mean(-1)}

    def descend(self, predictions: Tensor, target: Tensor, *drawn: Tensor) -> dict[str, Tensor]:
        loss = pinball_loss(predictions, target, self._levels.float())
        self.optimizer.descend(loss)
        return {"loss_critics": loss.detach()}

    def optimizers(self) -> dict[str, Adam]:
        return {"critics": self.optimizer}
