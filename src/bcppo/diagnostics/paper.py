"""The paper's figures, to print beside ours: intervals are 95 % bootstrap intervals over policies or checkpoints."""

from __future__ import annotations

MULTIPLIER_SHARE = {"goal1": 0.184, "button1": 0.076, "push1": 0.170, "hopper": 0.279, "ant": 0.001}
MULTIPLIER_SHARE_OVERALL = 0.142
DIVERSITY = {"mean pairwise correlation": "0.917", "normalised effective rank": "0.578"}
CALIBRATION = {
    "hit_auc": "0.868 [0.734, 0.968] (7/15)",
    "cost_rho": "0.112 [−0.001, 0.236]",
    "error_rho": "−0.030 [−0.168, 0.096]",
    "error_auc": "0.520 [0.455, 0.589]",
    "action_auc": "0.568 [0.528, 0.607]",
}
CALIBRATION_TASKS = {
    "ant": ("1920", "0.911 ± 0.092 (5/5)", "−0.222 ± 0.290", "0.584 ± 0.066"),
    "hopper": ("0", "– (0/5)", "0.034 ± 0.265", "0.553 ± 0.020"),
    "goal1": ("1169", "0.761 ± 0.338 (2/5)", "0.098 ± 0.165", "0.567 ± 0.133"),
}
COVERAGE = {
    ("norm", "td"): ("0.168 [0.118, 0.218]", "0.003 [−0.066, 0.064]", "0.585 → 0.753"),
    ("projection", "td"): ("0.099 [0.044, 0.153]", "0.051 [0.003, 0.102]", "0.571 → 0.670"),
    ("norm", "mc"): ("0.153 [0.106, 0.201]", "0.128 [0.040, 0.243]", "not given"),
    ("projection", "mc"): ("0.087 [0.022, 0.148]", "0.030 [−0.054, 0.114]", "not given"),
}
TARGET_NOISE = {"norm": "0.126 [0.069, 0.185], 13/15", "projection": "0.110 [0.060, 0.159], 13/15"}
INTERVENTION = {
    "rank": ("−0.119 [−0.216, −0.039]", "5/5 negative"),
    "slope": ("−0.110 [−0.520, 0.168]", "2/5 negative"),
    "rollout": ("−0.040 [−0.052, −0.031]", "5/5 negative"),
    "delta_sigma": ("−1.63e−6 [−4.24e−6, −0.07e−6]", "4/5 negative"),
    "zero_multiplier": ("0 (exact)", "4/4 zero"),
    "both_disabled": ("0 (exact)", "72/72 zero"),
}
LATENCY = {
    "bcppo": ("0.66 ± 0.66", "3.58"),
    "cppo": ("0.89 ± 0.54", "4.81"),
    "qrppo": ("0.89 ± 0.47", "5.02"),
}
