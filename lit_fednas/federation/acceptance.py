"""Rules that accept or reject the updates of a round before they are merged.

The bound on norms is relative to the cohort (Sun et al., 2019, "Can you really backdoor federated learning?", section
4.1). Clients train different tensors, so changes are compared per tensor: the reference is the cohort's median root
mean square of the changes of this tensor, or of whole updates if fewer than three clients changed it. An update's norm
is divided by the norm of an update that changes the same tensors by their references. Parameters and running statistics
are compared separately, and the larger of the two ratios counts.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import median
from typing import Any

import torch
from typing_extensions import override

from lit_fednas.federation.fit import Outcome
from lit_fednas.messages import WILD, ClientResult, ClientUpdate
from lit_fednas.supernets import Supernet

#: The sum of squares of each shared tensor's change, and the number of its elements.
Changes = Mapping[str, tuple[float, int]]


class Acceptance:
    """Accepts every update at once. A rule that compares updates holds them until all have come."""

    #: Facts about the updates that this rank holds; the ranks exchange them.
    evidence: Any = None

    def hold(self, update: ClientUpdate) -> bool:
        """Copies an update that waits for the others; returns whether it waits."""
        return False

    def judge(self, evidence: Sequence[Any]) -> Callable[[ClientResult], Outcome | None]:
        """Returns a function that gives a result's outcome by all ranks' evidence; ``None`` for updates not held."""
        return lambda result: None


@dataclass
class NormBound(Acceptance):
    """Rejects updates with a norm far above the cohort's median."""

    supernet: Supernet
    bound: float
    evidence: dict[Hashable, Changes] = field(default_factory=dict)
    _updates: dict[Hashable, ClientUpdate] = field(default_factory=dict)

    @torch.no_grad()
    @override
    def hold(self, update: ClientUpdate) -> bool:
        received = self.supernet.views(update.task.arch)
        changes = defaultdict[str, tuple[float, int]](lambda: (0.0, 0))
        for name, region in self.supernet.regions(update.task.arch).items():
            if received[name].is_floating_point():
                norm = torch.linalg.vector_norm(update.weights[name] - received[name], dtype=torch.float64)
                squares, elements = changes[region.name]
                changes[region.name] = (squares + float(norm) ** 2, elements + received[name].numel())
        weights = {name: tensor.clone() for name, tensor in update.weights.items()}
        self.evidence[update.task.key] = dict(changes)
        self._updates[update.task.key] = replace(update, weights=weights)
        return True

    @override
    def judge(self, evidence: Sequence[Mapping[Hashable, Changes]]) -> Callable[[ClientResult], Outcome | None]:
        ratios = self.ratios({key: changes for facts in evidence for key, changes in facts.items()})
        updates, self.evidence, self._updates = self._updates, {}, {}

        def outcome(result: ClientResult) -> Outcome | None:
            if (ratio := ratios.get(result.task.key)) is None:
                return None
            if ratio <= self.bound:
                return result, updates.get(result.task.key)
            reason = f"its norm is {ratio:.3g} times the cohort's median, faults.norm_bound is {self.bound:g}"
            return result.rejected(WILD, f"the update is not used: {reason}"), None

        return outcome

    def ratios(self, changes: Mapping[Hashable, Changes]) -> dict[Hashable, float]:
        """Returns each update's norm relative to the cohort's median: the larger ratio of parameters and statistics."""
        parameters = {name for name, _ in self.supernet.named_parameters()}

        def select(are_parameters: bool) -> dict[Hashable, Changes]:
            return {
                key: {name: change for name, change in tensors.items() if (name in parameters) is are_parameters}
                for key, tensors in changes.items()
            }

        parameter_ratios, statistic_ratios = _ratios(select(True)), _ratios(select(False))
        return {key: max(parameter_ratios[key], statistic_ratios[key]) for key in changes}


def _ratios(changes: Mapping[Hashable, Changes]) -> dict[Hashable, float]:
    """Returns the ratio of each update's norm to the norm of the median change of the same tensors."""
    squares = {key: sum(square for square, _ in tensors.values()) for key, tensors in changes.items()}
    tensor_sizes: dict[str, list[float]] = defaultdict(list)
    update_sizes = []
    for key, tensors in changes.items():
        for name, (square, elements) in tensors.items():
            if square > 0:
                tensor_sizes[name].append(sqrt(square / elements))
        if squares[key] > 0:
            update_sizes.append(sqrt(squares[key] / sum(elements for _, elements in tensors.values())))
    medians = {name: median(sizes if len(sizes) >= 3 else update_sizes) for name, sizes in tensor_sizes.items()}
    ratios = {}
    for key, tensors in changes.items():
        expected = sum(elements * medians.get(name, 0.0) ** 2 for name, (_, elements) in tensors.items())
        ratios[key] = sqrt(squares[key] / expected) if expected else 0.0
    return ratios
