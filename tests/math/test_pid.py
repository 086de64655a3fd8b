"""The anti-windup PID controller: eq:pid, prop:pid_stability and the decisions for start and reversal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcppo.math.pid import PidGains, PidState, pid_start, pid_step

quick = settings(max_examples=80, deadline=None, derandomize=True)
GAINS = PidGains(proportional=0.2, integral=0.02, derivative=0.05, ceiling=50.0, anti_windup=True)
errors = st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=30)


def at(multiplier: float, integral: float, previous_error: float) -> PidState:
    """The state of one run in mid-training."""
    return PidState(cost(multiplier), cost(integral), cost(previous_error), torch.tensor([True]))


def cost(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def test_starts_at_zero_with_no_derivative_in_the_first_cycle() -> None:
    state, terms = pid_step(pid_start(1), cost(1.65), 0.65, GAINS)
    # e = 1: 0 + 0.2 * 1 + 0.02 * 1 + 0 = 0.22, where a derivative from e = 0 would add 0.05
    assert terms.derivative.item() == 0.0
    assert state.multiplier.item() == pytest.approx(0.22, abs=1e-15)
    assert (state.integral.item(), state.previous_error.item()) == pytest.approx((1.0, 1.0), abs=1e-15)
    assert state.started.item()


def test_second_cycle_by_hand() -> None:
    state, terms = pid_step(at(0.22, 1.0, 1.0), cost(1.15), 0.65, GAINS)
    # e = 0.5: 0.22 + 0.2 * 0.5 + 0.02 * 1.5 + 0.05 * (0.5 - 1) = 0.22 + 0.1 + 0.03 - 0.025
    assert terms.error.item() == pytest.approx(0.5, abs=1e-15)
    assert [terms.proportional.item(), terms.integral.item(), terms.derivative.item()] == pytest.approx(
        [0.1, 0.03, -0.025], abs=1e-15
    )
    assert terms.candidate.item() == pytest.approx(0.325, abs=1e-15)
    assert state.multiplier.item() == terms.candidate.item()
    assert not (terms.saturated_low | terms.saturated_high | terms.frozen | terms.reset).item()


def test_integral_is_frozen_below_zero_while_the_cost_stays_under_its_limit() -> None:
    state, terms = pid_step(at(0.1, -2.0, -1.0), cost(0.0), 1.0, GAINS)  # u = 0.1 - 0.2 - 0.06 < 0, e = -1
    assert (state.multiplier.item(), state.integral.item()) == (0.0, -2.0)
    assert terms.saturated_low.item()
    assert terms.frozen.item()


def test_integral_is_frozen_above_the_ceiling_while_the_cost_stays_over_its_limit() -> None:
    state, terms = pid_step(at(49.9, 30.0, 4.0), cost(5.0), 1.0, GAINS)  # u = 49.9 + 0.8 + 0.68 > 50, e = 4
    assert (state.multiplier.item(), state.integral.item()) == (50.0, 30.0)
    assert terms.saturated_high.item()
    assert terms.frozen.item()


def test_candidate_beyond_a_bound_with_inward_error_is_accepted() -> None:
    # e = +0.1 but the derivative throws u below 0: 0.1 + 0.02 - 0.018 + 0.05 * (0.1 - 10) = -0.393
    state, terms = pid_step(at(0.1, -1.0, 10.0), cost(1.1), 1.0, GAINS)
    assert terms.saturated_low.item()
    assert not terms.frozen.item()
    assert state.integral.item() == pytest.approx(-0.9)


def test_reversal_at_the_floor_clears_a_negative_integral_before_the_candidate() -> None:
    state, terms = pid_step(at(0.0, -40.0, 1.0), cost(2.0), 1.0, GAINS)
    # e = 1, I: -40 -> 0 -> 1; u = 0 + 0.2 + 0.02 * 1 + 0. Without the reset u = 0.2 - 0.78 < 0.
    assert terms.reset.item()
    assert state.multiplier.item() == pytest.approx(0.22, abs=1e-15)
    assert state.integral.item() == 1.0


def test_reversal_at_the_ceiling_clears_a_positive_integral_before_the_candidate() -> None:
    state, terms = pid_step(at(50.0, 300.0, -1.0), cost(0.0), 1.0, GAINS)
    # e = -1, I: 300 -> 0 -> -1; u = 50 - 0.2 - 0.02. Without the reset u = 50 - 0.2 + 5.98 stays at the ceiling.
    assert terms.reset.item()
    assert state.multiplier.item() == pytest.approx(49.78, abs=1e-13)
    assert state.integral.item() == -1.0


@pytest.mark.parametrize(
    ("multiplier", "integral", "mean_cost"),
    [(0.0, 40.0, 2.0), (0.0, -40.0, 0.0), (0.5, -40.0, 2.0), (50.0, -3.0, 0.0), (49.0, 300.0, 0.0)],
    ids=["integral helps", "error outward", "off the floor", "integral helps at ceiling", "off the ceiling"],
)
def test_nothing_is_cleared_without_a_reversal_on_a_bound(multiplier: float, integral: float, mean_cost: float) -> None:
    _, terms = pid_step(at(multiplier, integral, 0.0), cost(mean_cost), 1.0, GAINS)
    assert not terms.reset.item()


def test_without_anti_windup_the_integral_neither_freezes_nor_resets() -> None:
    plain = GAINS._replace(anti_windup=False)
    state = pid_start(1)
    for _ in range(10):
        state, _ = pid_step(state, cost(0.0), 1.0, plain)
    assert (state.multiplier.item(), state.integral.item()) == (0.0, -10.0)
    state, terms = pid_step(state, cost(2.0), 1.0, plain)
    assert state.integral.item() == -9.0
    assert not (terms.frozen | terms.reset).item()
    guarded = pid_start(1)
    for _ in range(10):
        guarded, _ = pid_step(guarded, cost(0.0), 1.0, GAINS)
    assert guarded.integral.item() == 0.0


@quick
@given(st.floats(0.0, 50.0), st.floats(-100.0, 100.0), st.floats(-5.0, 5.0), errors)
def test_integral_never_grows_in_outward_saturation(
    multiplier: float, integral: float, previous_error: float, sequence: list[float]
) -> None:
    state = at(multiplier, integral, previous_error)
    for error in sequence:
        after, terms = pid_step(state, cost(error), 0.0, GAINS)
        outward = (terms.saturated_high & (terms.error > 0)) | (terms.saturated_low & (terms.error < 0))
        if outward.item():
            kept = torch.zeros_like(state.integral) if terms.reset.item() else state.integral
            assert torch.equal(after.integral, kept)
        else:
            base = 0.0 if terms.reset.item() else state.integral.item()
            assert after.integral.item() == base + terms.error.item()
        assert 0.0 <= after.multiplier.item() <= 50.0
        state = after


@quick
@given(st.floats(0.01, 5.0), st.integers(2, 40), st.booleans())
def test_a_lasting_outward_interval_leaves_the_integral_where_it_began(size: float, cycles: int, high: bool) -> None:
    error = size if high else -size
    state = at(50.0 if high else 0.0, 3.0 if high else -3.0, error)
    plain = state
    for _ in range(cycles):
        state, _ = pid_step(state, cost(error), 0.0, GAINS)
        plain, _ = pid_step(plain, cost(error), 0.0, GAINS._replace(anti_windup=False))
    assert state.integral.item() == (3.0 if high else -3.0)
    assert abs(plain.integral.item()) == pytest.approx(3.0 + cycles * size)


def test_anti_windup_lets_the_multiplier_leave_the_floor_sooner() -> None:
    leaves = {}
    for anti_windup in (True, False):
        state, gains = pid_start(1), GAINS._replace(anti_windup=anti_windup)
        for cycle in range(400):
            state, _ = pid_step(state, cost(0.5 if cycle < 100 else 1.5), 1.0, gains)
            if cycle >= 100 and state.multiplier.item() > 0.0:
                leaves[anti_windup] = cycle
                break
    assert leaves[True] == 100
    assert leaves[False] > 150


@quick
@given(st.lists(errors.map(lambda sequence: (sequence * 12)[:12]), min_size=2, max_size=5))
def test_runs_in_a_stack_do_not_touch_each_other(sequences: list[list[float]]) -> None:
    costs, stacked = torch.tensor(sequences, dtype=torch.float64), pid_start(len(sequences))
    alone = [pid_start(1) for _ in sequences]
    for cycle in range(12):
        stacked, _ = pid_step(stacked, costs[:, cycle], 0.1, GAINS)
        alone = [pid_step(state, costs[run : run + 1, cycle], 0.1, GAINS)[0] for run, state in enumerate(alone)]
    for field in range(4):
        assert torch.equal(stacked[field], torch.cat([state[field] for state in alone]))


def test_limits_and_gains_may_differ_between_runs() -> None:
    gains = PidGains(
        proportional=torch.tensor([1.0, 0.0], dtype=torch.float64),
        integral=0.0,
        derivative=0.0,
        ceiling=torch.tensor([2.0, 50.0], dtype=torch.float64),
        anti_windup=torch.tensor([True, False]),
    )
    limit = torch.tensor([1.0, 8.0], dtype=torch.float64)
    state, terms = pid_step(pid_start(2), torch.tensor([7.0, 7.0]), limit, gains)
    assert terms.error.tolist() == [6.0, -1.0]
    assert state.multiplier.tolist() == [2.0, 0.0]  # 6 is cut to its ceiling; the other has no gain
    assert state.integral.tolist() == [0.0, -1.0]


def test_state_handed_in_is_left_as_it_was() -> None:
    before = pid_start(3)
    pid_step(before, torch.ones(3), 0.5, GAINS)
    assert all(not field.any() for field in before)
    assert before.multiplier.dtype == torch.float64


def test_float32_mean_cost_does_not_lower_the_precision_of_the_state() -> None:
    state, terms = pid_step(pid_start(1), torch.tensor([0.65], dtype=torch.float32), 0.65, GAINS)
    assert state.multiplier.dtype == terms.error.dtype == torch.float64
