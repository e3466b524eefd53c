"""Logging of tables, charts and networks to Weights & Biases."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning_utilities.core.imports import lazy_import

from lit_fednas.callbacks.subnet_table import table_rows
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.records import FinetuneFiles, SearchFiles, TierFiles

wandb: Any = lazy_import("wandb")  # the import takes half a second


class WandbLogging(FederatedCallback):
    """Logs tables of subnets, fronts and networks of searches, and fine-tuned networks to each ``WandbLogger``."""

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._log_subnets(trainer, pl_module, "val")

    def on_test_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._log_subnets(trainer, pl_module, "test")

    def on_search_end(self, trainer: FederatedTrainer, module: FederatedLightningModule, folder: Path) -> None:
        """Logs a search's front as a table and a chart, and each tier's network as an artifact."""
        files = SearchFiles(folder)
        settings, front = files.settings(), files.rows("front")
        cost, metric = settings.get("cost", "macs"), settings["metric"]
        tiers = list(dict.fromkeys(row["tier"] for row in front))
        xs, ys = ([[row[name] for row in front if row["tier"] == tier] for tier in tiers] for name in (cost, metric))
        for run in _runs(trainer):
            chart = wandb.plot.line_series(xs, ys, keys=tiers, title="front of each tier", xname=cost)
            run.log({f"{folder.name}/front": _table(files.columns("front"), front), f"{folder.name}/fronts": chart})
            _summarize(run, files)
            for artifact in tier_artifacts(files, run.name or run.id):
                run.log_artifact(artifact)

    def on_finetune_end(self, trainer: FederatedTrainer, module: FederatedLightningModule, folder: Path) -> None:
        """Logs the networks of a fine-tuning as a table."""
        files = FinetuneFiles(folder)
        for run in _runs(trainer):
            run.log({f"{folder.name}/tiers": _table(files.columns("tiers"), files.rows("tiers"))})
            _summarize(run, files)

    def _log_subnets(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, split: str) -> None:
        rows = table_rows(pl_module, trainer.callback_metrics, split)
        for run in _runs(trainer) if rows else []:
            metric = pl_module.task.metric
            run.log({f"subnets/{split}": _table(rows[0], rows)})
            for row in rows:
                run.summary[f"subnets/{split}/{row['subnet']}/{metric}"] = row[metric]


def tier_artifacts(files: SearchFiles, run: str) -> Iterator[Any]:
    """Yields each tier's network as an artifact ``<run>-<tier>``, with ``architecture.json`` as its metadata."""
    for tier in files.tier_names:
        name = re.sub(r"[^\w.-]+", "-", f"{run}-{tier}")  # W&B accepts only these characters
        artifact = wandb.Artifact(name, type="model", metadata=asdict(files.tier_model(tier)))
        for file in ("weights.pt", "architecture.json"):
            artifact.add_file(str(files.tier_folder(tier) / file))
        yield artifact


def _summarize(run: Any, files: TierFiles) -> None:
    for row in files.rows("tiers"):
        values = {name: value for name, value in row.items() if name != "tier" and value is not None}
        run.summary.update({f"{files.folder.name}/{row['tier']}/{name}": value for name, value in values.items()})


def _table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Any:
    columns = list(columns)
    return wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def _runs(trainer: FederatedTrainer) -> list[Any]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]
