"""Matched-control critics retrained on noisy TD targets, beside critics that miss a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bcppo.diagnostics.measure import coverage
from bcppo.diagnostics.measure.coverage import SCORES, Condition, measure_conditions
from bcppo.diagnostics.runs import Found
from bcppo.diagnostics.store import Measured

NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0)
"""Std of the noise, in stds of the clean targets. 1.0 is the primary one, fixed before analysis."""

REPLAYS = [Condition(score, "replay", "td", noise) for score in SCORES for noise in NOISE_LEVELS]
CONDITIONS = [condition for condition in coverage.CONDITIONS if condition.target == "td"] + REPLAYS


def measure(runs: Sequence[Found], device: str = "cpu", max_updates: int = 0) -> Measured:
    return measure_conditions(runs, CONDITIONS, "target noise", device=device, max_updates=max_updates)


def measure_both(runs: Sequence[Found], device: str = "cpu", max_updates: int = 0) -> dict[str, Measured]:
    """Coverage and target noise by one retraining: every policy × condition × target × noise level in one stack."""
    conditions = [*coverage.CONDITIONS, *REPLAYS]
    whole = measure_conditions(runs, conditions, "both", device=device, max_updates=max_updates)
    parts = {"coverage": ("coverage", coverage.CONDITIONS), "target-noise": ("target noise", CONDITIONS)}
    return {name: _part(whole, statistic, own) for name, (statistic, own) in parts.items()}


def _part(whole: Measured, statistic: str, conditions: Sequence[Condition]) -> Measured:
    """The rows of some conditions."""
    tables = dict(whole.tables)
    for name in ("held_out", "curves"):
        columns = whole.table(name)
        if columns:
            chosen = np.zeros(len(columns["run"]), bool)
            for condition in conditions:
                chosen |= np.all([columns[key] == value for key, value in condition._asdict().items()], axis=0)
            tables[name] = {key: values[chosen] for key, values in columns.items()}
    not_eligible = [replace(item, statistic=statistic) for item in whole.not_eligible]
    return Measured(tables, not_eligible, dict(whole.settings))
