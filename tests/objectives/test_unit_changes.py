"""How far each unit went: by hand, and in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lit_fednas.messages import ClientTask, UnitChangesReport
from lit_fednas.objectives import UnitChanges
from lit_fednas.supernets import BatchNorm, GroupNorm
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.space import UnitMask, Width
from lit_fednas.supernets.width.supernet import WidthSupernet
from tests.support import NO_DATA

GROUPS = {"layer0": 4, "layer1": 6}
SIZED = ("conv.weight", "conv.bias", "norm.weight", "norm.bias")


class Pairs(NetworkFamily):
    """A hidden unit takes two adjacent entries, as the heads of a transformer take several."""

    def units(self, input_shape):
        return {"hidden": 3}

    def build(self, sizes, input_shape, num_classes, scale=1.0):
        entries = 2 * sizes["hidden"]
        return nn.Sequential(nn.Flatten(), nn.Linear(4, entries), nn.Linear(entries, num_classes, bias=False))


def cnn(norm=GroupNorm(2)) -> WidthSupernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WidthSupernet((1, 8, 8), 4, SlicedCNN((4, 6), norm=norm), widths=[1, 0.5])


def changes_of(objective: UnitChanges) -> dict[str, list[float]]:
    (report,) = objective.report()
    assert isinstance(report, UnitChangesReport)
    return dict(report.changes)


def begun(net: WidthSupernet, arch, objective: UnitChanges | None = None) -> tuple[UnitChanges, nn.Module]:
    objective = objective or UnitChanges()
    objective.setup(net, NO_DATA)
    network = net.subnet(arch)
    objective.begin(network, ClientTask(0, 0, arch, 10), torch.Generator())
    return objective, network


def test_a_unit_s_change_by_hand():
    """Weights of 2 that become 5: a difference of 3, whatever their number; others stay, or change by half."""
    net = WidthSupernet((1, 2, 2), 3, Pairs(), widths=[1])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(2.0)
    objective, network = begun(net, Width(1.0))
    with torch.no_grad():
        network[1].weight[2:4] = 5.0  # both entries of the second unit, with its bias
        network[1].bias[2:4] = 5.0
        network[1].weight[4] = 4.0  # one of the third unit's two, without its bias: 4 of 10 numbers
        network[2].weight.fill_(9.0)  # what goes out of a unit is the next layer's
    assert changes_of(objective) == {"hidden": pytest.approx([0.0, 1.5, 0.4**0.5])}


def test_all_that_comes_into_a_unit_counts():
    """Against loops over the tensors, named by hand, in numpy."""
    net = cnn()
    objective, network = begun(net, net.space.largest)
    before = {name: tensor.detach().numpy().copy() for name, tensor in network.named_parameters()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    after = {name: tensor.detach().numpy() for name, tensor in network.named_parameters()}
    changes = changes_of(objective)
    assert {group: len(units) for group, units in changes.items()} == GROUPS
    for group, full in GROUPS.items():
        for unit in range(full):
            moved = was = 0.0
            for part in SIZED:
                name = f"{group}.{part}"
                moved += ((after[name][unit] - before[name][unit]) ** 2).sum()
                was += (before[name][unit] ** 2).sum()
            assert changes[group][unit] == pytest.approx(np.sqrt(moved / was), rel=1e-5), (group, unit)
            assert isinstance(changes[group][unit], float)


def test_statistics_are_no_weights():
    net = cnn(BatchNorm())
    objective, network = begun(net, net.space.largest)
    for buffer in network.buffers():
        buffer.add_(1)
    assert changes_of(objective) == {group: [0.0] * full for group, full in GROUPS.items()}


def test_the_memory_format_does_not_matter():
    net = cnn()
    objective, network = begun(net, net.space.largest)
    with torch.no_grad():
        network.layer1.conv.weight[2] *= 3
    expected = changes_of(objective)
    network = net.subnet(net.space.largest).to(memory_format=torch.channels_last)
    objective.begin(network, ClientTask(0, 0, net.space.largest, 10), torch.Generator())
    with torch.no_grad():
        network.layer1.conv.weight[2] *= 3
    assert changes_of(objective) == expected
    assert expected["layer1"][2] > 0


def test_a_unit_without_weights_has_a_finite_change():
    net = cnn()
    with torch.no_grad():
        for name in SIZED:
            net.get_parameter(f"network.layer0.{name}")[1] = 0.0
    objective, network = begun(net, net.space.largest)
    with torch.no_grad():
        network.layer0.conv.bias[1] = 1e-3
    changes = changes_of(objective)["layer0"]
    assert 1e6 < changes[1] < float("inf")
    assert changes[0] == 0.0


@pytest.mark.parametrize("arch", [Width(0.5), Width(0.5, 2), UnitMask((tuple(range(4)), (0, 1, 2, 5)))])
def test_who_trains_a_part_reports_nothing(arch):
    net = cnn()
    begin_whole, _ = begun(net, net.space.largest)  # so that there is something to be forgotten
    objective, network = begun(net, arch, begin_whole)
    with torch.no_grad():
        network.layer0.conv.weight += 1
    assert objective.report() == (UnitChangesReport({}),)
