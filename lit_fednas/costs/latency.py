"""Latency of a network, measured on the machine at hand.

A copy of the network is measured, as it would be deployed: in evaluation mode; batch norms that have no running
statistics get some, as they do when a subnet is recalibrated (and a batch of one is refused otherwise). The
weights' values are replaced by ordinary ones (He's, and ones), because memory that was never set can hold
denormals and NaN, on which some processors are many times slower.

Other work on the machine can treble a median for seconds on end: measure where nothing else runs.
"""

from __future__ import annotations

import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fednas.costs.counting import inference_structure
from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator


class LatencySource(ABC):
    """Where a search gets latencies from."""

    @abstractmethod
    def prepare(self, networks: Sequence[nn.Module], input_shape: tuple[int, ...]) -> dict[str, Any]:
        """Gets ready, once, before the first question.

        Args:
            networks: Some that are typical of those to come; they may lie on the meta device.
            input_shape: Shape of one example.

        Returns:
            How latency is measured or predicted, as plain JSON values.
        """

    @property
    def identity(self) -> dict[str, Any]:
        """What latencies must have in common to stand beside each other; plain JSON values."""
        return {"source": type(self).__name__}

    @abstractmethod
    def milliseconds(self, network: nn.Module, input_shape: tuple[int, ...]) -> float:
        """Latency of one batch.

        Args:
            network: A network, whose weights do not matter; it may lie on the meta device.
            input_shape: Shape of one example.
        """


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one batch: the median of the repeats and their quartiles."""

    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class MeasuredLatency(LatencySource):
    """Runs every network.

    Args:
        batch_size: Examples per batch.
        threads: CPU threads of PyTorch while it is measured.
        warmup: Batches before the measured ones.
        repeats: Measured batches.
        device: As PyTorch names it: ``cpu``, ``cuda``, ``cuda:1``.

    Raises:
        ConfigError: A number is out of range, or the device is not there.

    Example:
        >>> MeasuredLatency(repeats=3).milliseconds(nn.Linear(8, 2), (8,)) > 0
        True
    """

    batch_size: int = 1
    threads: int = 1
    warmup: int = 5
    repeats: int = 30
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("threads", 1), ("warmup", 0), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"latency.{name}: {getattr(self, name)} must be at least {least}")
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        here = ["cpu", *(["cuda", *gpus] if gpus else [])]
        if self.device not in here:
            raise ConfigError(f"latency.device: {self.device!r} is not here; choose from {', '.join(here)}")

    def prepare(self, networks: Sequence[nn.Module], input_shape: tuple[int, ...]) -> dict[str, Any]:
        """Describes the measurement; the networks are not needed."""
        return {**asdict(self), "device_name": device_name(self.device), "torch": torch.__version__}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings and the device."""
        return {**super().identity, **self.prepare([], ())}

    def milliseconds(self, network: nn.Module, input_shape: tuple[int, ...]) -> float:
        """The median."""
        return measure(network, input_shape, self).median_ms


def measure(network: nn.Module, input_shape: tuple[int, ...], settings: MeasuredLatency) -> Latency:
    """Measures a network on batches of normal noise.

    Args:
        network: Left as it is; it may lie on the meta device.
        input_shape: Shape of one example.
        settings: Batch size, device, repeats.
    """
    return measure_batch(network, (settings.batch_size, *input_shape), settings)


def measure_batch(network: nn.Module, batch_shape: tuple[int, ...], settings: MeasuredLatency) -> Latency:
    """Like :func:`measure`, for a batch of a shape."""
    network = _filled(inference_structure(network), settings.device)
    draws = generator(0, "latency", device=settings.device)
    inputs = torch.randn(batch_shape, generator=draws, device=settings.device)
    with torch.inference_mode(), _threads(settings.threads):
        for _ in range(settings.warmup):
            network(inputs)
        times = [_milliseconds(network, inputs) for _ in range(settings.repeats)]
    low, median, high = np.percentile(times, [25, 50, 75]).tolist()
    return Latency(median, low, high)


def device_name(device: str) -> str:
    """The processor's name, as it calls itself."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@torch.no_grad()
def _filled(network: nn.Module, device: str) -> nn.Module:
    """Moves a network from the meta device: weights of activations' even size (He), else ones and zeros."""
    draws = generator(0, "latency-weights", device=device)
    network = network.to_empty(device=device)
    for tensor in [*network.parameters(), *network.buffers()]:
        if not tensor.is_floating_point():
            tensor.zero_()
        elif tensor.ndim < 2:
            tensor.fill_(1)
        else:
            bound = (6 / tensor[0].numel()) ** 0.5
            tensor.uniform_(-bound, bound, generator=draws)
    return network


def _milliseconds(network: nn.Module, inputs: Tensor) -> float:
    _wait(inputs.device)
    start = time.perf_counter()
    network(inputs)
    _wait(inputs.device)
    return 1000 * (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
