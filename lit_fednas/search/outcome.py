"""What a search ends with: each tier's best network, its test, and the table that is shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lit_fednas.formatting import cost_text, text_table
from lit_fednas.records import COST_NAMES, TierModel
from lit_fednas.search.evaluator import Metrics
from lit_fednas.search.run import TierSearch
from lit_fednas.search.tier_models import save_tier_model

log = logging.getLogger(__name__)


def write_tiers(search: TierSearch, test: Callable[[Any], Metrics] | None) -> list[dict[str, Any]]:
    """Tests the best of every tier, and writes ``tiers.csv`` and the tiers' networks.

    Args:
        search: A search that has run.
        test: Evaluates an architecture on the test data, which are touched here for the first time; ``None`` if
            there are none.

    Returns:
        The rows of ``tiers.csv``.
    """
    rows = []
    for tier in search.tiers:
        arch = search.best(tier)
        if arch is None:
            log.warning("%s: none of %d evaluated architectures fits", tier.name, len(search.evaluations))
            continue
        found = search.evaluations[arch]
        tested = test(arch) if test is not None else None
        metrics = {"val_accuracy": found["accuracy"], "val_loss": found["loss"]}
        if tested is not None:
            metrics |= {"test_accuracy": tested.accuracy, "test_loss": tested.loss}
        costs = {name: found[name] for name in COST_NAMES}
        rows.append(
            {
                "tier": tier.name,
                "arch": found["arch"],
                **metrics,
                **costs,
                "evaluations": len(search.fitting(tier)),
                "hypervolume": search.hypervolume(tier),
            }
        )
        model = TierModel(
            tier=tier.name,
            arch=found["arch"],
            encoding=[int(gene) for gene in search.space.encode(arch)],
            supernet=type(search.supernet).__name__,
            input_shape=list(search.supernet.input_shape),
            num_classes=search.supernet.num_classes,
            recalibrated=bool(search.evaluator.recalibration),
            costs={name: cost for name, cost in costs.items() if cost is not None},
            metrics=metrics,
        )
        save_tier_model(search.files, model, search.evaluator.network(arch))
    search.files.write("tiers", rows)
    return rows


def format_tiers(rows: Sequence[dict[str, Any]], limits: Sequence[dict[str, Any]]) -> str:
    """The tiers as aligned text, costs in millions.

    Args:
        rows: Of ``tiers.csv``.
        limits: ``tiers`` of ``settings.json``.
    """
    allowed = {tier["name"]: tier["at_most"] for tier in limits}
    head = ["tier", "architecture", "limit", "MMACs", "M params", "MB", "val accuracy", "test accuracy"]
    body = [
        [
            row["tier"],
            row["arch"],
            ", ".join(f"{name} {cost_text(name, limit)}" for name, limit in allowed[row["tier"]].items()),
            f"{row['macs'] / 1e6:.2f}",
            f"{row['parameters'] / 1e6:.3f}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['val_accuracy']:.4f}",
            f"{row['test_accuracy']:.4f}" if row.get("test_accuracy") is not None else "",
        ]
        for row in rows
    ]
    return text_table(head, body, left=3)
