"""Latency predicted from a table of layers, in the manner of ProxylessNAS (Cai et al., 2019).

Each distinct layer (type, hyperparameters, shape of its input) is measured once, alone. A network's layers are
added up, and a line fitted on whole networks corrects the sum: for what happens outside layers, such as the
additions of residual blocks, and for caches, which are warmer when a layer runs alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.counting import inference_structure
from lit_fednas.costs.latency import LatencySource, MeasuredLatency, measure
from lit_fednas.errors import ConfigError
from lit_fednas.records.files import replace_json

_FEWEST = 4  # networks: two for the line, two for its check


@dataclass(frozen=True)
class LatencyFit:
    """The line from sums of layers to networks, and how well it predicts networks that it was not fitted on.

    Attributes:
        scale: The factor of the sum.
        intercept_ms: The milliseconds that are added.
        checked_on: Networks of the check; 0 before the fit.
        spearman: Rank correlation of predicted and measured latency; ``None`` if all are equal.
        mean_relative_error: Mean of |predicted - measured| / measured.
    """

    scale: float = 1.0
    intercept_ms: float = 0.0
    checked_on: int = 0
    spearman: float | None = None
    mean_relative_error: float | None = None


class LatencyTable(LatencySource):
    """Predicts from layers that were measured; before :meth:`prepare`, by their plain sum.

    Args:
        measured: How layers and networks are measured.
        file: JSON file of the table: read if it exists, written when something was measured. A table whose file
            knows all layers keeps its fit.
        measure_missing: Whether unknown layers are measured. Without it only the file is used, which may come from
            another machine, with the batch size that it was measured with.

    Raises:
        ConfigError: The file was measured otherwise, cannot be read, or is needed and does not exist; later: a
            layer is unknown and must not be measured.

    Example:
        >>> table = LatencyTable(MeasuredLatency(repeats=3))
        >>> table.milliseconds(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (8,)) > 0
        True
        >>> list(table.layers)
        ['Linear(in_features=8, out_features=8, bias=True) [8x8, 8] 1x8', 'ReLU() [] 1x8']
    """

    def __init__(
        self,
        measured: MeasuredLatency = MeasuredLatency(),
        file: str | None = None,
        measure_missing: bool = True,
    ) -> None:
        self.measured = measured
        self.file = file
        self.measure_missing = measure_missing
        self.settings = measured.prepare([], ())
        self.layers: dict[str, float] = {}
        self.fit = LatencyFit()
        if file is not None and Path(file).exists():
            self._load(file)
        elif not measure_missing:
            raise ConfigError(f"latency.file: {file} does not exist; give a table, or set measure_missing: true")

    @override
    def prepare(
        self, networks: Sequence[nn.Module], input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Measures layers and at least four networks; fits on their first half and checks on the second."""
        known = len(self.layers)
        sums = np.array([self._sum(network, input_shape, dtype) for network in networks])
        if self.measure_missing and (len(self.layers) > known or not self.fit.checked_on):
            if len(networks) < _FEWEST:
                raise ConfigError(
                    f"latency: a table is fitted and checked on at least {_FEWEST} networks, not "
                    f"{len(networks)}; use MeasuredLatency"
                )
            times = [self.measured.milliseconds(network, input_shape, dtype) for network in networks]
            self.fit = fit_line(sums, np.array(times))
            self.save()
        return {**self.settings, "file": self.file, "layers": len(self.layers), **asdict(self.fit)}

    @property
    @override
    def identity(self) -> dict[str, Any]:
        return {**super().identity, **self.settings, "file": self.file}  # without the fit, which varies a little

    @override
    def milliseconds(
        self, network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> float:
        known = len(self.layers)
        total = self._sum(network, input_shape, dtype)
        if len(self.layers) > known:
            self.save()
        return self.fit.intercept_ms + self.fit.scale * total

    def save(self) -> None:
        """Writes the table to its file, if it has one."""
        if self.file is not None:
            record = {"settings": self.settings, "fit": asdict(self.fit), "layers": self.layers}
            replace_json(self.file, record)

    def _load(self, path: str) -> None:
        """Replaces this table by that of a file."""
        try:
            record = json.loads(Path(path).read_text())
            settings, fit, layers = dict(record["settings"]), LatencyFit(**record["fit"]), dict(record["layers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"latency.file: {path} is not a table of latencies ({error}); delete it") from None
        if self.measure_missing and settings != self.settings:
            name = next(name for name in self.settings if self.settings[name] != settings.get(name))
            raise ConfigError(
                f"latency.file: {path} was measured with {name} {settings.get(name)!r}, not "
                f"{self.settings[name]!r}; set measure_missing: false to use it as it is, or choose another file"
            )
        self.settings, self.fit, self.layers = settings, fit, layers

    def _sum(self, network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> float:
        """Returns the milliseconds of all layers; measures those that are unknown."""
        total = 0.0
        for signature, layer, shape in calls(network, (self.settings["batch_size"], *input_shape), dtype):
            if signature not in self.layers:
                if not self.measure_missing:
                    raise ConfigError(
                        f"latency.file: {self.file} lacks the layer {signature}; measure it, with "
                        f"measure_missing: true, on the device that the table is of"
                    )
                self.layers[signature] = measure(layer, shape, self.measured)
            total += self.layers[signature]
        return total


def calls(
    network: nn.Module, batch_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
    """Lists the layers (modules without children) in the order of their calls, on the meta device."""
    layers: list[tuple[str, nn.Module, tuple[int, ...]]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
            raise ConfigError(
                f"latency: layers of a table take one float tensor; {layer} does not; use MeasuredLatency"
            )
        shape = tuple(inputs[0].shape)
        *weights, size = ("x".join(map(str, one)) for one in [*(w.shape for w in layer.parameters()), shape])
        layers.append((f"{layer} [{', '.join(weights)}] {size}", layer, shape))

    structure = inference_structure(network)
    leaves = [module for module in structure.modules() if not any(module.children())]
    hooks = [leaf.register_forward_pre_hook(note) for leaf in leaves]
    with torch.no_grad():
        structure(torch.empty(batch_shape, dtype=dtype, device="meta"))
    for hook in hooks:
        hook.remove()  # the layers are measured next
    return layers


def fit_line(sums: np.ndarray, times: np.ndarray) -> LatencyFit:
    """Returns the line fitted on the first half of networks, and its check on the second half.

    By least squares of the relative error, so that small networks count as much as large.

    Args:
        sums: Milliseconds of each network's layers, ``[networks]``.
        times: Milliseconds of each network, ``[networks]``.

    Example:
        >>> sums = np.array([1.0, 2.0, 3.0, 4.0])
        >>> fit = fit_line(sums, 2 * sums + 1)
        >>> round(fit.scale, 6), round(fit.intercept_ms, 6), fit.checked_on, fit.spearman
        (2.0, 1.0, 2, 1.0)
    """
    half = len(sums) // 2
    lines = np.stack([sums, np.ones_like(sums)], axis=1)
    weighted = lines[:half] / times[:half, None]
    (scale, intercept), *_ = np.linalg.lstsq(weighted, np.ones(half), rcond=None)
    predicted, measured = lines[half:] @ [scale, intercept], times[half:]
    ranked = min(np.ptp(predicted), np.ptp(measured)) > 0
    return LatencyFit(
        scale=float(scale),
        intercept_ms=float(intercept),
        checked_on=len(measured),
        spearman=round(float(spearmanr(predicted, measured).statistic), 6) if ranked else None,
        mean_relative_error=float(np.mean(np.abs(predicted - measured) / measured)),
    )
