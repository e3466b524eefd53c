"""FedHeN's side objective, over all exits of a network (Eq. 2; Alg. 2)."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.costs.counting import on_meta
from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.objectives.wrapped import AllOutputs, CountedObjective
from lit_fednas.supernets import OutputsNetwork, Supernet


class SideObjective(AllOutputs, CountedObjective):
    """The sum of the losses of all exits in the client's network (FedHeN, Eq. 2; Alg. 2, lines 8 to 15).

    Its gradient is the sum of the exits' gradients (Alg. 2, line 13). A client with one exit trains this exit alone
    (``ClientTraining``). The client sends the multiply-accumulates of all forward passes, including the heads.

    Args:
        objective: The loss of one exit; it gets only the exit's logits, so put this one inside :class:`Proximal`.

    Raises:
        ConfigError: The supernet has no exits, or the inner objective contains another one.
    """

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        super().check_supernet(supernet)
        network = cast(OutputsNetwork, supernet.skeleton(supernet.space.largest))
        shape = (2, *supernet.input_shape)  # batch norm refuses a batch of one
        batch = torch.empty(shape, dtype=supernet.input_dtype, device="meta")
        if len(network.outputs(batch)) == 1:
            raise ConfigError(
                "model.objective: SideObjective trains several exits, and the largest architecture holds one; set "
                "supernet.early_heads to true, give more exits, or use TaskLoss"
            )

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        self._macs_of: dict[Any, int] = {}

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._macs_per_example = self._macs_through_heads(task.arch)
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        *early, last = self.losses(network, inputs, targets)
        self._macs += self._macs_per_example * len(targets)
        return sum(early, last)

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        macs = result.num_seen * self._macs_through_heads(result.task.arch)
        self.check_macs(result, macs, macs)

    def _macs_through_heads(self, arch: Any) -> int:
        """Returns the multiply-accumulates of an example through all heads."""
        if arch not in self._macs_of:
            network = on_meta(self._supernet.build, arch)
            network.forward = network.outputs
            self._macs_of[arch] = count_macs(network, self._supernet.input_shape, self._supernet.input_dtype)
        return self._macs_of[arch]
