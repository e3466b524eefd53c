"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1 with option II of the control variates), a method as one file.

A client's step is along ``g - c_k + c``, and ``c_k <- c_k - c + (received - trained) / (steps * rate)``. The server's
``c`` moves by the cohort's mean change times its share of the clients. It travels as buffers of the network: what a
client sends in them is the ``c`` that its change alone would make, and the mean of these is the next one.
"""

import torch
from torch import nn

from lit_fednas.objectives import TaskLoss


class Controlled(nn.Module):
    """A network with the server's control variate of each parameter."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.control = nn.ParameterDict()  # of buffers
        for name, parameter in network.named_parameters():
            self.control.register_buffer(name.replace(".", "_"), torch.zeros_like(parameter))

    def forward(self, x):
        return self.network(x)


class Scaffold(TaskLoss):
    """The client's part; clients train by plain SGD at ``rate``, and ``share`` of them take part in a round."""

    def __init__(self, rate: float, share: float = 1.0) -> None:
        self.rate, self.share = rate, share

    def begin(self, network, task, generator):
        self._parameters = list(network.network.parameters())
        self._server = list(network.control.buffers())
        self._received = [tensor.detach().clone() for tensor in self._parameters]
        self._own = [self.state.get(f"{place}", torch.zeros_like(one)) for place, one in enumerate(self._received)]
        self._steps = 0

    def loss(self, network, inputs, targets):
        self._steps += 1
        terms = zip(self._server, self._own, self._parameters, strict=True)
        return super().loss(network, inputs, targets) + sum(((c - own) * w).sum() for c, own, w in terms)

    @torch.no_grad()
    def statistics(self):
        for place, (received, trained, control) in enumerate(
            zip(self._received, self._parameters, self._server, strict=True)
        ):
            change = (received - trained) / (self._steps * self.rate) - control
            self._own[place] = self._own[place] + change
            control += self.share * change
        return ()

    def client_state(self):
        return {f"{place}": tensor for place, tensor in enumerate(self._own)}
