"""The running mean of the server's weights over rounds (Polyak and Juditsky, 1992), which has less noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.lightning_private import AveragedWeights
from lit_fednas.ranges import ShareBelowOne, checked


@checked("weight_average")
class WeightAverage(AveragedWeights):
    """Lightning's ``WeightAveraging`` over rounds: the mean is ``decay * mean + (1 - decay) * weights``.

    After n rounds the decay is at most (1 + n) / (10 + n), so that the initial weights do not dominate short runs.

    Clients train the weights, not the mean. Validation uses the mean. Checkpoints contain the mean as the supernet's
    weights, so that search, fine-tuning, ``test`` and export use it, and the module has it after training. Checkpoints
    also contain the weights (``current_model_state``), so a resumed run continues exactly.

    New tensors and tensors with a new shape restart their mean. Place the callback after callbacks that change the
    supernet and before callbacks that evaluate it.

    Args:
        decay: The weight of the previous mean; 0.9 averages about the last ten rounds.
    """

    def __init__(self, decay: ShareBelowOne = 0.9) -> None:
        super().__init__(avg_fn=partial(_mixed, decay))
        self.decay = decay

    def on_train_batch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, *batch: Any) -> None:
        """Adds the round's weights to the mean."""
        self._follow(trainer, pl_module)
        super().on_train_batch_end(trainer, pl_module, *batch)

    def on_load_checkpoint(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restores the weights and their mean; outside of ``fit`` the module loads the mean."""
        if self.average is not None:
            self._follow(trainer, pl_module)
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def _follow(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        """Synchronises the mean's structure with the supernet's."""
        assert self.average is not None
        old_state = self.average.state_dict()
        count = old_state.pop("n_averaged")
        shapes = {f"module.{name}": tensor.shape for name, tensor in module.state_dict().items()}
        if shapes == {name: tensor.shape for name, tensor in old_state.items()}:
            return
        self.setup(trainer, module, "fit")
        unchanged = {name: tensor for name, tensor in old_state.items() if shapes.get(name) == tensor.shape}
        self.average.load_state_dict({**self.average.state_dict(), **unchanged, "n_averaged": count})


def _mixed(max_decay: float, mean: Tensor, weights: Tensor, rounds: Tensor) -> Tensor:
    decay = ((1 + rounds) / (10 + rounds)).clamp(max=max_decay)
    return decay * mean + (1 - decay) * weights


@contextmanager
def weights_evaluated(trainer: FederatedTrainer, module: FederatedLightningModule) -> Iterator[None]:
    """Swaps in the weights to evaluate during training: the running mean if there is one."""
    callbacks = trainer.callbacks if trainer.state.fn == "fit" else []
    averages = [callback for callback in callbacks if isinstance(callback, WeightAverage)]
    for average in averages:
        average.swap(module)
    try:
        yield
    finally:
        for average in averages:
            average.swap(module)
