"""The columns of a study's frames."""

from __future__ import annotations

import polars as pl

IN_TURN = ", then "
"""Between what a run was begun with and what it went on with, where that was another revision or device."""

EVALUATIONS = {
    "step": pl.Int64, "final": pl.Boolean, "stochastic": pl.Boolean, "episode_seed": pl.Int64,
    "episode_return": pl.Float64, "cost_rate": pl.Float64, "native_cost": pl.Float64, "boundary_hits": pl.Float64,
    "length": pl.Int64,
}  # fmt: skip
"""One row an evaluation episode: cost_rate is the mean cost per step, native_cost and boundary_hits are sums."""

LONG_EPISODES = {
    "episode_seed": pl.Int64, "episode_return": pl.Float64, "cost_rate": pl.Float64, "native_cost": pl.Float64,
    "boundary_hits": pl.Float64, "length": pl.Int64, "policy": pl.String, "simulators": pl.String,
}  # fmt: skip
"""One row an episode of the long evaluation of a run's policy; `policy` tells the file it was made of from others."""

PROGRESS = {
    "update": pl.Int64, "step": pl.Int64, "episode_return": pl.Float64, "episode_cost_rate": pl.Float64,
    "cost_cvar95": pl.Float64, "mean_cost": pl.Float64, "sigma_c": pl.Float64, "multiplier": pl.Float64,
    "multiplier_positive_share": pl.Float64,
}  # fmt: skip
"""One row an update. A method without a critic ensemble has no sigma_c; the column is null there."""

MEASURED = ("episode_return", "cost_rate", "native_cost", "boundary_hits")

RUNS = {
    "id": pl.String, "task": pl.String, "method": pl.String, "variant": pl.String, "seed": pl.Int64,
    "protocol": pl.String, "steps": pl.Int64, "eval_episodes": pl.Int64, "limit_rate": pl.Float64, "paper": pl.String,
    "differs": pl.String, "usable": pl.Boolean, "state": pl.String, "revision": pl.String, "python": pl.String,
    "device": pl.String, "processor": pl.String, "versions": pl.String, "config": pl.String,
}  # fmt: skip
"""One row a run of the study, usable or not. `state` is finished, or the kind of the problem."""


def join_in_order(left: pl.DataFrame, right: pl.DataFrame, on: list[str], suffix: str = "_right") -> pl.DataFrame:
    """An inner join in the order of the left.

    polars promises one where it is asked to, but before 1.21, which bundles have, it cannot be asked.
    """
    placed = left.with_row_index("place")
    return placed.join(right, on=on, how="inner", suffix=suffix).sort("place").drop("place")
