"""Models before and after fine-tuning, tested on the clients' own test splits (FedNAS, section 5.1).

"The dataset on each client was further split to three parts: [...] testing set used to evaluate the final accuracy of
each simplified model." The clients' results are pooled: every example counts once, as in the fusion of section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.evaluation import pooled
from lit_fednas.formatting import cost_text, text_table
from lit_fednas.records import FinetuneFiles
from lit_fednas.search.tier_models import load_tier_network, scores_of_clients

Rows = list[dict[str, Any]]


def write_tests(
    model: FederatedLightningModule,
    datamodule: FederatedDataModule,
    files: FinetuneFiles,
    tiers: Iterable[str],
    before: Callable[[Any], nn.Module],
) -> Rows:
    """Tests models on all clients that hold test data, and writes ``models.csv`` and ``models-clients.csv``.

    These are the fine-tuned models of the tiers, and if the supernet's models form a row, all of it. ``before`` returns
    the network of an architecture with the run's weights, as it is evaluated.

    Returns:
        The rows of ``models.csv``; nothing is written, and none returned, if no client holds test data.
    """
    everyone = range(datamodule.clients.num_clients)
    if not datamodule.clients.split_sizes("test").any():
        return []
    tuned = dict(load_tier_network(model.supernet, files, tier) for tier in tiers)
    models: Rows = []
    clients: Rows = []
    for arch in dict.fromkeys([*getattr(model.supernet.space, "rungs", ()), *tuned]):
        networks = {"_before": before(arch), **({"": tuned[arch]} if arch in tuned else {})}
        scores = {
            when: scores_of_clients(model, datamodule, arch, network, everyone) for when, network in networks.items()
        }
        tested = scores["_before"]
        models.append(
            {
                "arch": str(arch),
                "macs_per_example": model.supernet.macs(arch),
                "clients": len(tested),
                "examples": sum(score.num_examples for score in tested),
                **_named({when: pooled(each, model.task) for when, each in scores.items()}),
            }
        )
        for each in zip(*scores.values(), strict=True):
            metrics = _named({when: score.metrics for when, score in zip(scores, each, strict=True)})
            clients.append(
                {"arch": str(arch), "client": each[0].client, "num_examples": each[0].num_examples, **metrics}
            )
    files.write("models", models)
    files.write("models-clients", clients)
    return models


def _named(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns metrics by the columns' names, which end with ``_before`` for those before fine-tuning."""
    return {f"{name}{when}": value for when, values in metrics.items() for name, value in values.items()}


def format_tests(rows: Rows, metric: str) -> str:
    """Returns a metric in the rows of ``models.csv`` as aligned text."""
    head = ["model", "MACs", "clients", "test examples", f"clients' {metric} before", "fine-tuned"]
    body = [
        [
            row["arch"],
            cost_text("macs", row["macs_per_example"]),
            str(row["clients"]),
            str(row["examples"]),
            f"{row[f'{metric}_before']:.4f}",
            f"{row[metric]:.4f}" if metric in row else "",
        ]
        for row in rows
    ]
    return text_table(head, body)
