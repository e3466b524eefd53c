"""Parts of a method that do not fit together are refused in ``setup``, before any client trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from lit_fednas.aggregation import Aggregation, ClassAverage, OperatorAverage, OverlapAverage
from lit_fednas.assignment import (
    Assignment,
    ByUtility,
    CandidateGroups,
    FixedArchitecture,
    InvariantUnits,
    RandomBases,
    RollingWidths,
    Subspaces,
)
from lit_fednas.callbacks import BetaDecay, PruneByBudgets, SoftAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import Report
from lit_fednas.objectives import (
    CrossEntropy,
    MaskedCrossEntropy,
    Objective,
    OrderedDropout,
    PathSampling,
    Proximal,
    UnitChanges,
)
from lit_fednas.supernets import SlicedCNN, Supernet, WidthSupernet
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, TierShares
from tests.support import fit, make_module, tiny_data, tiny_supernet, weights

RATIOS = {"weak": 0.5, "strong": 1}


def cut_net() -> WidthSupernet:
    return WidthSupernet((1, 8, 8), 4, SlicedCNN((4, 6)), widths=[1, 0.5])


def two_tiers() -> ClientTiers:
    return ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}), TierShares([0.5, 0.5]))


class Trained(Exception):
    """A client has begun to train."""


def watched(kind: type[Objective], *args: Any) -> Objective:
    """An objective of this type that does not let any client train."""

    class Watched(kind):  # type: ignore[misc, valid-type]
        def begin(self, network: Any, task: Any, generator: Any) -> None:
            raise Trained

        def loss(self, network: Any, inputs: Any, targets: Any) -> Tensor:
            raise Trained

        def report(self) -> tuple[Report, ...]:
            raise Trained

    Watched.__name__ = kind.__name__
    return Watched(*args)


@pytest.mark.parametrize(
    ("supernet", "parts", "words"),
    [
        (
            tiny_supernet,
            {"objective": lambda: watched(PathSampling)},
            "model.objective: PathSampling does not work with model.supernet ElasticResNet; use PathSupernet",
        ),
        (
            tiny_supernet,
            {"objective": lambda: watched(Proximal, PathSampling())},
            "model.objective: PathSampling does not work with model.supernet ElasticResNet; use PathSupernet",
        ),
        (
            tiny_supernet,
            {"objective": lambda: watched(OrderedDropout)},
            "model.objective: OrderedDropout does not work with model.supernet ElasticResNet; use WidthSupernet",
        ),
        (
            tiny_supernet,
            {"objective": lambda: watched(UnitChanges)},
            "model.objective: UnitChanges does not work with model.supernet ElasticResNet; use WidthSupernet",
        ),
        *[
            (
                tiny_supernet,
                {"assignment": make},
                f"model.assignment: {name} does not work with model.supernet ElasticResNet; use {kind}",
            )
            for name, make, kind in [
                ("ByUtility", ByUtility, "ModelSuite"),
                ("CandidateGroups", CandidateGroups, "PrunedSequence"),
                ("InvariantUnits", InvariantUnits, "WidthSupernet"),
                ("RandomBases", RandomBases, "BaseNetworks"),
                ("RollingWidths", RollingWidths, "WidthSupernet"),
                ("Subspaces", lambda: Subspaces(share=0.5), "PathSupernet"),
            ]
        ],
        (
            tiny_supernet,
            {"aggregation": OperatorAverage},
            "model.aggregation: OperatorAverage needs every client's OperatorReport, which model.objective "
            "CrossEntropy does not give",
        ),
        (
            tiny_supernet,
            {"aggregation": ClassAverage},
            "model.aggregation: ClassAverage needs every client's ClassesReport, which model.objective "
            "CrossEntropy does not give",
        ),
        (
            cut_net,
            {"assignment": lambda: InvariantUnits(RATIOS), "tiers": two_tiers},
            "model.assignment: InvariantUnits needs every client's UnitChangesReport, which model.objective "
            "CrossEntropy does not give",
        ),
        (
            cut_net,
            {"aggregation": ClassAverage, "objective": lambda: watched(Proximal, UnitChanges())},
            "model.aggregation: ClassAverage needs every client's ClassesReport, which model.objective "
            "Proximal does not give",
        ),
    ],
)
def test_incompatible_parts_are_refused_before_a_client_trains(
    supernet: Callable[[], Supernet], parts: dict[str, Callable[[], Any]], words: str
) -> None:
    made = {"objective": watched(CrossEntropy), **{name: make() for name, make in parts.items()}}
    module = make_module(supernet(), **made)
    before = weights(module)
    with pytest.raises(ConfigError, match=f"^{words}"):
        fit(module, tiny_data(), max_rounds=1)
    assert all(tensor.equal(before[name]) for name, tensor in weights(module).items())


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (
            SoftAverage,
            "soft_average: SoftAverage does not work with model.supernet ElasticResNet; use ModelSuite",
        ),
        (
            lambda: PruneByBudgets(0.5),
            "prune_by_budgets: PruneByBudgets does not work with .* ElasticResNet; use PrunedSequence",
        ),
    ],
)
def test_callbacks_of_another_supernet_are_refused_before_a_client_trains(
    callback: Callable[[], Any], words: str
) -> None:
    module = make_module(objective=watched(CrossEntropy))
    with pytest.raises(ConfigError, match=f"^{words}"):
        fit(module, tiny_data(), max_rounds=1, callbacks=[callback()])


def test_a_value_that_no_part_reads_is_refused() -> None:
    module = make_module(objective=watched(CrossEntropy))
    words = "beta_decay: gives a Beta, which neither model.assignment FixedArchitecture nor model.aggregation Overlap"
    with pytest.raises(ConfigError, match=words):
        fit(module, tiny_data(), max_rounds=1, callbacks=[BetaDecay()])


@pytest.mark.parametrize(
    ("aggregation", "assignment", "objective"),
    [
        (ClassAverage(), FixedArchitecture(), MaskedCrossEntropy()),
        (ClassAverage(), FixedArchitecture(), Proximal(MaskedCrossEntropy())),
        (ClassAverage(), FixedArchitecture(), OrderedDropout(MaskedCrossEntropy())),
        (OverlapAverage(), InvariantUnits(RATIOS), UnitChanges()),
        (OverlapAverage(), InvariantUnits(RATIOS), Proximal(UnitChanges())),
        (ClassAverage(), InvariantUnits(RATIOS), UnitChanges(MaskedCrossEntropy())),
    ],
)
def test_parts_that_fit_train(aggregation: Aggregation, assignment: Assignment, objective: Objective) -> None:
    """An objective inside another one reports through it."""
    module = make_module(cut_net(), assignment, aggregation, objective=objective, tiers=two_tiers())
    before = weights(module)
    fit(module, tiny_data(), max_rounds=1)
    assert any(not tensor.equal(before[name]) for name, tensor in weights(module).items())
