"""Latency: measured on the machine at hand.

A copy of the network is measured, as it would be deployed. Its weights are ordinary values (He's, and ones), because
memory that was never set can hold denormals and NaN, on which some processors are many times slower.
"""

import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.counting import inference_structure
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.rng import generator


class LatencySource(ABC):
    """Where the latencies of networks come from; a subclass may know those of another machine."""

    @property
    def identity(self) -> dict[str, Any]:
        """How latency is measured, which latencies must have in common to be compared, as plain JSON values."""
        return {"source": type(self).__name__}

    @abstractmethod
    def milliseconds(
        self, network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> float:
        """Returns the latency of one batch in milliseconds.

        Args:
            network: The network; it may be on the meta device.
            input_shape: Shape of one example.
            dtype: Type of the inputs.
        """


@checked("latency")
@dataclass(frozen=True)
class MeasuredLatency(LatencySource):
    """Measures every network on this machine.

    Args:
        batch_size: Examples per batch.
        threads: CPU threads of PyTorch while it is measured.
        warmup: Batches before the measured ones.
        repeats: Measured batches.
        device: As PyTorch names it: ``cpu``, ``cuda``, ``cuda:1``.
    """

    batch_size: PositiveInt = 1
    threads: PositiveInt = 1
    warmup: NonNegativeInt = 5
    repeats: PositiveInt = 30
    device: str = "cpu"

    def __post_init__(self) -> None:
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        devices = ["cpu", *(["cuda", *gpus] if gpus else [])]
        if self.device not in devices:
            raise ConfigError(f"latency.device: {self.device!r} is not available; choose from {', '.join(devices)}")

    @property
    @override
    def identity(self) -> dict[str, Any]:
        measured = {"device_name": device_name(self.device), "torch": torch.__version__}
        return {**super().identity, **asdict(self), **measured}

    @override
    def milliseconds(
        self, network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> float:
        return measure(network, (self.batch_size, *input_shape), self, dtype)


def measure(
    network: nn.Module,
    batch_shape: tuple[int, ...],
    settings: MeasuredLatency,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Returns the median latency of a network on batches of normal noise (tokens: of token 0), in milliseconds."""
    network = _filled(inference_structure(network), settings.device)
    draws = generator(0, "latency", device=settings.device)
    if dtype.is_floating_point:
        inputs = torch.randn(batch_shape, generator=draws, dtype=dtype, device=settings.device)
    else:
        inputs = torch.zeros(batch_shape, dtype=dtype, device=settings.device)
    with torch.inference_mode(), _threads(settings.threads):
        for _ in range(settings.warmup):
            network(inputs)
        times = [_milliseconds(network, inputs) for _ in range(settings.repeats)]
    return median(times)


def device_name(device: str) -> str:
    """Returns the name by which a processor identifies itself."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@torch.no_grad()
def _filled(network: nn.Module, device: str) -> nn.Module:
    """Moves a network from the meta device; weights are drawn as by He, other tensors are ones and zeros."""
    draws = generator(0, "latency-weights", device=device)
    network = network.to_empty(device=device)
    for tensor in [*network.parameters(), *network.buffers()]:
        if tensor.is_floating_point() and tensor.ndim >= 2:
            bound = (6 / tensor[0].numel()) ** 0.5
            tensor.uniform_(-bound, bound, generator=draws)
        else:
            tensor.fill_(1 if tensor.is_floating_point() else 0)
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
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
