"""What each command can be told: tyro makes flags of the fields, and their help of the lines under them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Train:
    """Train one run into a new folder."""

    out: Path
    """Folder to make for the run."""
    method: str = "bcppo"
    """Method; `bcppo methods` lists them."""
    preset: str = "paper"
    """Where settings start from: 'paper', the paper's protocol for the task, or 'quick', a first look (PPO family)."""
    beside_random: bool = False
    """Also evaluate a policy that acts at random, and print it beside."""
    quiet: bool = False
    """Print nothing while training."""


@dataclass(frozen=True)
class SuggestLimit:
    """Suggest a cost limit: a fraction of what PPO on the reward alone costs after a short run, as in the paper."""

    task: str
    """One of the paper's tasks, an environment id, or 'module:function' for an environment of your own."""
    fraction: float = 0.85
    """How much of that cost to allow."""
    steps: int = 100_000
    """Length of the run."""
    seed: int = 0
    """Its training seed."""
    out: Path | None = None
    """Keep the run in this folder."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the policy a run left behind, on episodes reset with seeds 10000, 10001, …"""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    episodes: int = 20
    """Episodes; 20 is the paper's protocol, hundreds give a CVaR worth an interval."""
    stochastic: bool = False
    """Sample actions instead of taking the mean."""
    csv: Path | None = None
    """Also write the raw episodes to this file."""


@dataclass(frozen=True)
class Resume:
    """Go on with an interrupted run; it ends with the same bytes as if it had not been."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    quiet: bool = False
    """Print nothing while training."""


@dataclass(frozen=True)
class Report:
    """Write the tables, figures and one self-contained HTML page of a study, or of any runs."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A study's folder, packed or not; a run's folder; or any folder with run folders in it."""
    out: Path | None = None
    """Folder to write into; FOLDER/report where none is given."""
    open: bool = False
    """Open the page in a browser."""


@dataclass(frozen=True)
class Pack:
    """Write a study in its published form: raw episodes, thinned curves, configs and provenance, with checksums."""

    study: Annotated[Path, tyro.conf.Positional]
    """The study's folder; with --add it may be packed already."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write into."""
    every: int = 5
    """Updates to a row of the packed curves."""
    add: bool = False
    """Keep the runs of this study that are packed there already, and put these beside them."""


@dataclass(frozen=True)
class Keep:
    """Keep what `bcppo diagnose` reads of runs: networks in float32 without optimisers, rows and configs, with hashes.

    A kept run can be diagnosed, evaluated and exported as its run folder can; it cannot be resumed."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, folders of run folders, or studies' folders."""
    out: Path
    """Folder to keep them in, beside those it has."""
    compress: bool = False
    """Compress the networks, as xz; nothing is lost."""
    reward_value: bool = True
    """Keep V_r, which an update of the actor needs: `intervention` and one check of `theory`, no other diagnostic."""


@dataclass(frozen=True)
class Fleet:
    """Train every task with every method and seed, many at once; the same command goes on with what is unfinished."""

    out: Path
    """Folder to make the runs' folders in."""
    tasks: tuple[str, ...] = ("goal1",)
    """Tasks."""
    methods: tuple[str, ...] = ("bcppo",)
    """Methods, each with the paper's settings."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Training seeds."""
    vary: tuple[str, ...] = ()
    """Settings to change: NAME=VALUE, or NAME=VALUE,VALUE,… to train each combination."""
    workers: int = 0
    """Processes that simulate; 0 chooses by the number of cores."""
    device: str = "auto"
    """Where learners compute: cpu, cuda or auto."""
    worker_python: str | None = None
    """Another Python for the workers of a GPU's fleet, such as one with the paper's release of MuJoCo."""
    tf32: bool = False
    """Let a GPU round products to TF32."""
    compiled: bool = False
    """Let torch.compile make WCSAC's update on a GPU faster; it then rounds differently."""
    quiet: bool = False
    """Print nothing while training."""


@dataclass(frozen=True)
class Export:
    """Write the policy a run left as one file for another runtime, once it has been seen to act the same."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    format: str = "onnx"
    """onnx, numpy (safetensors) or torch (safetensors and the source of a module)."""
    out: Path | None = None
    """The file to write; in the run's folder where none is given."""
    replay: bool = True
    """Compare on the recorded evaluation episodes; off, on random observations only."""


@dataclass(frozen=True)
class Play:
    """Film one evaluation episode of a run, with its cost, limit and boundary hits in the picture."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    video: Path
    """The film to write: .mp4 or .gif."""
    episode: str = "worst"
    """worst (highest cost), best (highest return within the limit), or an episode's reset seed."""
    every: int = 1
    """Show every so many steps: 4 makes a film a quarter as long."""
    size: int = 480
    """Width and height of the picture, in pixels, of the tasks that can draw any size."""


@dataclass(frozen=True)
class Diagnose:
    """Run one of the paper's diagnostics over runs, or all: multiplier, diversity, calibration, coverage, target-noise,
    intervention, latency, theory."""

    name: Annotated[str, tyro.conf.Positional]
    """The diagnostic, or 'all'."""
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, runs kept by `bcppo keep`, folders of either, or studies' folders."""
    out: Path
    """Folder for rows, tables and plots; each diagnostic gets a folder in it."""
    device: str = "cpu"
    """Where critics are retrained: cpu or cuda."""
    max_updates: int = 0
    """Of coverage and target-noise: updates after which retraining ends in any case; 0 for 6,000."""
    jobs: int = 1
    """Of 'all': diagnostics to run at a time, each in a process of its own."""
