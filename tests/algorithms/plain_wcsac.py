"""Gaussian WCSAC for a single run, as plainly as it can be written: the reference its stacked learner is held against.

It shares no code with the learner: networks are nn.Linear, optimisers torch.optim, distributions torch.distributions.
"""

from __future__ import annotations

import copy
import itertools

import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import softplus


def mlp(arrays: dict, network: int) -> nn.Sequential:
    """Float64 layers with the weights of one network of a stack, [N, in, out] each."""
    layers: list[nn.Module] = []
    count = sum(name.startswith("weight") for name in arrays)
    for i in range(count):
        weight, bias = (torch.as_tensor(arrays[f"{kind}{i}"][network]).double() for kind in ("weight", "bias"))
        layer = nn.Linear(*weight.shape).double()
        with torch.no_grad():
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainWCSAC:
    """One run; `policy` and `critics` are its first weights, `config` its settings, `limit` D."""

    def __init__(self, policy: dict, critics: dict, config, limit: float):
        self.actor = mlp({name: a[None] for name, a in policy.items() if name != "log_std_bounds"}, 0)
        self.q1, self.q2, self.qc, self.v = (mlp(critics, index) for index in range(4))
        self.behind = copy.deepcopy([self.q1, self.q2, self.qc, self.v])
        self.x_alpha, self.x_beta = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
        rate = config.learning_rate
        of_critics = [net.parameters() for net in (self.q1, self.q2, self.qc, self.v)]
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=rate),
            "critics": torch.optim.Adam(itertools.chain(*of_critics), lr=rate),
            "alpha": torch.optim.Adam([self.x_alpha], lr=rate),
            "beta": torch.optim.Adam([self.x_beta], lr=rate * config.multiplier_rate_factor),
        }
        self.config, self.limit = config, limit
        level = 1 - config.alpha
        self.k = norm.pdf(norm.ppf(level)) / level

    def draw(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        u = mean + std * noise
        action = torch.tanh(u)
        return action, (Normal(mean, std).log_prob(u) - torch.log(1 - action**2)).sum(-1)

    def variance(self, net: nn.Module, x: Tensor) -> Tensor:
        return softplus(net(x)[:, 0]).clamp(1e-8, 1e8)

    def descend(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    def update(self, s: Tensor, a: Tensor, s2: Tensor, outcome: Tensor, noise: Tensor) -> None:
        r, c, d = outcome.unbind(-1)
        config, gamma = self.config, self.config.discount
        alpha, beta = softplus(self.x_alpha).detach(), softplus(self.x_beta).detach()
        x = torch.cat([s, a], -1)
        with torch.no_grad():
            stored_risk = self.qc(x)[:, 0] + self.k * self.variance(self.v, x).sqrt()
        damp = config.damp * (self.limit - stored_risk).mean()
        # actor
        action, log_prob = self.draw(s, noise[0])
        drawn = torch.cat([s, action], -1)
        risk = self.qc(drawn)[:, 0] + self.k * self.variance(self.v, drawn).sqrt()
        least = torch.min(self.q1(drawn), self.q2(drawn))[:, 0]
        self.descend("actor", (alpha * log_prob - least + (beta - damp) * risk).mean())
        # critics
        with torch.no_grad():
            action2, log_prob2 = self.draw(s2, noise[1])
            x2 = torch.cat([s2, action2], -1)
            q1, q2, qc = (net(x2)[:, 0] for net in self.behind[:3])
            v = self.variance(self.behind[3], x2)
            y_r = r + gamma * (1 - d) * (torch.min(q1, q2) - alpha * log_prob2)
            y_c = c + gamma * (1 - d) * qc
            go_on = torch.ones_like(d) if config.release_variance_target else 1 - d
            y_v = c**2 + go_on * (2 * gamma * c * qc + gamma**2 * v + gamma**2 * qc**2) - self.qc(x)[:, 0] ** 2
            y_v = y_v.clamp(1e-8, 1e8)
        loss = sum(
            0.5 * ((net(x)[:, 0] - y) ** 2).mean() for net, y in ((self.q1, y_r), (self.q2, y_r), (self.qc, y_c))
        )
        of_variance = self.variance(self.v, x)
        self.descend("critics", loss + 0.5 * (of_variance + y_v - 2 * (of_variance * y_v).sqrt()).mean())
        # α, targets, β
        target_entropy = config.target_entropy * a.shape[-1]
        self.descend("alpha", -(softplus(self.x_alpha) * (log_prob.detach() + target_entropy)).mean())
        with torch.no_grad():
            for slow, quick in zip(self.behind, (self.q1, self.q2, self.qc, self.v)):
                for p, q in zip(slow.parameters(), quick.parameters()):
                    p.copy_(config.polyak * p + (1 - config.polyak) * q)
        self.descend("beta", (softplus(self.x_beta) * (self.limit - stored_risk)).mean())
