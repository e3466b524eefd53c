"""Ordered dropout, batch by batch against networks cut by hand, and distillation against its formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import exp, log
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.messages import ClientTask, MacsStatistics
from lit_fednas.objectives import Objective, OrderedDropout
from lit_fednas.supernets import SlicedCNN, Width, WidthSupernet
from tests.support import NO_DATA, seeded

WIDTHS = [0.25, 0.5, 0.75, 1.0]
SIZES = (8, 8, 5)


class RecordingNet(WidthSupernet):
    """Records the widths that it runs."""

    def __init__(self) -> None:
        super().__init__((1, 8, 8), 4, SlicedCNN((4, 8)), WIDTHS)
        self.widths_run: list[float] = []

    def run_inside(self, network: nn.Module, arch: Width, x: Tensor) -> Tensor:
        self.widths_run.append(arch.ratio)
        return super().run_inside(network, arch, x)


NET = seeded(RecordingNet)


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    for number in range(count):
        size = SIZES[number % 3]
        yield torch.randn(size, 1, 8, 8, generator=draws), torch.randint(4, (size,), generator=draws)


def start_fit(objective: Objective, client_width: float, seed: int = 0, **settings: Any) -> nn.Module:
    arch = Width(client_width, **settings)
    network = NET.subnet(arch).train()
    objective.setup(NET, NO_DATA)
    objective.begin(network, ClientTask(0, 3, arch, 21), torch.Generator().manual_seed(seed))
    return network


def run_width(client_width: float, loss: Any) -> tuple[float, Tensor]:
    """Returns the width that a batch's loss ran, and the loss."""
    NET.widths_run.clear()
    value = loss()
    assert len(NET.widths_run) <= 1
    return (NET.widths_run[0] if NET.widths_run else client_width), value


def corner(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor[tuple(slice(size) for size in like.shape)]


def cut(network: nn.Module, width: float) -> nn.Module:
    """Returns a narrower network with the corners of a network's weights."""
    narrow = NET.subnet(Width(width)).train()
    with torch.no_grad():
        for parameter, wide_parameter in zip(narrow.parameters(), network.parameters(), strict=True):
            parameter.copy_(corner(wide_parameter, parameter))
    return narrow


@pytest.mark.parametrize(("client_width", "shift"), [(1.0, 0), (0.75, 0), (0.75, 3)])
def test_a_batch_trains_the_corner_of_the_drawn_width_alone(client_width: float, shift: int) -> None:
    objective = OrderedDropout()
    network = start_fit(objective, client_width, shift=shift)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    seen = set()
    for inputs, targets in batches(12):
        optimizer.zero_grad()
        width, loss = run_width(client_width, lambda x=inputs, y=targets: objective.loss(network, x, y))
        narrow = cut(network, width)
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
        seen.add(width)
        optimizer.step()
    assert seen == {width for width in WIDTHS if width <= client_width}


@pytest.mark.parametrize("client_width", [0.5, 0.75, 1.0])
def test_widths_up_to_the_clients_are_drawn_uniformly(client_width: float) -> None:
    objective = OrderedDropout()
    network = start_fit(objective, client_width)
    inputs, targets = next(batches(1))
    with torch.no_grad():
        widths = [run_width(client_width, lambda: objective.loss(network, inputs, targets))[0] for _ in range(400)]
    counts = Counter(widths)
    assert sorted(counts) == [width for width in WIDTHS if width <= client_width]
    share = 1 / len(counts)
    spread = 5 * (400 * share * (1 - share)) ** 0.5
    assert all(abs(count - 400 * share) < spread for count in counts.values())


def softmax(logits: list[float]) -> list[float]:
    powers = [exp(logit) for logit in logits]
    return [power / sum(powers) for power in powers]


def by_hand(student: Tensor, teacher: Tensor, targets: Tensor) -> float:
    """Returns the mean over examples of the docstring's formula."""
    total = 0.0
    for student_logits, teacher_logits, target in zip(
        student.tolist(), teacher.tolist(), targets.tolist(), strict=True
    ):
        p, q = softmax(teacher_logits), softmax(student_logits)
        total += sum(a * log(a / b) for a, b in zip(p, q, strict=True)) - log(p[target])
    return total / len(targets)


def test_distillation_by_its_formula() -> None:
    objective = OrderedDropout(distill=True)
    network = start_fit(objective, 0.75)
    narrower = 0
    for inputs, targets in batches(10):
        network.zero_grad()
        width, loss = run_width(0.75, lambda x=inputs, y=targets: objective.loss(network, x, y))
        wide = cut(network, 0.75)
        if width == 0.75:
            torch.testing.assert_close(loss, functional.cross_entropy(wide(inputs), targets))
            continue
        narrower += 1
        narrow = cut(network, width)
        value = by_hand(narrow(inputs).detach(), wide(inputs).detach(), targets)
        assert float(loss.detach()) == pytest.approx(value, rel=1e-4)
        # the teacher's gradient is that of its loss, the student's that of the distance
        loss.backward()
        functional.cross_entropy(wide(inputs), targets).backward()
        fixed = torch.tensor([softmax(row) for row in wide(inputs).detach().tolist()])
        cross = -(fixed * functional.log_softmax(narrow(inputs), 1)).sum(1).mean()  # the entropy is constant
        cross.backward()
        for (name, client_width), whole, inside in zip(
            network.named_parameters(), wide.parameters(), narrow.parameters(), strict=True
        ):
            assert whole.grad is not None
            corner(whole.grad, inside).add_(inside.grad)
            torch.testing.assert_close(client_width.grad, whole.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert narrower > 3


@pytest.mark.parametrize("distill", [False, True])
def test_multiply_accumulates_of_all_passes(distill: bool) -> None:
    objective = OrderedDropout(distill=distill)
    network = start_fit(objective, 0.75, seed=2)
    expected, below = 0, 0
    for inputs, targets in batches(12):
        width, _ = run_width(0.75, lambda x=inputs, y=targets: objective.loss(network, x, y))
        expected += NET.macs(Width(width)) * len(targets)
        if distill and width < 0.75:
            expected += NET.macs(Width(0.75)) * len(targets)
        below += width < 0.75
    assert 0 < below < 12
    assert objective.statistics() == (MacsStatistics(expected),)
    start_fit(objective, 0.75)
    assert objective.statistics() == (MacsStatistics(0),)
