"""Tests HeteroFL's classifier rows against a loop over single elements."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import ClassAverage, OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClassStatistics, ClientUpdate
from lit_fednas.supernets import Supernet, Width
from lit_fednas.testing.aggregations import aggregate, changed, random_updates, update
from tests.supernets.instances import kept_instance


def by_element(net: Supernet, updates: Sequence[ClientUpdate], classifier: str, weighted: bool) -> dict[str, Tensor]:
    """Returns HeteroFL's average by element; a classifier row counts if the client sends its class."""
    result = {}
    for name, old in net.shared_tensors().items():
        sums = [0.0] * old.numel()
        weights = [0.0] * old.numel()
        for entry in updates:
            weight = entry.task.num_examples if weighted else 1
            for key, region in net.regions(entry.task.arch).items():
                if region.name != name:
                    continue
                where, value = region.of(torch.arange(old.numel()).view(old.shape)), entry.weights[key]
                for row in range(len(where)) if where.dim() else [None]:
                    in_classifier = key in (f"{classifier}.weight", f"{classifier}.bias")
                    if in_classifier and row not in entry.result.find(ClassStatistics).classes:  # type: ignore[union-attr]
                        continue
                    positions, elements = (where, value) if row is None else (where[row], value[row])
                    for position, element in zip(
                        positions.flatten().tolist(), elements.flatten().tolist(), strict=True
                    ):
                        sums[position] += weight * element
                        weights[position] += weight
        old_values = old.flatten().double().tolist()
        mean = [s / w if w else b for s, w, b in zip(sums, weights, old_values, strict=True)]
        result[name] = torch.tensor(mean, dtype=torch.float64).view(old.shape)
    return result


def assert_close(net: Supernet, result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert result.keys() == expected.keys()
    for name, tensor in expected.items():
        atol = 1e-6 if net.shared_tensors()[name].is_floating_point() else 0.5 + 1e-9  # counters are rounded
        torch.testing.assert_close(result[name].double(), tensor, rtol=1e-5, atol=atol, msg=name)


def made_for(name: str, seed: int) -> tuple[Supernet, ClassAverage, list[ClientUpdate]]:
    if name == "windows":
        net: Supernet = kept_instance("widths-cnn")
        mask = net.space.parse("kept: " + "/".join("1,3-4" for _ in net.units))  # type: ignore[attr-defined]
        archs = [Width(0.5, shift=3), mask, Width(1.0), Width(0.5, shift=net.units["layer0"] - 1)]
        updates = [update(net, client, arch, 10 + client, seed) for client, arch in enumerate(archs)]
    else:
        net = kept_instance(name)
        updates = random_updates(net, 4, True, seed)
    draws = torch.Generator().manual_seed(seed)
    classes_of_clients = torch.rand(len(updates), net.num_classes, generator=draws) < 0.4
    classes_of_clients[:, 1] = False  # no client has this class
    classes_of_clients[0, [0, 2]] = True
    sent_classes = [row.nonzero().flatten().tolist() * 2 for row in classes_of_clients]  # duplicates count once
    statistics = map(ClassStatistics, sent_classes)
    updates = [changed(entry, statistics=(item,)) for entry, item in zip(updates, statistics, strict=True)]
    return net, ClassAverage(), updates


@pytest.mark.parametrize("name", ["elastic-batchnorm", "plain", "rolling", "windows"])
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_a_loop_over_elements(name: str, weighted: bool) -> None:
    net, aggregation, updates = made_for(name, seed=int(weighted))
    aggregation.weighted = weighted
    result = aggregate(aggregation, net, updates)
    assert_close(net, result, by_element(net, updates, aggregation.classifier, weighted))
    plain = aggregate(OverlapAverage(weighted), net, updates)
    for key in (f"network.{aggregation.classifier}.{kind}" for kind in ("weight", "bias")):
        assert not torch.allclose(result[key], plain[key])  # the masks have an effect
        assert torch.equal(result[key][1], net.shared_tensors()[key][1].detach())


def test_a_wrong_classifier_is_refused_at_setup() -> None:
    with pytest.raises(
        ConfigError, match=r"aggregation.classifier: 'head' is not a module with .*; choose from classifier"
    ):
        ClassAverage(classifier="head").setup(kept_instance("plain"))
