"""One run, or a stack of runs, from config to run folder: collect → update → record → evaluate → checkpoint.

A run can be killed at any moment and resumed: it goes on from its last checkpoint and ends with the same bytes as if
nothing had happened. What depends on the clock is kept apart, in timings.parquet and the TensorBoard curves.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bcppo.algorithms import CONFIGS, METHODS
from bcppo.config import OWN_TASK, RunConfig, digest, identity
from bcppo.errors import ConfigError, Diverged, in_words, unknown_name
from bcppo.evaluation import CVAR_LEVEL
from bcppo.kept import refuse_kept
from bcppo.math.cvar import conditional_value_at_risk
from bcppo.policy import NumpyPolicy
from bcppo.pool import Worker
from bcppo.records import DIVERGED, FAILED, FINISHED, FORMAT, RUNNING, FolderError, RunFolder, read_json
from bcppo.remote import RemoteCollector
from bcppo.rollout import Collector, MakeEnv, Rollout
from bcppo.settings import make_preset
from bcppo.streams import Streams
from bcppo.tasks.table import TASKS
from bcppo.training import Trainer, resolve_device
from bcppo.watch import Watch, silent
from bcppo.worker import run_environment

RECENT = 100
"""Finished episodes over which running means and the empirical CVaR are taken."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a run goes on from."""

    tensors: dict[str, np.ndarray]
    notes: dict[str, str]
    state: dict[str, Any]
    rows: dict[str, dict[str, list]]

    @property
    def step(self) -> int:
        return self.state["step"]


class Run:
    """One run: its folder, environments, streams and rows. The learner may be shared with other runs."""

    def __init__(
        self,
        method: str,
        config: RunConfig,
        folder: RunFolder,
        make_env: MakeEnv | None = None,
        hosts: Sequence[Worker] = (),
    ) -> None:
        """`hosts` are workers to simulate in, shared with others, whose `check_spaces` is for whoever shares them out;
        without any, a single environment is this process's own."""
        self.method, self.config, self.folder = method, config, folder
        if make_env is not None and (config.num_envs > 1 or hosts):
            raise ConfigError("Several environments run in processes of their own: name the task as 'module:function'.")
        self.streams = Streams(config.seed, config.num_envs)
        self.collectors: list[Any] = []
        self._workers: list[Worker] = []
        shared = bool(hosts)
        try:
            if not hosts and config.num_envs > 1:
                hosts = self._workers = [Worker() for _ in range(config.num_envs)]
            self._make_collectors(make_env, hosts)
            _ = config.limit_rate  # refuses a run without a limit
            if METHODS[method].off_policy and not shared:
                self.check_spaces()
        except BaseException:
            self.close()
            raise
        self.step = self.updates = self.advanced = 0
        self.over = False  # whether its folder says that it is finished
        self.cumulative_cost = 0.0
        self.positive_multipliers = 0.0
        self.recent: deque[dict[str, float]] = deque(maxlen=RECENT)
        self.rows: dict[str, dict[str, list]] = {"progress": {}, "episodes": {}, "evaluations": {}, "timings": {}}

    def _make_collectors(self, make_env: MakeEnv | None, hosts: Sequence[Worker]) -> None:
        config, pairs = self.config, zip(self.streams.environment, self.streams.noise)
        if hosts:
            self.collectors += [
                RemoteCollector(
                    hosts[index % len(hosts)],
                    config.task,
                    config.cost_limit_rate,
                    *pair,
                    clip_actions=config.clip_actions,
                )
                for index, pair in enumerate(pairs)
            ]
        else:
            make = run_environment(config, make_env)
            self.collectors += [Collector(make, *pair) for pair in pairs]

    def check_spaces(self) -> None:
        """Until every environment is made; refuses those in which the method cannot act."""
        for collector in self.collectors:
            _ = collector.spaces
        if METHODS[self.method].off_policy and not np.isfinite(self.bounds).all():
            raise ConfigError(f"{self.method} squashes its actions into the action space, which must have bounds.")

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        _, low, high = self.collectors[0].spaces
        return low, high

    @property
    def widths(self) -> tuple[int, int]:
        """(observation width, action width)"""
        observation, low, _ = self.collectors[0].spaces
        return observation, len(low)

    @property
    def finished(self) -> bool:
        return self.step >= self.config.steps

    @property
    def evaluated(self) -> bool:
        """Whether the evaluation at the end is done: a run may be killed after it."""
        return any(self.rows["evaluations"].get("final", []))

    def append(self, name: str, row: dict[str, Any]) -> None:
        columns = self.rows[name]
        for key, value in row.items():
            columns.setdefault(key, []).append(value)

    def record(self, rollouts: Sequence[Rollout], metrics: dict[str, float]) -> None:
        """Add an update's row, and a row for each episode that ended in its rollout."""
        steps = sum(len(rollout.reward) for rollout in rollouts)
        # Environments are stepped side by side: an episode ends at its row, times the number of environments.
        ended = [(e["end"], i, e) for i, rollout in enumerate(rollouts) for e in rollout.episodes]
        for end, environment, episode in sorted(ended, key=lambda item: item[:2]):
            row = {key: value for key, value in episode.items() if key != "end"}
            step = self.step + (int(end) + 1) * len(rollouts)
            self.append("episodes", {"step": step, "environment": environment, **row})
            self.recent.append(episode)
        self.step += steps
        self.advanced = steps
        self.updates += 1
        self.cumulative_cost += sum(float(rollout.cost.sum()) for rollout in rollouts)
        self.positive_multipliers += metrics["multiplier_positive"]
        native = sum(rollout.native_cost for rollout in rollouts) / steps
        self.append(
            "progress",
            {
                "update": self.updates,
                "step": self.step,
                **self._recent_statistics(),
                "cumulative_cost": self.cumulative_cost,
                "native_cost_rate": native,
                "multiplier_positive_share": self.positive_multipliers / self.updates,
                **metrics,
            },
        )

    def _recent_statistics(self) -> dict[str, float]:
        """Means over recent episodes, and the empirical CVaR of their cost rates; NaN before the first episode ends."""
        if not self.recent:
            return dict.fromkeys(("episode_return", "episode_cost_rate", "episode_length", "cost_cvar95"), float("nan"))
        rates = [episode["cost_rate"] for episode in self.recent]
        return {
            "episode_return": float(np.mean([episode["episode_return"] for episode in self.recent])),
            "episode_cost_rate": float(np.mean(rates)),
            "episode_length": float(np.mean([episode["length"] for episode in self.recent])),
            "cost_cvar95": conditional_value_at_risk(rates, CVAR_LEVEL),
        }

    def start_evaluation(self, policy: NumpyPolicy) -> None:
        self.collectors[0].start_evaluation(policy, self.config.eval_seeds)

    def finish_evaluation(self, *, final: bool) -> None:
        for row in self.collectors[0].finish_evaluation():
            self.append("evaluations", {"step": self.step, "final": final, "stochastic": False, **row})

    def write_rows(self) -> None:
        self.write_all(self.rows)

    def write_all(self, rows: Mapping[str, Mapping[str, list]]) -> None:
        """Rows such as `rows` has them, name → columns."""
        for name, columns in rows.items():
            if columns:
                self.folder.write_rows(name, columns)

    def notes(self) -> dict[str, str]:
        """What a checkpoint says beside its tensors."""
        state = {
            "step": self.step,
            "updates": self.updates,
            "cumulative_cost": self.cumulative_cost,
            "positive_multipliers": self.positive_multipliers,
            "recent": list(self.recent),
            "episode_seeds": [collector.state()[0] for collector in self.collectors],
            "rows": _row_counts(self.rows),
        }
        return {
            "format": str(FORMAT),
            "config": digest(identity(self.config)),
            "state": json.dumps(state),
            "streams": self.streams.dump(),
        }

    def stored(self, warn: Callable[[str], None], *, previous: bool = False) -> Stored | None:
        """What the folder's newest checkpoint and the rows before it hold, where they fit; None before the first.

        With `previous` the same of the checkpoint before it.
        """
        loaded = self.folder.load_checkpoint(warn, previous=previous)
        if loaded is None:
            return None
        tensors, notes = loaded
        if notes.get("format") != str(FORMAT):
            raise FolderError(f"The checkpoint in {self.folder.path} was written by another version of this library.")
        if notes.get("config") != digest(identity(self.config)):
            raise FolderError(f"The checkpoint in {self.folder.path} belongs to another config than its config.json.")
        state, rows = json.loads(notes["state"]), {}
        for name in self.rows:
            found = self.folder.read_rows(name)
            # Rows are written before the checkpoint that covers them, so there may be more than it knows of.
            kept = [i for i, step in enumerate(found.get("step", [])) if step <= state["step"]]
            rows[name] = {key: [values[i] for i in kept] for key, values in found.items()}
        for name, count in state["rows"].items():
            if _row_counts(rows)[name] != count:
                path, lines = self.folder / f"{name}.parquet", _row_counts(rows)[name]
                raise FolderError(f"{path} does not fit the checkpoint: it has {lines} of the {count} rows so far.")
        return Stored(tensors, notes, state, rows)

    def restore(self, stored: Stored) -> None:
        """Back to where a checkpoint was written."""
        state = stored.state
        self.step, self.updates = state["step"], state["updates"]
        self.cumulative_cost, self.positive_multipliers = state["cumulative_cost"], state["positive_multipliers"]
        self.recent.extend(state["recent"])
        self.streams.load(stored.notes["streams"])
        for index, (collector, seed) in enumerate(zip(self.collectors, state["episode_seeds"])):
            collector.restore(seed, stored.tensors[f"actions{index}"])
        for name, columns in self.rows.items():
            columns.update(stored.rows[name])

    def close(self) -> None:
        for part in (*self.collectors, *self._workers):
            part.close()


def _row_counts(rows: Mapping[str, Mapping[str, list]]) -> dict[str, int]:
    """Rows of each kind, timings apart."""
    return {name: len(rows[name].get("step", [])) for name in ("progress", "episodes", "evaluations")}


def train(
    config: RunConfig | None = None,
    *,
    out: str | Path,
    method: str = "bcppo",
    make_env: MakeEnv | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> RunFolder:
    """Train one run into a new folder `out` and return it.

    Give a config, or a task and settings over a preset (the paper's, or `preset="quick"`). `make_env` makes an
    environment of your own (it must report info['cost'], or be given a cost by `make_task`); then give a
    `cost_limit_rate`, the mean cost allowed.

    >>> import bcppo, tempfile
    >>> folder = bcppo.train(task="hopper", steps=1024, eval_episodes=2, out=tempfile.mkdtemp() + "/run")
    >>> folder.status()["state"]
    'finished'
    """
    if config is None:
        config = make_config(method, **({"task": OWN_TASK} if make_env else {}) | settings)
    elif settings:
        raise ConfigError(f"Give a config or settings, not both: {', '.join(settings)} would be ignored.")
    if make_env and config.task in TASKS:
        raise ConfigError(f"make_env makes an environment of your own, but '{config.task}' is a task of the paper's.")
    folder, watch = RunFolder(out), watch or silent()
    run = Run(method, config, folder, make_env)
    try:
        anew = folder.came_to_nothing
        notes = {"environment": _origin(make_env)} if make_env else {}
        folder.create(method, config, str(resolve_device(config.device)), notes)
        if anew:
            watch.warn(f"The run in {folder.path} had ended before its first update; it is begun anew.")
    except BaseException:
        run.close()
        raise
    return _drive([run], watch, fresh=True)


def _origin(make_env: MakeEnv) -> str:
    """Where an environment of one's own comes from, as far as that has a name."""
    name = getattr(make_env, "__qualname__", type(make_env).__qualname__)
    module = getattr(make_env, "__module__", "__main__")
    return name if module == "__main__" else f"{module}:{name}"


def resume(out: str | Path, *, make_env: MakeEnv | None = None, watch: Watch | None = None) -> RunFolder:
    """Go on with a run that was interrupted; a finished run is left as it is."""
    return go_on(out, {"fleet": None}, make_env=make_env, watch=watch)


def go_on(
    out: str | Path, notes: Mapping[str, Any], *, make_env: MakeEnv | None = None, watch: Watch | None = None
) -> RunFolder:
    """The same; `notes` go on record with what it goes on with, where that is something else than before."""
    folder = RunFolder(out)
    method, config = folder.load_config(CONFIGS)
    refuse_kept(folder.path)
    state = folder.status()
    if state["state"] == FINISHED:
        return folder
    if state["state"] == DIVERGED:
        raise FolderError(f"The run in {folder.path} diverged and cannot go on: {state['message']}")
    if begun := begun_with(folder):
        means = " and ".join(begun)
        raise FolderError(f"The run in {folder.path} was begun with {means}: its fleet can go on with it.")
    return _drive([Run(method, config, folder, make_env)], watch or silent(), fresh=False, notes=notes)


ROUNDINGS = {"compiled": "compiled updates", "tf32": "TF32"}
"""What a fleet on a GPU may be asked for, and no run alone: results round differently."""


def begun_with(folder: RunFolder) -> list[str]:
    """Those of ROUNDINGS that a run was begun with."""
    fleet = read_json(folder / "provenance.json").get("fleet", {})
    return [words for name, words in ROUNDINGS.items() if fleet.get(name)]


def make_config(method: str = "bcppo", task: str = "goal1", preset: str = "paper", **settings: Any) -> RunConfig:
    """A preset's settings of a method on a task (see `bcppo.settings.make_preset`), with changes."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    config = make_preset(preset, method, METHODS[method].config, task)
    known = {field.name for field in dataclasses.fields(config)}
    for name in settings:
        if name not in known:
            raise unknown_name("setting", name, known)
    return dataclasses.replace(config, **settings)


def _drive(runs: Sequence[Run], watch: Watch, *, fresh: bool, notes: Mapping[str, Any] | None = None) -> RunFolder:
    with ExitStack() as ends:
        for run in runs:
            ends.callback(run.close)
            ends.enter_context(run.folder.locked())
        stored = None if fresh else [run.stored(watch.warn) for run in runs]
        trainer = Trainer(runs, watch)
        if stored:
            trainer.restore(stored)
            for run in runs:
                run.folder.went_on(run.step, str(trainer.device), notes)
        for run in runs:
            run.folder.set_status(RUNNING)
        _train(trainer, watch)
    return runs[0].folder


def _train(trainer: Trainer, watch: Watch) -> None:
    """Train, and where that fails leave the folders usable and say why."""
    try:
        with watch.watching(trainer.runs):
            trainer.train()
    except Diverged as error:
        leave(trainer.runs, DIVERGED, str(error))
        raise
    except Exception as error:
        leave(trainer.runs, FAILED, in_words(error))
        raise


def leave(runs: Sequence[Run], state: str, message: str) -> None:
    """Leave usable folders behind: rows as far as they go, and why they go no further."""
    for run in runs:
        for attempt in (run.write_rows, _status_writer(run, state, message)):
            try:
                attempt()
            except Exception:  # a full disk takes neither; the checkpoint before it stands
                continue


def _status_writer(run: Run, state: str, message: str) -> Callable[[], None]:
    return lambda: run.folder.set_status(state, message)
