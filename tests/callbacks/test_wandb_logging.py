"""Tests the records of searches in Weights & Biases, read from an offline run's file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning.pytorch.loggers import WandbLogger
from wandb.proto.wandb_internal_pb2 import Record

from lit_fednas.callbacks import WandbLogging
from lit_fednas.callbacks.wandb_logging import tier_artifacts
from lit_fednas.records import FinetuneFiles, SearchFiles
from tests.analysis.searching import write_search
from tests.analysis.test_report_searches import candidate, finetune
from tests.support import fit, make_module, tiny_data, tiny_supernet, waited

BLOCK = 32768


def records(path: Path) -> Iterator[Record]:
    """Reads a ``.wandb`` file: LevelDB's log format after seven bytes, one protobuf message per record."""
    data, position, message = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        rest = BLOCK - position % BLOCK
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        if rest < 7 or kind == 0:
            position += rest
            continue
        if position + 7 + size > len(data):
            return  # the writer has not finished
        message += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wandb")


@pytest.fixture(scope="module")
def search_files(folder: Path) -> SearchFiles:
    files = write_search(folder / "runs" / "search", tiny_supernet())
    for number, tier in enumerate(files.tier_names):
        torch.save({"weight": torch.full((3,), float(number))}, files.tier_folder(tier) / "weights.pt")
    return files


@pytest.fixture(scope="module")
def finetune_files(folder: Path) -> FinetuneFiles:
    return finetune(folder / "runs", [candidate("large", 0, 0.5, 0.75), candidate("small", 0, 0.25, 0.5)])


@pytest.fixture(scope="module")
def logged(search_files: SearchFiles, finetune_files: FinetuneFiles, folder: Path) -> list[Record]:
    """Returns all records of an offline run with a search and a fine-tuning."""
    callback = WandbLogging()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_SILENT", "true")
        logger = WandbLogger("a=1,b/seed0", save_dir=str(folder), project="test", offline=True)
        trainer = fit(make_module(), tiny_data(), 1, logger=logger, callbacks=[callback])
        callback.on_search_end(trainer, make_module(), search_files.folder)
        callback.on_finetune_end(trainer, make_module(), finetune_files.folder)
        wandb.finish()
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return written(path)


def written(path: Path) -> list[Record]:
    """Returns all records of a run after its end."""
    waited(lambda: [record for record in records(path) if record.HasField("exit")])  # another process writes
    return list(records(path))


def last_of(records: list[Record], kind: str) -> dict[str, Any]:
    """Returns the last value of each key in all history or summary records."""
    values = {}
    for record in records:
        part = getattr(record, kind)
        for item in getattr(part, "update" if kind == "summary" else "item"):
            values["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return values


def table_of(key: str, logged: list[Record], folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a logged table."""
    name = last_of(logged, "history")[f"{key}/path"]
    (path,) = folder.glob(f"wandb/offline-run-*/files/{name}")
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], cells, strict=True)) for cells in table["data"]]


def test_a_search_is_logged_as_tables(logged: list[Record], search_files: SearchFiles, folder: Path) -> None:
    front = search_files.rows("front")
    assert table_of("search/front", logged, folder) == front
    points = table_of("search/fronts_table", logged, folder)  # each front is a line
    assert [(point["lineKey"], point["step"], point["lineVal"]) for point in points] == [
        (row["tier"], row["macs"], row["accuracy"]) for row in front
    ]
    summary = last_of(logged, "summary")
    for row in search_files.rows("tiers"):
        for name in ("arch", "val_accuracy", "test_accuracy", "macs", "hypervolume"):
            assert summary[f"search/{row['tier']}/{name}"] == row[name]
        assert f"search/{row['tier']}/latency_ms" not in summary


def test_a_fine_tuning_is_logged_as_a_table(logged: list[Record], finetune_files: FinetuneFiles, folder: Path) -> None:
    rows = finetune_files.rows("tiers")
    assert table_of("finetune/tiers", logged, folder) == rows
    summary = last_of(logged, "summary")
    assert [summary[f"finetune/{tier}/val_accuracy"] for tier in ("large", "small")] == [0.75, 0.5]


def test_each_tiers_network_is_an_artifact(logged: list[Record], search_files: SearchFiles) -> None:
    artifacts = {record.artifact.name: record.artifact for record in logged if record.artifact.type == "model"}
    files = list(tier_artifacts(search_files, "run"))
    assert [artifact.name for artifact in files] == ["run-large", "run-small"]
    assert len({artifact.manifest.entries["architecture.json"].digest for artifact in files}) == 2
    for number, tier in enumerate(("large", "small")):
        artifact = artifacts.pop(f"a-1-b-seed0-{tier}")
        row = next(row for row in search_files.rows("tiers") if row["tier"] == tier)
        metadata = json.loads(artifact.metadata)
        assert metadata["arch"] == row["arch"]
        assert metadata["costs"]["macs"] == row["macs"]
        assert metadata["metrics"]["val_accuracy"] == row["val_accuracy"]
        assert {entry.path for entry in artifact.manifest.contents} == {"weights.pt", "architecture.json"}
        weights = torch.load(files[number].manifest.entries["weights.pt"].local_path, weights_only=True)
        assert weights["weight"].tolist() == [number] * 3
    assert not artifacts
