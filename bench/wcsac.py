"""How fast WCSAC trains: `python bench/wcsac.py [--steps 1500]`, and its update alone on any device.

The first prints steps a second of a Hopper run with the paper's settings on one core, and where a step's time goes,
with the update beside its floor: its matrix products at the rate this core multiplies matrices of that shape, measured
between updates. Seconds are wall-clock; on a busy machine the processor's own seconds, printed too, say more.

`--update --device cuda --runs 1 25` times the update of stacked runs, as it is and, on CUDA, replayed as a graph, and
says how far the two end up apart; then the parts of an update that overlaps with steps: drawing its random numbers
(prepare), launching it, waiting for the policies' heads and then for the rest, and each of its two pieces alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch

from bcppo.algorithms.wcsac import WCSAC, Draws, transition_width
from bcppo.fused import compiled_kernels
from bcppo.nets import capture, keep_freed_memory
from bcppo.settings import WCSACConfig
from bcppo.streams import Streams

HOPPER = (11, 3)
WIDTHS = {"hopper": HOPPER, "goal1": (60, 2)}
"""Numbers in an observation and in an action."""


def learner(runs: int, device: str, widths: tuple[int, int] = HOPPER) -> WCSAC:
    """The paper's networks, with 2,000 random transitions stored."""
    configs = [WCSACConfig(task="hopper", seed=seed, steps=10_000) for seed in range(runs)]
    one = WCSAC(configs, widths, [Streams(seed, 1) for seed in range(runs)], torch.device(device))
    random = np.random.default_rng(0)
    for _ in range(2000):
        row = random.standard_normal((runs, transition_width(widths))).astype(np.float32)
        row[:, -1] = 0.0
        one.store(row)
    return one


def update_operations(config: WCSACConfig, widths: tuple[int, int]) -> int:
    """Multiplications and additions of an update's matrix products, for one run.

    A layer costs 2·in·out a row forward, as much for its weights' gradient and as much for its input's.
    """

    def layers(width: int, out: int) -> list[int]:
        return [2 * a * b for a, b in pairwise([width, *config.hidden, out])]

    policy, critic = layers(widths[0], 2 * widths[1]), layers(sum(widths), 1)
    acting = 2 * sum(policy) + 4 * sum(critic)  # in s and in s', the targets in s'
    improving = 2 * sum(policy) - policy[0] + 4 * 2 * sum(critic)  # the critics' weights need no gradient here
    fitting = 4 * (3 * sum(critic) - critic[0])
    return config.minibatch * (acting + improving + fitting)


def gemm_rate() -> float:
    """Floating-point operations a second of [256, 256] products in float32, over some 20 ms."""
    a, b, out = torch.randn(256, 256), torch.randn(256, 256), torch.empty(256, 256)
    start = process_time()
    for _ in range(40):
        torch.mm(a, b, out=out)
    return 40 * 2 * 256**3 / (process_time() - start)


def measure_update(tries: int = 40) -> tuple[float, float]:
    """(processor's milliseconds an update, that over its floor), alternating with the products it is made of."""
    one = learner(1, "cpu")
    operations = update_operations(one.config, HOPPER)
    seconds, ratios = [], []
    for number in range(tries):
        rate = gemm_rate()
        start = process_time()
        one.update()
        if number >= 3:
            seconds.append(process_time() - start)
            ratios.append(seconds[-1] / (operations / rate))
    return 1e3 * statistics.median(seconds), statistics.median(ratios)


def measure_run(steps: int) -> None:
    from bcppo.run import train

    with tempfile.TemporaryDirectory() as folder:
        began, busy = perf_counter(), process_time()
        run = train(
            task="hopper", method="wcsac", steps=steps, window=250, eval_every=0, eval_episodes=1,
            out=Path(folder) / "run",
        )  # fmt: skip
        wall, busy = perf_counter() - began, process_time() - busy
        rows = run.read_rows("timings")
    counted = [index for index, step in enumerate(rows["step"]) if step > 750]  # windows of updates alone
    taken = 250 * len(counted)
    parts = {name: sum(rows[name][i] for i in counted) for name in ("collect", "act", "simulate", "update")}
    share = busy / wall
    print(f"{taken / (parts['collect'] + parts['update']):.1f} steps/s by the clock, {share:.0%} of one core ours:")
    print(f"{taken / (parts['collect'] + parts['update']) / share:.1f} steps/s of the processor's own seconds")
    for name, value in parts.items():
        print(f"  {name:<9} {1e3 * value / taken * share:7.2f} ms a step of the processor's own, about")


def measure_stacks(device: str, runs: list[int], updates: int = 200, widths: tuple[int, int] = HOPPER) -> None:
    for count in runs:
        plain = learner(count, device, widths)
        drawn = [plain.draw() for _ in range(updates)]
        seconds = timed(plain.step, drawn, device)
        line = f"{count:>3} runs on {device}: {1e6 * seconds:,.0f} µs an update, {count / seconds:,.0f} run-updates/s"
        if device == "cuda":
            other = learner(count, device, widths)
            replayed = timed(captured(other, drawn[0]), drawn, device)
            line += f"; as a graph {1e6 * replayed:,.0f} µs, {count / replayed:,.0f} run-updates/s"
        print(line)


def timed(step, drawn: list[Draws], device: str) -> float:
    """Seconds a call, the first ten left out."""
    for draws in drawn[:10]:
        step(draws)
    if device == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    for draws in drawn[10:]:
        step(draws)
    if device == "cuda":
        torch.cuda.synchronize()
    return (perf_counter() - start) / (len(drawn) - 10)


def captured(one: WCSAC, example: Draws):
    """The learner's step as a CUDA graph, called with draws like the step itself. Leaves weights as they were."""
    inputs = Draws(*(part.clone() for part in example))
    graph = capture(lambda: one.step(inputs), one.changing())

    def replay(draws: Draws) -> None:
        for kept, new in zip(inputs, draws):
            kept.copy_(new)
        graph.replay()

    return replay


def measure_pieces(device: str, runs: list[int], updates: int = 300) -> None:
    """Where the time of an update goes that overlaps with steps: medians in µs. Its pieces are waited for here."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def microseconds(call) -> float:
        start = perf_counter()
        call()
        return 1e6 * (perf_counter() - start)

    for count in runs:
        one = learner(count, device)
        overlapped = one.overlapped()
        rows = np.zeros((count, transition_width(HOPPER)), np.float32)
        seen = list(np.zeros((count, HOPPER[0]), np.float32))
        parts: dict[str, list[float]] = {name: [] for name in ("prepare", "launch", "heads", "rest", "first", "second")}
        for _ in range(updates):
            parts["prepare"].append(microseconds(overlapped.prepare))
            parts["launch"].append(microseconds(partial(overlapped.launch, rows, seen)))
            parts["heads"].append(microseconds(overlapped.heads))
            parts["rest"].append(microseconds(wait))
            for name, piece in zip(("first", "second"), overlapped._pieces):
                parts[name].append(microseconds(lambda piece=piece: (piece(), wait())))
        medians = ", ".join(f"{name} {statistics.median(values):,.0f}" for name, values in parts.items())
        print(f"{count:>3} runs on {device}, µs: {medians}")


def compare(device: str) -> None:
    """The same 50 updates, plain and as a graph, and on the CPU: the largest difference of a policy's weight."""
    plain, graphed, cpu = learner(3, device), learner(3, device), learner(3, "cpu")
    drawn = [cpu.draw() for _ in range(50)]
    there = [Draws(*(part.to(device) for part in draws)) for draws in drawn]
    replay = captured(graphed, there[0])
    for here, draws in zip(drawn, there):
        cpu.step(here)
        plain.step(draws)
        replay(draws)
    names = plain.policy.parameters
    of = [{name: one.policy.parameters[name].detach().cpu() for name in names} for one in (plain, graphed, cpu)]
    for other, words in ((1, "plain and as a graph"), (2, f"{device} and cpu")):
        gap = max((of[0][name] - of[other][name]).abs().max().item() for name in names)
        print(f"largest difference of a policy's weight after 50 updates, {words}: {gap:.2g}")


def compare_overlapped(device: str) -> None:
    """The same 50 transitions and updates, plain and overlapped: the largest difference of anything that changes."""
    plain, other = learner(3, device), learner(3, device)
    overlapped, draw, gap = other.overlapped(), np.random.default_rng(0), 0.0
    for _ in range(50):
        rows = draw.standard_normal((3, transition_width(HOPPER))).astype(np.float32)
        seen = draw.standard_normal((3, HOPPER[0])).astype(np.float32)
        plain.store(rows)
        plain.step(plain.draw())
        overlapped.prepare()
        overlapped.launch(rows, list(seen))
        gap = max(gap, float(np.abs(overlapped.heads() - plain.heads(seen)).max()))
    print(f"largest difference of the heads in 50 updates, plain and overlapped: {gap:.2g}")
    gap = max((one - two).abs().max().item() for one, two in zip(plain.changing(), other.changing()))
    print(f"largest difference of weights, moments, targets or sums after them: {gap:.2g}")
    stored = [one._buffer[:, : one.stored] for one in (plain, other)]
    print(f"stored transitions are the same: {torch.equal(*stored)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--update", action="store_true", help="the update of stacked runs alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, nargs="+", default=[1])
    parser.add_argument("--task", choices=sorted(WIDTHS), default="hopper", help="of --update: whose widths")
    parser.add_argument("--compiled", action="store_true", help="of --update: with torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.update:
        with compiled_kernels(options.compiled):
            measure_stacks(options.device, options.runs, 200 if options.device == "cuda" else 20, WIDTHS[options.task])
        if options.device == "cuda":
            compare(options.device)
            compare_overlapped(options.device)
        measure_pieces(options.device, options.runs, 300 if options.device == "cuda" else 20)
        return
    milliseconds, ratio = measure_update()
    print(f"update: {milliseconds:.1f} ms of the processor's own, {ratio:.2f} × its matrix products")
    measure_run(options.steps)


if __name__ == "__main__":
    main()
