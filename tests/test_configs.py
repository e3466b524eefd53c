"""Every YAML file runs, made small."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import asdict
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from lit_fednas.cli import main
from lit_fednas.federation import UniformCohort
from lit_fednas.parts import described
from lit_fednas.records.models import write_suite
from lit_fednas.supernets import ElasticArch, GrowablePerceptron, ModelSuite
from lit_fednas.supernets.elastic_space import ElasticSpace
from lit_fednas.supernets.growing.growth import plan, to_plain
from lit_fednas.tiers import ArchitectureCosts, Capacities
from tests.support import one_of_many

CONFIGS = Path(__file__).parents[1] / "configs"
BASES = sorted(CONFIGS.glob("superfed/*.yaml"))
OVERLAYS = sorted(CONFIGS.glob("superfed/overlays/*.yaml"))
SEARCHES = sorted(CONFIGS.glob("search/*.yaml"))
SWEEPS = sorted(CONFIGS.glob("sweeps/*.yaml"))  # tests/scripts/test_sweep.py
FEDORAS = sorted(CONFIGS.glob("fedoras/*.yaml"))
FEDORAS_OVERLAYS = sorted(CONFIGS.glob("fedoras/overlays/*.yaml"))
FEDHEN = sorted(CONFIGS.glob("fedhen/*.yaml"))
FEDHEN_OVERLAYS = sorted(CONFIGS.glob("fedhen/overlays/*.yaml"))
WIDTH = sorted(CONFIGS.glob("width/*.yaml"))
WIDTH_OVERLAYS = sorted(CONFIGS.glob("width/overlays/*.yaml"))
FEDTRANS = sorted(CONFIGS.glob("fedtrans/*.yaml"))
FEDTRANS_OVERLAYS = sorted(CONFIGS.glob("fedtrans/overlays/*.yaml"))
DARTS = sorted(CONFIGS.glob("darts/*.yaml"))
DARTS_OVERLAYS = sorted(CONFIGS.glob("darts/overlays/*.yaml"))
DARTS_AFTER = sorted([*CONFIGS.glob("darts/search/*.yaml"), *CONFIGS.glob("darts/finetune/*.yaml")])
FINETUNINGS = sorted(CONFIGS.glob("fedoras/finetune/*.yaml"))
FINDINGS = sorted(CONFIGS.glob("findings/*.yaml"))
EXPERIMENTS = sorted(CONFIGS.glob("findings/experiments/*.yaml"))  # tests/scripts/test_findings.py
LOGGERS = [path for path in sorted(CONFIGS.glob("loggers/*.yaml")) if "online" not in path.name]


def test_all_are_found():
    assert [path.stem for path in BASES] == [
        "cifar10",
        "cifar100",
        "cifar10_small",
        "cinic10",
        "digits",
        "digits_transformer",
        "distorted_digits",
    ]
    assert len(OVERLAYS) == 19
    assert [path.stem for path in LOGGERS] == ["csv", "tensorboard", "wandb_offline"]
    searches = [
        "digits",
        "distorted_digits",
        "fedoras",
        "fedoras_federated",
        "fedoras_small",
        "superfed_table5",
        "superfed_table5_small",
    ]
    assert [path.stem for path in SEARCHES] == searches
    assert [path.stem for path in FEDORAS] == ["cifar10", "cifar100", "cifar10_small", "digits"]
    assert len(FEDORAS_OVERLAYS) == 12
    assert len(FINETUNINGS) == 8
    assert [path.stem for path in FEDHEN] == ["cifar10", "cifar100", "cifar10_levels", "cifar10_small", "digits"]
    assert len(FEDHEN_OVERLAYS) == 4
    assert [path.stem for path in WIDTH] == ["cifar10", "cifar10_small", "digits"]
    assert len(WIDTH_OVERLAYS) == 15
    suites = ["cifar10", "cifar10_small", "digits", "femnist", "openimage", "speech"]
    assert [path.stem for path in FEDTRANS] == suites
    assert len(FEDTRANS_OVERLAYS) == 17
    assert [path.stem for path in DARTS] == ["cifar10", "cifar10_small", "digits"]
    assert [path.stem for path in DARTS_OVERLAYS] == ["first_order", "resnet", "retrain", "second_order"]
    assert [path.stem for path in DARTS_AFTER] == ["cifar10", "cifar10_small", "digits", "random", "derive"]
    assert len(FINDINGS) == 12
    run = len(FINDINGS) + len(BASES) + len(OVERLAYS) + len(LOGGERS) + len(SEARCHES)
    run += len(FEDORAS) + len(FEDORAS_OVERLAYS) + len(FINETUNINGS)
    run += len(FEDHEN) + len(FEDHEN_OVERLAYS) + len(WIDTH) + len(WIDTH_OVERLAYS)
    run += len(FEDTRANS) + len(FEDTRANS_OVERLAYS)
    run += len(DARTS) + len(DARTS_OVERLAYS) + len(DARTS_AFTER)
    # the others: test_fednas_configs.py, test_task_configs.py, sweeps/test_arena.py
    others = [path for path in CONFIGS.rglob("*.yaml") if not {"fednas", "tasks", "arenas"} & set(path.parts)]
    assert len(others) == run + len(SWEEPS) + len(EXPERIMENTS) + 1  # one logger is online


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


def small(folder, configs, rounds):
    """What makes a configuration small."""
    folders = {part for path in configs for part in path.relative_to(CONFIGS).parts}
    fedoras, tiered, growing = "fedoras" in folders, bool(folders & {"fedhen", "width"}), "fedtrans" in folders
    mixed = "darts" in folders
    settings: dict = {
        "trainer": {"max_rounds": rounds, "check_val_every_n_rounds": 1, "accelerator": "cpu"},
        "model": {"supernet": SMALL_RESNET, "client": {"steps": 1, "batch_size": 4}},
    }
    if any(path.stem == "digits_transformer" for path in configs):  # small as it is
        del settings["model"]["supernet"]
    if fedoras:
        settings["model"].update(small_paths({path.stem for path in configs}))
    if tiered:
        settings["model"].update(small_tiered(configs))
    if growing:
        settings.update(small_suite(configs, settings))
    if mixed:
        settings["model"]["supernet"] = small_cells(configs)
    if not any("digits" in path.stem for path in configs):
        settings["data"] = {
            "source": {
                "class_path": "lit_fednas.data.ImageFolder",
                "init_args": {"root": str(folder), "image_size": 16},
            },
            "partitioner": {"class_path": "lit_fednas.data.IID"},
            "server_val": 8,
        }
        if growing:
            settings["data"]["client_test"] = 0.2
        if tiered or growing or mixed or (fedoras and not any(path.stem == "central" for path in configs)):
            settings["data"]["num_clients"] = 8
    return settings


SMALL_RESNET = {
    "class_path": "lit_fednas.supernets.ElasticResNet",
    "init_args": {"stem_width": 4, "stage_widths": [8, 8, 8, 8], "divisor": 2},
}


def small_paths(names):
    """A supernet of few operators; what the named overlays are about stays."""
    supernet: dict = {"operators": ["sep_e05", "mb3_e2", "id"], "width": 16}
    if "wide" in names:  # six stages cannot be narrower
        supernet = {"operators": ["sep_e05", "mb1_e2", "id"]}
    if "cifar100_multi_task" in names:  # for the four classes of the image folder
        supernet["label_sets"] = {"coarse": [0, 0, 1, 1]}
    cohort = {"class_path": "lit_fednas.federation.UniformCohort", "init_args": {"ratio": 0.5}}
    settings: dict = {
        "supernet": {"class_path": "lit_fednas.supernets.PathCNN", "init_args": supernet},
        "cohort": cohort,
    }
    if "central" not in names:
        source = {"class_path": "lit_fednas.tiers.CumulativeCostTiers", "init_args": {"samples": 50}}
        settings["tiers"] = {"source": source}
    return settings


def small_tiered(configs):
    """Narrow networks; their kinds and all else stay."""
    narrow = {"width": 8} if configs[0].parent.stem == "fedhen" else {"family": NARROW}
    cohort = {"class_path": "lit_fednas.federation.UniformCohort", "init_args": {"ratio": 0.5}}
    settings: dict = {"supernet": {"init_args": narrow}, "cohort": cohort}
    if any(path.stem == "partial_work" for path in configs):  # of passes, not of steps
        settings["client"] = {"batch_size": 4}
    return settings


def small_cells(configs):
    """Few cells of one node, or another narrow network."""
    name = [yaml.safe_load(path.read_text())["model"].get("supernet", {}).get("class_path") for path in configs]
    kind = next(filter(None, reversed(name)))
    cells = {"CellSupernet": {"cells": 3, "nodes": 1}, "GenotypeNetwork": {"cells": 3}}
    return {"class_path": kind, "init_args": {"width": 2, **cells.get(kind.rpartition(".")[2], {})}}


#: Initial models that are narrow, by their class.
SMALL_FAMILIES = {
    "GrowableMobileNetV3Small": {"width": 0.25},
    "GrowableNASBench201": {"width": 8},
    "GrowableResNet18": {"width": 8, "blocks": [1, 1]},
    "GrowableCNN": {"hidden": [8, 16, 32]},
    "GrowablePerceptron": {"hidden": [4, 4]},
}


def small_suite(configs, settings):
    """A narrow initial model of the same kind, from which a model is derived in every second round."""
    files = [yaml.safe_load(path.read_text()) for path in configs]
    model = {key: value for key, value in settings["model"].items() if key != "supernet"}
    share = {"count": 4, "ratio": None} if "count" in files[0]["model"]["cohort"]["init_args"] else {"ratio": 0.5}
    model["cohort"] = {"class_path": "lit_fednas.federation.UniformCohort", "init_args": share}
    if any("supernet" in file.get("model", {}) for file in files[1:]):
        return {"model": model}
    base = files[0]["model"]["supernet"]["init_args"]["family"]
    family = {**base, "init_args": SMALL_FAMILIES[base["class_path"].rpartition(".")[2]]}
    model["supernet"] = {"class_path": "lit_fednas.supernets.ModelSuite", "init_args": {"family": family}}
    if any(file.get("transform_on_convergence", {}) is None for file in files):
        return {"model": model}
    return {"model": model, "transform_on_convergence": {"threshold": 1e9, "gamma": 1, "delta": 1, "window": 1}}


NARROW = {
    "class_path": "lit_fednas.supernets.SlicedCNN",
    "init_args": {
        "hidden": [16, 16, 16, 16],
        "norm": {"class_path": "lit_fednas.supernets.BatchNorm", "init_args": {"running_statistics": False}},
    },
}


def run(tmp_path, monkeypatch, folder, *configs, rounds=1):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small(folder, configs, rounds)))
    args = [part for path in (*configs, tmp_path / "small.yaml") for part in ("--config", str(path))]
    assert main(["fit", *args]) == 0
    return list(tmp_path.glob("runs/*/version_0/rounds.jsonl"))


@pytest.mark.parametrize(
    "config", one_of_many(BASES, "cifar10", "digits", "digits_transformer"), ids=lambda path: path.stem
)
def test_every_experiment_runs(tmp_path, monkeypatch, folder, config):
    assert len(run(tmp_path, monkeypatch, folder, config)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_runs_and_changes_something(tmp_path, monkeypatch, folder, overlay):
    base = CONFIGS / "superfed" / "cifar10_small.yaml"
    assert len(run(tmp_path, monkeypatch, folder, base, overlay)) == 1


#: Rounds, clients of a round, all clients and alpha of SuperFed's Figures 2 to 5.
PAPER = {
    "cifar10": (1500, 8, 20, 100),
    "cifar100": (2000, 8, 20, 100),
    "cinic10": (1000, 40, 100, 100),
    "cifar10 alpha_1": (1500, 8, 20, 1),
    "cifar10 alpha_0.1": (2500, 8, 20, 0.1),
    "cifar10 participation_0.2": (1500, 4, 20, 100),
    "cifar10 participation_0.8": (1000, 16, 20, 100),
}


@pytest.mark.parametrize("name", one_of_many(PAPER, "cifar10 alpha_0.1", "cifar10 participation_0.8"))
def test_superfeds_settings_are_the_papers(capsys, name):
    base, *overlays = name.split()
    paths = [CONFIGS / "superfed" / f"{base}.yaml", *(OVERLAYS[0].with_name(f"{one}.yaml") for one in overlays)]
    with pytest.raises(SystemExit):
        main(["fit", *(part for path in paths for part in ("--config", str(path))), "--print_config"])
    run = yaml.safe_load(capsys.readouterr().out)
    rounds, cohort, clients, alpha = PAPER[name]
    ratio, client, decay = run["model"]["cohort"]["init_args"]["ratio"], run["model"]["client"], run["beta_decay"]
    assert (run["trainer"]["max_rounds"], run["data"]["num_clients"]) == (rounds, clients)
    assert UniformCohort(ratio).size(clients) == cohort
    assert run["data"]["partitioner"]["init_args"]["alpha"] == alpha
    assert (client["epochs"], client["lr_schedule"]["class_path"].split(".")[-1]) == (5, "ConstantRate")
    assert [client["optimizer"]["init_args"][name] for name in ("lr", "momentum", "weight_decay")] == [0.1, 0, 0]
    assert [decay[name] for name in ("beta0", "decay", "period")] == [0.9, "cosine", 0.8]


def test_ifedavg_trains_the_four_subnets_that_table_4_marks():
    """By the depths and the ratio that the overlays write, over the paper's space."""
    space = ElasticSpace((0, 1, 2), (0.1, 0.14, 0.18, 0.22, 0.25), (256, 512, 1024, 2048), 8)
    rows = [((0, 0, 0, 0), 0.1), ((0, 1, 0, 1), 0.14), ((1, 1, 1, 1), 0.18), ((2, 2, 2, 2), 0.25)]
    names = ("smallest", "middle1", "middle2", "largest")
    for name, (depths, ratio) in zip(names, rows, strict=True):
        model = yaml.safe_load(OVERLAYS[0].with_name(f"independent_{name}.yaml").read_text())["model"]
        asked = space.named(model["assignment"]["init_args"]["arch"])
        assert asked == ElasticArch(depths, (ratio,) * 12)
        assert [space.named(text) for text in model["evaluation"]["subnets"]] == [asked]


def test_superfeds_ablations_are_the_papers():
    """Table 2 and Figure 5, as the overlays write them."""
    read = {path.stem: yaml.safe_load(path.read_text()) for path in OVERLAYS}
    parts = {"random": "Random", "sandwich": "Sandwich", "tracking_sandwich": "TrackingSandwich"}
    for name, part in parts.items():
        assert read[name]["model"]["assignment"]["class_path"].split(".")[-1].startswith(part)
    for name, part, decays in (("overlap", "OverlapAverage", False), ("maxnet", "MaxNet", True)):
        assert read[name]["model"]["aggregation"]["class_path"].endswith(f".{part}")
        assert (read[name]["beta_decay"] is not None) == decays
    usual = {"beta0": 0.9, "decay": "cosine", "period": 0.8}
    changes = {
        "beta0_0.5": {"beta0": 0.5},
        "decay_linear": {"decay": "linear"},
        "decay_constant": {"decay": "constant"},
        "period_0.5": {"period": 0.5},
    }
    for name, change in {"maxnet": {}, **changes}.items():
        assert usual | read[name]["beta_decay"] == usual | change


def test_the_search_of_table_5_has_its_three_constraints():
    search = yaml.safe_load((CONFIGS / "search" / "superfed_table5.yaml").read_text())["search"]
    assert [one["macs"] for one in search["tiers"]["init_args"]["budgets"].values()] == [1e9, 2e9, 3e9]
    assert search["method"]["class_path"].endswith(".Evolution")


@pytest.mark.parametrize("config", one_of_many(FEDORAS, "digits"), ids=lambda path: path.stem)
def test_every_path_experiment_runs(tmp_path, monkeypatch, folder, config):
    (records,) = run(tmp_path, monkeypatch, folder, config)
    assert {"PathCNN", "Subspaces", "PathSampling", "OperatorAverage"} <= classes(records.parent / "config.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("overlay", FEDORAS_OVERLAYS, ids=lambda path: path.stem)
def test_every_path_overlay_runs(tmp_path, monkeypatch, folder, overlay):
    first = overlay.stem.split("_")[0]
    base = first if first in ("digits", "cifar100") else "cifar10_small"
    (records,) = run(tmp_path, monkeypatch, folder, CONFIGS / "fedoras" / f"{base}.yaml", overlay)
    assert classes(overlay) <= classes(records.parent / "config.yaml") | {"IID"}


@pytest.mark.parametrize(
    "config",
    one_of_many([*FEDHEN, *WIDTH], "digits"),
    ids=lambda path: f"{path.parent.stem}-{path.stem}",
)
def test_every_experiment_by_tiers_runs(tmp_path, monkeypatch, folder, config):
    (records,) = run(tmp_path, monkeypatch, folder, config)
    assert {"ArchitectureTiers", "ByTier"} <= classes(records.parent / "config.yaml")
    assert (records.parent / "targets.csv").exists() == ("rounds_to_target" in config.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "overlay"),
    [*zip(cycle(FEDHEN), FEDHEN_OVERLAYS, strict=False), *zip(cycle(WIDTH), WIDTH_OVERLAYS, strict=False)],
    ids=lambda path: f"{path.parts[-2]}-{path.stem}",
)
def test_every_overlay_by_tiers_runs(tmp_path, monkeypatch, folder, base, overlay):
    """Over the configurations in turn; test_overlays.py parses every pair."""
    (records,) = run(tmp_path, monkeypatch, folder, base, overlay)
    assert classes(overlay) <= classes(records.parent / "config.yaml") | {"Dirichlet"}  # which small() makes IID


@pytest.mark.parametrize("config", one_of_many(FEDTRANS, "digits"), ids=lambda path: path.stem)
def test_every_growing_experiment_grows(tmp_path, monkeypatch, folder, config):
    (records,) = run(tmp_path, monkeypatch, folder, config, rounds=2)
    family = classes(config) & set(SMALL_FAMILIES)
    assert {"ModelSuite", "ByOwnUtility", "SoftAverage", *family} <= classes(records.parent / "config.yaml")
    assert len(json.loads((records.parent / "suite.json").read_text())["models"]) == 2
    assert (records.parent / "clients.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("overlay", FEDTRANS_OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_of_a_growing_experiment_runs(tmp_path, monkeypatch, folder, overlay):
    """Those that train a grown model find one."""
    grown = ModelSuite((3, 16, 16), 4, GrowablePerceptron([16, 16]))
    grown.add(0, plan(grown.models[0].blueprint, ["layer2"], 1), seed=0)
    rows = [
        {"parent": model.parent, "cells": str(model.blueprint), "steps": to_plain(model.steps)}
        for model in grown.models
    ]
    where = tmp_path / "runs/fedtrans-cifar10-small/version_0"
    where.mkdir(parents=True)
    tiers = Capacities().tiers(grown.space, ArchitectureCosts(grown), np.random.default_rng(0))
    write_suite(where, rows, True, described(grown.family), [asdict(tier) for tier in tiers])
    below = ["heterofl"] if "behind heterofl.yaml" in " ".join(overlay.read_text().split("\n# ")) else []
    paths = [overlay.parents[1] / "cifar10_small.yaml", *(overlay.with_stem(name) for name in below), overlay]
    found = run(tmp_path, monkeypatch, folder, *paths)
    (records,) = (path for path in found if path.parent != where)
    assert classes(overlay) <= classes(records.parent / "config.yaml")
    grows = yaml.safe_load((records.parent / "config.yaml").read_text())["transform_on_convergence"] is not None
    assert (records.parent / "suite.json").exists() == grows
    assert grows == (overlay.stem not in ("fedavg", "fedavg_first", "heterofl", "splitmix", "fluid"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [path for path in FINDINGS if "seed_everything:" in path.read_text()], ids=lambda path: path.stem
)
def test_every_finding_runs(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", str(config), "--trainer.max_rounds", "1", "--model.client.steps", "1"]) == 0


@pytest.mark.parametrize("config", one_of_many(DARTS, "digits"), ids=lambda path: path.stem)
def test_every_mixture_is_searched(tmp_path, monkeypatch, folder, config):
    """The genotype is derived, and it and a random one are trained from scratch, on all data."""
    (records,) = run(tmp_path, monkeypatch, folder, config)
    assert {"CellSupernet", "DifferentiableSearch"} <= classes(records.parent / "config.yaml")
    after = [CONFIGS / "darts/search/derive.yaml"]
    configs = [part for path in (config, tmp_path / "small.yaml", *after) for part in ("--config", str(path))]
    assert main(["search", *configs]) == 0
    after = [CONFIGS / "darts/finetune" / f"{name}.yaml" for name in (config.stem, "random")]
    for files in (after[:1], after):
        configs = [part for path in (config, tmp_path / "small.yaml", *files) for part in ("--config", str(path))]
        assert main(["finetune", *configs, "--finetune.rounds", "1", "--finetune.client.steps", "1"]) == 0
    rows = [next(csv.DictReader((records.parent / name / "tiers.csv").open())) for name in TRAINED]
    assert rows[0]["arch"] == rows[1]["arch"] != rows[2]["arch"]
    trained = [json.loads(path.read_text().splitlines()[0]) for path in records.parent.glob("*/runs/*/rounds.jsonl")]
    searched = json.loads(records.read_text().splitlines()[0])
    assert len(trained) == 2
    for round in trained:
        examples = {client["client"]: client["num_examples"] for client in round["clients"]}
        assert all(2 * one["num_examples"] - 1 <= examples.get(one["client"], 1e9) for one in searched["clients"])


#: The folders of the search, and of what is trained after it.
TRAINED = ("search", "retrain", "random")


@pytest.mark.slow
@pytest.mark.parametrize("overlay", DARTS_OVERLAYS, ids=lambda path: path.stem)
def test_every_overlay_of_a_mixture_runs(tmp_path, monkeypatch, folder, overlay):
    """The one that trains a genotype finds one."""
    where = tmp_path / "runs/darts-cifar10-small/version_0/search/tiers/all"
    where.mkdir(parents=True)
    genotype = "normal sep_conv_3x3~0+skip_connect~1 reduce max_pool_3x3~0+dil_conv_5x5~1"
    (where / "architecture.json").write_text(json.dumps({"arch": genotype}))
    (records,) = run(tmp_path, monkeypatch, folder, CONFIGS / "darts" / "cifar10_small.yaml", overlay)
    assert classes(overlay) <= classes(records.parent / "config.yaml")


@pytest.mark.parametrize("finetuning", one_of_many(FINETUNINGS, "digits", "transfer"), ids=lambda path: path.stem)
def test_every_fine_tuning_is_understood(finetuning, capsys):
    under = {"random_search": ["table11"], "transfer": ["table10"], "figure12": ["table10"]}.get(finetuning.stem, [])
    paths = [CONFIGS / "fedoras" / ("digits.yaml" if finetuning.stem == "digits" else "cifar10.yaml")]
    paths += [CONFIGS / "fedoras" / "finetune" / f"{name}.yaml" for name in (*under, finetuning.stem)]
    args = [part for path in paths for part in ("--config", str(path))]
    with pytest.raises(SystemExit) as end:
        main(["finetune", *args, "--print_config"])
    assert end.value.code in (None, 0)
    understood = yaml.safe_load(capsys.readouterr().out)["finetune"]
    for name, value in yaml.safe_load(finetuning.read_text())["finetune"].items():
        assert isinstance(value, dict) or understood[name] == value


@pytest.mark.slow
@pytest.mark.parametrize(("base", "finetuning", "count"), [("digits", "digits", 3), ("cifar10", "table10", 4)])
def test_a_fine_tuning_runs(tmp_path, monkeypatch, folder, base, finetuning, count):
    """With the data of its configuration; those of CIFAR are augmented otherwise than the supernet's."""
    name, base = f"fedoras-{base}", CONFIGS / "fedoras" / f"{base}.yaml"
    run(tmp_path, monkeypatch, folder, base)
    configs = [part for path in (base, tmp_path / "small.yaml") for part in ("--config", str(path))]
    assert main(["search", *configs, "--search.evaluations", "3", "--search.method.population", "3"]) == 0
    finetuning = CONFIGS / "fedoras" / "finetune" / f"{finetuning}.yaml"
    options = ["--finetune.rounds", "2", "--finetune.client.steps", "1"]
    assert main(["finetune", *configs, "--config", str(finetuning), *options]) == 0
    written = tmp_path / "runs" / name / "version_0/finetune"
    assert len((written / "tiers.csv").read_text().splitlines()) == 1 + count
    assert (written / "clients.csv").exists() == ("client_test" in base.read_text())


def classes(path):
    """The names of all classes that a file asks for."""
    lines = [line.split("#")[0] for line in path.open()]
    return {name for line in lines for name in re.findall(r"class_path: [\w.]*\.(\w+)", line)}


@pytest.mark.parametrize("logger", one_of_many(LOGGERS, "csv"), ids=lambda path: path.stem)
def test_every_logger_runs(tmp_path, monkeypatch, folder, logger):
    import wandb

    assert len(run(tmp_path, monkeypatch, folder, CONFIGS / "superfed" / "digits.yaml", logger)) == 1
    wandb.finish()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, folder):
    """A run of digits. Read only."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        run(root, patch, folder, CONFIGS / "superfed" / "digits.yaml")
    return root


@pytest.mark.parametrize("search", one_of_many(SEARCHES, "digits", "fedoras_federated"), ids=lambda path: path.stem)
def test_every_search_runs(tmp_path, monkeypatch, trained, search):
    base = CONFIGS / "superfed" / "digits.yaml"
    monkeypatch.chdir(shutil.copytree(trained, tmp_path, dirs_exist_ok=True))
    options = ["--search.evaluations", "3"]
    if "samples" in search.read_text():
        options += ["--search.tiers.init_args.samples", "20"]
    if "tiers" not in yaml.safe_load(search.read_text())["search"]:  # it is for the tiers of clients
        options += ["--search.tiers", "lit_fednas.tiers.CumulativeCostTiers", "--search.tiers.samples", "20"]
    if "federated" in search.stem:
        options += ["--data.client_val", "0.2", "--data.server_val", "0", "--changed", "[data]"]
    configs = [part for path in (base, tmp_path / "small.yaml", search) for part in ("--config", str(path))]
    assert main(["search", *configs, *options]) == 0
    tiers = (tmp_path / "runs/digits/version_0/search/tiers.csv").read_text().splitlines()
    assert len(tiers) == 1 + 3
