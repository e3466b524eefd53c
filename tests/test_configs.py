"""Every YAML file runs, made small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from lit_fednas.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
BASES = sorted(CONFIGS.glob("superfed/*.yaml"))
OVERLAYS = sorted(CONFIGS.glob("superfed/overlays/*.yaml"))
SEARCHES = sorted(CONFIGS.glob("search/*.yaml"))
SWEEPS = sorted(CONFIGS.glob("sweeps/*.yaml"))  # tests/scripts/test_sweep.py
LOGGERS = [path for path in sorted(CONFIGS.glob("loggers/*.yaml")) if "online" not in path.name]


def test_all_are_found():
    assert [path.stem for path in BASES] == ["cifar10", "cifar100", "cifar10_small", "cinic10", "digits"]
    assert len(OVERLAYS) == 15
    assert [path.stem for path in LOGGERS] == ["csv", "tensorboard", "wandb_offline"]
    assert [path.stem for path in SEARCHES] == ["digits", "fedoras", "superfed_table5", "superfed_table5_small"]
    run = len(BASES) + len(OVERLAYS) + len(LOGGERS) + len(SEARCHES)
    assert len(list(CONFIGS.rglob("*.yaml"))) == run + len(SWEEPS) + 1  # one logger is online


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small image folder in place of every data set that is not embedded."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("test", 4)):
        for label in range(4):
            (root / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / f"class{label}" / f"{number}.png")
    return root


def run(tmp_path, monkeypatch, folder, *configs, rounds=1):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    small: dict = {
        "trainer": {"max_rounds": rounds, "check_val_every_n_rounds": 1, "accelerator": "cpu"},
        "model": {
            "supernet": {
                "class_path": "lit_fednas.supernets.ElasticResNet",
                "init_args": {"stem_width": 4, "stage_widths": [8, 8, 8, 8], "divisor": 2},
            },
            "client": {"steps": 1, "batch_size": 4},
        },
    }
    if not any(path.stem == "digits" for path in configs):
        small["data"] = {
            "source": {
                "class_path": "lit_fednas.data.ImageFolder",
                "init_args": {"root": str(folder), "image_size": 16},
            },
            "partitioner": {"class_path": "lit_fednas.data.IID"},
            "server_val": 8,
        }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    args = [part for path in (*configs, tmp_path / "small.yaml") for part in ("--config", str(path))]
    assert main(["fit", *args]) == 0
    return list(tmp_path.glob("runs/*/version_0/rounds.jsonl"))


@pytest.mark.parametrize("config", BASES, ids=lambda path: path.stem)
def test_every_experiment_runs(tmp_path, monkeypatch, folder, config):
    assert len(run(tmp_path, monkeypatch, folder, config)) == 1


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_runs_and_changes_something(tmp_path, monkeypatch, folder, overlay):
    base = CONFIGS / "superfed" / "cifar10_small.yaml"
    assert len(run(tmp_path, monkeypatch, folder, base, overlay)) == 1


@pytest.mark.parametrize("logger", LOGGERS, ids=lambda path: path.stem)
def test_every_logger_runs(tmp_path, monkeypatch, folder, logger):
    import wandb

    assert len(run(tmp_path, monkeypatch, folder, CONFIGS / "superfed" / "digits.yaml", logger)) == 1
    wandb.finish()


@pytest.mark.parametrize("search", SEARCHES, ids=lambda path: path.stem)
def test_every_search_runs(tmp_path, monkeypatch, folder, search):
    base = CONFIGS / "superfed" / "digits.yaml"
    run(tmp_path, monkeypatch, folder, base)
    options = ["--search.evaluations", "3"]
    if "samples" in search.read_text():
        options += ["--search.tiers.init_args.samples", "20"]
    configs = [part for path in (base, tmp_path / "small.yaml", search) for part in ("--config", str(path))]
    assert main(["search", *configs, *options]) == 0
    tiers = (tmp_path / "runs/digits/version_0/search/tiers.csv").read_text().splitlines()
    assert len(tiers) == 1 + (4 if search.stem == "fedoras" else 3)
