"""The running mean of the server's weights over rounds, which moves less with a round's clients.

Polyak and Juditsky, 1992; for federated averaging as server-side averaging.
"""

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

    After n rounds the decay is at most (1 + n) / (10 + n), so that the first rounds' weights do not stay in the mean of
    a short run.

    Clients receive the weights themselves, and train as without it. The mean is validated; checkpoints hold it as the
    supernet's weights, so that search, fine-tuning, ``test`` and export use it; and the module has it once training
    ends. Checkpoints keep the weights, too (``current_model_state``), so a resumed run continues exactly.

    Tensors that are added during training, or whose shape changes, start their mean again. In a list of callbacks it
    comes after those that change the supernet and before those that evaluate.

    Args:
        decay: The weight of the mean so far; 0.9 averages about the last ten rounds.
    """

    def __init__(self, decay: ShareBelowOne = 0.9) -> None:
        super().__init__(avg_fn=partial(_mixed, decay))
        self.decay = decay

    def on_train_batch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, *batch: Any) -> None:
        """Follows the supernet's structure, then adds the round's weights to the mean."""
        self._follow(trainer, pl_module)
        super().on_train_batch_end(trainer, pl_module, *batch)

    def on_load_checkpoint(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restores the weights and their mean; without fitting, the checkpoint's weights are the mean."""
        if self.average is not None:
            self._follow(trainer, pl_module)
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def _follow(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        """Synchronises the mean's structure with the supernet's."""
        assert self.average is not None
        before = self.average.state_dict()
        count = before.pop("n_averaged")
        shapes = {f"module.{name}": tensor.shape for name, tensor in module.state_dict().items()}
        if shapes == {name: tensor.shape for name, tensor in before.items()}:
            return
        self.setup(trainer, module, "fit")
        kept = {name: tensor for name, tensor in before.items() if shapes.get(name) == tensor.shape}
        self.average.load_state_dict({**self.average.state_dict(), **kept, "n_averaged": count})


def _mixed(most: float, mean: Tensor, weights: Tensor, rounds: Tensor) -> Tensor:
    decay = ((1 + rounds) / (10 + rounds)).clamp(max=most)
    return decay * mean + (1 - decay) * weights


@contextmanager
def weights_evaluated(trainer: FederatedTrainer, module: FederatedLightningModule) -> Iterator[None]:
    """Swaps in the weights that are evaluated while training: the running mean, if there is one."""
    averages = [each for each in trainer.callbacks if isinstance(each, WeightAverage) and trainer.state.fn == "fit"]
    for average in averages:
        average.swap(module)
    try:
        yield
    finally:
        for average in averages:
            average.swap(module)
