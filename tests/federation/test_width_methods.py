"""The methods that scale width, as whole runs: where one becomes another, it equals it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import ClassAverage, OverlapAverage
from lit_fednas.assignment import ByTier, InvariantUnits, RandomBases, RollingWidths
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedCallback, UniformCohort
from lit_fednas.objectives import (
    CrossEntropy,
    IndependentBases,
    MaskedCrossEntropy,
    OrderedDropout,
    Proximal,
    UnitChanges,
)
from lit_fednas.supernets import (
    BaseNetworks,
    BatchNorm,
    GrowableViT,
    PlainNetwork,
    SlicedCNN,
    UnitMask,
    Width,
    WidthSupernet,
)
from lit_fednas.tiers import ArchitectureTiers, ClientTiers
from tests.support import assert_same, fit, make_module, sgd, tiny_data, weights

ROUNDS, SHAPE, CLASSES = 3, (1, 8, 8), 4
FAMILY = SlicedCNN((8, 16), BatchNorm())


def net(widths=(1, 0.5, 0.25), scaler=False, family=FAMILY) -> WidthSupernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WidthSupernet(SHAPE, CLASSES, family, widths, scaler)


def tiers(**archs: str) -> ClientTiers:
    return ClientTiers(ArchitectureTiers(archs or {"small": "smallest", "large": "largest"}))


def method(supernet: Any, **settings: Any) -> Any:
    return make_module(
        **{
            "supernet": supernet,
            "cohort": UniformCohort(count=4),
            "client": ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, epochs=2, clip_norm=1.0),
            "evaluation": EvaluationSettings(["largest"]),
            "aggregation": OverlapAverage(),
            **settings,
        }
    )


def trained(module: Any, rounds: int = ROUNDS, *callbacks: Any) -> dict[str, Tensor]:
    data = tiny_data(7, partitioner=Dirichlet(alpha=1.0, min_size=4))
    before = weights(module)
    fit(module, data, rounds, callbacks=list(callbacks))
    after = weights(module)
    assert any(not torch.equal(after[name], before[name]) for name in before)
    return after


def fedavg() -> dict[str, Tensor]:
    """Federated averaging of the whole network, as an ordinary one."""
    return trained(method(PlainNetwork(copy.deepcopy(net().network), SHAPE, CLASSES)))


@pytest.mark.parametrize("scaler", [False, True])
def test_heterofl_with_one_level_is_federated_averaging(scaler):
    one = method(net([1], scaler), tiers=tiers(all="largest"), assignment=ByTier())
    assert_same(trained(one), fedavg())


def test_fjord_with_one_width_is_federated_averaging():
    for distill in (False, True):
        objective = OrderedDropout(distill=distill)
        one = method(net([1]), tiers=tiers(all="largest"), assignment=ByTier(), objective=objective)
        assert_same(trained(one), fedavg())


def test_fedrolex_with_a_still_window_is_heterofl():
    rolex = method(net(), tiers=tiers(), assignment=RollingWidths(step=0))
    heterofl = method(net(), tiers=tiers(), assignment=ByTier())
    after = trained(heterofl)
    assert_same(trained(rolex), after)
    rolling = trained(method(net(), tiers=tiers(), assignment=RollingWidths(step=1)))
    assert any(not torch.equal(rolling[name], after[name]) for name in after)


def test_splitmix_with_one_base_is_federated_averaging():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bases = BaseNetworks(SHAPE, CLASSES, FAMILY, count=1)
    everyone = {"tiers": tiers(all="largest"), "assignment": RandomBases(), "objective": IndependentBases()}
    after = trained(method(bases, **everyone))
    whole = PlainNetwork(copy.deepcopy(net().network), SHAPE, CLASSES)
    with torch.no_grad():  # drawn alike, whatever wraps it
        for name, tensor in whole.network.state_dict().items():
            tensor.copy_(_first_base()[name])
    want = trained(method(whole))
    assert {name.removeprefix("networks.0."): tensor for name, tensor in after.items()}.keys() == {
        name.removeprefix("network.") for name in want
    }
    for name, tensor in after.items():
        assert torch.equal(tensor, want[name.replace("networks.0.", "network.")]), name


def _first_base() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks(SHAPE, CLASSES, FAMILY, count=1).networks[0].state_dict()


def test_without_stragglers_invariant_dropout_is_federated_averaging():
    objective = UnitChanges(CrossEntropy())
    one = method(net([1]), tiers=tiers(all="largest"), assignment=InvariantUnits(), objective=objective)
    assert_same(trained(one), fedavg())


def test_a_proximal_term_of_nothing_is_the_method_itself():
    plain = trained(method(net(), tiers=tiers(), assignment=ByTier(), objective=OrderedDropout()))
    around = method(net(), tiers=tiers(), assignment=ByTier(), objective=Proximal(OrderedDropout(), mu=0.0))
    assert_same(trained(around), plain)
    pulled = method(net(), tiers=tiers(), assignment=ByTier(), objective=Proximal(OrderedDropout(), mu=1.0))
    assert any(not torch.equal(tensor, plain[name]) for name, tensor in trained(pulled).items())


def test_who_has_all_classes_needs_no_mask():
    everyone: dict[str, Any] = {"tiers": tiers(), "assignment": ByTier(), "cohort": UniformCohort(ratio=1.0)}
    masked = method(net(), objective=MaskedCrossEntropy(), aggregation=ClassAverage(), **everyone)
    plain = method(net(), **everyone)
    whole = tiny_data(3)  # 40 examples each, of 4 classes
    fit(masked, whole, ROUNDS)
    fit(plain, tiny_data(3), ROUNDS)
    assert all(whole.clients.classes(client) == (0, 1, 2, 3) for client in range(3))
    assert_same(weights(masked), weights(plain), rtol=1e-5, atol=1e-6)


class Assigned(FederatedCallback):
    """Keeps what each round's clients were asked to train."""

    def __init__(self) -> None:
        self.archs: list[dict[str, Any]] = []

    def on_cohort_start(self, trainer, module, round):
        self.archs.append({task.tier: task.arch for task in round.tasks})


@pytest.mark.parametrize("family", [FAMILY, GrowableViT(dim=16, heads=4, depth=1, patch_size=4)])
def test_invariant_dropout_leaves_units_out_once_it_has_seen_changes(family):
    seen = Assigned()
    module = method(
        net((1, 0.5), family=family),
        tiers=tiers(),
        assignment=InvariantUnits(),
        objective=UnitChanges(CrossEntropy()),
        cohort=UniformCohort(ratio=1.0),
    )
    trained(module, 3, seen)
    assert seen.archs[0] == {"small": Width(0.5), "large": Width(1.0)}
    for archs in seen.archs[1:]:
        assert isinstance(archs["small"], UnitMask)
        sizes = module.supernet.sizes(0.5)
        assert [len(kept) for kept in archs["small"].units] == [sizes[group] for group in module.supernet.units]
        assert archs["large"] == Width(1.0)
