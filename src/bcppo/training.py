"""R runs on one learner, update by update, and a learner's state as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bcppo.algorithms import METHODS
from bcppo.config import DEVICES
from bcppo.errors import ConfigError, Diverged, of_run
from bcppo.loops import Advance, OffPolicyLoop, OnPolicyLoop
from bcppo.nets import keep_freed_memory
from bcppo.policy import NumpyPolicy, save_policy
from bcppo.records import FINISHED, FolderError
from bcppo.rollout import Rollout
from bcppo.watch import Watch

if TYPE_CHECKING:
    from bcppo.run import Run, Stored


class BadFolder(FolderError):
    """A folder of a stack of runs that one cannot go on from; `run` says whose."""

    def __init__(self, sentence: str, run: int) -> None:
        super().__init__(sentence)
        self.run = run


class Trainer:
    """R runs in lock-step on one learner."""

    def __init__(self, runs: Sequence[Run], watch: Watch, *, writes_aside: bool = False) -> None:
        """`writes_aside` has checkpoints written by another thread, where others would wait for this one."""
        first = runs[0]
        if len({(run.widths, *(bound.tobytes() for bound in run.bounds)) for run in runs}) > 1:
            raise ConfigError("Runs of one stack must have observations and actions of one size and one set of bounds.")
        if len({(run.method, run.config.steps, resolve_device(run.config.device)) for run in runs}) > 1:
            raise ConfigError("Runs of one stack must agree on method, steps and device; separate these.")
        self.runs, self.watch = runs, watch
        self._writer = ThreadPoolExecutor(1, "checkpoints") if writes_aside else None
        self._writing: dict[int, Future[None]] = {}
        self.device = resolve_device(first.config.device)
        torch.set_num_threads(1)
        keep_freed_memory()
        learner = METHODS[first.method].learner()
        self.learner = learner([run.config for run in runs], first.widths, [run.streams for run in runs], self.device)
        loop = OffPolicyLoop if METHODS[first.method].off_policy else OnPolicyLoop
        self.loop: OffPolicyLoop | OnPolicyLoop = loop(runs, self.learner, self.policies, self.device)

    def policy(self, index: int) -> NumpyPolicy:
        return NumpyPolicy(self.learner.policy_arrays(index), *self.runs[index].bounds)

    def policies(self, stored: torch.Tensor | None = None) -> list[NumpyPolicy]:
        """Of all runs, fetched from the device at once, where that was not done before."""
        stored = self.learner.policy.copy_to_host() if stored is None else stored
        return [NumpyPolicy(self.learner.policy_arrays(i, stored), *run.bounds) for i, run in enumerate(self.runs)]

    def train(self) -> None:
        """To the end, from wherever the runs are."""
        for _ in self.work():
            pass

    def work(self) -> Generator[Sequence[Any], None, None]:
        """The same, piece by piece: hands over what it waits for, so that others can work."""
        try:
            while not self.runs[0].finished:
                advance = yield from self.loop.advance()
                updated = perf_counter()
                self._record(advance)
                for index in [index for index, writing in self._writing.items() if writing.done()]:
                    self._written(index)
                yield from self._evaluate(self._due("eval_every"), final=False)
                evaluated = perf_counter()
                for index in self._due("checkpoint_every"):
                    self.checkpoint(index)
                seconds = {"evaluate": evaluated - updated, "checkpoint": perf_counter() - evaluated}
                self._time(advance.rollouts, advance.seconds | seconds)
            missing = [index for index, run in enumerate(self.runs) if not run.evaluated]
            yield from self._evaluate(missing, final=True)
            for index in missing:
                self.checkpoint(index)
            for index in range(len(self.runs)):
                self._written(index)  # of all, before any lets go of what it would need to go back
            for index, run in enumerate(self.runs):
                save_policy(run.folder / "policy.safetensors", self.policy(index), run.method, run.config)
                self.loop.finish(index)
                run.folder.set_status(FINISHED)
                run.over = True
        finally:
            if self._writer:
                self._writer.shutdown()  # what was begun is written, whatever has happened
            for index, writing in self._writing.items():
                if error := writing.exception():
                    self.watch.warn(f"{self.runs[index].folder.path.name}: its last checkpoint is missing: {error}")

    def _evaluate(self, indices: Sequence[int], *, final: bool) -> Iterator[Sequence[Any]]:
        if not indices:
            return
        for index in indices:
            self.runs[index].start_evaluation(self.policy(index))
        yield [self.runs[index].collectors[0] for index in indices]
        for index in indices:
            with of_run(index):
                self.runs[index].finish_evaluation(final=final)

    def _record(self, advance: Advance) -> None:
        finite = self._finite()
        for index, run in enumerate(self.runs):
            own = {name: float(values[index]) for name, values in advance.metrics.items()}
            run.record(advance.rollouts[index], own)
            bad = [name for name, value in own.items() if advance.learned and not np.isfinite(value)]
            if bad or not finite[index]:
                what = f"{bad[0]} is not finite" if bad else "a weight is not finite"
                sentence = f"Training diverged at step {run.step}: {what}; the folder keeps all that came before."
                raise Diverged(sentence, index)
            self.watch.update(run)

    def _due(self, field: str) -> list[int]:
        """The runs whose last advance crossed a multiple of a number of steps; the end of a run is a matter apart."""
        return [
            index
            for index, run in enumerate(self.runs)
            if (every := getattr(run.config, field))
            and run.step // every > (run.step - run.advanced) // every
            and not run.finished
        ]

    def _finite(self) -> list[bool]:
        """Of each run, whether all its weights are numbers."""
        totals = [optimizer.stack.flat.detach().sum((1, 2)) for optimizer in self.learner.optimizers().values()]
        return torch.isfinite(torch.stack(totals)).all(0).tolist()

    def _time(self, rollouts: list[list[Rollout]], seconds: dict[str, float]) -> None:
        for run, own in zip(self.runs, rollouts):
            inside = {name: sum(rollout.seconds[name] for rollout in own) for name in ("act", "simulate")}
            run.append("timings", {"update_index": run.updates, "step": run.step, **seconds, **inside})

    # --- state ---

    def checkpoint(self, index: int) -> None:
        """A run's rows first, then the checkpoint that covers them."""
        run, state = self.runs[index], self._state(index)
        notes = run.notes() | self.loop.notes(index)
        self._written(index)
        if not self._writer:
            _write(run, run.rows, state, notes)
            return
        rows = {name: {column: list(values) for column, values in own.items()} for name, own in run.rows.items()}
        self._writing[index] = self._writer.submit(_write, run, rows, state, notes)

    def _written(self, index: int) -> None:
        """Until a run's last checkpoint is there; where it could not be written, this says so."""
        if index in self._writing:
            self._writing.pop(index).result()

    def _state(self, index: int) -> dict[str, np.ndarray]:
        tensors: dict[str, np.ndarray] = {}
        for name, optimizer in self.learner.optimizers().items():
            tensors |= {f"{name}.{key}": _host_copy(t[index]) for key, t in optimizer.state().items()}
            tensors[f"{name}.steps"] = np.array(optimizer.steps[index])
        tensors |= {f"controller.{key}": _host_copy(t[index]) for key, t in self.learner.memory().items()}
        for number, collector in enumerate(self.runs[index].collectors):
            tensors[f"actions{number}"] = collector.state()[1]
        return tensors

    def restore(self, stored: Sequence[Stored | None]) -> None:
        """Back to where the runs' checkpoints were written, where there are any yet."""
        for index, (run, own) in enumerate(zip(self.runs, stored, strict=True)):
            if own is not None:
                with of_run(index):
                    run.restore(own)
                try:
                    load_learner(self.learner, index, own.tensors)
                except FolderError as error:
                    raise BadFolder(f"{run.folder.path}: {error}", index) from error
                try:
                    self.loop.restore(index, own.notes)
                except FolderError as error:
                    raise BadFolder(str(error), index) from error
        if len({run.step for run in self.runs}) > 1:
            raise FolderError("Runs of one stack can only go on together from checkpoints of one step.")
        for run in self.runs:
            run.folder.tidy()


def _write(run: Run, rows: dict[str, dict[str, list]], state: dict[str, np.ndarray], notes: dict[str, str]) -> None:
    run.write_all(rows)
    run.folder.save_checkpoint(state, notes)


def _host_copy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", copy=True).numpy()


@torch.no_grad()
def load_learner(learner: Any, index: int, tensors: dict[str, np.ndarray]) -> None:
    """Put a checkpoint's networks, optimisers and controller into place `index` of a learner's stack."""
    try:
        for name, optimizer in learner.optimizers().items():
            for key, tensor in optimizer.state().items():
                tensor[index].copy_(torch.from_numpy(tensors[f"{name}.{key}"]))
            optimizer.steps[index] = int(tensors[f"{name}.steps"])
        for key, tensor in learner.memory().items():
            tensor[index] = torch.from_numpy(np.array(tensors[f"controller.{key}"]))
    except (KeyError, RuntimeError) as error:
        raise FolderError(f"The checkpoint does not fit its config: {error}.") from error


def resolve_device(name: str) -> torch.device:
    if name not in DEVICES:
        raise ConfigError(
            f"The device must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, but {name!r} was given; of several GPUs, "
            "CUDA_VISIBLE_DEVICES says which."
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("The device cuda was asked for, but torch finds none on this machine.")
    return torch.device(name)
