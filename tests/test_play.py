"""Films of evaluation episodes: the right episode, replayed as recorded, with its cost in the picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_cmdp import TinyCMDP

import bcppo
from bcppo import play as playing
from bcppo.cli import main
from bcppo.errors import BcppoError, ConfigError
from bcppo.play import ALARM, BAND, CALM, Shot, choose_episode, draw, play
from bcppo.records import RunFolder
from bcppo.reenact import ReplayMismatch, recorded_episodes

Image = pytest.importorskip("PIL.Image")


class Drawn(TinyCMDP):
    """The tiny problem with a picture: white, 64 × 48."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self):
        return np.full((48, 64, 3), 255, np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("play") / "run"
    settings = {"rollout": 64, "minibatch": 32, "epochs": 1, "hidden": (8,), "eval_episodes": 5, "tensorboard": False}
    bcppo.train(make_env=Drawn, cost_limit_rate=0.5, steps=64, out=out, **settings)
    return out


def test_a_gif_shows_every_so_many_steps_of_the_costliest_episode(run, tmp_path):
    film = play(run, tmp_path / "film.gif", every=3, make_env=Drawn)
    rows = recorded_episodes(RunFolder(run))
    assert film.episode["cost_rate"] == max(row["cost_rate"] for row in rows)
    assert film.frames == 3  # steps 3, 6 and the last, 8
    with Image.open(tmp_path / "film.gif") as gif:
        assert (gif.n_frames, gif.size) == (3, (64, 48 + BAND))


def test_an_mp4_can_be_read_back(run, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    play(run, tmp_path / "film.mp4", make_env=Drawn)
    frames, seconds = ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4"))
    assert frames == 8
    assert seconds == pytest.approx(0.8, abs=0.05)  # ten a second


def episode(seed: int, cost: float, total: float) -> dict[str, float]:
    return {"episode_seed": seed, "cost_rate": cost, "episode_return": total}


def test_which_episode_is_chosen():
    episodes = [episode(10000, 0.2, 3), episode(10001, 0.9, 9), episode(10002, 0.4, 5), episode(10003, 0.9, 8)]
    assert choose_episode(episodes, "worst", 0.5)["episode_seed"] == 10003  # as costly as 10001, and earns less
    assert choose_episode(episodes, "best", 0.5)["episode_seed"] == 10002  # 10001 earns more, above the limit
    assert choose_episode(episodes, "best", 0.1)["episode_seed"] == 10001  # none is within the limit
    assert choose_episode(episodes, "10000", 0.5)["episode_seed"] == 10000
    with pytest.raises(ConfigError, match="no evaluation episode 'first': choose worst, best or a seed from 10000 to"):
        choose_episode(episodes, "first", 0.5)


def shot(mean_cost: float, hit: bool) -> Shot:
    return Shot(np.zeros((300, 400, 3), np.uint8), 7, mean_cost, int(hit), hit, 1.5)


def colours(frame: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(colour) for colour in frame.reshape(-1, 3).tolist()}


def test_the_bar_fills_with_the_cost_and_turns_at_the_limit():
    # From 8 to 392, twice the limit at the end: a quarter of the limit fills an eighth of 384 pixels.
    below = draw(shot(0.25, False), "", 1.0)[52]
    assert (below == CALM).all(-1).sum() == pytest.approx(48, abs=2)
    above = draw(shot(1.5, False), "", 1.0)[52]
    assert (above == ALARM).all(-1).sum() == pytest.approx(288, abs=4)  # less the mark of the limit
    assert CALM not in colours(above[None])


def test_a_boundary_hit_frames_the_picture():
    assert tuple(draw(shot(0.1, True), "", 1.0)[BAND + 150, 0]) == ALARM
    assert tuple(draw(shot(0.1, False), "", 1.0)[BAND + 150, 0]) == (0, 0, 0)


def test_a_replay_that_differs_from_the_record_is_no_film(run, tmp_path, monkeypatch):
    changed = [row | {"cost_rate": row["cost_rate"] + 1e-12} for row in recorded_episodes(RunFolder(run))]
    monkeypatch.setattr(playing, "recorded_episodes", lambda run: changed)
    with pytest.raises(ReplayMismatch, match="has cost_rate"):
        play(run, tmp_path / "film.gif", make_env=Drawn)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_filmed_is_refused(run, tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"an \.mp4 or a \.gif file, but 'film\.avi'"):
        play(run, tmp_path / "film.avi", make_env=Drawn)
    with pytest.raises(ConfigError, match="render_mode 'rgb_array', not 'None'"):
        play(run, tmp_path / "film.gif", make_env=TinyCMDP)
    with pytest.raises(BcppoError, match="hand over its make_env again"):
        play(run, tmp_path / "film.gif")
    assert main(["play", str(tmp_path), "--video", "film.gif"]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("task", ["goal1", "hopper"])
def test_a_simulator_is_drawn_without_a_screen(task, tmp_path):
    settings = {"rollout": 64, "minibatch": 32, "epochs": 1, "hidden": (8,), "eval_episodes": 1, "tensorboard": False}
    bcppo.train(task=task, steps=64, out=tmp_path / "run", **settings)
    command = [sys.executable, "-m", "bcppo", "play", "run", "--video", "film.gif", "--every", "200", "--size", "96"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "Rendering needs OpenGL" in done.stderr or "libOSMesa" in done.stderr:
        pytest.skip("there is no OpenGL here")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "film.gif") as gif:
        picture = np.asarray(gif.convert("RGB"))[BAND:]
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10  # something is to be seen
