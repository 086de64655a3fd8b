"""A run's policy as one file for elsewhere: ONNX, NumPy (safetensors) or PyTorch, checked against the run's episodes.

An export is refused unless the policy in the run folder lives its recorded evaluation episodes again, and the exported
one takes the same actions in every state of them and earns their returns and costs when it acts itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np

from bcppo import __version__
from bcppo.config import RunConfig
from bcppo.deploy import FORMAT, FORMAT_VERSION, Tensors, check_network, deterministic_part, load_policy
from bcppo.errors import BcppoError, MissingDependency, unknown_name
from bcppo.evaluation import evaluate_policy
from bcppo.policy import load_policy as load_run_policy
from bcppo.records import RunFolder, read_json, write_atomically, write_tensors
from bcppo.reenact import ReplayMismatch, make_environment, open_finished_run, recorded_episodes, require_same
from bcppo.rollout import MakeEnv
from bcppo.tasks.table import TASKS
from bcppo.tensors import read_tensors
from bcppo.torch_module import module_source, state_dict

NAMES = {"onnx": "policy.onnx", "numpy": "policy.numpy.safetensors", "torch": "policy_torch.safetensors"}
"""Format → the file's name in the run folder, where none is given."""

ACTION_TOLERANCE = 1e-5
"""Largest difference between an exported action and the run's, as a share of the action's range: float32 sums in
another order. NumPy's, one observation at a time, are equal."""
Act = Callable[[np.ndarray], np.ndarray]


class ExportMismatch(BcppoError):
    """An exported policy that does not do what the run's policy does."""


@dataclass(frozen=True)
class Exported:
    """Where the policy went, and how near it is to the run's."""

    path: Path
    steps: int
    """Observations it was compared on."""
    action_difference: float
    """Largest difference between its actions and the run's."""
    return_difference: float
    """Largest difference of an episode's return from the recorded, the exported policy acting."""
    cost_rate_difference: float
    """The same of an episode's mean cost per step."""

    @property
    def summary(self) -> str:
        alike = f"actions on {self.steps:,} observations within {self.action_difference:.2g} of the run's"
        if np.isnan(self.return_difference):
            return f"{alike}; no episode was replayed"
        return (
            f"{alike}; acting itself, episodes within {self.return_difference:.2g} of the recorded returns and "
            f"{self.cost_rate_difference:.2g} of the recorded costs per step"
        )


def export(
    folder: str | Path,
    *,
    kind: str = "onnx",
    out: str | Path | None = None,
    replay: bool = True,
    make_env: MakeEnv | None = None,
) -> Exported:
    """Write a finished run's policy as one file of a kind: onnx, numpy or torch.

    `replay` off compares actions on random observations instead of the recorded episodes: for a machine that computes
    other trajectories than the run's. `make_env` is needed where the run was trained with one.
    """
    if kind not in NAMES:
        raise unknown_name("format", kind, NAMES)
    run, method, config = open_finished_run(folder)
    target = Path(out) if out is not None else run / NAMES[kind]
    suffix = Path(NAMES[kind]).suffix
    if target.suffix != suffix:
        raise BcppoError(f"A policy of format {kind} is a {suffix} file, but {target.name} was to be written.")
    env = make_environment(config, make_env)
    try:
        tensors, network = _policy(run)
        metadata = describe(run, method, config, env, network, replay=replay)
        check_network(run / "policy.safetensors", tensors, metadata)
        with tempfile.TemporaryDirectory() as scratch:
            draft = Path(scratch) / target.name
            files = _write(kind, draft, tensors, metadata)
            result = _compare(run, env, _load(kind, draft), target, replay=replay)
            for file in files:
                payload = file.read_bytes()
                write_atomically(target.with_name(file.name), lambda part, payload=payload: _fill(part, payload))  # type: ignore[misc]
    finally:
        env.close()
    return result


def _fill(part: Path, payload: bytes) -> None:
    part.write_bytes(payload)


def _policy(run: RunFolder) -> tuple[Tensors, dict[str, Any]]:
    path = run / "policy.safetensors"
    return deterministic_part(path, read_tensors(path)[0])


def describe(
    run: RunFolder, method: str, config: RunConfig, env: gymnasium.Env, network: dict[str, Any], *, replay: bool
) -> dict[str, Any]:
    """What a deployed policy says about itself."""
    provenance = read_json(run / "provenance.json")
    task = TASKS.get(config.task)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "bcppo": __version__,
        "task": config.task,
        "method": method,
        "seed": config.seed,
        "steps": config.steps,
        "cost": asdict(task) if task else "the environment's own",
        "cost_limit": config.limit_rate,
        "cost_limit_unit": "mean cost per step",
        "observation_space": _space(env.observation_space),
        "action_space": _space(env.action_space),
        "network": network,
        "protocol": provenance.get("protocol", ""),
        "provenance_hash": _hash(run / "config.json", run / "provenance.json", run / "policy.safetensors"),
        "provenance": provenance,
        "parity": {
            "episodes_replayed": len(recorded_episodes(run)) if replay else 0,
            "action_tolerance": ACTION_TOLERANCE,
        },
    }


def _space(space: Any) -> dict[str, Any]:
    """A box as JSON; null where a side is open."""
    low, high = ([float(x) if np.isfinite(x) else None for x in side.ravel()] for side in (space.low, space.high))
    return {"shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}


def _hash(*files: Path) -> str:
    """Of the run's config, provenance and policy: says which run a file came from."""
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


# --- writing and loading each kind ---


def _write(kind: str, path: Path, tensors: Tensors, metadata: Mapping[str, Any]) -> list[Path]:
    text = json.dumps(metadata, sort_keys=True)
    if kind == "onnx":
        from bcppo.onnx_graph import build_model

        path.write_bytes(build_model(tensors, text).SerializeToString(deterministic=True))
        return [path]
    if kind == "numpy":
        write_tensors(path, tensors, {"metadata": text})
        return [path]
    write_tensors(path, state_dict(tensors), {"metadata": text})
    source = path.with_suffix(".py")
    source.write_text(module_source(metadata["network"], path.name), encoding="utf-8")
    return [path, source]


def _load(kind: str, path: Path) -> Act:
    """The file as its user will load it: observations [obs] or [B, obs] → actions."""
    if kind != "torch":
        return load_policy(path).act
    try:
        import torch
    except ImportError as error:
        raise MissingDependency("A policy of format torch is checked with torch, which is not installed.") from error
    spec = cast(Any, importlib.util.spec_from_file_location("exported_policy", path.with_suffix(".py")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policy = module.load(path)

    def act(observation: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return policy(torch.from_numpy(np.asarray(observation, np.float32))).numpy()

    return act


# --- parity ---


class _Witness:
    """A policy that keeps what it saw and did."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.observations.append(np.array(observation))
        self.actions.append(self._act(observation))
        return self.actions[-1]


def _compare(run: RunFolder, env: gymnasium.Env, act: Act, target: Path, *, replay: bool) -> Exported:
    policy = load_run_policy(run / "policy.safetensors")
    if not replay:
        observations = np.random.default_rng(0).standard_normal((1000, *cast(Any, env.observation_space).shape))
        witness = _Witness(policy.act)
        for observation in observations:
            witness.act(observation)
        return Exported(target, len(observations), _action_difference(act, witness, env, target), np.nan, np.nan)
    recorded = recorded_episodes(run)
    seeds = [int(episode["episode_seed"]) for episode in recorded]
    witness = _Witness(policy.act)
    try:
        for was, now in zip(recorded, evaluate_policy(cast(Any, witness), env, seeds)):
            require_same(run, was, now)
    except ReplayMismatch as error:
        raise ReplayMismatch(f"{error} --no-replay compares actions alone.") from None
    difference = _action_difference(act, witness, env, target)
    # A last digit may send an episode another way, since a simulator is chaotic; then returns differ and say nothing.
    # So the actions are compared there too.
    exported = _Witness(act)
    acted = evaluate_policy(cast(Any, exported), env, seeds)
    expected = np.array([policy.act(observation) for observation in exported.observations])
    difference = max(difference, _require_near(np.array(exported.actions), expected, env, target))
    returns, rates = (
        max(abs(was[name] - now[name]) for was, now in zip(recorded, acted)) for name in ("episode_return", "cost_rate")
    )
    return Exported(target, len(witness.actions) + len(exported.actions), difference, returns, rates)


def _action_difference(act: Act, witness: _Witness, env: gymnasium.Env, target: Path) -> float:
    """Largest difference of an exported action, taken one by one and all at once."""
    expected, observations = np.array(witness.actions), np.array(witness.observations)
    singly = np.array([act(observation) for observation in observations])
    return max(_require_near(found, expected, env, target) for found in (singly, act(observations)))


def _require_near(found: np.ndarray, expected: np.ndarray, env: gymnasium.Env, target: Path) -> float:
    """Their largest difference; refused beyond the tolerance."""
    space: Any = env.action_space
    width = np.where(np.isfinite(space.high - space.low), space.high - space.low, 2.0)
    difference = np.abs(found - expected)
    # Written so that a NaN is refused too.
    if not (difference <= ACTION_TOLERANCE * width).all():
        raise ExportMismatch(
            f"{target} was not written: one of its actions differs from the run's by {difference.max():.3g}, "
            f"more than {ACTION_TOLERANCE:g} of the action's range."
        )
    return float(difference.max())
