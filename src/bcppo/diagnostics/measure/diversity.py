"""The members' predictions at the states and actions of a policy's evaluation episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bcppo.diagnostics.measure.checkpoints import restore_ensembles
from bcppo.diagnostics.measure.transitions import evaluation_transitions, thinned
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Measured, NotEligible

PROBES = 2000
"""Evaluation transitions, evenly thinned, at which members are compared."""


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    restored, not_eligible = restore_ensembles(runs, "ensemble diversity")
    columns: dict[str, list] = {"run": [], "probe": [], "predictions": []}
    for index, checkpoint in restored:
        if checkpoint.config.members < 2:
            reason = "an ensemble of one member has no spread"
            not_eligible.append(NotEligible(checkpoint.found.name, "ensemble diversity", reason))
            continue
        env = checkpoint.make_env()
        transitions = evaluation_transitions(checkpoint.policy, env)
        env.close()
        rows = thinned(len(transitions), PROBES)
        predictions = checkpoint.predictions(transitions.observation[rows], transitions.action[rows])
        columns["run"] += [index] * len(rows)
        columns["probe"] += rows.tolist()
        columns["predictions"] += np.asarray(predictions, np.float64).tolist()
    tables = {"runs": runs_table(runs), "probes": columns if columns["run"] else {}}
    return Measured(tables, not_eligible, {"probes": PROBES})
