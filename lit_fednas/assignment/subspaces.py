"""FedorAS' subspaces: operators that fit a budget of communication (section 3.1, Eq. 1)."""

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
    """Every client receives a subspace that fits the communication budget.

    For each client anew, operators are taken out of the supernet, all with the same chance, until the rest fits.
    Operators without weights are always sent; a layer without such operators keeps at least one, drawn first so that
    the client's limits allow a path. The budget is on the whole message: half of the supernet in FedorAS (section 4.1).

    Args:
        share: The budget as a share of the whole supernet's size.
        size: What is counted: ``parameters``, or ``bytes``, which include buffers.

    Raises:
        ConfigError: The share is out of range; before training: the supernet is not one of operators, or no subspace
            fits.
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
            self._sampler(tier)  # reported before training, if it cannot compute any path
            # every draw for the tier can be reduced to it
            layers = [layer.values() for layer in self._supported(tier)]
            least = self._sizes.fixed + sum(max(sizes) for sizes in layers if 0 not in sizes)
            if self.budget < least:
                raise ConfigError(
                    f"assignment.share: a budget of {self.budget:g} {self.size} "
                    f"may not hold the fixed parts and one operator in every layer that has none without weights, "
                    f"{least:g}; raise it, or add id to supernet.operators"
                )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.draw(client, round.rng)) for client in round.cohort]

    def draw(self, client: int, rng: np.random.Generator) -> Operators:
        """Returns operators whose weights, with the fixed parts, are within the communication budget."""
        tier = self._population.tier(client)
        held = self._supported(tier)
        kept = [{name for name, size in layer.items() if size == 0} for layer in held]
        path, _ = self._sampler(tier).sample(rng)
        for layer, operator in enumerate(path):
            kept[layer] = kept[layer] or {operator}
        size = self._sizes.fixed + sum(sum(layer.values()) for layer in held)
        removable = [(layer, name) for layer, sizes in enumerate(held) for name in sizes if name not in kept[layer]]
        for index in rng.permutation(len(removable)):
            layer, name = removable[index]
            if size <= self.budget:
                kept[layer].add(name)
            else:
                size -= held[layer][name]
        layers = zip(self._supernet.space.choices, kept, strict=True)
        return Operators(tuple(tuple(name for name in names if name in chosen) for names, chosen in layers))

    def _supported(self, tier: Tier) -> list[dict[str, int]]:
        """Returns, per layer, the operators that a tier's devices can run, and their sizes."""
        return [
            {name: size for name, size in layer.items() if name not in tier.unsupported}
            for layer in self._sizes.held(self._supernet.space.superset)
        ]

    def _sampler(self, tier: Tier) -> PathSampler:
        """Returns a sampler of paths that the client can compute; layers without free operators keep one."""
        return path_sampler(self._supernet, self._supernet.space.superset, tier.at_most, tier.unsupported, tier.name)
