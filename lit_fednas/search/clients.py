"""What the tiers' networks are worth to single clients: the measure of fairness (FedorAS, section 4.4)."""

from __future__ import annotations

from functools import partial

from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.client_evaluation import client_scores
from lit_fednas.records import TierFiles, write_client_scores
from lit_fednas.search.tier_models import load_tier_network


def write_clients(model: FederatedLightningModule, datamodule: FederatedDataModule, files: TierFiles) -> bool:
    """Evaluates every client's own test split with its tier's network, and writes ``clients.csv``.

    Args:
        model: Its population says who is of which tier.
        datamodule: The clients' data.
        files: The folder of a search or a fine-tuning; holds the tiers' networks.

    Returns:
        Whether anything was written: there are tiers of clients, and clients that hold test data.
    """
    device = next(model.supernet.parameters()).device
    rows = []
    for tier in model.population.tiers:
        if tier.name not in files.tier_names:
            continue
        arch, network = load_tier_network(model.supernet, files, tier.name)
        for client in model.population.members(tier.name):
            scores = client_scores(
                network.to(device),
                datamodule.clients,
                [client],
                settings=model.evaluation,
                targets=partial(model.supernet.targets, arch),
            )
            rows += [{**score._asdict(), "tier": tier.name} for score in scores]
    if rows:
        write_client_scores(files.folder, sorted(rows, key=lambda row: row["client"]))
    return bool(rows)
