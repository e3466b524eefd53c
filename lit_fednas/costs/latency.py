"""Latency: measured on the machine at hand, or predicted from a table of layers.

Measurements use a copy of the network as deployed. Its weights have ordinary values (He's initialisation, and ones),
because unset memory can hold denormals and NaN, on which some processors are many times slower.
"""

import json
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.counting import inference_structure
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.records.files import replace_json
from lit_fednas.rng import generator

#: Shape of one example, or of a batch.
Shape = tuple[int, ...]

_MIN_NETWORKS = 4  # two to fit the line, two to check it


class LatencySource(ABC):
    """A source of networks' latencies."""

    @abstractmethod
    def prepare(
        self, networks: Sequence[nn.Module], input_shape: Shape, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Prepares the source before its first use, by typical networks, which may be on the meta device.

        Returns:
            The settings of measurements or predictions, as plain JSON values.
        """

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that comparable latencies have in common, as plain JSON values."""
        return {"source": type(self).__name__}

    @abstractmethod
    def milliseconds(self, network: nn.Module, input_shape: Shape, dtype: torch.dtype = torch.float32) -> float:
        """Returns the latency of one batch in milliseconds; arguments are those of :meth:`prepare`."""


@checked("latency")
@dataclass(frozen=True)
class MeasuredLatency(LatencySource):
    """Measures every network on this machine.

    Args:
        batch_size: Examples per batch.
        threads: CPU threads of PyTorch during a measurement.
        warmup: Batches before the measured ones.
        repeats: Measured batches.
        device: PyTorch's name of the device: ``cpu``, ``cuda``, ``cuda:1``.
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

    @override
    def prepare(
        self, networks: Sequence[nn.Module], input_shape: Shape, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        return {**asdict(self), "device_name": device_name(self.device), "torch": torch.__version__}

    @property
    @override
    def identity(self) -> dict[str, Any]:
        return {**super().identity, **self.prepare([], ())}

    @override
    def milliseconds(self, network: nn.Module, input_shape: Shape, dtype: torch.dtype = torch.float32) -> float:
        return measure(network, (self.batch_size, *input_shape), self, dtype)


def measure(network: nn.Module, batch_shape: Shape, settings: MeasuredLatency, dtype: torch.dtype) -> float:
    """Returns the median latency of a network in milliseconds, on batches of normal noise (tokens: all 0)."""
    network = _materialised(inference_structure(network), settings.device)
    draws = generator(0, "latency", device=settings.device)
    if dtype.is_floating_point:
        inputs = torch.randn(batch_shape, generator=draws, dtype=dtype, device=settings.device)
    else:
        inputs = torch.zeros(batch_shape, dtype=dtype, device=settings.device)
    previous = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.inference_mode():
            for _ in range(settings.warmup):
                network(inputs)
            return median(_milliseconds(network, inputs) for _ in range(settings.repeats))
    finally:
        torch.set_num_threads(previous)


def device_name(device: str) -> str:
    """Returns the product name of a processor."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@torch.no_grad()
def _materialised(network: nn.Module, device: str) -> nn.Module:
    """Moves a network from the meta device: weights are drawn by He's rule, other tensors are ones or zeros."""
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


@dataclass(frozen=True)
class LatencyFit:
    """The line from sums of layers to networks, and its accuracy on networks that it was not fitted on."""

    scale: float = 1.0
    intercept_ms: float = 0.0
    checked_on: int = 0  # number of networks; 0 before the fit
    spearman: float | None = None  # correlation of predictions and measurements; None if all are equal
    mean_relative_error: float | None = None  # |predicted - measured| / measured


@dataclass(eq=False)
class LatencyTable(LatencySource):
    """Predicts latency from single measured layers, like ProxylessNAS (Cai et al., 2019).

    A line fitted on whole networks in :meth:`prepare` corrects the sum of a network's layers. It accounts for work
    outside of layers, such as additions of residual blocks, and for warmer caches when a layer runs alone.

    Args:
        measured: The settings of measurements.
        file: JSON file of the table: read if it exists, written after measurements. The fit is kept if the file
            has all layers.
        measure_missing: Whether missing layers are measured. If not, only the file is used. It may come from
            another machine, and its batch size is used.

    Raises:
        ConfigError: The file cannot be read, has other settings, or is needed and does not exist; later: a layer
            is missing and must not be measured.
    """

    measured: MeasuredLatency = MeasuredLatency()
    file: str | None = None
    measure_missing: bool = True

    def __post_init__(self) -> None:
        self.settings = self.measured.prepare([], ())
        self.layers: dict[str, float] = {}
        self.fit = LatencyFit()
        if self.file is not None and Path(self.file).exists():
            self._load(self.file)
        elif not self.measure_missing:
            raise ConfigError(f"latency.file: {self.file} does not exist; give a table, or set measure_missing: true")

    @override
    def prepare(
        self, networks: Sequence[nn.Module], input_shape: Shape, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Measures layers and at least four networks; fits on their first half and checks on the second."""
        num_layers = len(self.layers)
        sums = np.array([self._sum(network, input_shape, dtype) for network in networks])
        if self.measure_missing and (len(self.layers) > num_layers or not self.fit.checked_on):
            if len(networks) < _MIN_NETWORKS:
                raise ConfigError(
                    f"latency: a table needs {_MIN_NETWORKS} networks or more, not {len(networks)}; use MeasuredLatency"
                )
            times = [self.measured.milliseconds(network, input_shape, dtype) for network in networks]
            self.fit = fit_line(sums, np.array(times))
            self.save()
        return {**self.settings, "file": self.file, "layers": len(self.layers), **asdict(self.fit)}

    @property
    @override
    def identity(self) -> dict[str, Any]:
        return {**super().identity, **self.settings, "file": self.file}  # the fit is left out: it varies a little

    @override
    def milliseconds(self, network: nn.Module, input_shape: Shape, dtype: torch.dtype = torch.float32) -> float:
        num_layers = len(self.layers)
        total = self._sum(network, input_shape, dtype)
        if len(self.layers) > num_layers:
            self.save()
        return self.fit.intercept_ms + self.fit.scale * total

    def save(self) -> None:
        """Writes the table to its file, if it has one."""
        if self.file is not None:
            replace_json(self.file, {"settings": self.settings, "fit": asdict(self.fit), "layers": self.layers})

    def _load(self, path: str) -> None:
        try:
            record = json.loads(Path(path).read_text())
            settings, fit, layers = dict(record["settings"]), LatencyFit(**record["fit"]), dict(record["layers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"latency.file: {path} is not a table of latencies ({error}); delete it") from None
        if self.measure_missing and settings != self.settings:
            name = next(name for name, value in self.settings.items() if value != settings.get(name))
            raise ConfigError(
                f"latency.file: {path} was measured with {name} {settings.get(name)!r}, not "
                f"{self.settings[name]!r}; set measure_missing: false to use it as it is, or choose another file"
            )
        self.settings, self.fit, self.layers = settings, fit, layers

    def _sum(self, network: nn.Module, input_shape: Shape, dtype: torch.dtype) -> float:
        """Returns the milliseconds of all layers; measures missing layers."""
        total = 0.0
        for signature, layer, shape in calls(network, (self.settings["batch_size"], *input_shape), dtype):
            if signature not in self.layers:
                if not self.measure_missing:
                    raise ConfigError(
                        f"latency.file: {self.file} lacks the layer {signature}; set measure_missing: true on the "
                        f"device of the table"
                    )
                self.layers[signature] = measure(layer, shape, self.measured, torch.float32)
            total += self.layers[signature]
        return total


def calls(network: nn.Module, batch_shape: Shape, dtype: torch.dtype) -> list[tuple[str, nn.Module, Shape]]:
    """Returns the layers (modules without children) in the order of their calls, on the meta device."""
    layers: list[tuple[str, nn.Module, Shape]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
            raise ConfigError(
                f"latency: layers of a table take one float tensor; {layer} does not; use MeasuredLatency"
            )
        shape = tuple(inputs[0].shape)
        *weights, size = ("x".join(map(str, lengths)) for lengths in [*(w.shape for w in layer.parameters()), shape])
        layers.append((f"{layer} [{', '.join(weights)}] {size}", layer, shape))

    structure = inference_structure(network)
    leaves = [module for module in structure.modules() if not any(module.children())]
    hooks = [leaf.register_forward_pre_hook(note) for leaf in leaves]
    structure(torch.empty(batch_shape, dtype=dtype, device="meta"))
    for hook in hooks:
        hook.remove()  # the hooks would slow down the measurements
    return layers


def fit_line(sums: np.ndarray, times: np.ndarray) -> LatencyFit:
    """Fits a line on the first half of networks, and checks it on the second half."""
    half = len(sums) // 2
    features = np.stack([sums, np.ones_like(sums)], axis=1)
    # least squares of the relative error, so that small and large networks have equal weight
    weighted = features[:half] / times[:half, None]
    (scale, intercept), *_ = np.linalg.lstsq(weighted, np.ones(half), rcond=None)
    predicted, measured = features[half:] @ [scale, intercept], times[half:]
    is_ranked = min(np.ptp(predicted), np.ptp(measured)) > 0
    return LatencyFit(
        scale=float(scale),
        intercept_ms=float(intercept),
        checked_on=len(measured),
        spearman=round(float(spearmanr(predicted, measured).statistic), 6) if is_ranked else None,
        mean_relative_error=float(np.mean(np.abs(predicted - measured) / measured)),
    )
