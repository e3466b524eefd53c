"""What Weights & Biases gets of a search, read back from the file that an offline run writes."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning.pytorch.loggers import WandbLogger
from wandb.proto.wandb_internal_pb2 import Record

from lit_fednas.callbacks import WandbLogging
from lit_fednas.callbacks.wandb_logging import search_charts, tier_artifacts
from lit_fednas.federation import FederatedCallback
from lit_fednas.records import SearchFiles
from lit_fednas.supernets import Cut, GrowableCNN, Model, ModelSuite, PrunedSequence, SlicedCNN
from lit_fednas.supernets.growing.growth import Deepen, Widen
from tests.analysis.searching import write_search
from tests.support import fit, make_module, make_trainer, tiny_data, tiny_supernet

BLOCK = 32768


def records(path: Path) -> Iterator[Record]:
    """Reads a ``.wandb`` file: LevelDB's log format after seven bytes, a protobuf message a record."""
    data, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        if left < 7 or kind == 0:
            place += left
            continue
        if place + 7 + size > len(data):
            return  # still being written
        message += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wandb")


@pytest.fixture(scope="module")
def searched(folder: Path) -> SearchFiles:
    files = write_search(folder / "runs" / "search", tiny_supernet())
    for number, tier in enumerate(files.tier_names):
        torch.save({"weight": torch.full((3,), float(number))}, files.tier_folder(tier) / "weights.pt")
    return files


@contextmanager
def offline(folder: Path, name: str) -> Iterator[WandbLogger]:
    """The logger of an offline run, which is finished at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_SILENT", "true")
        yield WandbLogger(name, save_dir=str(folder), project="test", offline=True)
        wandb.finish()


@pytest.fixture(scope="module")
def logged(searched: SearchFiles, folder: Path) -> list[Record]:
    """All records of a run that was told of the search's end."""
    with offline(folder, "a=1,b/seed0") as logger:
        WandbLogging().on_search_end(make_trainer(logger=logger), make_module(), searched.folder)
    return written(folder)


def written(folder: Path) -> list[Record]:
    """All records of the only run in a folder, when it has ended."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while not (found := list(records(path))) or not found[-1].HasField("exit"):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # a process of its own writes the file
    return found


def last_of(records: list[Record], kind: str) -> dict[str, Any]:
    """The last value of each key of all history or summary records."""
    found = {}
    for record in records:
        part = getattr(record, kind)
        for item in getattr(part, "update" if kind == "summary" else "item"):
            found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found


def table_of(key: str, logged: list[Record], folder: Path) -> list[dict[str, Any]]:
    """The rows of a table that was logged."""
    name = last_of(logged, "history")[f"{key}/path"]
    (path,) = folder.glob(f"wandb/offline-run-*/files/{name}")
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], cells, strict=True)) for cells in table["data"]]


def test_a_search_is_logged_as_tables(logged: list[Record], searched: SearchFiles, folder: Path) -> None:
    front = searched.rows("front")
    assert table_of("search/front", logged, folder) == front
    found = table_of("search/evaluations_table", logged, folder)
    marks = [row.pop("front").split() for row in found]
    assert found == searched.rows("evaluations")
    for row, mark in zip(found, marks, strict=True):
        assert mark == [one["tier"] for one in front if one["number"] == row["number"]]
    assert sum(map(len, marks)) == len(front)
    points = table_of("search/fronts_table", logged, folder)  # every front is a line
    assert [(point["lineKey"], point["step"], point["lineVal"]) for point in points] == [
        (row["tier"], row["macs"], row["accuracy"]) for row in front
    ]
    summary = last_of(logged, "summary")
    for row in searched.rows("tiers"):
        for name in ("arch", "val_accuracy", "test_accuracy", "macs", "hypervolume"):
            assert summary[f"search/{row['tier']}/{name}"] == row[name]
        assert f"search/{row['tier']}/latency_ms" not in summary


def test_the_charts_show_accuracy_against_the_traded_cost(tmp_path: Path) -> None:
    searched = write_search(tmp_path, tiny_supernet())
    assert search_charts(searched)["evaluations"].spec.fields == {"x": "macs", "y": "accuracy"}
    searched.write_settings({**searched.settings(), "cost": "bytes"})
    charts = search_charts(searched)
    assert charts["evaluations"].spec.fields == {"x": "bytes", "y": "accuracy"}
    assert {row[0] for row in charts["fronts"].table.data} <= {row["bytes"] for row in searched.rows("front")}


def test_each_tiers_network_is_an_artifact(logged: list[Record], searched: SearchFiles) -> None:
    found = {record.artifact.name: record.artifact for record in logged if record.artifact.type == "model"}
    files = list(tier_artifacts(searched, "run"))
    assert [artifact.name for artifact in files] == ["run-large", "run-small"]
    assert len({artifact.manifest.entries["architecture.json"].digest for artifact in files}) == 2
    for number, tier in enumerate(("large", "small")):
        artifact = found.pop(f"a-1-b-seed0-{tier}")
        row = next(row for row in searched.rows("tiers") if row["tier"] == tier)
        metadata = json.loads(artifact.metadata)
        assert metadata["arch"] == row["arch"]
        assert metadata["costs"]["macs"] == row["macs"]
        assert metadata["metrics"]["val_accuracy"] == row["val_accuracy"]
        assert {entry.path for entry in artifact.manifest.contents} == {"weights.pt", "architecture.json"}
        weights = torch.load(files[number].manifest.entries["weights.pt"].local_path, weights_only=True)
        assert weights["weight"].tolist() == [number] * 3
    assert not found


def test_without_a_wandb_logger_nothing_happens(searched: SearchFiles) -> None:
    WandbLogging().on_search_end(make_trainer(), make_module(), searched.folder)


class Grow(FederatedCallback):
    """Adds a model after rounds 1 and 2."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        steps = {1: Widen("conv1", {"conv1.out": 8}), 2: Deepen("conv1", ("conv1_m2",))}
        if batch.number in steps:
            parent = batch.number - 1
            batch.restructure(lambda: pl_module.supernet.add(parent, [steps[batch.number]], 0, batch.number))


def entries(records: list[Record], key: str) -> list[dict[str, Any]]:
    """All history records that have a key."""
    every = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.history.item
    ]
    return [one for one in every if key in one]


def test_a_model_of_another_supernet_is_not_logged() -> None:
    class Refuse(WandbLogging):
        def _log_models(self, *settings: Any) -> None:
            raise AssertionError(settings)

    fit(make_module(tiny_supernet()), tiny_data(), 2, callbacks=[Refuse()])


class Select(FederatedCallback):
    """Cuts a group of the newest model after rounds 3 and 4."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        steps = {3: ("layer1", {"layer0": 8, "layer1": 10}), 4: ("layer0", {"layer0": 4, "layer1": 10})}
        if batch.number not in steps:
            return
        sequence, (group, sizes) = pl_module.supernet, steps[batch.number]
        removed = {group: sequence.models[-1].sizes[group] - sizes[group]}
        batch.restructure(lambda: sequence.propose([Cut(group, removed, sizes, resource=0.0)]))
        batch.restructure(lambda: sequence.select(group, batch.number))


COSTS = "macs parameters bytes"
SUITE = [
    (0, None, None, "conv1 4, head", ""),
    (1, 0, 1, "conv1 8, head", "widen conv1"),
    (2, 1, 2, "conv1 8, conv1_m2, head", "deepen conv1"),
]
SEQUENCE = [
    (0, None, None, "layer0 8, layer1 16"),
    (1, "layer1", 3, "layer0 8, layer1 10"),
    (2, "layer0", 4, "layer0 4, layer1 10"),
]


@pytest.mark.parametrize(
    ("name", "net", "callback", "columns", "wanted"),
    [
        ("suite", lambda: ModelSuite((1, 8, 8), 4, GrowableCNN([4])), Grow, "number parent round cells steps", SUITE),
        (
            "sequence",
            lambda: PrunedSequence((1, 8, 8), 4, SlicedCNN((8, 16))),
            Select,
            "number unit round sizes",
            SEQUENCE,
        ),
    ],
    ids=["suite", "sequence"],
)
def test_each_new_model_is_an_event_in_its_round_and_a_row(
    tmp_path: Path, name: str, net: Any, callback: Any, columns: str, wanted: list[tuple]
) -> None:
    supernet = net()
    with offline(tmp_path, name) as logger:
        fit(make_module(supernet), tiny_data(), 5, logger=logger, callbacks=[callback(), WandbLogging()])
    logged = written(tmp_path)
    costs = [(one.macs, one.parameters, one.bytes) for one in (supernet.cost(Model(number)) for number in range(3))]
    found = entries(logged, f"{name}/model")
    assert [(one[f"{name}/model"], one[f"{name}/macs"], one[f"{name}/parameters"]) for one in found] == [
        (number, *costs[number][:2]) for number in (1, 2)
    ]
    steps = {one["epoch"]: one["trainer/global_step"] for one in entries(logged, "clients/loss")}
    assert [one["trainer/global_step"] for one in found] == [steps[row[2]] for row in wanted[1:]]
    rows = table_of(f"{name}/models", logged, tmp_path)
    assert [" ".join(row) for row in rows] == [f"{columns} {COSTS}"] * 3
    assert [tuple(row.values()) for row in rows] == [(*row, *cost) for row, cost in zip(wanted, costs, strict=True)]
    summary, second = last_of(logged, "summary"), columns.split()[1]
    assert summary[f"{name}/2/{second}"] == wanted[2][1]
    assert summary[f"{name}/0/macs"] == costs[0][0]
    assert f"{name}/0/{second}" not in summary
