"""A finished run's policy on many more episodes than its protocol's, kept in the run's folder; without torch.

    long_evaluation.parquet  one row an episode, seeds 10000 upwards, deterministic actions: what `evaluate_policy`
                             says of it, `policy` (what tells the policy file from others) and `simulators` (releases)
    long_evaluation.sum      its checksum

Of 20 episodes CVaR@95 is the worst one; of hundreds it is a mean of several. The rows are written when all are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bcppo.config import EVAL_FIRST_SEED, RunConfig
from bcppo.episodes import Episode, evaluate_policy
from bcppo.errors import FolderError
from bcppo.kept import check_kept
from bcppo.policy import load_policy
from bcppo.records import LONG, POLICY, RunFolder, policy_digest, read_json
from bcppo.stack import SIMULATORS, versions
from bcppo.worker import run_environment

MEASURED = ("episode_seed", "episode_return", "cost_rate", "native_cost", "boundary_hits", "length")


def episodes_there(run: RunFolder) -> int:
    """How many episodes are on record of the policy that is in the folder; 0 where there are none, or of another.

    Rows that are damaged are refused.
    """
    rows = run.read_rows(LONG)
    seeds, policies = rows.get("episode_seed", []), set(rows.get("policy", []))
    whole = seeds == [*range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + len(seeds))]
    return len(seeds) if whole and policies == {policy_digest(run.path)} else 0


def evaluate_long(folder: str | Path, episodes: int) -> str:
    """Evaluate the policy in a finished run's folder and keep the rows there; how they compare with the recorded ones.

    Nothing is done where the rows are there.
    """
    run = RunFolder(folder)
    with run.locked():
        for part in run.path.glob(f".{LONG}.*.part"):  # of a process that was killed
            part.unlink(missing_ok=True)
        if _is_there(run, episodes):
            return ""
        check_kept(run.path)
        recorded, digest = _recorded(run), policy_digest(run.path)
        policy, env = load_policy(run / POLICY), run_environment(_common_config(run))()
        try:
            found = evaluate_policy(policy, env, range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + episodes))
        finally:
            env.close()
        if policy_digest(run.path) != digest:
            raise FolderError(f"{run / POLICY} was changed while it was evaluated; nothing was kept.")
        columns: dict[str, list] = {name: [episode[name] for episode in found] for name in MEASURED}
        run.write_rows(LONG, columns | {"policy": [digest] * episodes, "simulators": [_simulators()] * episodes})
    return comparison(recorded, found, run)


def _is_there(run: RunFolder, episodes: int) -> bool:
    try:
        return episodes_there(run) >= episodes
    except FolderError:  # damaged: made anew
        return False


def _common_config(run: RunFolder) -> RunConfig:
    """What every run has of the run's settings: all that its environment needs."""
    stored = read_json(run / "config.json")
    values = stored.get("config") if isinstance(stored, dict) else None
    if not isinstance(values, dict):
        raise FolderError(f"{run / 'config.json'} holds no settings.")
    return RunConfig(**{f.name: values[f.name] for f in dataclasses.fields(RunConfig) if f.name in values})


def _recorded(run: RunFolder) -> list[Episode]:
    """The episodes of the run's own final evaluation."""
    rows = run.read_rows("evaluations")
    if not rows.keys() >= {"final", *MEASURED}:
        raise FolderError(f"{run / 'evaluations.parquet'} is missing, or lacks columns.")
    episodes = [{name: rows[name][i] for name in MEASURED} for i, final in enumerate(rows["final"]) if final]
    if not episodes:
        raise FolderError(f"{run / 'evaluations.parquet'} holds no final evaluation.")
    return episodes


# --- beside what the run recorded ---


def differences(recorded: list[Episode], found: list[Episode]) -> tuple[int, float, float] | None:
    """Of the episodes both have: (how many, largest difference of return, of cost rate); None where all are equal."""
    by_seed = {episode["episode_seed"]: episode for episode in recorded}
    pairs = [(by_seed[episode["episode_seed"]], episode) for episode in found if episode["episode_seed"] in by_seed]
    if all(first[name] == second[name] for first, second in pairs for name in MEASURED):
        return None
    largest = [max(abs(a[name] - b[name]) for a, b in pairs) for name in ("episode_return", "cost_rate")]
    return len(pairs), largest[0], largest[1]


def comparison(recorded: list[Episode], found: list[Episode], run: RunFolder) -> str:
    """A clause: that the first episodes are the recorded ones, or a warning that they are not, and by how much."""
    count, differ = min(len(recorded), len(found)), differences(recorded, found)
    if differ is None:
        return f"its first {count} episodes are exactly those it recorded"
    there, here = _stack(_stored_versions(run)), _simulators()
    stacks = f"both with {here}" if there == here else f"it was evaluated with {there}, now with {here}"
    return (
        f"WARNING: its first {count} episodes are not those it recorded; largest difference of return "
        f"{differ[1]:.3g}, of cost rate {differ[2]:.3g} ({stacks})"
    )


def _simulators() -> str:
    return _stack(versions())


def _stack(releases: Mapping[str, str]) -> str:
    """What an episode may depend on besides the policy. A fleet's workers may have had a NumPy of their own."""
    known: dict[str, str] = {**releases, "numpy": releases.get("workers' numpy", releases.get("numpy", ""))}
    return ", ".join(f"{name} {known.get(name) or 'unknown'}" for name in (*SIMULATORS, "numpy"))


def _stored_versions(run: RunFolder) -> dict[str, Any]:
    stored = read_json(run / "provenance.json")
    found = stored.get("versions") if isinstance(stored, dict) else None
    return found if isinstance(found, dict) else {}
