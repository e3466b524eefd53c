"""SplitMix' local training: base networks side by side, each with its own loss (Hong et al., 2022)."""

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.objectives.wrapped import AllOutputs


class IndependentBases(AllOutputs):
    """The sum of the losses of a network's outputs, which trains networks side by side independently (SplitMix).

    It is the local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand
    and In-Situ Customization", ICLR) in one pass. With an element-wise optimizer it equals training each network alone
    on the same batches, except for ``client.clip_norm`` and the draws of dropout.

    Args:
        objective: The loss of one output; it gets only the output's logits.

    Raises:
        ConfigError: The subnets have one output, or the inner objective contains another one (before training).
    """

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """The value of the inner objective."""
        return self.objective.stackable

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        first, *rest = self.losses(network, inputs, targets)
        return sum(rest, first)
