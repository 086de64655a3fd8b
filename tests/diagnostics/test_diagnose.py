"""Diagnostics on small real runs: rows, negative controls, who is not eligible, and the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
import torch

from bcppo.cli import main
from bcppo.diagnostics.drive import diagnose, read_again
from bcppo.diagnostics.measure import coverage as coverage_rows
from bcppo.diagnostics.measure import intervention as intervention_rows
from bcppo.diagnostics.measure import target_noise as target_noise_rows
from bcppo.diagnostics.measure.calibration import transition_rows
from bcppo.diagnostics.measure.checkpoints import restore
from bcppo.diagnostics.measure.coverage import measure_conditions
from bcppo.diagnostics.measure.latency import numpy_ensemble, time_calls
from bcppo.diagnostics.measure.retrain import Schedule
from bcppo.diagnostics.measure.target_noise import CONDITIONS
from bcppo.diagnostics.measure.theory import exceedance_share, matching_beta, propagation_rows, replay
from bcppo.diagnostics.measure.transitions import Transitions, evaluation_transitions
from bcppo.diagnostics.read import calibration, intervention, multiplier, target_noise
from bcppo.diagnostics.runs import find_runs
from bcppo.diagnostics.store import Measured, load, save
from bcppo.errors import BcppoError, ConfigError
from bcppo.evaluation import evaluate
from bcppo.math.bachelier import effective_beta, exceedance_gaussian
from bcppo.records import RunFolder
from bcppo.run import make_config


def test_the_restored_ensemble_and_policy_are_the_runs_own(runs: Path) -> None:
    checkpoint = restore(find_runs([runs / "binding"])[0])
    assert checkpoint.multiplier > 0
    env = checkpoint.make_env()
    transitions = evaluation_transitions(checkpoint.policy, env, range(10_000, 10_003))
    env.close()
    expected = evaluate(runs / "binding", episodes=3)
    for number, episode in enumerate(expected):
        own = transitions.cost[transitions.episode == number]
        assert len(own) == episode["length"]
        assert own.mean() == pytest.approx(episode["cost_rate"], rel=1e-12)
    one = checkpoint.predictions(transitions.observation[:1], transitions.action[:1])[0]
    mean, spread = numpy_ensemble(checkpoint, transitions.observation[0])(transitions.action[0])
    assert (mean, spread) == pytest.approx((one.mean(), one.std()), abs=1e-6)


def test_cost_to_go_stops_at_the_episodes_end() -> None:
    # γ = ½: episode 0 costs 1, 2 → 1 + ½·2 = 2, then 2; episode 1 costs 4 → 4.
    empty = np.zeros((3, 1), np.float32)
    flags = np.zeros(3, bool)
    transitions = Transitions(empty, empty, empty, np.array([1.0, 2.0, 4.0]), flags, flags, np.array([0, 0, 1]))
    assert transitions.cost_to_go(0.5).tolist() == [2.0, 2.0, 4.0]


def test_calibration_rows_are_on_the_scale_of_a_cost_per_step(runs: Path) -> None:
    checkpoint = restore(find_runs([runs / "binding"])[0])
    rows = transition_rows(checkpoint)
    last = np.flatnonzero(np.diff(rows["episode"], append=99))
    np.testing.assert_allclose(rows["cost_to_go"][last], 0.01 * rows["cost"][last])  # 1 − γ
    assert not np.array_equal(rows["spread"], rows["perturbed_spread"])


def test_calibration_of_a_known_ensemble() -> None:
    # σ equals the error, so it ranks errors perfectly; perturbed σ is larger by 1 everywhere; hits are the top half.
    error = np.linspace(0.1, 0.9, 50)
    rows = {
        "spread": error, "perturbed_spread": error + 1.0, "mean": error, "cost_to_go": np.zeros(50),
        "cost": -error, "boundary_hit": error > 0.5,
    }  # fmt: skip
    expected = {"hit_auc": 1.0, "cost_rho": -1.0, "error_rho": 1.0, "error_auc": 1.0, "action_auc": 1.0}
    assert calibration.policy_statistics(rows) == pytest.approx(expected)


def test_runs_without_what_is_needed_are_named_with_the_reason(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "binding", tmp_path / "runs" / "no-checkpoint")
    for file in (tmp_path / "runs" / "no-checkpoint").glob("checkpoint*"):
        file.unlink()
    text = diagnose("calibration", [runs, tmp_path / "runs"], tmp_path / "out")
    reasons = {(item.run, item.statistic): item.reason for item in load(tmp_path / "out" / "calibration").not_eligible}
    assert "no checkpoint" in reasons["no-checkpoint", "calibration"]
    assert "no ensemble" in reasons["other", "calibration"]
    assert "0 boundary hits" in text  # Hopper's observations stay within the boundary
    table = polars.read_csv(tmp_path / "out" / "calibration" / "calibration.csv")
    assert table["run"].to_list() == ["binding", "slack"]
    for kind in ("png", "pdf"):
        assert (tmp_path / "out" / "calibration" / f"calibration.{kind}").stat().st_size > 1000


def test_share_of_positive_multipliers_weighs_runs_equally() -> None:
    tables = {
        "runs": {
            "name": ["a", "b"],
            "task": ["hopper", "goal1"],
            "seed": [0, 0],
            "method": ["bcppo"] * 2,
            "steps": [9, 9],
        },
        "updates": {"run": [0, 0, 0, 0, 1], "step": [1, 2, 3, 4, 1], "multiplier": [0.0, 1.0, 0.0, 0.0, 2.0]},
    }
    measured = Measured(tables)
    assert multiplier.shares(measured) == {0: 0.25, 1: 1.0}
    assert "62.5%" in multiplier.read(measured).markdown([])  # (0.25 + 1) / 2, not 2 of 5


def test_zero_noise_replay_is_the_matched_control_to_the_bit(runs: Path) -> None:
    schedule = Schedule(hidden=(16, 16), minibatch=32, check_every=10, max_updates=20)
    measured = measure_conditions(
        find_runs([runs / "slack", runs / "binding"]), CONDITIONS, "target noise", device="cpu", schedule=schedule
    )
    assert target_noise.replay_difference(measured) == {0: 0.0, 1: 0.0}
    rows = measured.table("held_out")
    noisy, clean = ((rows["kind"] == "replay") & (rows["noise"] == level) for level in (1.0, 0.0))
    assert not np.array_equal(rows["mean"][noisy], rows["mean"][clean])
    assert target_noise.read(measured).tables


def test_one_retraining_gives_both_diagnostics_the_rows_of_their_own(runs: Path) -> None:
    found = find_runs([runs / "other", runs / "binding"])
    both = target_noise_rows.measure_both(found, max_updates=3)
    halves = {"coverage": coverage_rows, "target-noise": target_noise_rows}
    apart = {name: half.measure(found, max_updates=3) for name, half in halves.items()}
    for name, own in apart.items():
        assert both[name].not_eligible == own.not_eligible
        for table in ("held_out", "curves"):
            rows, expected = both[name].table(table), own.table(table)
            assert set(rows) == set(expected)
            assert all(np.array_equal(rows[column], expected[column]) for column in expected)
    assert len(both["coverage"].not_eligible) == 1


def test_intervention_controls_are_exactly_zero_and_the_treatment_is_not(runs: Path) -> None:
    measured = intervention_rows.measure_with(find_runs([runs]), rollouts=2, steps=128)
    pairs = measured.table("pairs")
    slack = pairs["multiplier"] == 0
    assert slack.sum() == 2
    assert (pairs["treatment_difference"][slack] == 0).all()
    assert (pairs["control_difference"] == 0).all()
    assert (pairs["treatment_difference"][~slack] > 0).all()
    assert (pairs["treatment_spread"][slack] == pairs["control_spread"][slack]).all()
    candidates = measured.table("candidates")
    assert len(candidates["run"]) == 2 * 32 * 16  # rollouts × held-out states × candidates
    assert {(item.run, item.statistic) for item in measured.not_eligible} >= {("slack", "steering direction")}
    report = intervention.read(measured)
    assert "1/1 zero" in report.tables[0].markdown()
    assert "4/4 zero" in report.tables[0].markdown()


def test_within_state_association_ignores_what_differs_between_states() -> None:
    random = np.random.default_rng(0)
    state = np.repeat(np.arange(30), 16)
    penalty = random.random(480)
    change = -penalty + 100.0 * state  # falls with the penalty in every state; between states something else
    rows = {"state": state, "penalty": penalty + 0.1 * state, "change": change, "mean": random.random(480)}
    rank, slope = intervention.within_states(rows)
    assert rank == pytest.approx(-1.0, abs=1e-9)
    assert slope == pytest.approx(-1.0, abs=1e-9)


def test_gaussian_members_exceed_the_strike_as_often_as_theory_says() -> None:
    members = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 200, 500)))
    assert exceedance_share(members, 1.5) == pytest.approx(exceedance_gaussian(1.5), abs=0.005)


def test_matched_coefficients_have_one_effective_beta() -> None:
    base = make_config("bcppo", "hopper")
    for alpha, kappa in ((0.9, 0.3), (0.99, 0.0)):
        beta = matching_beta(base, alpha, kappa)
        matched, wanted = effective_beta(alpha, beta, kappa), effective_beta(base.alpha, base.beta, base.kappa)
        assert np.float32(matched) == np.float32(wanted)


def test_penalty_ignores_a_common_shift_and_is_linear_in_spread() -> None:
    members = torch.from_numpy(np.random.default_rng(2).normal(5.0, 1.0, size=(1, 5, 50)))
    rows = propagation_rows(make_config("bcppo", "hopper"), members)
    assert max(gap for gap in rows["largest_gap"]) < 1e-12
    assert [m > 1e-5 for m in rows["measured"]] == [kind == "spread" for kind in rows["perturbed"]]


def test_replay_without_anti_windup_grows_while_saturated() -> None:
    config = make_config("bcppo", "goal1")  # limit 0.65; λ starts at its floor
    costs = [0.15] * 10 + [1.65]
    with_guard, without = (replay(costs, config, guarded) for guarded in (True, False))
    assert with_guard["outward"][:10] == [True] * 10
    assert with_guard["integral"][9] == 0.0
    assert without["integral"][9] == pytest.approx(-5.0)  # ten errors of −0.5
    assert not any(with_guard["grew"])
    assert with_guard["multiplier"][10] > without["multiplier"][10]


def test_time_calls_times_each_call_after_the_warmups() -> None:
    calls = []
    taken = time_calls(lambda: calls.append(0), warmups=3, timed=5)
    assert len(calls) == 8
    assert len(taken) == 5


def test_rows_are_read_again_without_torch(runs: Path, tmp_path: Path) -> None:
    text = diagnose("diversity", [runs], tmp_path)
    code = (
        "import sys; from bcppo.diagnostics.drive import read_again; "
        f"text = read_again('diversity', {str(tmp_path)!r}); assert 'torch' not in sys.modules; print(text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == text.strip() == read_again("diversity", tmp_path).strip()


def test_stored_rows_come_back(tmp_path: Path) -> None:
    save(tmp_path, Measured({"runs": {"name": ["a"]}, "rows": {"x": np.array([1.5, 2.5])}}, [], {"seed": 3}))
    again = load(tmp_path)
    assert again.tables["rows"] == {"x": [1.5, 2.5]}
    assert again.settings == {"seed": 3}


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["diagnose", "calibration", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds none" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Did you mean 'coverage'"):
        diagnose("covrage", [tmp_path], tmp_path)
    with pytest.raises(BcppoError, match="at least one"):
        find_runs([])


def test_a_run_that_is_not_finished_is_measured_and_said_to_be_cut_off(runs: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"  # as a study's folder has them: in runs/
    shutil.copytree(runs / "binding", study / "runs" / "stopped")
    RunFolder(study / "runs" / "stopped").set_status("failed", "no room left")
    config = study / "runs" / "stopped" / "config.json"
    config.write_text(config.read_text().replace('"steps": 512', '"steps": 1024'))
    shutil.copytree(runs / "slack", study / "runs" / "whole")
    text = diagnose("multiplier", [study], tmp_path / "out")
    sentence = "stopped is cut off at step 512 of 1,024 (failed)."
    assert f"Not finished: {sentence}" in text
    assert "| stopped | hopper | 100.0% |" in text
    assert json.loads((tmp_path / "out" / "multiplier" / "notes.json").read_text())["not_finished"] == [sentence]
    assert read_again("multiplier", tmp_path / "out") == text
