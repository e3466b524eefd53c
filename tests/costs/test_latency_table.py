"""Latency tables, on a simulated machine with known times of layers and networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from lit_fednas.costs import LatencyTable, MeasuredLatency, count_macs, latency
from lit_fednas.costs.latency import calls, fit_line
from lit_fednas.errors import ConfigError

SHAPE = (3, 8, 8)


def network(width: int, depth: int = 1, outputs: int = 3) -> nn.Sequential:
    middle = [nn.Conv2d(width, width, 3, padding=1) for _ in range(depth)]
    return nn.Sequential(nn.Conv2d(3, width, 1), nn.ReLU(), *middle, nn.Conv2d(width, outputs, 1))


NETWORKS = [network(width) for width in (2, 9, 4, 5, 3, 8)]


class Machine:
    """A layer takes 1 ms and 1 ms per thousand MACs; a network takes twice the sum of its layers and 7 ms."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.networks = 0

    def layer(self, layer: nn.Module, shape: tuple[int, ...], settings: MeasuredLatency, dtype: Any = None) -> float:
        assert not layer._forward_pre_hooks
        self.layers.append(str(layer))
        return 1 + shape[0] * count_macs(layer, shape[1:]) / 1000

    def network(self, settings: MeasuredLatency, network: nn.Module, shape: tuple[int, ...], dtype: Any) -> float:
        self.networks += 1
        return self.expected(network, shape, settings.batch_size)

    def expected(self, network: nn.Module, input_shape: tuple[int, ...], batch_size: int = 1) -> float:
        layers = sum(1 for module in network.modules() if not list(module.children()))
        return 7 + 2 * (layers + batch_size * count_macs(network, input_shape) / 1000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(latency, "measure", machine.layer)
    monkeypatch.setattr(MeasuredLatency, "milliseconds", lambda *arguments: machine.network(*arguments))
    return machine


@pytest.mark.parametrize("batch_size", [1, 4])
def test_predictions_are_exact_on_a_line(machine: Machine, batch_size: int) -> None:
    table = LatencyTable(MeasuredLatency(batch_size=batch_size))
    description = json.loads(json.dumps(table.prepare(NETWORKS, SHAPE)))
    assert description["scale"] == pytest.approx(2)
    assert description["intercept_ms"] == pytest.approx(7)
    assert description["mean_relative_error"] == pytest.approx(0, abs=1e-9)
    assert (description["spearman"], description["checked_on"], description["batch_size"]) == (1.0, 3, batch_size)
    other = network(11, depth=3)
    assert table.milliseconds(other, SHAPE) == pytest.approx(machine.expected(other, SHAPE, batch_size))


def test_each_signature_is_measured_once(machine: Machine) -> None:
    table = LatencyTable()
    table.milliseconds(network(4, depth=3), SHAPE)
    assert len(machine.layers) == len(table.layers) == 4
    table.milliseconds(network(4, depth=9), SHAPE)
    assert len(machine.layers) == 4
    table.milliseconds(network(4, outputs=7), SHAPE)
    assert machine.layers[4:] == ["Conv2d(4, 7, kernel_size=(1, 1), stride=(1, 1))"]
    table.milliseconds(network(4), (3, 9, 9))
    assert len(table.layers) == 5 + 4


class Folding(nn.Module):
    """Applies one layer to every pixel, and a layer without weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.pixel, self.relu = nn.Linear(3, 5), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x.permute(0, 2, 3, 1).reshape(-1, 3))
        return self.relu(self.pixel(x))


def test_calls_have_shapes_and_weights_in_order() -> None:
    layers = calls(Folding(), (2, *SHAPE), torch.float32)
    assert [(signature, shape) for signature, _, shape in layers] == [
        ("ReLU() [] 128x3", (128, 3)),
        ("Linear(in_features=3, out_features=5, bias=True) [5x3, 5] 128x3", (128, 3)),
        ("ReLU() [] 128x5", (128, 5)),
    ]


def test_layers_of_two_tensors_and_too_few_networks_are_refused(machine: Machine) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(4, 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.bilinear(x, x)

    with pytest.raises(ConfigError, match=r"Bilinear.* does not; use MeasuredLatency"):
        LatencyTable().milliseconds(Pair(), (4,))
    with pytest.raises(ConfigError, match="4 networks or more, not 3; use MeasuredLatency"):
        LatencyTable().prepare(NETWORKS[:3], SHAPE)


# ---- the line and its check -----------------------------------------------------------------------------


def test_the_first_half_fits_the_line_and_the_second_checks_it() -> None:
    rng = np.random.default_rng(0)
    sums = rng.uniform(1, 50, 21)
    times = (3 * sums + 4) * rng.uniform(0.7, 1.3, 21)
    scale, intercept = np.polyfit(sums[:10], times[:10], 1, w=1 / times[:10])
    fit = fit_line(sums, times)
    assert (fit.scale, fit.intercept_ms) == (pytest.approx(scale), pytest.approx(intercept))
    predicted = fit.scale * sums[10:] + fit.intercept_ms
    assert fit.mean_relative_error == pytest.approx(np.mean(np.abs(predicted - times[10:]) / times[10:]))
    assert fit.spearman == pytest.approx(scipy.stats.spearmanr(predicted, times[10:]).statistic, abs=1e-6)
    assert fit.checked_on == 11


# ---- the file ------------------------------------------------------------------------------------------------


def test_a_saved_table_predicts_the_same(machine: Machine, tmp_path: Path) -> None:
    file = str(tmp_path / "tables" / "here.json")
    table = LatencyTable(file=file)
    first = table.prepare(NETWORKS, SHAPE)
    num_measured = (len(machine.layers), machine.networks)
    loaded = LatencyTable(file=file)
    assert loaded.milliseconds(NETWORKS[0], SHAPE) == table.milliseconds(NETWORKS[0], SHAPE)
    assert loaded.prepare(NETWORKS, SHAPE) == first
    assert (len(machine.layers), machine.networks) == num_measured
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["here.json"]
    table.milliseconds(network(17), SHAPE)  # later measurements are saved, too
    assert LatencyTable(file=file).layers == table.layers
    assert any("17" in signature for signature in table.layers)


@pytest.fixture
def elsewhere(machine: Machine, tmp_path: Path) -> str:
    """A table of another machine, with batches of two."""
    table = LatencyTable(MeasuredLatency(batch_size=2))
    table.settings["device_name"] = "some phone"
    table.prepare(NETWORKS, SHAPE)
    table.file = str(tmp_path / "phone.json")
    table.save()
    machine.layers.clear()
    machine.networks = 0
    return str(tmp_path / "phone.json")


def test_a_table_of_another_machine_is_used_without_measurements(elsewhere: str, machine: Machine) -> None:
    table = LatencyTable(file=elsewhere, measure_missing=False)
    description = table.prepare(NETWORKS[:1], SHAPE)
    assert (description["device_name"], description["batch_size"], description["checked_on"]) == ("some phone", 2, 3)
    assert description["file"] == elsewhere
    assert table.milliseconds(NETWORKS[0], SHAPE) == pytest.approx(machine.expected(NETWORKS[0], SHAPE, 2))
    assert machine.layers == []
    assert machine.networks == 0


def test_missing_layers_other_settings_and_damaged_files_are_refused(
    elsewhere: str, machine: Machine, tmp_path: Path
) -> None:
    table = LatencyTable(file=elsewhere, measure_missing=False)
    for ask in (table.milliseconds, lambda net, shape: table.prepare([net], shape)):
        with pytest.raises(ConfigError, match=r"phone.json lacks the layer Conv2d\(3, 17, .* 2x3x8x8; set measure"):
            ask(network(17), SHAPE)
    assert machine.layers == []
    with pytest.raises(ConfigError, match="was measured with batch_size 2, not 1; set measure_missing: false"):
        LatencyTable(file=elsewhere)
    with pytest.raises(ConfigError, match="was measured with device_name 'some phone', not "):
        LatencyTable(MeasuredLatency(batch_size=2), file=elsewhere)
    for file in (None, "nowhere.json"):
        with pytest.raises(ConfigError, match=f"latency.file: {file} does not exist"):
            LatencyTable(file=file, measure_missing=False)
    (tmp_path / "broken.json").write_text('{"settings": {}, "fit": {"slope": 1}, "layers": {}}')
    with pytest.raises(ConfigError, match=r"broken.json is not a table of latencies .*; delete it"):
        LatencyTable(file=str(tmp_path / "broken.json"))
