"""Measured latency, with a clock that the network itself advances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_fednas.costs import MeasuredLatency, latency, measure


class Clock:
    """A clock that only forward passes advance; records the input and mode of each pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: list[tuple[Tensor, tuple[int, bool, bool]]] = []

    def perf_counter(self) -> float:
        return self.now

    def __deepcopy__(self, memo: Any) -> Clock:
        return self


class Slow(nn.Module):
    """A network with given milliseconds per forward pass."""

    def __init__(self, clock: Clock, times: list[float]) -> None:
        super().__init__()
        self.clock, self.times, self.layer = clock, times, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.times[len(self.clock.seen)] / 1000
        mode = (torch.get_num_threads(), self.training, torch.is_inference_mode_enabled())
        self.clock.seen.append((x, mode))
        return self.layer(x)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(latency, "time", clock)
    return clock


def test_median_after_the_warm_up(clock: Clock) -> None:
    network = Slow(clock, [900, 800, 5, 1, 9, 3, 200])  # sorted without the first two: 1 3 5 9 200
    assert MeasuredLatency(warmup=2, repeats=5).milliseconds(network, (3,)) == pytest.approx(5)


def test_passes_have_equal_inputs_and_modes(clock: Clock) -> None:
    network = Slow(clock, [1] * 4).train()
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    settings = MeasuredLatency(batch_size=5, threads=threads + 1, warmup=1, repeats=3)
    settings.milliseconds(network, (3,))
    first, _ = clock.seen[0]
    assert first.shape == (5, 3)
    assert first.std() > 0.5
    assert len(clock.seen) == 4
    assert all(torch.equal(x, first) and mode == (threads + 1, False, True) for x, mode in clock.seen)
    assert network.training
    clock.seen.clear()
    settings.milliseconds(network, (3,))
    assert torch.equal(clock.seen[0][0], first)  # addressed: no global generator is read or moved
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure(nn.Linear(3, 2), (1, 4), settings, torch.float32)
    assert torch.get_num_threads() == threads


def outputs_of(network: nn.Module, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> Tensor:
    outputs = []
    monkeypatch.setattr(latency, "_milliseconds", lambda copy, inputs: outputs.append(copy(inputs)) or 1.0)
    measure(network, (1, *shape), MeasuredLatency(warmup=0, repeats=1), torch.float32)
    return outputs[0]


class Pick(nn.Module):
    """Reorders channels by a buffer of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(16))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.order]


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # enables torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unset_memory_is_nan")
@pytest.mark.parametrize(
    ("kind", "norm"),
    [("meta", nn.BatchNorm2d(16)), ("meta", Pick()), ("nan", nn.BatchNorm2d(16)), ("denormal", Pick())],
)
def test_weights_are_ordinary_values(kind: str, norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), norm, nn.ReLU()) for _ in range(40)]
    network = nn.Sequential(*layers)
    if kind == "meta":
        network = network.to("meta")
    else:
        for parameter in network.parameters():
            parameter.data.fill_(float("nan") if kind == "nan" else 1e-40)
    outputs = outputs_of(network, monkeypatch, (16, 8, 8)).abs()
    assert outputs.isfinite().all()
    assert 1e-20 < outputs.mean() < 1e20  # a float is denormal below 1e-38
    if kind != "meta":
        assert not (network[0][0].weight > 1e-30).any()  # the network itself does not change


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_measurements_wait_for_the_gpu() -> None:
    settings = MeasuredLatency(device="cuda", batch_size=64, repeats=5)
    network = nn.Sequential(*(nn.Conv2d(256, 256, 3, padding=1) for _ in range(8)))
    # 8 x 64 x 64x64 x 256 x 256 x 9 MACs: no GPU computes them in the time of eight launches
    assert settings.milliseconds(network, (256, 64, 64)) > 3
    assert settings.prepare([], ())["device_name"] == torch.cuda.get_device_name()
