"""FedNAS' search: the genotype with the greatest architecture parameters."""

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
    """Proposes the genotype that DARTS derives (Liu et al., 2019, section 2.4), if it fits the tier."""

    field: ClassVar[str] = "search.method"
    supernet_kind: ClassVar[type] = CellSupernet

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        supernet = feasible.costs.supernet
        self.check_supernet(supernet)
        genotype = cast(CellSupernet, supernet).derive_genotype()
        if feasible.fits(genotype):
            yield [genotype]
