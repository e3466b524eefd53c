"""FedDyn (Acar et al., 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1), a method as one file.

A client minimises ``L_k(w) - <h_k, w> + alpha / 2 ||w - w_received||^2``, and sets ``h_k <- h_k - alpha (w -
w_received)``. The server keeps ``h <- h - alpha / m sum_k (w_k - w)``, with m of all clients, and sets
``w <- mean_k w_k - h / alpha``.
"""

import torch
from torch import Tensor

from lit_fednas.federation import FederatedCallback
from lit_fednas.objectives import Objective, Proximal, TaskLoss


class FedDyn(Proximal):
    """The client's part; the proximal term's strength is alpha."""

    def __init__(self, objective: Objective = TaskLoss(), alpha: float = 0.1) -> None:
        super().__init__(objective, mu=alpha)

    def begin(self, network, task, generator):
        super().begin(network, task, generator)
        self._named = dict(network.named_parameters())
        self._start = {name: tensor.detach().clone() for name, tensor in self._named.items()}
        self._linear = {name: self.state.get(name, torch.zeros_like(tensor)) for name, tensor in self._start.items()}

    def loss(self, network, inputs, targets):
        linear = sum((self._linear[name] * tensor).sum() for name, tensor in self._named.items())
        return super().loss(network, inputs, targets) - linear

    def client_state(self):
        return {name: self._linear[name] - self.mu * (self._named[name] - start) for name, start in self._start.items()}


class FedDynServer(FederatedCallback):
    """The server's part: the mean of the cohort's weights is corrected by what clients have drifted so far."""

    state_names = ("drift",)

    def __init__(self, alpha: float = 0.1) -> None:
        self.alpha = alpha
        self.drift: dict[str, Tensor] = {}

    def on_results(self, trainer, module, round):
        round.mix(lambda averages: self._corrected(module, averages, round))

    def _corrected(self, module, averages, round):
        share = len(round.survivors) / module.population.num_clients
        drift = {
            name: self.drift.get(name, torch.zeros(())).to(parameter)
            - self.alpha * share * (averages[name] - parameter.detach())
            for name, parameter in module.supernet.named_parameters()
        }
        round.commit(self, drift=drift)
        return {**averages, **{name: averages[name] - value / self.alpha for name, value in drift.items()}}
