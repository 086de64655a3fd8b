"""GAE, TD targets and discounted sums, with termination and truncation kept apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bcppo.math.gae import discounted_cost_to_go, gae, td_target

quick = settings(max_examples=40, deadline=None, derandomize=True)


def rollout(runs: int, steps: int, seed: int, cut: float = 0.1) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """reward, value, next_value, terminated, ended; [R, T]. Terminated and truncated steps, each with rate `cut`."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = (5 * torch.randn(3, runs, steps, generator=generator)).unbind(0)
    terminated, truncated = (torch.rand(2, runs, steps, generator=generator) < cut).unbind(0)
    return reward, value, next_value, terminated, terminated | truncated


def plain_gae(run: list[list[float]], discount: float, trace_decay: float) -> list[float]:
    """One run by its definition: A_t = sum_k (gamma lambda)^k delta_{t+k}, until the episode is cut. A double loop."""
    reward, value, next_value, terminated, ended = run
    advantages = []
    for start in range(len(reward)):
        total, weight = 0.0, 1.0
        for t in range(start, len(reward)):
            bootstrap = 0.0 if terminated[t] else discount * next_value[t]
            total += weight * (reward[t] + bootstrap - value[t])
            if ended[t]:
                break
            weight *= discount * trace_decay
        advantages.append(total)
    return advantages


@quick
@given(st.integers(1, 4), st.integers(1, 70), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_agrees_with_the_plain_double_loop(runs: int, steps: int, discount: float, decay: float, seed: int) -> None:
    batch = rollout(runs, steps, seed)
    estimate = gae(*batch, discount=discount, trace_decay=decay)
    for run in range(runs):
        expected = torch.tensor(plain_gae([x[run].tolist() for x in batch], discount, decay), dtype=torch.float64)
        torch.testing.assert_close(estimate.advantage[run].double(), expected, rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(
            estimate.value_target[run].double(), expected + batch[1][run].double(), rtol=1e-6, atol=1e-5
        )


def hand(terminated: list[int], ended: list[int]) -> list[float]:
    """Three steps of reward 1, 2, 3, V = 10, V(next) = 20, gamma = 0.5, lambda = 0.5."""
    row = [torch.tensor([x], dtype=torch.float64) for x in ([1.0, 2.0, 3.0], [10.0] * 3, [20.0] * 3)]
    flags = [torch.tensor([x], dtype=torch.bool) for x in (terminated, ended)]
    return gae(*row, *flags, discount=0.5, trace_decay=0.5).advantage[0].tolist()


def test_last_step_bootstraps_from_next_value() -> None:
    # delta = 1 + 10 - 10, 2 + 10 - 10, 3 + 10 - 10 = 1, 2, 3; A_2 = 3, A_1 = 2 + 3/4, A_0 = 1 + 2.75/4
    assert hand([0, 0, 0], [0, 0, 0]) == [1.6875, 2.75, 3.0]


def test_truncation_cuts_the_trace_but_not_the_bootstrap() -> None:
    # step 1 truncated: delta_1 = 2 as before, and A_1 = delta_1; A_0 = 1 + 2/4
    assert hand([0, 0, 0], [0, 1, 0]) == [1.5, 2.0, 3.0]


def test_terminal_state_cuts_bootstrap_and_trace() -> None:
    # step 1 terminated: delta_1 = 2 + 0 - 10 = -8 = A_1; A_0 = 1 - 8/4
    assert hand([0, 1, 0], [0, 1, 0]) == [-1.0, -8.0, 3.0]


def test_no_trace_decay_gives_the_one_step_error_and_full_trace_the_discounted_sum() -> None:
    reward, value, next_value, terminated, ended = rollout(2, 50, seed=1)
    one_step = gae(reward, value, next_value, terminated, ended, discount=0.9, trace_decay=0.0)
    torch.testing.assert_close(one_step.value_target, td_target(reward, next_value, terminated, 0.9))
    tail = ended.flip(-1).cumsum(-1).flip(-1) > 0  # steps of episodes that end inside the rollout
    # With next_value_t = value_{t+1}, the deltas telescope: the target is the discounted sum of rewards.
    consistent = torch.cat([value[:, 1:], torch.zeros(2, 1)], dim=-1)
    all_terminate = gae(reward, value, consistent, ended, ended, discount=0.9, trace_decay=1.0)
    expected = discounted_cost_to_go(reward, ended, 0.9)
    torch.testing.assert_close(all_terminate.value_target[tail], expected[tail], rtol=1e-5, atol=1e-5)
    assert tail.any()


@quick
@given(st.integers(2, 6), st.integers(1, 300), st.integers(0, 2**31))
def test_a_run_is_bit_equal_alone_and_stacked(runs: int, steps: int, seed: int) -> None:
    batch = rollout(runs, steps, seed, cut=0.02)
    stacked = gae(*batch, discount=0.99, trace_decay=0.95)
    for run in range(runs):
        alone = gae(*(x[run : run + 1].clone() for x in batch), discount=0.99, trace_decay=0.95)
        assert torch.equal(alone.advantage, stacked.advantage[run : run + 1])
        assert torch.equal(alone.value_target, stacked.value_target[run : run + 1])


def test_full_rollout_is_bit_equal_alone_and_in_a_fleet_of_five() -> None:
    batch = rollout(5, 1024, seed=11, cut=0.002)
    stacked = gae(*batch, discount=0.99, trace_decay=0.95)
    for run in range(5):
        alone = gae(*(x[run : run + 1].clone() for x in batch), discount=0.99, trace_decay=0.95)
        assert torch.equal(alone.advantage, stacked.advantage[run : run + 1])


def test_coefficients_may_differ_between_runs() -> None:
    batch = rollout(2, 40, seed=5)
    discount = torch.tensor([[0.99], [0.9]], dtype=torch.float64)
    decay = torch.tensor([[0.95], [0.5]], dtype=torch.float64)
    both = gae(*batch, discount=discount, trace_decay=decay).advantage
    first = gae(*(x[:1] for x in batch), discount=0.99, trace_decay=0.95).advantage
    second = gae(*(x[1:] for x in batch), discount=0.9, trace_decay=0.5).advantage
    assert torch.equal(both, torch.cat([first, second]))
    targets = td_target(batch[0], batch[2], batch[3], discount)
    assert torch.equal(targets[1:], td_target(batch[0][1:], batch[2][1:], batch[3][1:], 0.9))


def test_an_episode_is_untouched_by_what_follows_its_end() -> None:
    reward, value, next_value, terminated, ended = rollout(1, 64, seed=2, cut=0.0)
    ended[0, 30] = True
    before = gae(reward, value, next_value, terminated, ended, discount=0.99, trace_decay=0.95).advantage
    later = reward.clone()
    later[0, 31:] += 1e6
    after = gae(later, value, next_value, terminated, ended, discount=0.99, trace_decay=0.95).advantage
    assert torch.equal(before[0, :31], after[0, :31])
    assert not torch.equal(before[0, 31:], after[0, 31:])


def test_inputs_are_left_as_they_were_and_dtype_is_kept() -> None:
    batch = rollout(2, 33, seed=4)
    copies = [x.clone() for x in batch]
    estimate = gae(*batch, discount=0.99, trace_decay=0.95)
    assert all(torch.equal(x, copy) for x, copy in zip(batch, copies))
    assert estimate.advantage.dtype == estimate.value_target.dtype == torch.float32
    cost = batch[0].double()  # float64 needs no conversion, hence gets no copy unless one is made
    assert discounted_cost_to_go(cost, batch[4], 0.99).dtype == torch.float64
    assert torch.equal(cost, copies[0].double())


def test_no_graph_leads_from_advantages_to_values() -> None:
    reward, value, next_value, terminated, ended = rollout(1, 8, seed=6)
    estimate = gae(reward, value.requires_grad_(), next_value, terminated, ended, discount=0.99, trace_decay=0.95)
    assert not estimate.advantage.requires_grad
    assert not td_target(reward, value, terminated, 0.99).requires_grad


def test_td_target_by_hand_stops_at_termination_only() -> None:
    cost, following = torch.tensor([[0.5, 0.5]]), torch.tensor([[10.0, 10.0]])
    terminated = torch.tensor([[False, True]])
    assert torch.allclose(td_target(cost, following, terminated, 0.99), torch.tensor([[0.5 + 9.9, 0.5]]))


def test_cost_to_go_by_hand_restarts_after_an_end() -> None:
    cost, ended = torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[False, True, False, False]])
    # episode 1: 1 + 2/2, 2; episode 2, cut by the end of the data: 4 + 8/2, 8
    assert discounted_cost_to_go(cost, ended, 0.5).tolist() == [[2.0, 2.0, 8.0, 8.0]]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 1025])
def test_every_length_is_summed_to_its_end(steps: int) -> None:
    ones, never = torch.ones(1, steps, dtype=torch.float64), torch.zeros(1, steps, dtype=torch.bool)
    assert torch.equal(discounted_cost_to_go(ones, never, 1.0)[0], torch.arange(steps, 0, -1, dtype=torch.float64))
