"""How long a policy takes for one observation: `python bench/latency.py [--policy RUN_FOLDER]`.

Side by side in one run and on one core, a batch of 1: PyTorch's module, ONNX Runtime, this library's NumPy runtime, and
the floor: the same three matrix-vector products in BLAS (scipy's sgemv), on arrays allocated before. The policy is that
of a Goal1 BCPPO (60 → 256 → 256 → 2); the time does not depend on the weights' values, so without --policy they are
random. Also: the files' sizes, and how long loading takes in a fresh process.

Each call of a round is timed by itself, the four kinds in turn over rounds, since machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy loads its BLAS

import numpy as np  # noqa: E402

WARM_UPS, TIMED, ROUNDS = 100, 1000, 5
PAPER_US = 660.0
"""The paper's latency of a BCPPO policy, batch 1, on its CPU."""
SIZES = [60, 256, 256, 2]


def random_policy() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors = {"low": np.full(2, -1.0), "high": np.ones(2)}
    for layer, (a, b) in enumerate(pairwise(SIZES)):
        tensors[f"weight{layer}"] = rng.uniform(-1, 1, (a, b)) / np.sqrt(a)
        tensors[f"bias{layer}"] = rng.uniform(-1, 1, b) / np.sqrt(a)
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def write_files(folder: Path, run: Path | None) -> dict[str, Path]:
    """The policy in every format, from a run or random."""
    from bcppo.deploy import FORMAT, FORMAT_VERSION, deterministic_part
    from bcppo.exporting import _write
    from bcppo.tensors import read_tensors

    stored = read_tensors(run / "policy.safetensors")[0] if run else random_policy()
    tensors, network = deterministic_part(folder, stored)
    metadata = {"format": FORMAT, "format_version": FORMAT_VERSION, "network": network}
    names = {"onnx": "policy.onnx", "numpy": "policy.safetensors", "torch": "policy_torch.safetensors"}
    return {kind: _write(kind, folder / name, tensors, metadata)[0] for kind, name in names.items()}


def floor(tensors: dict[str, np.ndarray]) -> Callable[[np.ndarray], object]:
    """Three products and nothing else: no bias, no tanh, no clipping."""
    from scipy.linalg.blas import sgemv

    # The layout that was quicker of the two, as BLAS wants it: [in, out] by columns, transposed in the product.
    weights = [np.asfortranarray(tensors[f"weight{layer}"]) for layer in range(3)]
    outputs = [np.zeros(weight.shape[1], np.float32) for weight in weights]
    (w0, w1, w2), (h0, h1, h2) = weights, outputs

    def call(x: np.ndarray) -> None:
        sgemv(1.0, w0, x, 0.0, h0, trans=1, overwrite_y=1)
        sgemv(1.0, w1, h0, 0.0, h1, trans=1, overwrite_y=1)
        sgemv(1.0, w2, h1, 0.0, h2, trans=1, overwrite_y=1)

    return call


def torch_policy(path: Path) -> Callable[[np.ndarray], object]:
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(path.parent))
    module = __import__(path.stem).load(path)

    def call(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    return call


def measure(calls: dict[str, Callable[[np.ndarray], object]]) -> dict[str, np.ndarray]:
    """Name → nanoseconds of TIMED calls after WARM_UPS, of the round with the lowest median."""
    observations = np.random.default_rng(1).standard_normal((TIMED, SIZES[0])).astype(np.float32)
    best: dict[str, np.ndarray] = {}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for observation in observations[:WARM_UPS]:
                call(observation)
            times = np.empty(TIMED)
            for index, observation in enumerate(observations):
                start = perf_counter_ns()
                call(observation)
                times[index] = perf_counter_ns() - start
            if name not in best or np.median(times) < np.median(best[name]):
                best[name] = times
    return best


def load_seconds(path: Path) -> float:
    """From nothing imported to the first action, in a fresh process, less the start of Python."""
    action = f"bcppo.load_policy({str(path)!r}).act([0.0] * {SIZES[0]})"
    code = f"from time import perf_counter as now\nstart = now()\nimport bcppo\n{action}\nprint(now() - start)"
    return min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="the folder of a finished Goal1 BCPPO run")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    import bcppo
    from bcppo.tensors import read_tensors

    with tempfile.TemporaryDirectory() as scratch:
        files = write_files(Path(scratch), options.policy)
        calls = {
            "floor: sgemv ×3": floor(read_tensors(files["numpy"])[0]),
            "NumPy": bcppo.load_policy(files["numpy"]).act,
            "ONNX Runtime": bcppo.load_policy(files["onnx"]).act,
            "PyTorch": torch_policy(files["torch"]),
        }
        times = measure(calls)
        loads = {"NumPy": load_seconds(files["numpy"]), "ONNX Runtime": load_seconds(files["onnx"])}
        bytes_ = {"NumPy": files["numpy"], "ONNX Runtime": files["onnx"], "PyTorch": files["torch"]}
        sizes = {name: path.stat().st_size for name, path in bytes_.items()}
    base = float(np.median(times["floor: sgemv ×3"])) / 1e3
    print("| batch 1, one core | median µs | p99 µs | × floor | paper's 660 µs ÷ | file, kB | load, s |")
    print("|---|---|---|---|---|---|---|")
    rows = {}
    for name, samples in times.items():
        median, p99 = float(np.median(samples)) / 1e3, float(np.percentile(samples, 99)) / 1e3
        size = f"{sizes[name] / 1e3:.0f}" if name in sizes else ""
        load = f"{loads[name]:.2f}" if name in loads else ""
        ratios = f"{median / base:.2f} | {PAPER_US / median:.0f}"
        print(f"| {name} | {median:.1f} | {p99:.1f} | {ratios} | {size} | {load} |")
        rows[name] = {"median_us": median, "p99_us": p99, "floors": median / base}
    quickest = min(rows["NumPy"]["median_us"], rows["ONNX Runtime"]["median_us"])
    for bar, holds in (("at most 2.5 floors", quickest <= 2.5 * base), ("a tenth of the paper's", quickest <= 66)):
        print(f"bar: NumPy or ONNX Runtime {bar}: {'met' if holds else 'MISSED'}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
