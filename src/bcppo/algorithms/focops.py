"""FOCOPS: first-order constrained optimisation in policy space, with OmniSafe 0.5.0's rules.

The loss pulls each sample's action distribution towards the best policy near the rollout's, and lets go of a sample
whose distribution has moved further than η.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bcppo.algorithms.onpolicy import OnPolicy, Sample, Updating
from bcppo.math.surrogate import gaussian_log_prob
from bcppo.math.trust_region import gaussian_kl


class FOCOPS(OnPolicy):
    """λ as in PPOLag, with a ceiling; then mean[(KL(π ‖ π_old) − ratio·A / temperature)·1{KL ≤ η}]."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._ceiling = self.vector("multiplier_max", host=True)
        self._eta, self._temperature = (self.vector(f).to(self._dtype).unsqueeze(1) for f in ("eta", "temperature"))
        self._broadcast = torch.tensor([c.broadcast_kl for c in self.configs], device=self._device)

    def improve(self, rollout: Sample, excess: Tensor) -> Updating:
        multiplier = self.ascend_multiplier(excess, self._ceiling)
        return self.descend_epochs(rollout, multiplier, self._loss)

    def _loss(self, part: Sample, old_log_std: Tensor) -> Tensor:
        mean, log_std = self.policy.distribution(part.observation)
        ratio = (gaussian_log_prob(part.action, mean, log_std) - part.log_prob).exp()
        kl = gaussian_kl(mean, log_std, part.old_mean, old_log_std).sum(-1)  # [R, B]
        near = (kl.detach() <= self._eta).to(kl.dtype)
        gain = ratio * part.advantage / self._temperature
        # The release has [B, 1] − [B], a mean over all pairs: a gain is weighed by the share of samples that are near.
        paired = (kl * near).mean(-1) - near.mean(-1) * gain.mean(-1)
        return torch.where(self._broadcast, paired, ((kl - gain) * near).mean(-1))
