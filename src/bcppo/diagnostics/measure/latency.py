"""Time of one action on the CPU, batch 1: the torch policy, the NumPy runtime, and ONNX Runtime where a run folder
holds a policy.onnx and onnxruntime is installed. Each alone and with the ensemble's μ_c and σ_c."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from time import perf_counter_ns

import numpy as np
import torch

from bcppo.diagnostics.measure.checkpoints import Restored, restore
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Columns, Measured, NotEligible, join
from bcppo.errors import BcppoError
from bcppo.math.bachelier import disagreement, mean_prediction

WARMUPS, TIMED = 100, 1000
ONNX_FILE = "policy.onnx"


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    parts: list[Columns] = []
    not_eligible: list[NotEligible] = []
    for index, found in enumerate(runs):
        try:
            checkpoint = restore(found)
        except BcppoError as error:
            not_eligible.append(NotEligible(found.name, "latency", str(error)))
            continue
        paths, missing = runtimes(checkpoint)
        not_eligible += [NotEligible(found.name, name, reason) for name, reason in missing.items()]
        for (runtime, ensemble), act in paths.items():
            microseconds = time_calls(act)
            count = len(microseconds)
            columns = {"run": np.full(count, index), "runtime": np.full(count, runtime)}
            parts.append({**columns, "ensemble": np.full(count, ensemble), "microseconds": microseconds})
    tables = {"runs": runs_table(runs), "calls": join(parts)}
    return Measured(tables, not_eligible, {"warmups": WARMUPS, "timed": TIMED, "threads": torch.get_num_threads()})


def time_calls(act: Callable[[], object], warmups: int = WARMUPS, timed: int = TIMED) -> np.ndarray:
    """Microseconds of each of the timed calls."""
    for _ in range(warmups):
        act()
    stamps = np.empty(timed + 1, np.int64)
    stamps[0] = perf_counter_ns()
    for index in range(timed):
        act()
        stamps[index + 1] = perf_counter_ns()
    return np.diff(stamps) / 1000.0


def runtimes(checkpoint: Restored) -> tuple[dict[tuple[str, bool], Callable[[], object]], dict[str, str]]:
    """{(runtime, with ensemble): a call that acts}, and why others are missing."""
    env = checkpoint.make_env()
    observation = np.array(env.reset(seed=0)[0], np.float32)
    env.close()
    torch_act, numpy_act = _torch_policy(checkpoint, observation), lambda: checkpoint.policy.act(observation)
    paths: dict[tuple[str, bool], Callable[[], object]] = {("numpy", False): numpy_act}
    missing: dict[str, str] = {}
    if torch_act is None:
        missing["torch policy"] = f"{checkpoint.found.method} normalises observations outside its stack"
    else:
        paths["torch", False] = torch_act
    if checkpoint.found.method == "bcppo":
        judge_torch, judge_numpy = _torch_ensemble(checkpoint, observation), numpy_ensemble(checkpoint, observation)
        if torch_act is not None:
            paths["torch", True] = lambda: judge_torch(torch_act())
        paths["numpy", True] = lambda: judge_numpy(numpy_act())
    else:
        missing["with ensemble"] = f"{checkpoint.found.method} has no ensemble of cost critics"
    onnx = checkpoint.found.folder / ONNX_FILE
    if not onnx.exists():
        missing["ONNX Runtime"] = f"the run folder holds no {ONNX_FILE}"
    elif find_spec("onnxruntime") is None:
        missing["ONNX Runtime"] = "onnxruntime is not installed"
    else:
        paths["onnx", False] = _onnx_policy(str(onnx), observation)
    return paths, missing


def _torch_policy(checkpoint: Restored, observation: np.ndarray) -> Callable[[], torch.Tensor] | None:
    if "offset" in checkpoint.policy.weights:
        return None
    policy, low, high = (
        checkpoint.learner.policy,
        *map(torch.from_numpy, (checkpoint.policy.low, checkpoint.policy.high)),
    )

    def act() -> torch.Tensor:
        with torch.no_grad():
            mean = policy.mean(torch.from_numpy(observation)[None, None])
            return torch.minimum(torch.maximum(mean, low), high)

    return act


def _torch_ensemble(checkpoint: Restored, observation: np.ndarray) -> Callable[[torch.Tensor], object]:
    critics, seen = checkpoint.learner.signal.critics, torch.from_numpy(observation)[None, None]

    def judge(action: torch.Tensor) -> object:
        with torch.no_grad():
            members = critics(torch.cat([seen, action], dim=-1)).squeeze(-1)
            return mean_prediction(members), disagreement(members)

    return judge


def numpy_ensemble(checkpoint: Restored, observation: np.ndarray) -> Callable[[np.ndarray], tuple[float, float]]:
    """(μ_c, σ_c) of an action by the members' arrays, [M, in, out] a layer."""
    arrays = checkpoint.learner.signal.critics.arrays(0)
    count = sum(name.startswith("weight") for name in arrays)
    layers = [(arrays[f"weight{i}"], arrays[f"bias{i}"]) for i in range(count)]

    def judge(action: np.ndarray) -> tuple[float, float]:
        hidden = np.concatenate([observation, action])[None, None]
        for index, (weight, bias) in enumerate(layers):
            hidden = np.matmul(hidden, weight) + bias[:, None]
            if index < count - 1:
                np.tanh(hidden, out=hidden)
        members = hidden[:, 0, 0]
        return float(members.mean()), float(members.std())

    return judge


def _onnx_policy(path: str, observation: np.ndarray) -> Callable[[], object]:
    """An exported policy whose first input is a batch of observations [B, obs]."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: observation[None]}
    return lambda: session.run(None, feed)
