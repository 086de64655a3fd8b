"""PPOLag: clipped PPO whose advantage holds the cost at the price of a multiplier, with OmniSafe 0.5.0's rules."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bcppo.algorithms.onpolicy import OnPolicy, Sample, Updating
from bcppo.math.surrogate import clipped_surrogate, gaussian_log_prob


class PPOLag(OnPolicy):
    """λ climbs while the constraint's statistic is above its limit; then PPO on (A_r − λ·A_c) / (1 + λ)."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._clip = self.vector("clip").to(self._dtype).unsqueeze(1)

    def improve(self, rollout: Sample, excess: Tensor) -> Updating:
        multiplier = self.ascend_multiplier(excess)
        return self.descend_epochs(rollout, multiplier, self._loss)

    def _loss(self, part: Sample, old_log_std: Tensor) -> Tensor:
        log_prob = gaussian_log_prob(part.action, *self.policy.distribution(part.observation))
        return clipped_surrogate((log_prob - part.log_prob).exp(), part.advantage, self._clip)
