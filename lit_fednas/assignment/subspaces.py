"""FedorAS' subspace sampling (section 3.1, Eq. 1): what each client is sent of a supernet of operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveFloat, PositiveShare, checked
from lit_fednas.supernets import Operators, PathSampler, PathSupernet, Supernet, labelled_space, path_sampler
from lit_fednas.tiers import Population, Tier

_EVERYBODY = Tier("*", {})  # where there are no tiers


@checked("assignment")
@dataclass(eq=False)
class Subspaces(Assignment):
    """Every client receives a subspace that fits the communication budget.

    For each client anew, operators are taken out of the supernet, all with the same chance, until the rest fits.
    Operators without weights are always sent; a layer without such operators keeps at least one, which is drawn first
    and such that the client's own budget of computation allows a path (the paper's "layers without such options are
    prioritised"). The budget is on the whole message: half of the supernet in FedorAS (section 4.1).

    Args:
        share: The budget as a share of the whole supernet's size.
        at_most: The budget itself instead, in units of ``size``.
        size: What is counted: ``parameters``, or ``bytes``, which include buffers.
        labels: The label set that everybody trains on; that of a client's tier if not given.

    Raises:
        ConfigError: Not exactly one of share and at_most is given, or it is out of range; the supernet is not one
            of operators; or no subspace fits (reported before training).

    Example:
        >>> from lit_fednas.supernets import PathCNN
        >>> net = PathCNN((3, 8, 8), 10, width=8, stage_layers=[2], strides=[2])
        >>> half = Subspaces(share=0.5)
        >>> half.setup(net, Population(num_clients=1))
        >>> sent = half.draw(0, np.random.default_rng(0))
        >>> 0 < net.cost(sent).parameters <= net.cost(net.space.superset).parameters / 2
        True
    """

    supernet_kind: ClassVar[type] = PathSupernet
    depends_on = "client"

    share: PositiveShare | None = None
    at_most: PositiveFloat | None = None
    size: Literal["parameters", "bytes"] = "parameters"
    labels: str | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.at_most is None):
            raise ConfigError(f"assignment: share {self.share} and at_most {self.at_most}; give one of the two")

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._sizes = self._supernet.path_costs(self.size)
        space = self._supernet.space
        self.budget = float(self._sizes.sent(space.superset) * self.share if self.share else self.at_most or 0)
        if self.labels is not None:
            labelled_space(space, self.labels, "assignment.labels")  # raises if the set is unknown
        for tier in population.tiers or (_EVERYBODY,):
            least = self._least(tier)
            if self.budget < least:
                raise ConfigError(
                    f"assignment.{'share' if self.share else 'at_most'}: a budget of {self.budget:g} {self.size} "
                    f"may not hold the fixed parts and one operator in every layer that has none without weights, "
                    f"{least:g}; raise it, or add id to supernet.operators"
                )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.draw(client, round.rng)) for client in round.cohort]

    def draw(self, client: int, rng: np.random.Generator) -> Operators:
        """Returns operators whose weights, with the fixed parts, are within the communication budget."""
        tier = self._population.tier(client) or _EVERYBODY
        space = self._supernet.space
        held = self._supported(tier)
        kept = [{name for name, size in layer.items() if size == 0} for layer in held]
        for layer, operator in enumerate(self._sampler(tier).sample(rng).path):
            kept[layer] = kept[layer] or {operator}
        labels = self.labels or tier.labels
        size = self._sizes.base(labels) + sum(sum(layer.values()) for layer in held)
        removable = [(layer, name) for layer, sizes in enumerate(held) for name in sizes if name not in kept[layer]]
        for index in rng.permutation(len(removable)):
            layer, name = removable[index]
            if size <= self.budget:
                kept[layer].add(name)
            else:
                size -= held[layer][name]
        layers = zip(space.choices, kept, strict=True)
        return Operators(tuple(tuple(one for one in names if one in chosen) for names, chosen in layers), labels)

    def _supported(self, tier: Tier) -> list[dict[str, int]]:
        """Returns, per layer, the operators that a tier's devices can run, and their sizes."""
        return [
            {name: size for name, size in layer.items() if name not in tier.unsupported}
            for layer in self._sizes.held(self._supernet.space.superset)
        ]

    def _sampler(self, tier: Tier) -> PathSampler:
        """Returns a sampler of paths that the client can compute; layers without free operators keep one."""
        everything = replace(self._supernet.space.superset, labels=self.labels or tier.labels)
        return path_sampler(self._supernet, everything, tier.at_most, tier.unsupported, tier.name)

    def _least(self, tier: Tier) -> int:
        """Returns a budget that every draw for a tier can be reduced to."""
        self._sampler(tier)  # reported before training, if it cannot compute any path
        layers = [list(layer.values()) for layer in self._supported(tier)]
        return self._sizes.base(self.labels or tier.labels) + sum(max(sizes) for sizes in layers if 0 not in sizes)
