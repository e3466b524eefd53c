"""SplitMix' local training: base networks side by side, each by its own loss (Hong et al., 2022)."""

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.objectives.wrapped import AllOutputs


class IndependentBases(AllOutputs):
    """The sum over a network's outputs of the loss of each: independent training of networks side by side (SplitMix).

    The local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and
    In-Situ Customization", ICLR) in one pass. With an optimizer that steps element by element this equals training
    each alone on the same batches, but for ``client.clip_norm`` and draws of dropout.

    Args:
        objective: The loss of one output, which gets its logits alone.

    Raises:
        ConfigError: Before training: the supernet's subnets have one output, or the objective inside wraps another.
    """

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.stackable

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        first, *others = self.losses(network, inputs, targets)
        return sum(others, first)
