"""Text, speech and tables from the command line: trained, searched, fine-tuned, exported and shown."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from scipy.io import wavfile

from lit_fednas.cli import main
from tests.support import one_of_many

CONFIGS = sorted((Path(__file__).parents[1] / "configs" / "tasks").glob("*.yaml"))


def shakespeare(folder: Path) -> dict[str, Any]:
    for split, count in (("train", 8), ("test", 2)):
        with h5py.File(folder / f"shakespeare_{split}.h5", "w") as file:
            for role in "ABCDEF":
                file[f"examples/{role}/snippets"] = np.array(["to be or not to be "] * count, dtype="S19")
    return {"root": str(folder), "length": 8}


def speech(folder: Path) -> dict[str, Any]:
    for label, hertz in enumerate((300, 900)):
        for speaker in ("ann", "ben", "cat", "dan"):
            for number in (0, 5, 10, 11, 12):  # of test, of validation, and three for training
                wave = 20_000 * np.sin(2 * np.pi * (hertz + 20 * number) * np.arange(4_000) / 8_000)
                wavfile.write(folder / f"{label}_{speaker}_{number}.wav", 8_000, wave.astype(np.int16))
    return {"root": str(folder)}


def text(folder: Path) -> dict[str, Any]:
    path = folder / "play.txt"
    path.write_text("".join(f"{role}:\n{'to be or not to be ' * 12}\n\n" for role in "ABCDEF"))
    return {"files": str(path), "length": 12, "val": 0.2, "test": 0.2}


def table(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for split, count in (("train", 80), ("test", 20)):
        with open(folder / f"{split}.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["height", "weight", "site", "label"])
            for number in range(count):
                height, weight = rng.normal(size=2)
                rows.writerow([height, weight, f"site{number % 6}", "tall" if height > 0 else "short"])
    return {"files": {split: str(folder / f"{split}.csv") for split in ("train", "test")}}


FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "shakespeare": shakespeare,
    "speech": speech,
    "table": table,
    "text": text,
}
#: What the figures of the run's last validation are called.
METRIC = {"shakespeare": "perplexity", "text": "perplexity", "speech": "accuracy", "table": "accuracy"}


def test_all_are_found() -> None:
    assert [path.stem for path in CONFIGS] == sorted(FILES)


@pytest.mark.parametrize("path", one_of_many(CONFIGS, "text", "table"), ids=lambda path: path.stem)
def test_from_data_to_a_file_that_runs_alone(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    small: dict[str, Any] = {
        "trainer": {"max_rounds": 2, "check_val_every_n_rounds": 1},
        "model": {
            "client": {"steps": 2, "epochs": 1},
            "cohort": {"init_args": {"ratio": None, "count": 4}},
            "tiers": {"source": {"init_args": {"samples": 20}}},
        },
        "data": {"source": {"init_args": FILES[path.stem](tmp_path / "data")}, "server_val": 8},
    }
    if path.stem == "speech":
        small["data"] |= {"partitioner": {"init_args": {"min_size": 2}}, "num_clients": 4}
    if path.stem == "text":
        small["data"]["partitioner"] = {"init_args": {"least": 1}}
        del small["data"]["server_val"]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    config = ["--config", str(path), "--config", "small.yaml"]
    main(["fit", *config])
    run = next((tmp_path / "runs").glob("*/version_0"))
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["metrics"][f"val/largest/{METRIC[path.stem]}"] > 0
    main(["search", *config, "--search.evaluations", "4", "--search.method", "RandomSearch"])
    tiers = [folder.name for folder in (run / "search" / "tiers").iterdir()]
    found = [row.split(",") for row in (run / "search" / "history.csv").read_text().splitlines()]
    assert found[0][4] == f"best_{METRIC[path.stem]}"
    main(["finetune", *config, "--finetune.rounds", "1"])
    assert {folder.name for folder in (run / "finetune" / "tiers").iterdir()} == set(tiers)
    main(["export", *config, "--tier", tiers[0]])
    said = {"metadata.json": ""}
    program = torch.export.load(run / "search" / "tiers" / tiers[0] / "network.pt2", extra_files=said).module()
    metadata = json.loads(said["metadata.json"])
    raw = torch.zeros(3, *metadata["input_shape"], dtype=getattr(torch, metadata["input_type"]))
    assert program(raw).shape[-1] == len(metadata["class_names"])
    main(["report", str(run)])
    report = (run / "report.html").read_text()
    assert f"Validation {METRIC[path.stem]}" in report
    assert f"test {METRIC[path.stem]}" in report
