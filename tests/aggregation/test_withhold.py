"""Updates that the server does not ask for leave no trace."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.aggregation import Aggregation, OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate
from lit_fednas.supernets import Model, SlicedCNN, WidthSupernet
from tests.supernets.sequences import pruned_sequence


def rounds(supernet, archs: dict, withheld=()):
    """The aggregate of a client per architecture, each sending one number everywhere."""
    tasks = [ClientTask(0, client, arch, 2 + client) for client, arch in enumerate(archs)]
    average = OverlapAverage()
    average.start(supernet, tasks)
    for task in tasks:
        value = archs[task.arch]
        weights = {name: torch.full_like(tensor, value) for name, tensor in supernet.views(task.arch).items()}
        average.add(ClientUpdate(task, weights, 1, 1, 0.0))
    for arch in withheld:
        average.withhold(arch)
    return average.finish()


def test_networks_side_by_side_keep_what_they_had() -> None:
    sequence = pruned_sequence(candidates=True)
    one, other = Model(1, "conv1"), Model(1, "conv2")
    found = rounds(sequence, {one: 1.0, other: 2.0}, withheld=[other])
    for name, tensor in sequence.shared_tensors().items():
        if name.startswith("candidates.0."):
            assert torch.equal(found[name], torch.ones_like(tensor))
        else:
            assert torch.equal(found[name], tensor)


def test_a_part_of_the_weights_keeps_what_it_had() -> None:
    supernet = WidthSupernet((1, 8, 8), 4, SlicedCNN((4, 6), norm=None), widths=[1, 0.5])
    narrow = supernet.space.smallest
    assert any(region.index is not None for region in supernet.regions(narrow).values())
    assert not torch.equal(
        rounds(supernet, {narrow: 1.0})["network.layer0.conv.weight"], supernet.network.layer0.conv.weight
    )
    found = rounds(supernet, {narrow: 1.0}, withheld=[narrow])
    for name, tensor in supernet.shared_tensors().items():
        assert torch.equal(found[name], tensor)


def test_an_aggregation_that_cannot_says_so() -> None:
    with pytest.raises(ConfigError, match="OverlapAverage"):
        Aggregation.withhold(OverlapAverage(), Model(0))
