"""Every configuration is parsed and instantiated; a run of each kind is trained, made small.

Studies are read in the tests of their command.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

from lit_fednas.cli import main
from lit_fednas.cli.lightning_cli import FederatedCLI
from lit_fednas.config_files import find
from lit_fednas.data import FederatedDataModule, Shards
from lit_fednas.federation import UniformCohort
from lit_fednas.parts import instantiated
from lit_fednas.studies import read_study
from lit_fednas.supernets import BaseNetworks, ElasticArch, Supernet
from lit_fednas.supernets.elastic_resnet import ElasticSpace
from lit_fednas.tiers import ArchitectureCosts, TierSource
from tests.data.files import tone, write_image, write_wave
from tests.finetune.small import rows
from tests.supernets.test_elastic_resnet import PUBLISHED, TABLE_5
from tests.support import one_of_many

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = {path.relative_to(CONFIGS).as_posix(): path for path in sorted(CONFIGS.rglob("*.yaml"))}
#: What layers lie on, by their folder or name; the other configurations stand alone.
UNDER: dict[str, list[str]] = {
    "fedoras/finetune/": ["fedoras/cifar10"],
    "fedoras/finetune/digits": ["fedoras/digits"],
    "fedoras/finetune/reddi": ["fedoras/cifar10"],
    "fednas/finetune/": ["fednas/digits"],
    "fednas/finetune/celeba": ["fednas/celeba"],
    "fednas/finetune/imagenet": ["fednas/imagenet"],
    "darts/finetune/": ["darts/digits"],
    "fedtrans/our_rules": ["fedtrans/cifar10"],
    "loggers/": ["superfed/digits"],
    "search/": ["superfed/digits"],
    "search/digit_pairs": ["recommended/digit_pairs"],
    "search/fedoras": ["fedoras/digits"],
}
LAYERED = [name for name in FILES if not name.startswith(("studies/", "reproduction/"))]
QUICK = {
    **{Path(name).parent: name for name in LAYERED},
    **{name: name for name in LAYERED if "digits" in name},
}.values()


def layers(name: str) -> list[Path]:
    """Returns a configuration's files, it the last."""
    fits = [start for start in UNDER if name.startswith(start)]
    below = UNDER[max(fits, key=len)] if fits else []
    return [FILES[f"{layer}.yaml"] for layer in below] + [FILES[name]]


def words(*paths: Path) -> list[str]:
    return [word for path in paths for word in ("--config", str(path))]


class Parsers(FederatedCLI):
    """The command line up to its parsers."""

    class Ready(Exception):
        pass

    def parse_arguments(self, parser, args):
        raise self.Ready(self._subcommand_parsers)


def parsers_of(*commands: str) -> dict[str, ArgumentParser]:
    with pytest.raises(Parsers.Ready) as ready:
        Parsers(commands)
    return ready.value.args[0]


@pytest.fixture(scope="module")
def parsers():
    return parsers_of("fit", "search", "finetune")


def without_data(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Gives supernets the sizes of data that are not available."""
    others = {"table": (8,), "speech": (1, 32, 32), "text": (16,), "shakespeare": (16,), "ptb": (16,)}
    shape = (1, 8, 8) if "digits" in str(layers(name)) else others.get(Path(name).stem, (3, 32, 32))
    monkeypatch.setattr(FederatedDataModule, "input_shape", shape)
    monkeypatch.setattr(FederatedDataModule, "num_classes", 10 if shape == (1, 8, 8) else 100)


@pytest.mark.parametrize("name", one_of_many(LAYERED, *QUICK))
def test_every_file_is_parsed_and_instantiated(parsers, monkeypatch, name):
    """The parsed configuration has each of its settings."""
    content = yaml.safe_load(FILES[name].read_text())
    parser = parsers[next((command for command in ("search", "finetune") if command in content), "fit")]
    config = parser.parse_args(words(*layers(name)))
    understood = flat(config.as_dict())
    of_callbacks = {key.replace(".init_args", "", 1): value for key, value in understood.items()}
    for key, value in flat(content).items():
        assert not isinstance(value, bool | int | float) or value in (understood.get(key), of_callbacks.get(key)), key
    without_data(monkeypatch, name)
    with torch.device("meta"):
        instances = parser.instantiate_classes(config)
    net = instances.model.supernet
    assert net.cost(net.space.largest).macs >= net.cost(net.space.smallest).macs > 0


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix[:-1]: value}
    return {name: leaf for key, item in value.items() for name, leaf in flat(item, f"{prefix}{key}.").items()}


def arm(parsers, study: str, label: str) -> dict[str, Any]:
    """Returns the settings with which an arm of a study is trained."""
    (name,) = [name for name in FILES if name.endswith(f"/{study}.yaml") and name not in LAYERED]
    words = read_study(name).commands(label, 0)[0][2:]
    paths = [str(find(word)) if word.endswith(".yaml") else word for word in words]
    return parsers["fit"].parse_args(paths).as_dict()


def full(parsers, name: str) -> dict[str, Any]:
    """Returns the settings of a file, or of a study's arm; if none is named, of FedorAS' study at the paper's size."""
    if file := FILES.get(f"{name}.yaml"):
        return parsers["fit"].parse_args(words(file)).as_dict()
    study, _, label = name.rpartition("/")
    return arm(parsers, study or "fedoras_paper", label)


def supernet(config: dict[str, Any], **settings: Any) -> Supernet:
    part = config["model"]["supernet"]
    arguments = {**part["init_args"], "input_shape": (3, 32, 32), "num_classes": 10, **settings}
    with torch.device("meta"):
        return instantiated(Supernet, {"class_path": part["class_path"], "init_args": arguments})


ARMS = {"FjORD": "width_methods", "separate": "width_methods", "SplitMix": "width_methods", "Decouple": "fedhen_table1"}
BASES = {"width_methods": "HeteroFL", "fedhen_table1": "FedHeN"}


@pytest.mark.parametrize("label", ARMS)
def test_an_arms_largest_network_is_its_bases(parsers, label):
    """It has no early heads, or consists of base networks of the smallest width."""
    base, over = (arm(parsers, ARMS[label], name) for name in (BASES[ARMS[label]], label))
    net, settings = supernet(over), base["model"]["supernet"]["init_args"]
    if isinstance(net, BaseNetworks):
        assert net.family.units(net.input_shape) == supernet(base).units
        assert len(net.networks) == 1 / min(settings["widths"])
    else:
        arguments = over["model"]["supernet"]["init_args"]
        whole = supernet(base, **({"early_heads": arguments["early_heads"]} if "early_heads" in arguments else {}))
        assert net.cost(net.space.largest).parameters == whole.cost(whole.space.largest).parameters


#: Rounds, clients of a round, all clients and alpha of SuperFed's Figures 2 to 5.
PAPER = {
    "cifar10": (1500, 8, 20, 100),
    "cifar100": (2000, 8, 20, 100),
    "cinic10": (1000, 40, 100, 100),
    "alpha 1": (1500, 8, 20, 1),
    "alpha 0.1": (2500, 8, 20, 0.1),
    "participation 0.2": (1500, 4, 20, 100),
    "participation 0.8": (1000, 16, 20, 100),
}


@pytest.mark.parametrize("name", PAPER)
def test_superfeds_settings_are_the_papers(parsers, name):
    path = f"superfed/{name}.yaml"
    paper_file = path in FILES and parsers["fit"].parse_args(words(FILES[path])).as_dict()
    run = paper_file or arm(parsers, "superfed_cifar10", name)
    rounds, cohort, clients, alpha = PAPER[name]
    ratio, client, decay = run["model"]["cohort"]["init_args"]["ratio"], run["model"]["client"], run["beta_decay"]
    assert (run["trainer"]["max_rounds"], run["data"]["num_clients"]) == (rounds, clients)
    assert UniformCohort(ratio).size(clients) == cohort
    assert run["data"]["partitioner"]["init_args"]["alpha"] == alpha
    assert (client["epochs"], client["lr_schedule"]) == (5, None)
    assert [client["optimizer"]["init_args"][name] for name in ("lr", "momentum", "weight_decay")] == [0.1, 0, 0]
    assert [decay[name] for name in ("beta0", "decay", "period")] == [0.9, "cosine", 0.8]


#: FedorAS' Table 9 (rounds, clients of a round, all clients where they are dealt, local epochs, batch size, rate,
#: momentum, norm of a gradient), and Table 8: limits in millions of operations, and shares of the clients.
FEDORAS = {
    "cifar10": ((500, 10, 100, 50, 128, 0.1, 0.9, None), (120.9, 223.2, 325.4, 716.0), [0.25] * 4),
    "cifar100": ((750, 10, 500, 25, 64, 0.1, 0.9, None), (111.5, 204.3, 297.1, 716.0), [0.25] * 4),
    "speech": ((750, 21, None, 25, 64, 0.1, 0.9, None), (5.0, 7.5, 10.1, 20.0), [0.8, 0.0125, 0.0125, 0.175]),
    "shakespeare": ((500, 16, None, 5, 4, 1.0, 0, 5), (7.8, 12.8, 17.8, 22.8, 33.8), [0.2] * 5),
}
INPUTS = {"speech": ((1, 40, 51), 12), "shakespeare": ((80,), 90)}
#: The percentage of paths in each tier (Table 8).
PORTIONS = {
    "cifar10": (12.92, 58.80, 25.75, 2.53),
    "cifar100": (9.09, 52.64, 32.89, 5.38),
    "speech": (46.71, 34.85, 14.69, 3.75),
    "shakespeare": (13.48, 24.54, 33.48, 20.14, 8.37),
}


@pytest.mark.parametrize("name", one_of_many(FEDORAS, "cifar100", "speech", "shakespeare"))
def test_fedorass_settings_and_tiers_are_the_papers(parsers, name):
    """Limits are Table 8's to a percent, of a tenth of the paper's samples; the last affords the largest path."""
    numbers, limits, shares = FEDORAS[name]
    config = full(parsers, "CIFAR-100" if name == "cifar100" else f"fedoras/{name}")
    run = {key.replace(".init_args", ""): value for key, value in flat(config).items()}
    clients = run["data.num_clients"]
    cohort = run["model.cohort.count"] or UniformCohort(run["model.cohort.ratio"]).size(clients)
    client = [run[f"model.client.{key}"] for key in ("epochs", "batch_size", "optimizer.lr", "optimizer.momentum")]
    assert (run["trainer.max_rounds"], cohort, clients, *client, run["model.client.clip_norm"]) == numbers
    assert run["model.assignment.share"] == 0.5
    shape, classes = INPUTS.get(name, ((3, 32, 32), 10))
    net = supernet(config, input_shape=shape, num_classes=classes)
    source = config["model"]["tiers"]["source"]
    if "samples" in source["init_args"]:
        source["init_args"]["samples"] //= 10
    tiers = instantiated(TierSource, source).tiers(net.space, ArchitectureCosts(net), np.random.default_rng(0))
    maxima = [tier.at_most["operations"] for tier in tiers]
    assert [limit / 1e6 for limit in maxima] == pytest.approx(limits, rel=0.012)
    assert [tier.above.get("operations") for tier in tiers] == [None, *maxima[:-1]]
    assert maxima[-1] >= net.operations(net.space.largest) > maxima[-2]
    allocation = config["model"]["tiers"]["allocation"]["init_args"]["shares"]
    assert (allocation or [1 / len(tiers)] * len(tiers)) == pytest.approx(shares)
    costs = net.path_costs("operations")
    samples = costs.fixed + sum(np.random.default_rng(n).choice(layer, 20_000) for n, layer in enumerate(costs.layers))
    histogram, _ = np.histogram(samples / 1e6, [0, *limits[:-1], np.inf])
    assert histogram / 200 == pytest.approx(PORTIONS[name], abs=2)


#: Tables 10 and 11: clients of a round, batches, schedule, momentum, clipping; rates fine-tuned and from scratch; how
#: many architectures a tier's search evaluates.
TUNED = {
    "CIFAR-10": ((6, 10), 32, "CosineRate", 0.9, None, (0.01, 0.1), {1000}),
    "CIFAR-100": ((6, 10), 32, "CosineRate", 0.9, None, (0.01, 0.1), {1000}),
    "Speech Commands, 12 classes": ((21, 21), 32, "CosineRate", 0.9, None, (0.01, 0.1), {500, 2000}),
    "Shakespeare": ((16, 16), 4, "MilestoneRate", 0, 5, (1, 1), {100, 150}),
}


@pytest.mark.parametrize("label", TUNED)
def test_fedorass_fine_tuning_is_the_papers(parsers, label):
    commands = [
        [str(find(word)) if word.endswith(".yaml") else word for word in line[1:]]
        for line in read_study("reproduction/fedoras_paper.yaml").commands(label, 0)
    ]
    counts, batch, schedule, momentum, clip, rates, evaluations = TUNED[label]
    searched = next(parsers["search"].parse_args(line).search for command, *line in commands if command == "search")
    assert (searched.method.init_args.population, searched.method.init_args.sample) == (128, 64)
    several = isinstance(searched.evaluations, dict)
    assert (set(searched.evaluations.values()) if several else {searched.evaluations}) == evaluations
    lines = [line for command, *line in commands if command == "finetune"]
    for line, rounds, count, rate in zip(lines[:2], (100, 500), counts, rates, strict=True):
        settings = parsers["finetune"].parse_args(line).finetune
        client, sgd = settings.client, settings.client.optimizer.init_args
        values = settings.rounds, settings.cohort.init_args.count, client.epochs, client.batch_size, client.clip_norm
        assert values == (rounds, count, 1, batch, clip)
        assert (sgd.lr, sgd.momentum, client.lr_schedule.class_path.rpartition(".")[2]) == (rate, momentum, schedule)
        assert settings.initial == ("supernet" if rounds == 100 else "random")
    if label == "CIFAR-100":  # App. E.5, from scratch as Reddi et al. do
        settings = parsers["finetune"].parse_args(lines[2]).finetune
        client, schedule = settings.client, settings.client.lr_schedule.init_args
        assert (settings.rounds, settings.cohort.init_args.count, settings.initial) == (4000, 10, "random")
        assert (client.batch_size, client.epochs, client.optimizer.init_args.lr, schedule.final) == (20, 1, 0.1, 0.1)


#: Table 7 of FedTrans: participants of a round, rounds, and the rounds of a slope. Table 2: MB of all models together,
#: first model included; shape and classes of the data.
FEDTRANS = {
    "cifar10": ((10, 1000, 20), 6.8, (3, 32, 32), 10),
    "femnist": ((100, 2000, 30), 0.04, (1, 28, 28), 62),
    "speech": ((100, 1500, 100), 0.3, (1, 32, 32), 35),
    "openimage": ((100, 2000, 50), 10.6, (3, 128, 128), 600),
}


@pytest.mark.parametrize("name", one_of_many(FEDTRANS, "cifar10", "speech"))
def test_fedtranss_settings_and_rules_are_the_papers(parsers, name):
    """Our settings differ only in the rules."""
    files = [FILES[f"fedtrans/{name}.yaml"], FILES["fedtrans/our_rules.yaml"]]
    read = (flat(parsers["fit"].parse_args(words(*paths)).as_dict()) for paths in (files[:1], files))
    paper, ours = ({key.replace(".init_args", ""): value for key, value in settings.items()} for settings in read)
    grows = {key.removeprefix("transform_on_convergence."): value for key, value in paper.items()}
    numbers, storage, shape, classes = FEDTRANS[name]
    assert (paper["model.cohort.count"], paper["trainer.max_rounds"], grows["delta"]) == numbers
    net = supernet(full(parsers, f"fedtrans/{name}"), input_shape=shape, num_classes=classes)
    assert storage / 4 < net.cost(net.space.smallest).bytes / 1e6 <= storage
    client = {"steps": 20, "batch_size": 10, "optimizer.lr": 0.05, "optimizer.momentum": 0}
    assert {key: paper[f"model.client.{key}"] for key in client} == client
    defaults = {"threshold": 0.003, "gamma": 10, "alpha": 0.9, "window": 5, "factor": 2, "insert": 1}
    printed = {"certainty": 0, "new_units": "copies", "noise": 0, "order": "alternate"}  # Eq. 1, section 4.1
    assert {key: grows[key] for key in (*defaults, *printed)} == defaults | printed
    assert (paper["soft_average.decay"], paper["soft_average.weighted"]) == (0.98, False)
    if name == "cifar10":  # two classes per client, like Diao et al.
        deal = Shards(paper["data.partitioner.shards_per_client"])
        parts = deal.partition(targets := np.arange(50_000) % 10, paper["data.num_clients"])
        assert [len(rows) for rows in parts] == [500] * 100
        assert {len(set(targets[rows])) for rows in parts} == {1, 2}
    changed = {key for key in (paper.keys() | ours.keys()) - {"config"} if paper.get(key) != ours.get(key)}
    assert {key.rsplit(".", 1)[0] for key in changed} == {
        "model.assignment",
        "trainer.logger",
        "soft_average",
        "transform_on_convergence",
    }


def test_superfeds_text_is_the_papers(parsers):
    """Figure 2 and App. H; the sizes of its TCN are in ``tests/supernets/test_elastic_tcn.py``."""
    read = flat(parsers["fit"].parse_args(words(FILES["superfed/ptb.yaml"])).as_dict())
    run = {key.replace(".init_args", ""): value for key, value in read.items()}
    assert [run[key] for key in ("trainer.max_rounds", "data.num_clients", "model.cohort.ratio")] == [100, 20, 0.4]
    client = {"epochs": 5, "batch_size": 16, "clip_norm": 0.35}
    client |= {"optimizer.lr": 4, "lr_schedule.every": 10, "lr_schedule.gamma": 0.1}
    assert {key: run[f"model.client.{key}"] for key in client} == client
    assert (run["data.source.length"], run["data.source.context"]) == (80, 40)
    assert -(-929_589 // run["data.source.block"]) == run["data.num_clients"]  # Penn Treebank's words


def test_superfeds_baselines_and_ablations_are_the_papers(parsers):
    """iFedAvg's four subnets (Table 4), Figure 5, and the constraints of Table 5."""
    space = ElasticSpace((0, 1, 2), (0.1, 0.14, 0.18, 0.22, 0.25), (256, 512, 1024, 2048), 8)
    rows = [((0, 0, 0, 0), 0.1), ((0, 1, 0, 1), 0.14), ((1, 1, 1, 1), 0.18), ((2, 2, 2, 2), 0.25)]
    alone = ("smallest alone", "middle 1 alone", "middle 2 alone", "largest alone, rate 0.1")
    for name, (depths, ratio) in zip(alone, rows, strict=True):
        model = arm(parsers, "superfed_cifar10", name)["model"]
        trained = space.named(model["assignment"]["init_args"]["arch"])
        assert trained == ElasticArch(depths, (ratio,) * 12)
        assert [space.named(text) for text in model["evaluation"]["subnets"]] == [trained]
    usual = {"beta0": 0.9, "decay": "cosine", "period": 0.8}
    changes = {"alpha 100": {}, "beta0 0.5": {"beta0": 0.5}, "period 0.5": {"period": 0.5}}
    changes |= {"linear decay": {"decay": "linear"}, "constant beta": {"decay": "constant"}}
    for name, change in changes.items():
        decay = arm(parsers, "superfed_cifar10", name)["beta_decay"]
        assert {key: decay[key] for key in usual} == usual | change
    search = parsers["search"].parse_args(words(*layers("search/superfed_table5.yaml"))).search
    assert [budget["macs"] for budget in search.tiers.init_args.budgets.values()] == [1e9, 2e9, 3e9]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(name: str, *configs: str, **settings: Any) -> None:
    """Runs a command of configurations, with settings (``model__client__steps``) as options over them."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    options = [f"--{key.replace('__', '.')}={value}" for key, value in values.items()]
    assert main([name, *(word for config in configs for word in ("--config", f"{config}.yaml")), *options]) == 0


def fit(*configs: str, **settings: Any) -> Path:
    """Trains a round, one step per client; returns the run's folder."""
    defaults = {"trainer__check_val_every_n_rounds": 1, "trainer__max_rounds": 1, "model__client__steps": 1}
    command("fit", *configs, **{**defaults, **settings})
    (records,) = Path().glob("runs/*/version_0/rounds.jsonl")
    return records.parent


@pytest.mark.slow
def test_a_transformer_trains(folder):
    """``tests/golden`` trains the configurations of all methods on digits."""
    assert rows(fit("superfed/digits_transformer") / "subnets-val.csv")


@pytest.mark.slow
def test_a_mixture_is_searched_and_its_genotype_trained(folder):
    """The derived genotype and a random one are trained from scratch on all data."""
    where = fit("darts/digits", model__supernet__init_args__cells=3, model__supernet__init_args__nodes=1)
    cells = {"model__supernet__init_args__cells": 3, "model__supernet__init_args__nodes": 1}
    command("search", "darts/digits", search__method="lit_fednas.search.DeriveGenotype", **cells)
    rounds = {"finetune__rounds": 1, "finetune__client__steps": 1}
    for options in ({}, {"finetune__architectures": 1, "finetune__name": "random"}):
        command("finetune", "darts/digits", "darts/finetune/digits", **options, **rounds, **cells)
    archs = [rows(where / name / "tiers.csv")[0]["arch"] for name in ("search", "retrain", "random")]
    assert archs[0] == archs[1] != archs[2]
    trained = [json.loads(path.read_text().splitlines()[0]) for path in where.glob("*/runs/*/rounds.jsonl")]
    searched = json.loads((where / "rounds.jsonl").read_text().splitlines()[0])
    assert len(trained) == 2
    for round in trained:
        examples = {client["client"]: client["num_examples"] for client in round["clients"]}
        assert all(2 * fit["num_examples"] - 1 <= examples.get(fit["client"], 1e9) for fit in searched["clients"])


def speech(folder: Path) -> dict[str, Any]:
    for label, hertz in enumerate((300, 900)):
        for speaker in ("ann", "ben", "cat", "dan"):
            for number in (0, 5, 10, 11, 12):  # one for test, one for validation, and three for training
                wave = tone(hertz + 20 * number, 0.5, 8_000)
                write_wave(folder / f"{label}_{speaker}_{number}.wav", wave, 8_000)
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


#: By the configuration's name: the function that writes data, and the metric of a validation.
DATA: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "speech": (speech, "accuracy"),
    "table": (table, "accuracy"),
    "text": (text, "perplexity"),
}


@pytest.mark.parametrize("name", one_of_many(DATA, "text"))
def test_from_data_to_a_file_that_runs_alone(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write, metric = DATA[name]
    (tmp_path / "data").mkdir()
    small: dict[str, Any] = {
        "trainer": {"max_rounds": 1, "check_val_every_n_rounds": 1},
        "model": {
            "client": {"steps": 2, "epochs": 1},
            "cohort": {"init_args": {"ratio": None, "count": 4}},
            "tiers": {"source": {"init_args": {"samples": 20}}},
        },
        "data": {"source": {"init_args": write(tmp_path / "data")}, "server_val": 8},
    }
    if name == "speech":
        small["data"] |= {"partitioner": {"init_args": {"min_size": 2}}, "num_clients": 4}
    if name == "text":
        small["data"]["partitioner"] = {"init_args": {"least": 1}}
        del small["data"]["server_val"]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    config = ["--config", f"tasks/{name}.yaml", "--config", "small.yaml"]
    main(["fit", *config])
    run = next((tmp_path / "runs").glob("*/version_0"))
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["metrics"][f"val/largest/{metric}"] > 0
    main(["search", *config, "--search.evaluations", "4", "--search.method", "RandomSearch"])
    tiers = [folder.name for folder in (run / "search" / "tiers").iterdir()]
    main(["finetune", *config, "--finetune.rounds", "1", "--finetune.name", "tuned"])
    assert {folder.name for folder in (run / "tuned" / "tiers").iterdir()} == set(tiers)
    assert " --name tuned --tier " in capsys.readouterr().out.splitlines()[-2]
    main(["export", *config, "--tier", tiers[0], "--name", "tuned"])
    extra_files, folder = {"metadata.json": ""}, run / "tuned" / "tiers" / tiers[0]
    program = torch.export.load(folder / "network.pt2", extra_files=extra_files).module()
    for tensor in torch.load(folder / "weights.pt").values():
        assert any(torch.equal(value, tensor) for value in program.state_dict().values())
    metadata = json.loads(extra_files["metadata.json"])
    raw = torch.zeros(3, *metadata["input_shape"], dtype=getattr(torch, metadata["input_type"]))
    assert program(raw).shape[-1] == len(metadata["class_names"])
    main(["report", str(run)])
    assert f"test {metric}" in (run / "report.html").read_text()


def owned_images(folder: Path) -> str:
    """Writes images of several sizes: twelve for each of three owners, and two for a fourth, who is excluded."""
    owners = [owner for owner, count in {"ann": 12, "ben": 12, "cat": 12, "dan": 2}.items() for _ in range(count)]
    files = [f"train/{number % 2}/{number}.png" for number in range(len(owners))]
    for number, file in enumerate(files):
        write_image(folder / file, 3 * number, (12 + number, 14))
    lines = [f"{file},{owner}\n" for file, owner in zip(files, owners, strict=True)]
    (folder / "metadata.csv").write_text("file,owner\n" + "".join(lines))
    return f"root={folder}"


def owned_rows(folder: Path) -> str:
    """Writes a regression of large numbers."""
    numbers = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{x},{y},farm{row % 3},{350 * x + 650.5}\n" for row, (x, y) in enumerate(numbers)]
    (folder / "farms.csv").write_text("height,weight,owner,target\n" + "".join(lines))
    return f"files.train={folder / 'farms.csv'}"


def owned_texts(folder: Path) -> str:
    for name in ("ann", "ben", "cat"):
        (folder / f"{name}.txt").write_text(f"{name} says to be or not to be. " * 40)
    return f"files={folder}"


@pytest.mark.parametrize(
    ("name", "write"),
    [("images", owned_images), ("table", owned_rows), pytest.param("text", owned_texts, marks=pytest.mark.slow)],
)
def test_a_template_needs_a_path_alone(name, write, folder, capsys):
    """Owners are the clients; the command that a training prints searches the tiers of the file."""
    (folder / "data").mkdir()
    path, config = f"--data.source.init_args.{write(folder / 'data')}", ["--config", f"recommended/{name}.yaml"]
    assert main(["fit", *config, path, "--trainer.max_rounds=1"]) == 0
    next_command = capsys.readouterr().out.splitlines()[-2]
    assert next_command == f"next: lit-fednas search --config runs/{name}/version_0/config.yaml"
    run = Path("runs", name, "version_0")
    assert len({row["client"] for row in rows(run / "partition.csv")}) == 3
    more = ["--trainer.max_rounds=2", "--ckpt_path=last", "--search.evaluations=3"]
    assert main(["fit", *config, path, *more]) == 0  # settings of later commands may change
    assert main(next_command.split()[2:]) == 0
    subnets = rows(run / "subnets-val.csv")
    assert all(float(row["loss"]) < 1e7 for row in subnets)  # targets are some hundreds
    costs = {row["subnet"]: row["macs"] for row in subnets}
    smallest, largest = (float(costs[name]) for name in ("smallest", "largest"))
    settings = json.loads((run / "search" / "settings.json").read_text())
    assert [tier["at_most"]["macs"] for tier in settings["tiers"]] == [smallest, (smallest + largest) / 2, largest]
    assert settings["evaluations"] == 3


FJORD = {"width: 0.25": (35, 0.70), "width: 0.5": (139, 2.79), "width: 1": (556, 11.16)}
#: Printed costs of full files and of arms of FedorAS': shape, classes, tolerance, and millions by architecture.
COSTS: dict[str, tuple[Any, ...]] = {
    "superfed/cifar10": ((3, 32, 32), 10, 0.006, {text: {"macs": 1e3 * giga} for text, giga in TABLE_5}),
    "wide": (
        (3, 32, 32),
        10,
        2e-4,
        {"smallest": {"operations": 53.77}, "largest": {"operations": 4450.72}},
    ),  # App. J.1
    "width/cifar10": ((3, 32, 32), 10, 0.003, {text: {"macs": m, "parameters": p} for text, (m, p) in FJORD.items()}),
    "Shakespeare, FjORD": ((80,), 90, 0.03, {"width: 1": {"operations": 17, "parameters": 0.21}}),  # FedorAS, Table 5
    "darts/cifar10": ((3, 32, 32), 10, 0.001, {"mixture": {"parameters": 1.93}}),  # FedorAS, Table 17
    "fedhen/cifar10": ((3, 32, 32), 10, 0.01, {"exits: 2": {"parameters": 0.7}, "exits: 4": {"parameters": 11.1}}),
    "deepfednas/cifar10": (
        (3, 32, 32),
        10,
        1e-9,
        {n: {"macs": PUBLISHED[row][0] / 1e6} for n, row in enumerate((0, 2, 3))},
    ),
}


@pytest.mark.parametrize("name", one_of_many(COSTS, "wide", "width/cifar10", "fedhen/cifar10"))
def test_networks_cost_what_is_printed(parsers, name):
    config, (shape, classes, tolerance, rows) = full(parsers, name), COSTS[name]
    net = supernet(config, input_shape=shape, num_classes=classes)
    for text, printed in rows.items():
        text = config["model"]["evaluation"]["subnets"][text] if isinstance(text, int) else text
        arch = net.space.parse(getattr(net.space, text, text))
        costs = {**vars(net.cost(arch)), "operations": net.operations(arch)}
        assert {key: costs[key] / 1e6 for key in printed} == pytest.approx(printed, rel=tolerance), text


#: Printed settings; ``cohort`` is the number of clients of a round, ``layers`` that of FedNAS' candidates (Table 2).
SILOS = {  # FedorAS, Table 4
    f"{n} silos": {"cohort": n, "data.num_clients": n, "data.partitioner.alpha": alpha}
    for n, alpha in ((20, 0.5), (8, 0.2))
}
ACROSS = {"trainer.max_rounds": 500, "cohort": 10, "data.num_clients": 100, "model.client.epochs": 10}  # Tables 12, 17
PRUNED = {
    "prune_by_budgets.first": 0.05,
    "prune_by_budgets.drop": 0.33,
    "data.client_val": 0.2,
    "data.client_test": 0.2,
}
PRINTED: dict[str, dict[str, Any]] = {
    "fednas/imagenet": PRUNED
    | {
        "layers": 14,
        "data.num_clients": 1500,
        "data.source.image_size": 224,
        "prune_by_budgets.groups": 14,
        "model.client.epochs": 3,
        "prune_by_budgets.decay": 0.98,
        "prune_by_budgets.rounds": {1: 5, 6: 10, 11: 15, 16: 20},
    },
    "fednas/celeba": PRUNED
    | {
        "layers": 7,
        "prune_by_budgets.groups": 20,
        "model.client.epochs": 4,
        "prune_by_budgets.decay": 0.93,
        "prune_by_budgets.rounds": {1: 2, 6: 5, 11: 8, 16: 10},
        "data.source.least": 5,
        "prune_by_budgets.budget": 0.15,
    },
    "fedhen/cifar10": {
        "trainer.max_rounds": 1000,
        "cohort": 10,
        "data.num_clients": 100,
        "model.client.epochs": 5,
        "model.client.optimizer.lr": 0.1,
        "model.client.clip_norm": 10,
        "model.tiers.allocation.shares": [0.5, 0.5],
    },
    "deepfednas/cifar10": {
        "trainer.max_rounds": 1500,
        "cohort": 8,
        "data.num_clients": 20,
        "model.client.epochs": 5,
        "model.client.batch_size": 64,
        "model.client.optimizer.lr": 0.1,
        "model.client.clip_norm": 10,
        "beta_decay.beta0": 0.9,
        "beta_decay.decay": "cosine",
        "beta_decay.period": 0.8,
    },
    "fedhen_cifar/CIFAR-100, NoSide, non-IID": {
        "trainer.max_rounds": 1000,
        "cohort": 10,
        "data.partitioner.alpha": 0.5,
    },
    "FedNAS, personalised": {"cohort": 20, "data.num_clients": 20, "data.partitioner.alpha": 0.5},
    "FedNAS across devices": ACROSS | {"model.client.batch_size": 32},
    "FedNAS across devices, batches of 16": ACROSS | {"model.client.batch_size": 16},
    "FedNAS across silos": {"cohort": 16, "data.num_clients": 16, "data.partitioner.alpha": 0.5},
    "20 epochs": ACROSS | {"model.client.epochs": 20, "model.client.batch_size": 128},
    **SILOS,
}


@pytest.mark.parametrize("name", one_of_many(PRINTED, "fednas/imagenet", "fedhen/cifar10"))
def test_settings_are_what_is_printed(parsers, name):
    config = full(parsers, name)
    run = {key.replace(".init_args", ""): value for key, value in flat(config).items()}
    rounds = "prune_by_budgets.rounds"
    run[rounds] = {int(key.rpartition(".")[2]): value for key, value in run.items() if key.startswith(f"{rounds}.")}
    run["cohort"] = run["model.cohort.count"] or UniformCohort(run["model.cohort.ratio"]).size(
        run["data.num_clients"] or 1
    )
    if "layers" in PRINTED[name]:
        run["layers"] = len(supernet(config, input_shape=(3, 128, 128)).models[0].sizes)
    assert {key: run[key] for key in PRINTED[name]} == PRINTED[name]
