"""One evaluation episode of a run as a film: replayed, checked against the record, and drawn on without a screen."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bcppo.config import OWN_TASK, RunConfig
from bcppo.errors import ConfigError, MissingDependency
from bcppo.evaluation import Episode, evaluate_policy
from bcppo.policy import load_policy
from bcppo.records import write_atomically
from bcppo.reenact import make_environment, open_finished_run, recorded_episodes, require_same
from bcppo.rollout import MakeEnv
from bcppo.tasks import TASKS, make_task

BAND = 64
"""Height of the caption above the picture, in pixels."""
INK, PAPER, CALM, ALARM = (235, 235, 235), (24, 26, 31), (86, 180, 120), (230, 75, 60)


@dataclass(frozen=True)
class Film:
    """What was filmed, and where it went."""

    path: Path
    episode: Episode
    frames: int

    @property
    def summary(self) -> str:
        e = self.episode
        return (
            f"{self.frames} frames of episode {e['episode_seed']:.0f}, which replayed as recorded: return "
            f"{e['episode_return']:.4g}, cost per step {e['cost_rate']:.4g}, {e['boundary_hits']:.0f} boundary hits, "
            f"{e['length']:.0f} steps"
        )


def play(
    folder: str | Path,
    video: str | Path,
    *,
    episode: str | int = "worst",
    every: int = 1,
    size: int = 480,
    make_env: MakeEnv | None = None,
) -> Film:
    """Film an evaluation episode of a finished run: the costliest one, 'best', or that of a reset seed.

    The replay's return and costs must be the recorded ones. `make_env` (with render_mode "rgb_array") is needed where
    the run was trained with one.
    """
    target = Path(video)
    if target.suffix not in (".mp4", ".gif"):
        raise ConfigError(f"A film is an .mp4 or a .gif file, but '{target.name}' was given.")
    if every < 1 or not 64 <= size <= 2048:
        raise ConfigError("A film shows every 1st or later step, at 64 to 2048 pixels.")
    _require_packages(target.suffix)
    run, method, config = open_finished_run(folder)
    recorded = choose_episode(recorded_episodes(run), episode, config.limit_rate)
    _choose_opengl()
    camera = _Camera(_environment(config, size, make_env), every)
    try:
        seed = int(recorded["episode_seed"])
        (replayed,) = evaluate_policy(load_policy(run / "policy.safetensors"), camera, [seed])
        require_same(run, recorded, replayed)
        shots, fps = camera.shots, float(camera.metadata.get("render_fps", 30))
    finally:
        camera.close()
    title = f"{config.task}     {method}     episode  {seed}"
    frames = [draw(shot, title, config.limit_rate) for shot in shots]
    write_film(target, frames, fps)
    return Film(target, replayed, len(frames))


def choose_episode(episodes: Sequence[Episode], which: str | int, limit_rate: float) -> Episode:
    """worst: the highest cost. best: the highest return within the limit (of all, where none is). Or a reset seed."""
    if which == "worst":
        return max(episodes, key=lambda episode: (episode["cost_rate"], -episode["episode_return"]))
    if which == "best":
        within = [episode for episode in episodes if episode["cost_rate"] <= limit_rate]
        return max(within or episodes, key=lambda episode: episode["episode_return"])
    for episode in episodes:
        if str(int(episode["episode_seed"])) == str(which):
            return episode
    seeds = [int(episode["episode_seed"]) for episode in episodes]
    raise ConfigError(
        f"There is no evaluation episode '{which}': choose worst, best or a seed from {min(seeds)} to {max(seeds)}."
    )


def _require_packages(suffix: str) -> None:
    try:
        import PIL.Image  # noqa: F401

        if suffix == ".mp4":
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"Films need the package {error.name}: pip install 'bcppo[video]'.") from error


def _choose_opengl() -> None:
    """Where there is no screen and nothing was said, draw in memory; MuJoCo looks when it is first imported."""
    if "MUJOCO_GL" in os.environ or "mujoco" in sys.modules or not sys.platform.startswith("linux"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("OSMesa") else "egl"


def _environment(config: RunConfig, size: int, make_env: MakeEnv | None) -> gymnasium.Env:
    options: dict[str, Any] = {"render_mode": "rgb_array"}
    if config.task in TASKS:
        if TASKS[config.task].env_id.startswith("bcppo/"):
            options |= {"width": size, "height": size}
        return make_task(config.task, **options)
    if make_env is None and config.task != OWN_TASK and config.task in gymnasium.registry:
        return make_task(config.task, cost_limit_rate=config.cost_limit_rate, **options)
    env = make_environment(config, make_env)
    if env.render_mode != "rgb_array":
        raise ConfigError(f"A film needs an environment made with render_mode 'rgb_array', not '{env.render_mode}'.")
    return env


@dataclass(frozen=True)
class Shot:
    """A picture, and what had happened by then."""

    picture: np.ndarray
    step: int
    mean_cost: float
    """Mean cost per step so far."""
    hits: int
    hit: bool
    """Whether a boundary was hit since the last picture."""
    total: float
    """Return so far."""


class _Camera(gymnasium.Wrapper):
    """Keeps a picture of every so many steps of the episode since the last reset."""

    def __init__(self, env: gymnasium.Env, every: int) -> None:
        super().__init__(env)
        self._every = every
        self.shots: list[Shot] = []

    def reset(self, **kwargs: Any):
        self._steps = self._hits = 0
        self._cost = self._total = 0.0
        self._hit = False
        self.shots = []
        return self.env.reset(**kwargs)

    def step(self, action):
        result = self.env.step(action)
        _, reward, terminated, truncated, info = result
        self._steps += 1
        self._cost += float(info["cost"])
        self._total += float(reward)
        self._hits += bool(info["boundary_hit"])
        self._hit |= bool(info["boundary_hit"])
        if self._steps % self._every == 0 or terminated or truncated:
            picture: Any = self.env.render()
            mean = self._cost / self._steps
            self.shots.append(Shot(picture, self._steps, mean, self._hits, self._hit, self._total))
            self._hit = False
        return result


def draw(shot: Shot, title: str, limit_rate: float) -> np.ndarray:
    """A picture under its caption: who and when, the return, and the mean cost so far on a bar with its limit."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = shot.picture.shape[:2]
    frame = Image.new("RGB", (width, height + BAND), PAPER)
    frame.paste(Image.fromarray(shot.picture), (0, BAND))
    pen = ImageDraw.Draw(frame)
    over = shot.mean_cost > limit_rate
    cost = f"cost per step  {shot.mean_cost:.3g}     limit  {limit_rate:.3g}"
    # Measured on numbers as long as they get, so that the letters are of one size throughout a film.
    costs = "cost per step  0.00000     limit  0.000     boundary hits  000"
    long = (f"{title}     step  0000     return  -000.00", costs)
    fonts = [ImageFont.load_default(size) for size in range(15, 6, -1)]
    font = next((f for f in fonts if max(pen.textlength(text, f) for text in long) <= width - 16), fonts[-1])
    pen.text((8, 6), title, INK, font)
    pen.text((width - 8, 6), f"step  {shot.step}     return  {shot.total:.2f}", INK, font, anchor="ra")
    pen.text((8, 25), cost, ALARM if over else INK, font)
    pen.text((width - 8, 25), f"boundary hits  {shot.hits}", ALARM if shot.hits else INK, font, anchor="ra")
    left, right, top = 8, width - 8, 48
    span = right - left
    # The limit stands at the middle of the bar; a cost of twice the limit, or more, fills it.
    share = min(1.0, shot.mean_cost / (2 * limit_rate)) if limit_rate > 0 else float(shot.mean_cost > 0)
    pen.rectangle((left, top, right, top + 8), fill=(60, 63, 70))
    if share * span >= 1:
        pen.rectangle((left, top, left + int(share * span), top + 8), fill=ALARM if over else CALM)
    pen.line((left + span // 2, top - 3, left + span // 2, top + 11), fill=INK, width=2)
    if shot.hit:
        pen.rectangle((0, BAND, width - 1, height + BAND - 1), outline=ALARM, width=max(3, width // 80))
    return np.asarray(frame)


def write_film(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Frames of one size as .mp4 (H.264) or .gif."""
    write_atomically(path, lambda part: (_write_gif if path.suffix == ".gif" else _write_mp4)(part, frames, fps))


def _write_mp4(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    import imageio_ffmpeg

    height, width = frames[0].shape[:2]
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, codec="libx264", quality=7, macro_block_size=2,
        output_params=["-f", "mp4"], ffmpeg_log_level="error",
    )  # fmt: skip
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _write_gif(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    # One palette for all, without dithering: what does not move then stays the same from frame to frame.
    sample = Image.fromarray(np.concatenate(frames[:: max(1, len(frames) // 8)]))
    palette = sample.quantize(128, dither=Image.Dither.NONE)
    first, *rest = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    duration = max(20, round(1000 / fps))
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0, optimize=False)
