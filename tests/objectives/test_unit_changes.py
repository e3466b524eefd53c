"""The changes of units in a fit, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.messages import ClientTask, UnitChangeStatistics
from lit_fednas.objectives import UnitChanges
from lit_fednas.supernets import BatchNorm, GroupNorm, NetworkFamily, SlicedCNN, UnitMask, Width, WidthSupernet
from tests.support import NO_DATA, seeded

GROUPS = {"layer0": 4, "layer1": 6}


class Pairs(NetworkFamily):
    """A hidden unit takes two adjacent entries, as the heads of a transformer take several."""

    def units(self, input_shape):
        return {"hidden": 3}

    def build(self, sizes, input_shape, num_classes, scale=1.0):
        entries = 2 * sizes["hidden"]
        return nn.Sequential(nn.Flatten(), nn.Linear(4, entries), nn.Linear(entries, num_classes, bias=False))


def cnn(norm=GroupNorm(2)) -> WidthSupernet:
    return seeded(WidthSupernet, (1, 8, 8), 4, SlicedCNN((4, 6), norm=norm), widths=[1, 0.5])


def changes_of(objective: UnitChanges) -> dict[str, list[float]]:
    (statistics,) = objective.statistics()
    assert isinstance(statistics, UnitChangeStatistics)
    return dict(statistics.changes)


def start_fit(net: WidthSupernet, arch, objective: UnitChanges | None = None) -> tuple[UnitChanges, nn.Module]:
    objective = objective or UnitChanges()
    objective.setup(net, NO_DATA)
    network = net.subnet(arch)
    objective.begin(network, ClientTask(0, 0, arch, 10), torch.Generator())
    return objective, network


def test_a_unit_s_change_by_hand():
    """Weights of 2 become 5, a difference of 3 in any number of them; other units stay, or change in part."""
    net = WidthSupernet((1, 2, 2), 3, Pairs(), widths=[1])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(2.0)
    objective, network = start_fit(net, Width(1.0))
    with torch.no_grad():
        network[1].weight[2:4] = 5.0  # both entries of the second unit, with its bias
        network[1].bias[2:4] = 5.0
        network[1].weight[4] = 4.0  # one of the third unit's two, without its bias: 4 of 10 numbers
        network[2].weight.fill_(9.0)  # outgoing weights of a unit belong to the next layer
    assert changes_of(objective) == {"hidden": pytest.approx([0.0, 1.5, 0.4**0.5])}


def test_statistics_are_no_weights():
    net = cnn(BatchNorm())
    objective, network = start_fit(net, net.space.largest)
    for buffer in network.buffers():
        buffer.add_(1)
    assert changes_of(objective) == {group: [0.0] * full for group, full in GROUPS.items()}


@pytest.mark.parametrize("arch", [Width(0.5), Width(0.5, 2), UnitMask((tuple(range(4)), (0, 1, 2, 5)))])
def test_a_client_with_a_part_sends_nothing(arch):
    net = cnn()
    objective_of_whole, _ = start_fit(net, net.space.largest)  # the objective must forget this fit
    objective, network = start_fit(net, arch, objective_of_whole)
    with torch.no_grad():
        network.layer0.conv.weight += 1
    assert objective.statistics() == (UnitChangeStatistics({}),)
