"""DepthFL (Kim et al., 2023, "DepthFL: Depthwise Federated Learning for Heterogeneous Clients"), a client's objective.

A client trains as many layers as it can, with a classifier after each stage. Its loss is the sum of all classifiers'
cross-entropies, and a mutual distillation: for each classifier the mean over the others of KL(q_other || q_own), Eq. 1.
"""

from torch import nn
from torch.nn import functional

from lit_fednas.objectives import Objective, TaskLoss, WrappedObjective


class DepthFL(WrappedObjective):
    """All exits learn from the labels and from each other; ``consistency`` weighs the latter."""

    compilable = False  # it runs parts of the network

    def __init__(self, objective: Objective = TaskLoss(), consistency: float = 1.0) -> None:
        super().__init__(objective)
        self.consistency = consistency

    def loss(self, network, inputs, targets):
        exits = network.outputs(inputs)
        loss = sum(self.objective.loss(nn.Identity(), logits, targets) for logits in exits)
        for own in exits:
            others = [other.detach() for other in exits if other is not own]
            loss += self.consistency * sum(self.divergence(own, other) for other in others) / max(len(others), 1)
        return loss

    @staticmethod
    def divergence(own, other):
        """KL(q_other || q_own), the mean over the batch."""
        logs = own.log_softmax(-1), other.log_softmax(-1)
        return functional.kl_div(*logs, reduction="batchmean", log_target=True)
