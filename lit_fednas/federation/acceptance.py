"""Which updates of a round count, before they are merged: all of them, or those within a bound on their norms.

The bound is relative to the cohort (Sun et al., 2019, "Can you really backdoor federated learning?", section 4.1).
Sub-networks hold different tensors, so norms are compared tensor by tensor: in each, the cohort's median is taken over
the root mean squares of its changes, of the clients that changed it; where fewer than three did, over those of whole
updates. An update is compared with the norm that it would have if it changed each of its tensors by that median.
Parameters and running statistics are compared apart, and the larger of their two ratios counts.
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
    """Which updates of a round count: all, as they come. A rule that judges them together holds them until then."""

    evidence: Any = None  # on the updates that this rank holds, for the other ranks

    def hold(self, update: ClientUpdate) -> bool:
        """Copies an update if it is to be judged with the others; returns whether it is."""
        return False

    def judge(self, evidence: Sequence[Any]) -> Callable[[ClientResult], Outcome | None]:
        """Returns what judges a result by the evidence of all ranks; ``None`` if its update was not held."""
        return lambda result: None


@dataclass
class NormBound(Acceptance):
    """Updates whose norm stands out are rejected."""

    supernet: Supernet
    bound: float
    evidence: dict[Hashable, Changes] = field(default_factory=dict)
    _updates: dict[Hashable, ClientUpdate] = field(default_factory=dict)

    @torch.no_grad()
    @override
    def hold(self, update: ClientUpdate) -> bool:
        sent, changes = self.supernet.views(update.task.arch), defaultdict[str, tuple[float, int]](lambda: (0.0, 0))
        for name, region in self.supernet.regions(update.task.arch).items():
            if sent[name].is_floating_point():
                norm = torch.linalg.vector_norm(update.weights[name] - sent[name], dtype=torch.float64)
                squares, elements = changes[region.name]
                changes[region.name] = (squares + float(norm) ** 2, elements + sent[name].numel())
        weights = {name: tensor.clone() for name, tensor in update.weights.items()}
        self.evidence[update.task.key] = dict(changes)
        self._updates[update.task.key] = replace(update, weights=weights)
        return True

    @override
    def judge(self, evidence: Sequence[Mapping[Hashable, Changes]]) -> Callable[[ClientResult], Outcome | None]:
        ratios = self.ratios({update: changes for of_rank in evidence for update, changes in of_rank.items()})
        held, self.evidence, self._updates = self._updates, {}, {}

        def judged(result: ClientResult) -> Outcome | None:
            if (ratio := ratios.get(result.task.key)) is None:
                return None
            if ratio <= self.bound:
                return result, held.get(result.task.key)
            reason = f"its norm is {ratio:.3g} times the cohort's median, faults.norm_bound is {self.bound:g}"
            return result.rejected(WILD, f"the update is not used: {reason}"), None

        return judged

    def ratios(self, changes: Mapping[Hashable, Changes]) -> dict[Hashable, float]:
        """Returns each update's norm as a multiple of the cohort's median at its size."""
        parameters = {name for name, _ in self.supernet.named_parameters()}

        def of_kind(is_trained: bool) -> dict[Hashable, Changes]:
            return {
                update: {name: change for name, change in tensors.items() if (name in parameters) is is_trained}
                for update, tensors in changes.items()
            }

        trained, statistics = _ratios(of_kind(True)), _ratios(of_kind(False))
        return {update: max(trained[update], statistics[update]) for update in changes}


def _ratios(changes: Mapping[Hashable, Changes]) -> dict[Hashable, float]:
    """Returns each update's norm as a multiple of that of the median change of the same tensors."""
    squares = {update: sum(square for square, _ in tensors.values()) for update, tensors in changes.items()}
    sizes: dict[str, list[float]] = defaultdict(list)
    wholes = []
    for update, tensors in changes.items():
        for name, (square, elements) in tensors.items():
            if square > 0:
                sizes[name].append(sqrt(square / elements))
        if squares[update] > 0:
            wholes.append(sqrt(squares[update] / sum(elements for _, elements in tensors.values())))
    medians = {name: median(changed if len(changed) >= 3 else wholes) for name, changed in sizes.items()}
    ratios = {}
    for update, tensors in changes.items():
        expected = sum(elements * medians.get(name, 0.0) ** 2 for name, (_, elements) in tensors.items())
        ratios[update] = sqrt(squares[update] / expected) if expected else 0.0
    return ratios
