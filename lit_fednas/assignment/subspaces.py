"""FedorAS' subspaces: sets of operators within a communication budget (section 3.1, Eq. 1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveShare, checked
from lit_fednas.supernets import Operators, PathSampler, PathSupernet, Supernet, path_sampler
from lit_fednas.tiers import EVERYBODY, Population, Tier


@checked("assignment")
@dataclass(eq=False)
class Subspaces(Assignment):
    """Every client receives a subspace within the communication budget.

    For each client, random operators are removed from the supernet until the rest is within the budget. Operators
    without weights are always sent. A layer without such operators keeps at least one, from a path that is drawn first
    and within the client's limits. The budget limits the whole message: half of the supernet in FedorAS (section 4.1).

    Args:
        share: The budget as a share of the whole supernet's size.
        size: The unit of the budget: ``parameters``, or ``bytes``, which include buffers.

    Raises:
        ConfigError: The share is out of range; before training: the supernet has no operators, or the share is
            too low.
    """

    supernet_kind: ClassVar[type] = PathSupernet
    depends_on = "client"

    share: PositiveShare = 0.5
    size: Literal["parameters", "bytes"] = "parameters"

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._sizes = self._supernet.path_costs(self.size)
        self.budget = float(self._sizes.sent(self._supernet.space.superset) * self.share)
        for tier in population.tiers or (EVERYBODY,):
            self._sampler(tier)  # raises an error before training if the tier cannot compute any path
            # Every draw for the tier can be reduced to this size.
            layer_sizes = [layer.values() for layer in self._supported(tier)]
            min_size = self._sizes.fixed + sum(max(sizes) for sizes in layer_sizes if 0 not in sizes)
            if self.budget < min_size:
                raise ConfigError(
                    f"assignment.share: {self.budget:g} {self.size} may be less than the fixed parts and an operator "
                    f"in each layer without a weightless one, {min_size:g}; raise it, or add id to supernet.operators"
                )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.draw(client, round.rng)) for client in round.cohort]

    def draw(self, client: int, rng: np.random.Generator) -> Operators:
        """Returns operators that are, with the fixed parts, within the communication budget."""
        tier = self._population.tier(client)
        operators = self._supported(tier)
        selected = [{name for name, size in layer.items() if size == 0} for layer in operators]
        path, _ = self._sampler(tier).sample(rng)
        for layer, operator in enumerate(path):
            selected[layer] = selected[layer] or {operator}
        size = self._sizes.fixed + sum(sum(layer.values()) for layer in operators)
        removable = [
            (layer, name) for layer, sizes in enumerate(operators) for name in sizes if name not in selected[layer]
        ]
        for index in rng.permutation(len(removable)):
            layer, name = removable[index]
            if size <= self.budget:
                selected[layer].add(name)
            else:
                size -= operators[layer][name]
        layers = zip(self._supernet.space.choices, selected, strict=True)
        return Operators(tuple(tuple(name for name in names if name in subset) for names, subset in layers))

    def _supported(self, tier: Tier) -> list[dict[str, int]]:
        """Returns the sizes of the operators that a tier's devices can run, by layer."""
        return [
            {name: size for name, size in layer.items() if name not in tier.unsupported}
            for layer in self._sizes.operator_costs(self._supernet.space.superset)
        ]

    def _sampler(self, tier: Tier) -> PathSampler:
        """Returns a sampler of paths within a tier's limits."""
        return path_sampler(self._supernet, self._supernet.space.superset, tier.at_most, tier.unsupported, tier.name)
