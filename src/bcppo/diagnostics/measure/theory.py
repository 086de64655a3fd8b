"""The six empirical checks of the appendix's table "Meaning, limitations, and empirical checks" (tab:theory_scope)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bcppo.diagnostics.measure.actor import collect_rollouts, make_batch, parameter_difference, update_actor
from bcppo.diagnostics.measure.checkpoints import NO_REWARD_VALUE, Restored, restore_ensembles
from bcppo.diagnostics.measure.coverage import Condition, make_fit, prepare
from bcppo.diagnostics.measure.idealized import concentration, correlated_spread, score_estimators
from bcppo.diagnostics.measure.retrain import Schedule, retrain
from bcppo.diagnostics.measure.transitions import evaluation_transitions, perturbed, thinned
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.statistics import mean_pairwise_correlation
from bcppo.diagnostics.store import Columns, Measured, NotEligible, join
from bcppo.math.bachelier import (
    call,
    disagreement,
    effective_beta,
    exceedance_cantelli,
    exceedance_gaussian,
    excess_factor,
    mean_prediction,
    reference_level,
    strike,
)
from bcppo.math.pid import PidGains, pid_start, pid_step
from bcppo.settings import BCPPOConfig

PROBES = 2000
SEED = 5
MATCHED = {"α 0.9, κ 0.3": (0.9, 0.3), "α 0.99, κ 0": (0.99, 0.0), "α 0.8, κ 0.6": (0.8, 0.6)}
LARGE = Schedule(members=16, max_updates=300, check_every=300)
"""The larger ensemble that is subsampled; one checkpoint, since it is the costliest of the checks."""
KEEPS, SUBSETS = (0.2, 0.8), (2, 3, 5, 8, 12)


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    restored, not_eligible = restore_ensembles(runs, "checks on checkpoints")
    parts: dict[str, list[Columns]] = {"exceedance": [], "coupling": [], "propagation": [], "windup": []}
    for index, checkpoint in restored:
        probes = _probes(checkpoint)
        checks = {
            "exceedance": exceedance_rows(checkpoint, probes),
            "propagation": propagation_rows(checkpoint.config, probes["policy"]),
            "windup": windup_rows(checkpoint),
        }
        if checkpoint.lacks_reward_value:
            not_eligible.append(NotEligible(checkpoint.found.name, "coefficient coupling", NO_REWARD_VALUE))
        else:
            checks["coupling"] = coupling_rows(checkpoint)
        for name, rows in checks.items():
            count = len(next(iter(rows.values())))
            parts[name].append({"run": np.full(count, index), **rows})
    random = np.random.default_rng(SEED)
    tables: dict[str, Columns] = {"runs": runs_table(runs), **{name: join(own) for name, own in parts.items()}}
    tables["scores"] = score_estimators(random)
    tables["concentration"] = concentration(random)
    tables["correlated"] = correlated_spread(random)
    tables["members"] = {}
    for index, checkpoint in restored:
        subsets = members_rows(index, checkpoint, device)
        if isinstance(subsets, str):
            not_eligible.append(NotEligible(checkpoint.found.name, "subsampled ensemble", subsets))
            continue
        tables["members"] = subsets
        break
    return Measured(tables, not_eligible, {"probes": PROBES, "seed": SEED})


def _probes(checkpoint: Restored) -> dict[str, torch.Tensor]:
    """Members' predictions [1, M, P] float64 at policy actions and at perturbed ones."""
    env = checkpoint.make_env()
    transitions = evaluation_transitions(checkpoint.policy, env)
    env.close()
    rows = thinned(len(transitions), PROBES)
    observation, action = transitions.observation[rows], transitions.action[rows]
    moved = perturbed(action, checkpoint.policy, np.random.default_rng([SEED, checkpoint.config.seed]))
    pairs = {"policy": action, "perturbed": moved}
    return {
        name: torch.from_numpy(checkpoint.predictions(observation, one)).double().T.unsqueeze(0)
        for name, one in pairs.items()
    }


def exceedance_rows(checkpoint: Restored, probes: dict[str, torch.Tensor]) -> Columns:
    """1. The share of members at or above the moving strike, beside Cantelli's bound and the Gaussian value."""
    c0 = reference_level(checkpoint.config.alpha, checkpoint.config.kappa)
    return {
        "actions": list(probes),
        "share": [exceedance_share(members, c0) for members in probes.values()],
        "cantelli": [exceedance_cantelli(c0)] * len(probes),
        "gaussian": [exceedance_gaussian(c0)] * len(probes),
    }


def exceedance_share(members: torch.Tensor, c0: float) -> float:
    """Of members [1, M, P]; probes at which all members agree have no strike above them and are left out."""
    mean, spread = mean_prediction(members), disagreement(members, floor=0.0)
    above = members >= strike(mean, spread, c0).unsqueeze(1)
    return float(above[:, :, spread[0] > 0].double().mean())


def coupling_rows(checkpoint: Restored) -> Columns:
    """3. One update of the actor, at λ = 1, under settings of equal β_eff, and under one of twice that."""
    base = checkpoint.config
    settings = {"base": base}
    for name, (alpha, kappa) in MATCHED.items():
        settings[name] = replace(base, alpha=alpha, kappa=kappa, beta=matching_beta(base, alpha, kappa))
    settings["twice β"] = replace(base, beta=2 * base.beta)
    learner = checkpoint.copies(list(settings.values()), [SEED] * len(settings))
    learner.controller = learner.controller._replace(multiplier=torch.ones(len(settings), dtype=torch.float64))
    rollout = collect_rollouts(checkpoint, 1, 1024, SEED)[0]
    rows = torch.arange(1024).repeat(len(settings), 1)
    update_actor(learner, make_batch(checkpoint, [rollout] * len(settings)), rows)
    return {
        "setting": list(settings),
        "effective_beta": [effective_beta(one.alpha, one.beta, one.kappa) for one in settings.values()],
        "difference": [parameter_difference(learner, 0, i) for i in range(len(settings))],
    }


def matching_beta(base: BCPPOConfig, alpha: float, kappa: float) -> float:
    """The β whose β_eff at (α, κ) is the base's, to the bit where some float has it."""
    wanted = effective_beta(base.alpha, base.beta, base.kappa)
    beta = wanted / excess_factor(reference_level(alpha, kappa))
    near = [beta]
    for _ in range(4):
        near = [math.nextafter(near[0], -math.inf), *near, math.nextafter(near[-1], math.inf)]
    return min(near, key=lambda value: abs(effective_beta(alpha, value, kappa) - wanted))


def propagation_rows(config: BCPPOConfig, members: torch.Tensor) -> Columns:
    """4. ΔR_B by the unsimplified formula when μ_c or σ_c is perturbed, beside L_μ = 0 and L_σ = h(c₀)."""
    c0 = reference_level(config.alpha, config.kappa)
    mean, spread = mean_prediction(members), disagreement(members, floor=0.0)
    seen = spread[0] > 0
    members, mean, spread = members[..., seen], mean[..., seen], spread[..., seen]
    before = _priced(members, c0)
    rows: dict[str, list] = {
        name: [] for name in ("perturbed", "size", "measured", "predicted", "largest_gap", "penalty")
    }
    for size in (0.01, 0.1, 1.0):
        shifted = members + size * mean.abs().unsqueeze(1)
        stretched = mean.unsqueeze(1) + (1.0 + size) * (members - mean.unsqueeze(1))
        for kind, moved, predicted in (
            ("mean", shifted, torch.zeros_like(spread)),
            ("spread", stretched, excess_factor(c0) * size * spread),
        ):
            change = _priced(moved, c0) - before
            gap = (change - predicted).abs().max()
            numbers = [float(x) for x in (change.mean(), predicted.mean(), gap, before.mean())]
            for name, value in zip(rows, (kind, size, *numbers)):
                rows[name].append(value)
    return rows


def _priced(members: torch.Tensor, c0: float) -> torch.Tensor:
    """R_B as Call(K; μ_c, σ_c), K = μ_c + c₀σ_c: no simplification that would take μ_c out beforehand."""
    mean, spread = mean_prediction(members), disagreement(members, floor=0.0)
    return call(strike(mean, spread, c0), mean, spread)


def windup_rows(checkpoint: Restored) -> Columns:
    """5. The run's own mean costs through the controller, with anti-windup and without: an open-loop replay."""
    costs = checkpoint.found.folder.read_rows("progress")["mean_cost"]
    return join([replay(costs, checkpoint.config, guarded) for guarded in (True, False)])


def replay(costs: Sequence[float], config: BCPPOConfig, anti_windup: bool) -> Columns:
    gains = PidGains(
        config.proportional_gain, config.integral_gain, config.derivative_gain, config.multiplier_max, anti_windup
    )
    state = pid_start(1)
    rows: dict[str, list] = {
        name: [] for name in ("update", "anti_windup", "integral", "multiplier", "outward", "grew")
    }
    for update, cost in enumerate(costs, start=1):
        before = state
        state, terms = pid_step(state, torch.tensor([cost], dtype=torch.float64), config.limit_rate, gains)
        outward = bool((terms.saturated_low & (terms.error < 0)) | (terms.saturated_high & (terms.error > 0)))
        grew = outward and bool(state.integral.abs() > before.integral.abs())
        values = (update, anti_windup, float(state.integral), float(state.multiplier), outward, grew)
        for name, value in zip(rows, values):
            rows[name].append(value)
    return rows


def members_rows(index: int, checkpoint: Restored, device: str) -> Columns | str:
    """6. σ of subsets of a larger ensemble against σ of the whole, for two strengths of the bootstrap."""
    prepared = prepare(index, checkpoint)
    if isinstance(prepared, str):
        return prepared
    fit = make_fit(0, prepared, Condition("norm", "control", "td"))
    random = np.random.default_rng(SEED)
    rows: dict[str, list] = {name: [] for name in ("run", "keep", "correlation", "members", "error")}
    for keep in KEEPS:
        schedule = replace(LARGE, keep_probability=keep)
        predictions = retrain([prepared.policy], [fit], schedule, device).predictions[0].astype(np.float64)
        whole = predictions.std(axis=1)
        correlation = mean_pairwise_correlation(predictions)
        for count in SUBSETS:
            chosen = [random.choice(LARGE.members, count, replace=False) for _ in range(60)]
            apart = [predictions[:, subset].std(axis=1) / whole - 1.0 for subset in chosen]
            error = float(np.sqrt(np.mean(np.square(apart))))
            for name, value in zip(rows, (index, keep, correlation, count, error)):
                rows[name].append(value)
    return rows
