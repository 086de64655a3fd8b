"""The actor's hybrid advantage and clipped objective, and the critics' masked loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from bcppo.math.surrogate import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    gaussian_log_prob,
    hybrid_advantage,
    masked_td_loss,
    standardize,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def multipliers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_standardize_by_hand_divides_by_the_population_std() -> None:
    # mean 3; deviations -2, 0, 2: variance 8 / 3 (not 8 / 2)
    root = math.sqrt(8 / 3)
    torch.testing.assert_close(standardize(row(1.0, 3.0, 5.0)), row(-2 / root, 0.0, 2 / root), rtol=1e-7, atol=0)
    assert standardize(row(1.0, 3.0, 5.0), eps=1.0)[0, 2].item() == pytest.approx(2 / (root + 1.0))


def test_a_constant_branch_becomes_exactly_zero() -> None:
    constants = torch.linspace(0.1, 1e6, 50)[:, None].expand(50, 77)
    assert torch.equal(standardize(constants), torch.zeros(50, 77))
    assert torch.equal(standardize(torch.tensor([[4.0]])), torch.zeros(1, 1))


@quick
@given(seeds, st.floats(-50.0, 50.0), st.floats(0.1, 100.0))
def test_standardize_gives_zero_mean_unit_std_each_run(seed: int, shift: float, scale: float) -> None:
    result = standardize(scale * noise(3, 64, seed=seed, dtype=torch.float64) + shift)
    torch.testing.assert_close(result.mean(-1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(result.std(-1, correction=0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-6)


@quick
@given(seeds, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.0, 50.0))
def test_hybrid_advantage_ignores_the_scale_of_either_branch(seed: int, c1: float, c2: float, weight: float) -> None:
    reward, cost, shaping = noise(3, 1, 64, seed=seed, dtype=torch.float64).unbind(0)
    result = hybrid_advantage(reward, cost, shaping, multipliers(weight))
    rescaled = hybrid_advantage(c1 * reward, c2 * cost, c2 * shaping, multipliers(weight))
    # norm() differs by at most eps / std * |norm(x)| ~ 1e-8 / (1e-3 * 0.7) * 5 for either branch
    torch.testing.assert_close(rescaled, result, rtol=0, atol=1e-4 * (1.0 + weight))
    exact = standardize(c1 * reward, eps=0.0)
    torch.testing.assert_close(exact, standardize(reward, eps=0.0), rtol=1e-9, atol=1e-11)


def test_scales_do_matter_without_branch_normalisation() -> None:
    reward, cost, shaping = noise(3, 1, 16).unbind(0)
    one = hybrid_advantage(reward, cost, shaping, multipliers(1.0), normalize=False)
    assert not torch.allclose(one, hybrid_advantage(3 * reward, cost, shaping, multipliers(1.0), normalize=False))


def test_hybrid_advantage_by_hand() -> None:
    # norm(1, 3) = (-1, 1); A_c + shaping = (2 + 1, 0 + 1) = (3, 1), norm = (1, -1); lambda = 0.5
    args = row(1.0, 3.0), row(2.0, 0.0), row(1.0, 1.0), multipliers(0.5)
    torch.testing.assert_close(hybrid_advantage(*args), row(-1.5, 1.5), rtol=1e-6, atol=0)


def test_shaping_enters_the_cost_branch() -> None:
    # Equal cost advantages; shaping alone orders the cost branch: norm(0, 4) = (-1, 1), norm(A_r) = (0, 0)
    args = row(5.0, 5.0), row(2.0, 2.0), row(0.0, 4.0), multipliers(2.0)
    torch.testing.assert_close(hybrid_advantage(*args), row(2.0, -2.0), rtol=1e-6, atol=0)


def test_bonus_moves_shaping_to_the_reward_branch() -> None:
    # norm(5 + 0, 5 + 4) = (-1, 1), norm(2, 2) = (0, 0)
    args = row(5.0, 5.0), row(2.0, 2.0), row(0.0, 4.0), multipliers(2.0)
    torch.testing.assert_close(hybrid_advantage(*args, bonus=True), row(-1.0, 1.0), rtol=1e-6, atol=0)


def test_without_normalisation_the_raw_branches_are_combined() -> None:
    # A_r - lambda (A_c + shaping) = 1 - 0.5 * (2 + 1), 3 - 0.5 * (0 + 1)
    args = row(1.0, 3.0), row(2.0, 0.0), row(1.0, 1.0), multipliers(0.5)
    assert hybrid_advantage(*args, normalize=False).tolist() == [[-0.5, 2.5]]


@quick
@given(seeds, st.sampled_from([1.0, 1e10, 1e30, 3e38]), st.booleans())
def test_zero_multiplier_is_reward_ppo_bit_for_bit(seed: int, size: float, negative: bool) -> None:
    reward, cost, shaping = noise(3, 2, 33, seed=seed).unbind(0)
    cost = (-size if negative else size) * cost.sign()
    result = hybrid_advantage(reward, cost, shaping.abs(), multipliers(0.0, 0.3))
    assert torch.equal(result[0].view(torch.int32), standardize(reward)[0].view(torch.int32))
    if size == 1.0:
        assert not torch.equal(result[1], standardize(reward)[1])


def test_a_run_is_bit_equal_alone_and_stacked() -> None:
    for dtype in (torch.float32, torch.float64):
        reward, cost, shaping = (40 + noise(3, 5, 513, seed=2, dtype=dtype)).unbind(0)
        ratio, weight = torch.exp(0.1 * noise(5, 513, seed=3, dtype=dtype)), multipliers(0.0, 0.1, 1.0, 7.0, 50.0)
        together = hybrid_advantage(reward, cost, shaping, weight)
        losses = clipped_surrogate(ratio, together, 0.2)
        for run in range(5):
            part = slice(run, run + 1)
            alone = hybrid_advantage(*(x[part].clone() for x in (reward, cost, shaping, weight)))
            assert torch.equal(alone, together[part])
            assert torch.equal(clipped_surrogate(ratio[part].clone(), alone, 0.2), losses[part])


def test_standardize_does_not_depend_on_memory_layout() -> None:
    x = noise(1000, 4, seed=8)
    assert torch.equal(standardize(x.T), standardize(x.T.contiguous()))


def test_clipped_surrogate_by_hand() -> None:
    ratio, advantage = row(1.5, 1.5, 0.5, 0.5), row(1.0, -1.0, 1.0, -1.0)
    # min(1.5, 1.2) = 1.2; min(-1.5, -1.2) = -1.5; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8; mean -0.15
    assert clipped_surrogate(ratio, advantage, 0.2).item() == pytest.approx(0.15)


def test_clipping_stops_the_gradient_only_where_it_would_overshoot() -> None:
    ratio = row(1.5, 1.5, 0.5, 0.5, 1.1).requires_grad_()
    clipped_surrogate(ratio, row(1.0, -1.0, 1.0, -1.0, 2.0), 0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad[0].tolist() == pytest.approx([0.0, 0.2, -0.2, 0.0, -0.4])


def test_gradients_of_stacked_runs_are_independent() -> None:
    ratio = torch.ones(2, 4, requires_grad=True)
    clipped_surrogate(ratio, noise(2, 4), 0.2)[0].backward()
    assert ratio.grad is not None
    assert ratio.grad[0].any()
    assert not ratio.grad[1].any()


@quick
@given(seeds)
def test_log_prob_agrees_with_torch_distributions(seed: int) -> None:
    action, mean = noise(2, 3, 6, 4, seed=seed, dtype=torch.float64).unbind(0)
    log_std = noise(3, 4, seed=seed + 1, dtype=torch.float64)
    expected = Normal(mean, log_std.exp().unsqueeze(1)).log_prob(action).sum(-1)
    torch.testing.assert_close(gaussian_log_prob(action, mean, log_std), expected)
    torch.testing.assert_close(gaussian_log_prob(action, mean, log_std.unsqueeze(1)), expected)
    torch.testing.assert_close(gaussian_log_prob(action[0], mean[0], log_std[0]), expected[0])


def test_log_std_belongs_to_the_run_also_when_there_are_as_many_rows_as_runs() -> None:
    # At the mean the density is (2 pi)^-1/2 / std: run 0 has std 1, run 1 has std e, in both rows.
    zeros, log_std = torch.zeros(2, 2, 1), torch.tensor([[0.0], [1.0]])
    base = -0.5 * math.log(2 * math.pi)
    expected = torch.tensor([[base, base], [base - 1, base - 1]])
    torch.testing.assert_close(gaussian_log_prob(zeros, zeros, log_std), expected)


@quick
@given(seeds)
def test_approximate_kl_is_never_negative_and_zero_only_without_change(seed: int) -> None:
    log_ratio = noise(3, 50, seed=seed, dtype=torch.float64)
    log_ratio[1] = 0.0
    estimate = approximate_kl(log_ratio)
    assert (estimate >= 0.0).all()
    assert estimate[1] == 0.0
    assert estimate[0] > 0.0


def test_approximate_kl_estimates_the_divergence_of_old_from_new() -> None:
    old, new = Normal(torch.tensor(0.0), torch.tensor(1.0)), Normal(torch.tensor(0.2), torch.tensor(1.1))
    draws = noise(1, 200_000, seed=9)
    estimate = approximate_kl(new.log_prob(draws) - old.log_prob(draws)).item()
    assert estimate == pytest.approx(kl_divergence(old, new).item(), rel=0.05)


def test_clip_fraction_counts_both_sides() -> None:
    ratio = torch.tensor([[0.7, 0.9, 1.1, 1.3], [1.0, 1.0, 1.0, 1.3]])
    assert clip_fraction(ratio, 0.2).tolist() == [0.5, 0.25]


def test_masked_loss_by_hand() -> None:
    predictions = torch.tensor([[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]])  # [R=1, M=2, B=3]
    target, masks = torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[[1, 0, 1], [0, 0, 0]]])
    # member 0: (1 + 4) / 2; member 1 keeps nothing: 0 / max{1, 0}
    assert masked_td_loss(predictions, target, masks).tolist() == [[2.5, 0.0]]
    assert torch.equal(
        masked_td_loss(predictions, target, masks.bool()), masked_td_loss(predictions, target, masks.float())
    )


def test_masked_out_samples_send_no_gradient_and_members_share_none() -> None:
    predictions = noise(2, 3, 5).requires_grad_()
    masks = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    masked_td_loss(predictions, torch.zeros(2, 5), masks)[1, 2].backward()
    assert predictions.grad is not None
    touched = torch.zeros(2, 3, 5, dtype=torch.bool)
    touched[1, 2] = masks[1, 2]
    assert torch.equal(predictions.grad != 0.0, touched)
    assert touched.any()


@quick
@given(seeds)
def test_full_masks_give_the_mean_squared_error_of_each_member(seed: int) -> None:
    predictions, target = noise(2, 3, 8, seed=seed, dtype=torch.float64), noise(2, 8, seed=seed, dtype=torch.float64)
    loss = masked_td_loss(predictions, target, torch.ones(2, 3, 8))
    torch.testing.assert_close(loss, (predictions - target[:, None]).square().mean(-1))
