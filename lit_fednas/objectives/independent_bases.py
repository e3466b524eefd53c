"""Independent training of networks that lie side by side.

The local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and
In-Situ Customization", ICLR): every base network that a client has minimises its own loss.
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.objectives.wrapped import AllOutputs


class IndependentBases(AllOutputs):
    """The sum over a network's outputs of the loss of each.

    Networks side by side share no weights, so that the sum's gradient is each one's own: with SGD, or another
    optimizer that steps element by element, this equals training each alone on the same batches. It does not
    where the gradient's norm is clipped (``client.clip_norm``), which is that of all together, nor with dropout,
    whose draws differ. The publication trains one after the other; one pass gives the same weights. The loss that
    is logged is the sum, and so grows with the number of networks.

    Args:
        objective: The loss of one output, as in :class:`~lit_fednas.objectives.wrapped.AllOutputs`.

    Raises:
        ConfigError: The supernet's subnets have one output, or the objective inside wraps another one (reported
            before training).

    Example:
        >>> import torch
        >>> from lit_fednas.supernets import OutputsNetwork
        >>> class Two(OutputsNetwork):
        ...     def outputs(self, x):
        ...         return [x, 0 * x]
        >>> float(IndependentBases().loss(Two(), torch.zeros(1, 4), torch.tensor([2])))  # twice log 4
        2.7725887298583984
    """

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.stackable

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        first, *others = self.losses(network, inputs, targets)
        return sum(others, first)
