"""Ordered dropout, batch by batch against nets that were cut out by hand, and distillation against its formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import exp, log
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.messages import ClientTask, MacsReport
from lit_fednas.objectives import Objective, OrderedDropout
from lit_fednas.supernets import SlicedCNN, Width, WidthSupernet
from tests.support import NO_DATA, seeded

WIDTHS = [0.25, 0.5, 0.75, 1.0]
SIZES = (8, 8, 5)


class Watched(WidthSupernet):
    """Notes which widths it was asked to run."""

    def __init__(self) -> None:
        super().__init__((1, 8, 8), 4, SlicedCNN((4, 8)), WIDTHS)
        self.asked: list[float] = []

    def run_inside(self, network: nn.Module, arch: Width, x: Tensor) -> Tensor:
        self.asked.append(arch.ratio)
        return super().run_inside(network, arch, x)


NET = seeded(Watched)


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    for number in range(count):
        size = SIZES[number % 3]
        yield torch.randn(size, 1, 8, 8, generator=draws), torch.randint(4, (size,), generator=draws)


def begun(objective: Objective, own: float, seed: int = 0, **settings: Any) -> nn.Module:
    arch = Width(own, **settings)
    network = NET.subnet(arch).train()
    objective.setup(NET, NO_DATA)
    objective.begin(network, ClientTask(0, 3, arch, 21), torch.Generator().manual_seed(seed))
    return network


def drawn_by(own: float, loss: Any) -> tuple[float, Tensor]:
    """The width that a batch's loss ran, and the loss."""
    NET.asked.clear()
    value = loss()
    assert len(NET.asked) <= 1
    return (NET.asked[0] if NET.asked else own), value


def corner(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor[tuple(slice(size) for size in like.shape)]


def cut(network: nn.Module, width: float) -> nn.Module:
    """A narrower network with the corners of another one's weights."""
    narrow = NET.subnet(Width(width)).train()
    with torch.no_grad():
        for one, other in zip(narrow.parameters(), network.parameters(), strict=True):
            one.copy_(corner(other, one))
    return narrow


@pytest.mark.parametrize(("own", "shift"), [(1.0, 0), (0.75, 0), (0.75, 3)])
def test_a_batch_trains_the_corner_of_the_drawn_width_alone(own: float, shift: int) -> None:
    objective = OrderedDropout()
    network = begun(objective, own, shift=shift)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    seen = set()
    for inputs, targets in batches(12):
        optimizer.zero_grad()
        drawn, loss = drawn_by(own, lambda x=inputs, y=targets: objective.loss(network, x, y))
        narrow = cut(network, drawn)
        expected = functional.cross_entropy(narrow(inputs), targets)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        for (name, wide), inside in zip(network.named_parameters(), narrow.parameters(), strict=True):
            assert wide.grad is not None
            assert inside.grad is not None
            torch.testing.assert_close(corner(wide.grad, inside), inside.grad, msg=name)
            corner(wide.grad, inside).zero_()
            assert not wide.grad.any(), name
        seen.add(drawn)
        optimizer.step()
    assert seen == {width for width in WIDTHS if width <= own}


@pytest.mark.parametrize("own", [0.5, 0.75, 1.0])
def test_widths_up_to_the_own_are_drawn_alike(own: float) -> None:
    objective = OrderedDropout()
    network = begun(objective, own)
    inputs, targets = next(batches(1))
    with torch.no_grad():
        drawn = [drawn_by(own, lambda: objective.loss(network, inputs, targets))[0] for _ in range(400)]
    counts = Counter(drawn)
    assert sorted(counts) == [width for width in WIDTHS if width <= own]
    share = 1 / len(counts)
    spread = 5 * (400 * share * (1 - share)) ** 0.5
    assert all(abs(count - 400 * share) < spread for count in counts.values())


def softmax(logits: list[float]) -> list[float]:
    powers = [exp(logit) for logit in logits]
    return [power / sum(powers) for power in powers]


def by_hand(student: Tensor, teacher: Tensor, targets: Tensor) -> float:
    """The mean over examples of the docstring's formula."""
    total = 0.0
    for said, right, target in zip(student.tolist(), teacher.tolist(), targets.tolist(), strict=True):
        p, q = softmax(right), softmax(said)
        total += sum(a * log(a / b) for a, b in zip(p, q, strict=True)) - log(p[target])
    return total / len(targets)


def test_distillation_by_its_formula() -> None:
    objective = OrderedDropout(distill=True)
    network = begun(objective, 0.75)
    narrower = 0
    for inputs, targets in batches(10):
        network.zero_grad()
        drawn, loss = drawn_by(0.75, lambda x=inputs, y=targets: objective.loss(network, x, y))
        wide = cut(network, 0.75)
        if drawn == 0.75:
            torch.testing.assert_close(loss, functional.cross_entropy(wide(inputs), targets))
            continue
        narrower += 1
        narrow = cut(network, drawn)
        value = by_hand(narrow(inputs).detach(), wide(inputs).detach(), targets)
        assert float(loss.detach()) == pytest.approx(value, rel=1e-4)
        # what moves the teacher is its own loss; what moves the student is the distance
        loss.backward()
        functional.cross_entropy(wide(inputs), targets).backward()
        fixed = torch.tensor([softmax(row) for row in wide(inputs).detach().tolist()])
        cross = -(fixed * functional.log_softmax(narrow(inputs), 1)).sum(1).mean()  # the entropy is constant
        cross.backward()
        for (name, own), whole, inside in zip(
            network.named_parameters(), wide.parameters(), narrow.parameters(), strict=True
        ):
            assert whole.grad is not None
            corner(whole.grad, inside).add_(inside.grad)
            torch.testing.assert_close(own.grad, whole.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert narrower > 3


@pytest.mark.parametrize("distill", [False, True])
def test_multiply_accumulates_of_all_passes(distill: bool) -> None:
    objective = OrderedDropout(distill=distill)
    network = begun(objective, 0.75, seed=2)
    expected, below = 0, 0
    for inputs, targets in batches(12):
        drawn, _ = drawn_by(0.75, lambda x=inputs, y=targets: objective.loss(network, x, y))
        expected += NET.macs(Width(drawn)) * len(targets)
        if distill and drawn < 0.75:
            expected += NET.macs(Width(0.75)) * len(targets)
        below += drawn < 0.75
    assert 0 < below < 12
    assert objective.report() == (MacsReport(expected),)
    begun(objective, 0.75)
    assert objective.report() == (MacsReport(0),)
