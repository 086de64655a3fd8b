"""λ of every update, from the run's progress rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Measured, NotEligible, join
from bcppo.errors import BcppoError


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    parts, not_eligible = [], []
    for index, found in enumerate(runs):
        try:
            rows = found.folder.read_rows("progress")
        except BcppoError as error:
            not_eligible.append(NotEligible(found.name, "share of λ > 0", str(error)))
            continue
        if found.method != "bcppo":
            not_eligible.append(NotEligible(found.name, "share of λ > 0", f"the audit is of BCPPO, not {found.method}"))
        elif not rows.get("multiplier"):
            not_eligible.append(NotEligible(found.name, "share of λ > 0", "no update is recorded yet"))
        else:
            count = len(rows["multiplier"])
            parts.append(
                {
                    "run": np.full(count, index),
                    "step": np.array(rows["step"]),
                    "multiplier": np.array(rows["multiplier"], np.float64),
                    "mean_cost": np.array(rows["mean_cost"], np.float64),
                }
            )
    return Measured({"runs": runs_table(runs), "updates": join(parts)}, not_eligible)
