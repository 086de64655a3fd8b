"""Matched-control critics retrained on noisy TD targets, beside critics that miss a region."""

from __future__ import annotations

from collections.abc import Sequence

from bcppo.diagnostics.measure.coverage import SCORES, Condition, measure_conditions
from bcppo.diagnostics.runs import Found
from bcppo.diagnostics.store import Measured

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0)
"""Std of the noise, in stds of the clean targets. 1.0 is the primary one, fixed before analysis."""

CONDITIONS = [
    condition
    for score in SCORES
    for condition in (
        Condition(score, "removal", "td"),
        Condition(score, "control", "td"),
        *(Condition(score, "replay", "td", noise) for noise in NOISE_LEVELS),
    )
]


def measure(runs: Sequence[Found], device: str = "cpu", max_updates: int = 0) -> Measured:
    return measure_conditions(runs, CONDITIONS, "target noise", device=device, max_updates=max_updates)
