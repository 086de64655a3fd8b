"""The paper's diagnostics. Each has two halves: `measure/NAME.py` makes rows from run folders and may use torch;
`read/NAME.py` turns rows into a table beside the paper's figures, and a plot, and uses none."""

from __future__ import annotations

SUMMARIES = {
    "multiplier": "how often the multiplier is positive",
    "diversity": "how far the critics of an ensemble differ",
    "calibration": "what σ says about errors, boundary hits and perturbed actions",
    "coverage": "whether σ marks a region that was left out of the critics' data",
    "target-noise": "whether noisy targets would do the same as missing data",
    "intervention": "what the penalty changes in one update of the actor",
    "latency": "time of one action on the CPU",
    "theory": "six checks of the appendix's idealised statements",
}
"""The diagnostics, by name."""
