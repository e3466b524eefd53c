"""Independent training of networks that lie side by side.

The local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and
In-Situ Customization", ICLR): every base network that a client has minimises its own loss.
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.wrapped import KnownLogits, WrappedObjective, check_sees_logits_alone
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.base import OutputsNetwork


class IndependentBases(WrappedObjective):
    """The sum over a network's outputs of the loss of each.

    Networks side by side share no weights, so that the sum's gradient is each one's own: with SGD, or another
    optimizer that steps element by element, this equals training each alone on the same batches. It does not
    where the gradient's norm is clipped (``client.clip_norm``), which is that of all together, nor with dropout,
    whose draws differ. The publication trains one after the other; one pass gives the same weights. The loss that
    is logged is the sum, and so grows with the number of networks.

    Args:
        objective: The loss of one output, which sees its logits alone. An objective that needs a network's
            weights, as a proximal term does, goes around this objective.

    Raises:
        ConfigError: The supernet's subnets have one output, or the objective inside wraps another one (reported
            before training).

    Example:
        >>> import torch
        >>> class Two(OutputsNetwork):
        ...     def outputs(self, x):
        ...         return [x, 0 * x]
        >>> float(IndependentBases().loss(Two(), torch.zeros(1, 4), torch.tensor([2])))  # twice log 4
        2.7725887298583984
    """

    compilable = False  # it runs parts of the network

    def __init__(self, objective: Objective = CrossEntropy()) -> None:
        super().__init__(objective)

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.stackable

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        if not isinstance(supernet.skeleton(supernet.space.smallest), OutputsNetwork):
            raise ConfigError(
                f"model.objective: IndependentBases trains networks side by side, and {type(supernet).__name__} "
                f"has one output; use a supernet such as BaseNetworks, or another objective"
            )

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        check_sees_logits_alone(self, self.objective)
        super().setup(supernet, clients)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        assert isinstance(network, OutputsNetwork)
        losses = [self.objective.loss(KnownLogits(logits), inputs, targets) for logits in network.outputs(inputs)]
        return sum(losses[1:], losses[0])
