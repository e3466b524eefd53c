"""Models before and after fine-tuning, tested on the clients' own test splits (FedNAS, section 5.1).

"The dataset on each client was further split to three parts: [...] testing set used to evaluate the final accuracy of
each simplified model." The clients' results are pooled: every example counts once, as in the fusion of section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.formatting import text_table
from lit_fednas.records import FinetuneFiles
from lit_fednas.search.tier_models import client_rows, load_tier_network

Rows = list[dict[str, Any]]


def write_tests(
    model: FederatedLightningModule,
    datamodule: FederatedDataModule,
    files: FinetuneFiles,
    tiers: Iterable[str],
    before: Callable[[Any], nn.Module],
) -> Rows:
    """Tests models on all clients that hold test data, and writes ``models.csv`` and ``models-clients.csv``.

    These are the models that were fine-tuned, and if the supernet's models form a row, all of it.

    Args:
        model: The run's module.
        datamodule: The clients' data.
        files: The fine-tuning's folder, with the networks of its tiers.
        tiers: The tiers, one per fine-tuned model.
        before: Returns the network of an architecture with the run's weights, as it is evaluated.

    Returns:
        The rows of ``models.csv``; nothing is written, and none returned, if no client holds test data.
    """
    everyone = range(datamodule.clients.num_clients)
    if not any(datamodule.clients.size(client, "test") for client in everyone):
        return []
    tuned = dict(load_tier_network(model.supernet, files, tier) for tier in tiers)
    models: Rows = []
    clients: Rows = []
    for arch in dict.fromkeys([*getattr(model.supernet.space, "rungs", ()), *tuned]):
        rows = client_rows(model, datamodule, arch, before(arch), everyone)
        rows = [{**row, "arch": str(arch), "accuracy_before": row["accuracy"], "accuracy": None} for row in rows]
        if arch in tuned:
            after = client_rows(model, datamodule, arch, tuned[arch], everyone)
            rows = [{**row, "accuracy": one["accuracy"]} for row, one in zip(rows, after, strict=True)]
        pooled = {name: pooled_accuracy(rows, name) for name in ("accuracy_before", "accuracy")}
        counts = {"clients": len(rows), "examples": sum(row["num_examples"] for row in rows)}
        models.append({"arch": str(arch), "macs_per_example": model.supernet.macs(arch), **counts, **pooled})
        clients += [{name: row[name] for name in files.tables["models-clients"]} for row in rows]
    files.write("models", models)
    files.write("models-clients", clients)
    return models


def pooled_accuracy(rows: Sequence[Mapping[str, Any]], name: str = "accuracy") -> float | None:
    """Returns the share of all clients' examples that are right; ``None`` where clients have no accuracy.

    Example:
        >>> pooled_accuracy([{"num_examples": 1, "accuracy": 1.0}, {"num_examples": 4, "accuracy": 0.5}])
        0.6
    """
    if any(row[name] is None for row in rows):
        return None
    return sum(row[name] * row["num_examples"] for row in rows) / sum(row["num_examples"] for row in rows)


def format_tests(rows: Rows) -> str:
    """Returns the rows of ``models.csv`` as aligned text, costs in millions."""
    head = ["model", "MMACs", "clients", "test examples", "clients' test before", "fine-tuned"]
    body = [
        [
            row["arch"],
            f"{row['macs_per_example'] / 1e6:.2f}",
            str(row["clients"]),
            str(row["examples"]),
            f"{row['accuracy_before']:.4f}",
            "" if row["accuracy"] is None else f"{row['accuracy']:.4f}",
        ]
        for row in rows
    ]
    return text_table(head, body)
