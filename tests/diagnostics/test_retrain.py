"""Retraining as one stack: matched pairs differ in their data alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bcppo.diagnostics.measure.coverage import REMOVED_SHARE, kept_rows, threshold
from bcppo.diagnostics.measure.retrain import Fit, Policy, Schedule, has_flattened, retrain, stacked
from bcppo.diagnostics.statistics import auc

SHORT = Schedule(members=3, hidden=(16, 16), minibatch=16, check_every=5, max_updates=20, tolerance=-1.0)


def _policy(width: int, seed: int, rows: int = 60) -> Policy:
    random = np.random.default_rng(seed)
    draw = random.normal(size=(rows + 20, width)).astype(np.float32)
    return Policy(draw[:rows], draw[rows:], seed)


def _fit(place: int, policy: Policy, rows: np.ndarray, watched: bool = True) -> Fit:
    target = policy.inputs.sum(1)
    return Fit(place, rows, target[rows], policy.held_out.sum(1), watched)


def test_same_data_gives_the_same_bits_wherever_it_stands_in_the_stack() -> None:
    policies = [_policy(4, 0), _policy(4, 1)]
    rows, other = np.arange(48), np.arange(12, 60)
    fits = [
        _fit(0, policies[0], rows),
        _fit(1, policies[1], rows),
        _fit(0, policies[0], other),
        _fit(0, policies[0], rows),
    ]
    result = retrain(policies, fits, SHORT)
    assert np.array_equal(result.predictions[0], result.predictions[3])
    assert not np.array_equal(result.predictions[0], result.predictions[2])
    alone = retrain(policies[:1], fits[:1], SHORT)
    assert np.array_equal(alone.predictions[0], result.predictions[0])


def test_a_narrow_policy_beside_a_wide_one_trains_as_it_does_alone() -> None:
    policies = [_policy(3, 0), _policy(9, 1)]
    fits = [_fit(i, policy, np.arange(48)) for i, policy in enumerate(policies)]
    both = retrain(policies, fits, SHORT)
    alone = retrain(policies[:1], fits[:1], SHORT)
    np.testing.assert_allclose(both.predictions[0], alone.predictions[0], atol=2e-6)


def test_training_goes_on_until_the_watched_loss_is_flat() -> None:
    policy = _policy(3, 2)
    schedule = replace(SHORT, check_every=20, window=3, tolerance=0.01, max_updates=5000)
    result = retrain([policy], [_fit(0, policy, np.arange(48))], schedule)
    assert result.flattened
    assert len(result.updates) < 250
    assert result.curves[0, -1] < 0.2 * result.curves[0, 0]


def test_flat_means_no_progress_within_the_window() -> None:
    schedule = replace(SHORT, window=2, tolerance=0.01)
    assert not has_flattened(np.array([[1.0, 0.5]]), schedule)
    assert not has_flattened(np.array([[1.0, 0.5, 0.45, 0.4]]), schedule)
    flat, falling = [1.0, 0.5, 0.495, 0.6], [1.0, 0.9, 0.8, 0.7]
    assert has_flattened(np.array([flat]), schedule)
    assert has_flattened(np.array([flat] * 9 + [falling]), schedule)
    assert not has_flattened(np.array([flat] * 8 + [falling] * 2), schedule)  # a median would have stopped here


def test_removal_takes_the_upper_fifth_and_its_control_as_many_at_random() -> None:
    score = np.random.default_rng(0).permutation(100).astype(float)
    removal, control = (kept_rows(score, kind, np.random.default_rng(1)) for kind in ("removal", "control"))
    assert len(removal) == len(control) == 80
    assert score[removal].max() == threshold(score) == 79.0
    assert 5 <= np.sum(score[control] > threshold(score)) <= 30  # about 16 of the omitted 20 stay
    assert len(np.unique(control)) == 80
    assert REMOVED_SHARE == 0.2


def test_a_missing_region_raises_disagreement_there() -> None:
    # Positive control: a curve the critics do learn, the upper fifth of its first input missing.
    random = np.random.default_rng(3)
    inputs = random.uniform(-2, 2, size=(1600, 2)).astype(np.float32)
    policy = Policy(inputs[:1200], inputs[1200:], 0)
    target = (np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1]).astype(np.float32)
    score = inputs[:1200, 0]
    schedule = replace(
        SHORT, members=5, hidden=(32, 32), learning_rate=5e-3, minibatch=128, check_every=300, max_updates=300
    )
    kept = {kind: kept_rows(score, kind, random) for kind in ("removal", "control")}
    fits = [Fit(0, rows, target[:1200][rows], target[1200:], True) for rows in kept.values()]
    result = retrain([policy], fits, schedule)
    removal, control = (predictions.std(axis=1) for predictions in result.predictions)
    omitted = policy.held_out[:, 0] > threshold(score)
    assert result.curves[1, -1] < 0.05  # the control has learned: what is measured is not a lack of training
    assert auc(removal, omitted) > 0.8
    assert auc(removal, omitted) > auc(control, omitted) + 0.1


def test_blocks_and_threads_are_only_places_for_the_work() -> None:
    policies = [_policy(4, 0), _policy(7, 1)]
    fits = [_fit(i, policies[i], np.arange(start, start + 48)) for i in (0, 1) for start in range(7)]
    results = [retrain(policies, fits, SHORT, threads=threads) for threads in (1, 3)]
    whole = stacked(policies, fits, SHORT, "cpu", block=len(fits))
    assert [len(block.fits) for block in whole] == [7, 7]  # a stack of one width has no zero columns
    for _ in range(SHORT.max_updates):
        for block in whole:
            block.descend()
    alone = [one for block in whole for one in block.predictions()]
    for one, other, third in zip(results[0].predictions, results[1].predictions, alone):
        assert np.array_equal(one, other)
        assert np.array_equal(one, third)
    assert np.array_equal(results[0].curves, results[1].curves)
