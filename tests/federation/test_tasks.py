"""Runs of token tasks; for regression see ``tests/search/test_metrics.py``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from lit_fednas.aggregation import MaxNet
from lit_fednas.assignment import ByTier
from lit_fednas.callbacks import (
    OPTIONAL_CALLBACKS,
    BetaDecay,
    CostLedger,
    DeployedAccuracy,
    DeviceAverage,
    PoolGrowth,
    Privacy,
    RoundCheckpoint,
    RoundTime,
    WeightAverage,
    default_callbacks,
)
from lit_fednas.data import Examples
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, FaultPolicy, FederatedTrainer, UniformCohort
from lit_fednas.loggers import RunLogger
from lit_fednas.supernets import ElasticTCN
from lit_fednas.tiers import ArchitectureTiers, ClientTiers
from tests.federation.tokens import LENGTH, VOCABULARY, by_hand, token_data, token_examples, token_net
from tests.support import fit, make_module, seeded, sgd


def test_clients_figures_are_means_over_tokens() -> None:
    """At a learning rate of 0 clients and server measure the first weights, on windows of unequal lengths."""
    module = make_module(
        seeded(token_net),
        cohort=UniformCohort(ratio=1.0),
        client=ClientSettings(sgd(0.0), batch_size=3, validate="trained"),
        metrics={"likeliest": MulticlassAccuracy(VOCABULARY, average="micro")},
    )
    data = token_data(client_val=0.4)
    metrics = {name: float(value) for name, value in fit(module, data, 1).callback_metrics.items()}
    read, network = data.clients.reader.dataset, module.supernet.requires_grad_(False)
    for split, metric in (("train", "loss"), ("val", "perplexity")):
        rows = torch.cat([data.clients.rows(client, split) for client in range(data.clients.num_clients)])
        expected = by_hand(network(read.inputs[rows]), read.targets[rows])[metric]
        assert metrics[f"clients/{metric}"] == pytest.approx(expected, rel=1e-5)
    examples = token_examples(30, 1)
    expected = by_hand(network(examples.inputs), examples.targets)["accuracy"]
    assert metrics["val/largest/likeliest"] == pytest.approx(expected)


def followed(folder: Path) -> tuple[FederatedTrainer, dict[str, list[dict[str, str]]]]:
    """Runs tiers with all callbacks that support any supernet; returns the trainer and the written tables."""
    callbacks = [
        WeightAverage(0.0),  # decay 0 makes the mean equal to the weights
        BetaDecay(period=0.5),
        DeviceAverage(),
        DeployedAccuracy(split="val"),
        RoundTime(),
        CostLedger(),
        Privacy(clip_norm=5.0, noise_multiplier=0.01, noise_seed=0),
        RoundCheckpoint(monitor="val/mean/perplexity"),
        *default_callbacks(),
    ]
    of_any = {kind for kind in OPTIONAL_CALLBACKS.values() if getattr(kind, "supernet_kind", None) is None}
    assert of_any - {PoolGrowth} <= set(map(type, callbacks))  # architectures by tier are no pool
    supernet = seeded(ElasticTCN, (LENGTH,), VOCABULARY, channels=10, depths=[0, 1], ratios=[0.2, 0.5])
    module = make_module(
        supernet,
        ByTier(),
        MaxNet(weighted=False),
        UniformCohort(count=4),
        ClientSettings(sgd(1.0), batch_size=8, validate="received"),
        tiers=ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"})),
        evaluation=EvaluationSettings(["smallest", "largest"]),
        faults=FaultPolicy(min_survivors=0, max_failed_rounds=None, on_client_error="skip"),
    )
    logger = RunLogger(str(folder), "run", "only")
    data = token_data(client_val=0.3)
    trainer = fit(module, data, 3, logger=logger, enable_checkpointing=True, callbacks=callbacks)
    files = (folder / "run" / "only").glob("*.csv")
    return trainer, {path.name: list(csv.DictReader(path.read_text().splitlines())) for path in files}


def test_callbacks_write_correct_metrics_of_tokens(tmp_path: Path) -> None:
    trainer, rows = followed(tmp_path)
    supernet, clients = trainer.lightning_module.supernet, trainer.datamodule.clients

    def compare(row: dict[str, str], examples: Examples) -> None:
        with torch.no_grad():
            outputs = supernet.eval()(examples.inputs, supernet.space.named(row["arch"]))
        expected = by_hand(outputs, examples.targets)
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-4)

    for row in rows["subnets-val.csv"]:
        compare(row, token_examples(30, 1))
    whole = clients.reader.dataset
    for row in rows["clients.csv"]:
        rows_of_client = clients.rows(int(row["client"]), "val")
        compare(row, Examples(whole.inputs[rows_of_client], whole.targets[rows_of_client]))
    perplexities = [float(row["perplexity"]) for row in rows["clients.csv"]]
    figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert len(set(perplexities)) == clients.num_clients
    assert figures["deployed/perplexity"] == pytest.approx(np.mean(perplexities), rel=1e-4)
    assert figures["deployed/worst"] == pytest.approx(max(perplexities), rel=1e-4)
    for name in ("smallest", "largest"):
        loss = figures[f"val/devices/{name}/loss"]
        assert figures[f"val/devices/{name}/perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)


def test_tokens_outside_the_vocabulary_are_refused_before_any_training():
    examples = token_examples()
    inputs = examples.inputs.clone()
    inputs[17, 1] = VOCABULARY
    examples = Examples(inputs, examples.targets, examples.columns)
    module = make_module(ElasticTCN((LENGTH,), VOCABULARY, channels=4, depths=[0], ratios=[0.5, 1.0]))
    with pytest.raises(ConfigError, match=r"data.source: the token 5 is not in the vocabulary of .* ElasticTCN"):
        fit(module, token_data(examples), 1)
