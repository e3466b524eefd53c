"""FedNAS' search: the genotype that the architecture parameters favour."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from typing_extensions import override

from lit_fednas.parts import Part
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod
from lit_fednas.supernets import CellSupernet


@dataclass(frozen=True)
class DeriveGenotype(SearchMethod, Part):
    """Proposes the genotype derived from the supernet's architecture parameters, if it fits the tier.

    DARTS' derivation (Liu et al., 2019, section 2.4), as FedNAS' search.

    Raises:
        ConfigError: The supernet has no architecture parameters, once it is known.
    """

    field: ClassVar[str] = "search.method"
    supernet_kind: ClassVar[type] = CellSupernet

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        supernet = feasible.costs.supernet
        self.check_supernet(supernet)
        genotype = cast(CellSupernet, supernet).derive_genotype()
        if feasible.fits(genotype):
            yield [genotype]
