"""Every YAML file of configs/fednas runs, made small; those of the paper's data sets on small made files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from lit_fednas.cli import main
from lit_fednas.data import ByColumn, CelebA, FederatedDataModule
from tests.support import one_of_many

FEDNAS = Path(__file__).parents[1] / "configs" / "fednas"
BASES = sorted(FEDNAS.glob("*.yaml"))
OVERLAYS = sorted(FEDNAS.glob("overlays/*.yaml"))
FINETUNINGS = sorted(FEDNAS.glob("finetune/*.yaml"))
CLIENTS = 6
FAMILIES = {
    "SlicedMobileNet": {"channels": [4, 6, 6], "strides": [2, 1, 2]},
    "SlicedConvNet": {"hidden": [4, 6, 6], "pools": [1, 2, 3]},
}


def test_all_are_found() -> None:
    bases = ["celeba", "cifar10", "cifar10_convnet_small", "cifar10_mobilenet_small", "digits", "imagenet"]
    assert [path.stem for path in BASES] == bases
    assert len(OVERLAYS) == 10
    assert [path.stem for path in FINETUNINGS] == ["celeba", "cifar10_small", "digits"]


def images(root: Path) -> Path:
    """A folder of four classes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("val", 3), ("test", 4)):
        for label in range(4):
            (root / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / f"class{label}" / f"{number}.png")
    return root


def celeba(root: Path, images: Sequence[int] = (12,) * CLIENTS) -> Path:
    """CelebA's files as torchvision has them: so many pictures of each person, who smiles or does not."""
    rng = np.random.default_rng(0)
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(1, sum(images) + 1)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (20, 18, 3), dtype=np.uint8)).save(folder / "img_align_celeba" / name)
    attributes = ["Bald", "Male", "Mouth_Slightly_Open", "Smiling"]
    signs = rng.choice([-1, 1], (len(names), 4))
    rows = [f"{name} " + " ".join(f"{sign:2d}" for sign in row) for name, row in zip(names, signs, strict=True)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), " ".join(attributes), *rows]) + "\n")
    people = rng.permutation(np.repeat(np.arange(1, len(images) + 1), images))
    owners = [f"{name} {person}" for name, person in zip(names, people, strict=True)]
    (folder / "identity_CelebA.txt").write_text("\n".join(owners) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(f"{name} 0" for name in names) + "\n")
    return root


def test_every_person_with_five_images_is_a_client_of_celeba(tmp_path: Path) -> None:
    """Seven of eleven people, whose 44 images less the server's 15 are dealt out; a client keeps less than five."""
    root = celeba(tmp_path, [5, 4, 5, 6, 1, 9, 3, 5, 8, 6, 4])
    settings = yaml.safe_load((FEDNAS / "celeba.yaml").read_text())["data"]
    source = CelebA(**{**settings["source"]["init_args"], "root": root, "image_size": 8})
    partitioner = ByColumn(**settings["partitioner"]["init_args"])
    shares = {name: settings[name] for name in ("client_val", "client_test")}
    data = FederatedDataModule(source, partitioner, server_val=15, **shares)
    data.setup("fit")
    assert data.clients.num_clients == 7
    sizes = [sum(data.clients.size(client, split) for split in ("train", "val", "test")) for client in range(7)]
    assert sum(sizes) == 44 - 15
    assert min(sizes) < 5


def small(base: Path, folder: Path, *overlays: Path) -> dict:
    """What makes a configuration small: a narrow network of the same family, one step, two iterations."""
    asked = yaml.safe_load(base.read_text())
    family = asked["model"]["supernet"]["init_args"]["family"]["class_path"].rpartition(".")[2]
    settings: dict = {
        "trainer": {"max_rounds": -1, "check_val_every_n_rounds": 1, "accelerator": "cpu"},
        "model": {
            "client": {"batch_size": 4, "steps": 1},
            "supernet": {"init_args": {"family": {"init_args": FAMILIES[family]}}},
        },
    }
    overlaid = {path.stem for path in overlays}
    if overlaid & {"multiplier", "initial"}:
        settings["trainer"]["max_rounds"] = 2
    if "multiplier" not in overlaid:
        initial = {
            "initial_rounds": 2 if "initial" in overlaid else min(1, asked["prune_by_budgets"].get("initial_rounds", 0))
        }
        last = {"budget": 0.7, "first": 0.2}
        few = {} if "no_rounds" in overlaid or "netadapt" in overlaid else {"rounds": {1: 2}}
        groups = {} if overlaid & {"no_groups", "netadapt"} else {"groups": 2}
        settings["prune_by_budgets"] = {**initial, **last, **few, **groups}
    if base.stem == "digits":
        return settings
    source = asked["data"]["source"]["class_path"].rpartition(".")[2]
    settings["data"] = {"num_workers": 0, "eval_batch_size": 16}
    if source == "CelebA":
        settings["data"] |= {"source": {"init_args": {"root": str(folder), "image_size": 16}}, "server_val": 8}
        return settings
    kept = "LazyImageFolder" if source == "LazyImageFolder" else "ImageFolder"
    kind = {"class_path": f"lit_fednas.data.{kept}", "init_args": {"root": str(folder), "image_size": 16}}
    settings["data"] |= {"source": kind, "num_clients": 1 if overlaid & {"netadapt", "multiplier"} else CLIENTS}
    return settings


def run(tmp_path, monkeypatch, base: Path, *overlays: Path) -> Path:
    folder = (celeba if base.stem == "celeba" else images)(tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small(base, folder, *overlays)))
    paths = (base, *overlays, tmp_path / "small.yaml")
    assert main(["fit", *(word for path in paths for word in ("--config", str(path)))]) == 0
    (records,) = tmp_path.glob("runs/*/version_0/rounds.jsonl")
    return records.parent


@pytest.mark.parametrize("base", one_of_many(BASES, "cifar10", "digits"), ids=lambda path: path.stem)
def test_every_experiment_prunes(tmp_path, monkeypatch, base: Path) -> None:
    folder = run(tmp_path, monkeypatch, base)
    sequence = json.loads((folder / "sequence.json").read_text())
    assert sequence["complete"]
    assert sequence["models"][-1]["resource"] <= 0.7 * sequence["initial"]
    config = (folder / "config.yaml").read_text()
    for name in ("PrunedSequence", "CandidateGroups", "PruneByBudgets"):
        assert name in config
    if base.stem == "celeba":
        assert sequence["clients"] == CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_runs_and_changes_something(tmp_path, monkeypatch, overlay: Path) -> None:
    folder = run(tmp_path, monkeypatch, FEDNAS / "cifar10_convnet_small.yaml", overlay)
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    archs = {client["arch"] for record in records for client in record["clients"]}
    if overlay.stem == "multiplier":
        assert archs == {"whole"}
        assert not (folder / "sequence.json").exists()
        assert len((folder / "clients.csv").read_text().splitlines()) == 2  # the one client that has all data
        return
    models = json.loads((folder / "sequence.json").read_text())["models"]
    if overlay.stem == "initial":
        assert archs == {"model: 0"}
        return
    rounds = {"no_rounds": 1, "netadapt": 1}.get(overlay.stem, 2)
    assert {model["rounds"] for model in models[1:]} == {rounds}
    groups = {"no_groups": 1, "netadapt": 1}.get(overlay.stem, 2)
    assert {len(model["groups"]) for model in models[1:]} == {groups}
    if overlay.stem in ("no_dropping", "netadapt"):
        assert {one["dropped"] for model in models[1:] for one in model["candidates"]} == {None}


@pytest.mark.parametrize("finetuning", FINETUNINGS, ids=lambda path: path.stem)
def test_every_fine_tuning_is_understood(finetuning: Path, capsys) -> None:
    paths = [FEDNAS / "digits.yaml", finetuning]
    args = [part for path in paths for part in ("--config", str(path))]
    with pytest.raises(SystemExit) as end:
        main(["finetune", *args, "--print_config"])
    assert end.value.code in (None, 0)
    understood = yaml.safe_load(capsys.readouterr().out)["finetune"]
    for name, value in yaml.safe_load(finetuning.read_text())["finetune"].items():
        assert isinstance(value, dict) or understood[name] == value
