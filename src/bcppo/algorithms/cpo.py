"""CPO: constrained policy optimisation, with OmniSafe 0.5.0's line search, damping and units.

One policy step a rollout: natural gradients of reward and cost by conjugate gradients, the step that the linearised
problem in a trust region has (`math/trust_region.py`), shortened until the surrogate agrees; then the values' epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bcppo.algorithms.onpolicy import OnPolicy, Sample, Tally, Updating
from bcppo.algorithms.repeated import Repeated
from bcppo.math.surrogate import gaussian_log_prob
from bcppo.math.trust_region import Step, conjugate_gradients, constrained_step, dot
from bcppo.queued import Arriving

DECAY = 0.8
"""Each step length tried is so much of the one before."""


class CPO(OnPolicy):
    """Its multiplier is ν*, the price of cost in the step's dual: nothing is carried from one rollout to the next."""

    shared_fields = (*OnPolicy.shared_fields, "conjugate_gradient_steps", "search_steps")

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._damping = self.vector("damping").to(self._dtype).unsqueeze(1)
        self._reverse = torch.tensor([c.release_dual for c in self.configs], device=self._device)
        self._steps = [c.conjugate_gradient_steps for c in self.configs]
        self._search_steps = [c.search_steps for c in self.configs]

    def improve(self, rollout: Sample, excess: Tensor) -> Updating:
        excess = excess.to(self._device)
        step = self._solve(rollout, excess)
        found = yield from self._search(rollout, step, excess)
        self.controller = self.controller._replace(multiplier=step.cost_multiplier.cpu())
        minibatch = self._values_minibatch()
        minibatch.begin(tuple(vars(rollout).values()))
        tally, everyone = Tally(len(self.configs), self._device), [True] * len(self.configs)
        for _ in range(self.config.epochs):
            tally.add((yield from minibatch.over(self.draw_minibatches(rollout, everyone))), everyone)
        log_std = self.policy.log_std.detach().sum(-1)
        return tally.means() | found | {"case": step.case.double(), "log_std": log_std}

    def _values_minibatch(self) -> Repeated:
        if self._repeated is None:
            self._repeated = Repeated(
                lambda rollout, *inputs: self.descend_values(self._part(rollout, inputs)),
                lambda: {"values": self.values_optimizer},
                self._device,
            )
        return self._repeated

    def _surrogates(self, rollout: Sample) -> tuple[Tensor, Tensor]:
        """(−E[ratio·A_r], E[ratio·A_c]) of each run."""
        log_prob = gaussian_log_prob(rollout.action, *self.policy.distribution(rollout.observation))
        ratio = (log_prob - rollout.log_prob).exp()
        return -(ratio * rollout.reward_advantage).mean(-1), (ratio * rollout.cost_advantage).mean(-1)

    def _solve(self, rollout: Sample, excess: Tensor) -> Step:
        reward_loss, cost = self._surrogates(rollout)
        gradient = -torch.autograd.grad(reward_loss.sum(), self.policy.flat, retain_graph=True)[0].flatten(1)  # g
        cost_gradient = torch.autograd.grad(cost.sum(), self.policy.flat)[0].flatten(1)  # b
        fisher = _Fisher(self, rollout.observation)
        steps = self._steps[0]
        natural = conjugate_gradients(fisher, gradient, steps)
        natural_cost = conjugate_gradients(fisher, cost_gradient, steps)
        return constrained_step(
            natural,
            natural_cost,
            q=dot(natural, fisher(natural)).double(),
            r=dot(gradient, natural_cost).double(),
            s=dot(cost_gradient, natural_cost).double(),
            excess=excess,
            cost_gradient_square=dot(cost_gradient, cost_gradient).double(),
            size=self._target_kl,
            reverse=self._reverse,
        )

    @torch.no_grad()
    def _search(self, rollout: Sample, step: Step, excess: Tensor) -> Updating:
        """The longest of the step lengths 1, 0.8, 0.64, … that keeps what the step promised, or 0 where none does."""
        before = self.policy.flat.detach().clone()
        old_log_std = self.policy.log_std.clone()
        reward_loss, cost = self._surrogates(rollout)
        accepted, kl = torch.zeros_like(excess), torch.zeros_like(excess)
        allowed = (-excess).clamp(min=0.0)
        for tried in range(1, self._search_steps[0] + 1):
            searching = accepted == 0
            length = torch.where(searching, DECAY ** (tried - 1), _length(accepted))
            self._move(before, step.direction * length.to(self._dtype).unsqueeze(1))
            new_reward_loss, new_cost = self._surrogates(rollout)
            divergence = self.divergence(rollout, old_log_std).flatten(1).mean(-1).double()
            # Infeasible starts (cases 0, 1) may pay with reward.
            good = (new_reward_loss <= reward_loss) | (step.case <= 1) & torch.isfinite(new_reward_loss)
            good &= (new_cost - cost).double() <= allowed
            good &= divergence <= self._target_kl
            accepted = torch.where(searching & good, float(tried), accepted)
            kl = torch.where(searching & good, divergence, kl)
            arriving = Arriving({}, (accepted > 0).all())
            yield arriving
            if bool(arriving.get()[1][0]):
                break
        self._move(before, step.direction * _length(accepted).to(self._dtype).unsqueeze(1))
        return {"kl": kl, "accepted_step": accepted}

    def _move(self, before: Tensor, direction: Tensor) -> None:
        self.policy.flat.copy_(before + direction.unsqueeze(1))


class _Fisher:
    """v ↦ (F + damping)·v with F the Hessian of the mean KL divergence at the rollout's policy, where it is JᵀMJ.

    J is the Jacobian of the mean and log-std, M the Fisher matrix of a Gaussian in them: 1/σ² and 2. The divergence is
    averaged over the action's axes too, as OmniSafe has it.
    """

    def __init__(self, learner: CPO, observation: Tensor):
        self._policy, self._damping = learner.policy, learner._damping
        self._mean = self._policy.mean(observation)
        self._inputs = [observation]
        self._layers = self._policy.layers(self._policy.flat.detach())
        for weight, bias in self._layers[:-1]:
            self._inputs.append(torch.baddbmm(bias, self._inputs[-1], weight).tanh_())

    def __call__(self, vector: Tensor) -> Tensor:
        policy, direction = self._policy, vector.unsqueeze(1)
        with torch.no_grad():
            pushed = self._push(direction)
            rows, actions = pushed.shape[1:]
            precision = (-2.0 * policy.log_std).exp().unsqueeze(1)
            pulled = precision * pushed / (rows * actions)
        (result,) = torch.autograd.grad(self._mean, policy.flat, pulled, retain_graph=True)
        policy.beside(result).copy_(2.0 * policy.beside(direction) / actions)
        return result.squeeze(1) + self._damping * vector

    def _push(self, direction: Tensor) -> Tensor:
        """How the mean moves along a direction in the weights: J·v [R, B, act]."""
        moved: Tensor | None = None
        last = len(self._inputs) - 1
        for layer, (weight_part, bias_part) in enumerate(self._policy.layers(direction)):
            change = torch.baddbmm(bias_part, self._inputs[layer], weight_part)
            if moved is not None:
                change = change + torch.bmm(moved, self._layers[layer][0])
            moved = change if layer == last else change * (1.0 - self._inputs[layer + 1].square())
        assert moved is not None
        return moved[..., : self._policy.sizes[-1]]


def _length(accepted: Tensor) -> Tensor:
    return torch.where(accepted > 0, DECAY ** (accepted - 1.0), 0.0)
