"""Record reference updates of OmniSafe 0.5.0's own PPOLag, FOCOPS and CPO: `PYTHON bench/record_omnisafe.py OUT.npz`.

PYTHON is one that has OmniSafe (see bench/training.py for how to make it); of this library nothing is needed. Each
scenario makes an algorithm on a tiny environment that is never stepped, fills its buffer with synthetic rollouts, and
lets it update, in float64 and with minibatches in a recorded order. What is stored, with weights in the layout
[in, out] and V_r, V_c stacked, is all that another implementation needs to do the same, and what came out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from training import _help_import

OBSERVATION, ACTION, STEPS, MINIBATCH = 5, 2, 48, 16

# The mean cost of each update's episodes is near a limit of 25 where CPO is to find its region cut; since the release
# takes that mean in float32, what is near is a power of two away, which both precisions hold exactly.
SCENARIOS: dict[str, dict[str, Any]] = {
    "ppolag": {"algorithm": "PPOLag", "costs": [30.0, 32.0, 20.0], "epochs": 4, "rate": 3e-3, "target_kl": 10.0},
    "ppolag_stops": {"algorithm": "PPOLag", "costs": [30.0, 20.0], "epochs": 6, "rate": 3e-2, "target_kl": 0.02},
    "ppolag_clips_gradients": {
        "algorithm": "PPOLag", "costs": [26.0], "epochs": 2, "rate": 3e-3, "target_kl": 10.0, "max_grad_norm": 0.05,
    },
    "focops": {"algorithm": "FOCOPS", "costs": [30.0, 32.0, 20.0], "epochs": 4, "rate": 1e-2, "target_kl": 10.0},
    "focops_stops": {"algorithm": "FOCOPS", "costs": [200.0, 300.0], "epochs": 6, "rate": 3e-2, "target_kl": 0.02},
    "cpo_all_safe": {"algorithm": "CPO", "costs": [10.0, 5.0], "epochs": 2},
    "cpo_part_safe": {"algorithm": "CPO", "costs": [25 - 2**-10], "epochs": 1},
    "cpo_part_safe_other_seed": {"algorithm": "CPO", "costs": [25 - 2**-6], "epochs": 1, "seed": 1},
    "cpo_part_unsafe": {"algorithm": "CPO", "costs": [25 + 2**-10], "epochs": 1},
    "cpo_part_unsafe_other_seed": {"algorithm": "CPO", "costs": [25 + 2**-6], "epochs": 1, "seed": 1},
    "cpo_unsafe": {"algorithm": "CPO", "costs": [40.0, 35.0], "epochs": 1},
    "cpo_part_safe_cost_opposed": {"algorithm": "CPO", "costs": [25 - 2**-10, 25 - 2**-6], "epochs": 1, "slope": -1.0},
    "cpo_part_unsafe_cost_opposed": {
        "algorithm": "CPO", "costs": [25 + 2**-10, 25 + 2**-7], "epochs": 1, "slope": -1.0,
    },
    "cpo_narrow_policy": {"algorithm": "CPO", "costs": [10.0, 24.90625], "epochs": 1, "seed": 2, "log_std": -1.5},
    "cpo_no_cost_gradient": {"algorithm": "CPO", "costs": [10.0], "epochs": 1, "cost_scale": 0.0},
}  # fmt: skip


class Orders:
    """Stands for torch's DataLoader: the same batches, in an order drawn and kept here."""

    kept: list[np.ndarray] = []  # noqa: RUF012

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool) -> None:
        self._tensors, self._size = dataset.tensors, batch_size

    def __iter__(self):
        order = np.random.default_rng([7, len(self.kept)]).permutation(STEPS)
        self.kept.append(order)
        for rows in torch.from_numpy(order).split(self._size):
            yield [tensor[rows] for tensor in self._tensors]


def register_environment() -> None:
    from gymnasium.spaces import Box
    from omnisafe.envs.core import CMDP, env_register

    @env_register
    class Still(CMDP):
        """Only its spaces matter."""

        _support_envs = ["Still-v0"]  # noqa: RUF012
        need_auto_reset_wrapper = False
        need_time_limit_wrapper = False

        def __init__(self, env_id: str, num_envs: int = 1, device: str = "cpu", **_: Any) -> None:
            super().__init__(env_id)
            self._num_envs = num_envs
            self._observation_space = Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
            self._action_space = Box(-1.0, 1.0, (ACTION,), np.float64)

        def reset(self, seed: int | None = None, options: Any = None):
            return torch.zeros(OBSERVATION), {}

        def step(self, action):
            raise NotImplementedError

        def set_seed(self, seed: int) -> None:
            pass

        def sample_action(self):
            return torch.zeros(ACTION)

        def render(self) -> None:
            pass

        def close(self) -> None:
            pass


def make(scenario: dict[str, Any], folder: str) -> Any:
    import omnisafe

    updates = len(scenario["costs"])
    algorithm: dict[str, Any] = {
        "steps_per_epoch": STEPS, "update_iters": scenario["epochs"], "batch_size": MINIBATCH, "obs_normalize": False,
        "max_grad_norm": scenario.get("max_grad_norm", 40.0),
    }  # fmt: skip
    model: dict[str, Any] = {"actor": {"hidden_sizes": [8, 8]}, "critic": {"hidden_sizes": [8, 8]}}
    if scenario["algorithm"] == "CPO":
        algorithm["cg_iters"] = 10
    else:
        algorithm["target_kl"] = scenario["target_kl"]
        model["actor"]["lr"] = model["critic"]["lr"] = scenario["rate"]
    settings = {
        "seed": scenario.get("seed", 0),
        "train_cfgs": {"total_steps": STEPS * updates, "vector_env_nums": 1, "torch_threads": 1, "device": "cpu"},
        "algo_cfgs": algorithm,
        "model_cfgs": model,
        "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
    }
    agent = omnisafe.Agent(scenario["algorithm"], "Still-v0", custom_cfgs=settings).agent
    for buffer in agent._buf.buffers:  # they are made in float32, whatever the default
        buffer.data = {name: tensor.double() for name, tensor in buffer.data.items()}
    with torch.no_grad():
        agent._actor_critic.actor.log_std.copy_(scenario.get("log_std", 0.0) + torch.tensor([-0.3, 0.2]))
        for parameter in agent._actor_critic.cost_critic.parameters():
            parameter.mul_(scenario.get("cost_scale", 1.0))
    return agent


def weights(agent: Any) -> dict[str, np.ndarray]:
    parts = agent._actor_critic

    def layers(network: torch.nn.Module) -> dict[str, np.ndarray]:
        linear = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
        found = {f"weight{i}": layer.weight.detach().numpy().T.copy() for i, layer in enumerate(linear)}
        return found | {f"bias{i}": layer.bias.detach().numpy().copy() for i, layer in enumerate(linear)}

    policy = layers(parts.actor) | {"log_std": parts.actor.log_std.detach().numpy().copy()}
    reward, cost = layers(parts.reward_critic), layers(parts.cost_critic)
    return {f"policy.{name}": array for name, array in policy.items()} | {
        f"values.{name}": np.stack([reward[name], cost[name]]) for name in reward
    }


def rollout(random: np.random.Generator, cost_scale: float, slope: float) -> dict[str, np.ndarray]:
    observation, following = random.standard_normal((2, STEPS, OBSERVATION))
    terminated, truncated = np.zeros((2, STEPS), bool)
    terminated[[11, 30]], truncated[[20, 39]] = True, True
    goes_on = ~(terminated | truncated)[:-1]
    following[:-1][goes_on] = observation[1:][goes_on]
    action = random.standard_normal((STEPS, ACTION))
    return {
        "observation": observation,
        "next_observation": following,
        "action": action,
        "reward": action[:, 0] + 0.5 * random.standard_normal(STEPS),
        "cost": cost_scale * np.maximum(0.0, 1.0 + slope * action[:, 0] + 0.5 * random.standard_normal(STEPS)),
        "terminated": terminated,
        "truncated": truncated,
    }


def fill(agent: Any, batch: dict[str, np.ndarray]) -> None:
    """As the release's own rollout does, but for where the numbers come from."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    parts = agent._actor_critic
    for row in range(STEPS):
        observation, action = tensors["observation"][row], tensors["action"][row]
        with torch.no_grad():
            parts.actor(observation)
            log_prob = parts.actor.log_prob(action)
            values = parts.reward_critic(observation)[0], parts.cost_critic(observation)[0]
        stored = {
            "obs": observation, "act": action, "reward": tensors["reward"][row], "cost": tensors["cost"][row],
            "value_r": values[0], "value_c": values[1], "logp": log_prob,
        }  # fmt: skip
        agent._buf.store(**{name: value.unsqueeze(0) for name, value in stored.items()})
        terminated, truncated = batch["terminated"][row], batch["truncated"][row]
        if terminated or truncated or row == STEPS - 1:
            last = [torch.zeros(1), torch.zeros(1)]
            if not terminated:
                with torch.no_grad():
                    following = tensors["next_observation"][row]
                    last = [net(following)[0].unsqueeze(0) for net in (parts.reward_critic, parts.cost_critic)]
            agent._buf.finish_path(*last, 0)


def watch_search(agent: Any, found: dict[str, Any]) -> None:
    inner = agent._cpo_search_step

    def search(*, step_direction, **rest):
        found["direction"] = step_direction.detach().numpy().copy()
        taken, accepted = inner(step_direction=step_direction, **rest)
        found["accepted"] = accepted
        return taken, accepted

    agent._cpo_search_step = search


def record(name: str, scenario: dict[str, Any], folder: str) -> dict[str, np.ndarray]:
    agent = make(scenario, folder)
    random = np.random.default_rng([11, scenario.get("seed", 0)])
    out = {f"before.{key}": array for key, array in weights(agent).items()}
    found: dict[str, Any] = {}
    if scenario["algorithm"] == "CPO":
        watch_search(agent, found)
    for index, mean_cost in enumerate(scenario["costs"]):
        batch = rollout(random, scenario.get("cost_scale", 1.0), scenario.get("slope", 1.0))
        fill(agent, batch)
        episode_costs = mean_cost + np.array([-4.0, 1.0, 3.0])
        for cost in episode_costs:
            agent._logger.store({"Metrics/EpCost": float(cost)})
        Orders.kept = []
        with torch.no_grad():
            old = agent._actor_critic.actor(torch.from_numpy(batch["observation"]))
        agent._update()
        if agent._cfgs.model_cfgs.actor.lr is not None:
            agent._actor_critic.actor_scheduler.step()
        with torch.no_grad():
            new = agent._actor_critic.actor(torch.from_numpy(batch["observation"]))
            kl = torch.distributions.kl_divergence(old, new)
        after = {f"after.{key}": array for key, array in weights(agent).items()}
        result = {**batch, **after, "episode_costs": episode_costs, "orders": np.array(Orders.kept, np.int16)}
        result["kl"] = kl.mean() if scenario["algorithm"] == "CPO" else kl.sum(-1).mean()
        if scenario["algorithm"] == "CPO":
            data = agent._logger._data
            result |= {"direction": found["direction"], "accepted_step": found["accepted"]}
            result |= {"case": data["Misc/OptimCase"][-1], "multiplier": data["Misc/Nu_star"][-1]}
            result["trust_multiplier"] = data["Misc/Lambda_star"][-1]
        else:
            result["multiplier"] = agent._lagrange.lagrangian_multiplier.item()
            result["epochs"] = agent._logger._data["Train/StopIter"][-1]
        out |= {f"{index}.{key}": np.asarray(value) for key, value in result.items()}
        told = ("kl", "multiplier", "case", "accepted_step", "epochs")
        summary = {key: float(result[key]) for key in told if key in result}
        print(f"RECORDED {name} {index} {json.dumps(summary)}", file=sys.stderr)
    return {f"{name}/{key}": array for key, array in out.items()}


def main() -> None:
    out = os.path.abspath(sys.argv[1])
    _help_import()
    torch.set_default_dtype(torch.float64)
    import omnisafe
    from omnisafe.algorithms.on_policy.base import natural_pg, policy_gradient
    from omnisafe.algorithms.on_policy.first_order import focops
    from omnisafe.common.buffer import onpolicy_buffer

    for module in (policy_gradient, natural_pg, focops):
        module.DataLoader = Orders
    # It sums in place what it converts to float64: the rewards themselves, where they are float64 already.
    cumulate = onpolicy_buffer.discount_cumsum
    onpolicy_buffer.discount_cumsum = lambda vector, discount: cumulate(vector.clone(), discount)
    register_environment()
    arrays: dict[str, np.ndarray] = {"version": np.array(omnisafe.__version__)}
    arrays["scenarios"] = np.array(json.dumps(SCENARIOS))
    with tempfile.TemporaryDirectory() as folder:
        for name, scenario in SCENARIOS.items():
            arrays |= record(name, scenario, folder)
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main()
