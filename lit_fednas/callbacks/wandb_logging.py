"""Logs to Weights & Biases what its logger does not take by itself."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning_utilities.core.imports import lazy_import
from PIL import Image

from lit_fednas.callbacks.recorder import table_rows
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.records import SearchFiles
from lit_fednas.records.partition import plot_partition
from lit_fednas.supernets import ModelCollection

wandb: Any = lazy_import("wandb")  # takes half a second


class WandbLogging(FederatedCallback):
    """Logs the partition's picture, added models, the tables of subnets and a search's results.

    They go to every ``WandbLogger``; without one it does nothing.
    """

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._num_models = len(getattr(pl_module.supernet, "models", ()))
        data = trainer.datamodule
        for run in _runs(trainer):
            picture = BytesIO()  # wandb knows figures by their class's module, which must be matplotlib's
            plot_partition(data.class_counts, data.strata).savefig(picture, format="png")
            run.log({"partition": wandb.Image(Image.open(picture))}, commit=False)

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Logs a new model of a supernet that changes in training with its costs, and a table of all models."""
        supernet = pl_module.supernet
        if not isinstance(supernet, ModelCollection) or len(supernet.models) == self._num_models:
            return
        grown, self._num_models = len(supernet.models) > self._num_models, len(supernet.models)
        for run in _runs(trainer) if grown else ():
            kind, rows = supernet.KIND, supernet.model_rows()
            newest = {"model": rows[-1]["number"], "macs": rows[-1]["macs"], "parameters": rows[-1]["parameters"]}
            entry = {f"{kind}/{name}": value for name, value in newest.items()}
            # the step of the round's metrics, which come later: a round is a step
            run.log({**entry, f"{kind}/models": _table(rows[0], rows), "trainer/global_step": trainer.current_epoch})
            for row in rows:
                _summarise(run, f"{kind}/{row['number']}", row, "number")

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._log_subnets(trainer, pl_module, "val")

    def on_test_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._log_subnets(trainer, pl_module, "test")

    def on_search_end(self, trainer: FederatedTrainer, module: FederatedLightningModule, folder: Path) -> None:
        """Logs a search's fronts as tables and charts, and each tier's network as an artifact."""
        files = SearchFiles(folder)
        for run in _runs(trainer):
            run.log({f"{folder.name}/{name}": chart for name, chart in search_charts(files).items()})
            for row in files.rows("tiers"):
                _summarise(run, f"{folder.name}/{row['tier']}", row, "tier")
            for artifact in tier_artifacts(files, run.name or run.id):
                run.log_artifact(artifact)

    def _log_subnets(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, split: str) -> None:
        rows = table_rows(pl_module, trainer.callback_metrics, split)
        for run in _runs(trainer) if rows else []:
            metric = pl_module.task.metric
            run.log({f"subnets/{split}": _table(rows[0], rows)})
            for row in rows:
                run.summary[f"subnets/{split}/{row['subnet']}/{metric}"] = row[metric]


def search_charts(files: SearchFiles) -> dict[str, Any]:
    """Returns a search's tables and charts by name."""
    settings = files.settings()
    cost, metric = settings.get("cost", "macs"), settings["metric"]
    front = files.rows("front")
    points: dict[str, list[Any]] = {}
    tiers: dict[str, list[str]] = {}
    for row in front:
        points.setdefault(row["tier"], []).append(row)
        tiers.setdefault(row["arch"], []).append(row["tier"])
    columns = [*files.columns("evaluations"), "front"]
    evaluations = _table(
        columns, [{**row, "front": " ".join(tiers.get(row["arch"], []))} for row in files.rows("evaluations")]
    )
    xs, ys = ([[row[name] for row in line] for line in points.values()] for name in (cost, metric))
    fronts = wandb.plot.line_series(xs, ys, keys=list(points), title="front of each tier", xname=cost)
    return {
        "front": _table(files.columns("front"), front),
        "evaluations": wandb.plot.scatter(evaluations, cost, metric, f"validation {metric} against {cost}"),
        "fronts": fronts,
    }


def tier_artifacts(files: SearchFiles, run: str) -> Iterator[Any]:
    """Yields each tier's network as an artifact ``<run>-<tier>``, with ``architecture.json`` as its metadata."""
    for tier in files.tier_names:
        name = re.sub(r"[^\w.-]+", "-", f"{run}-{tier}")  # the characters that W&B accepts
        artifact = wandb.Artifact(name, type="model", metadata=asdict(files.tier_model(tier)))
        for file in ("weights.pt", "architecture.json"):
            artifact.add_file(str(files.tier_folder(tier) / file))
        yield artifact


def _table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Any:
    columns = list(columns)
    return wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def _summarise(run: Any, prefix: str, row: Mapping[str, Any], key: str) -> None:
    """Adds the known values of a row to a run's summary, except for the row's key."""
    run.summary.update({f"{prefix}/{n}": value for n, value in row.items() if n != key and value is not None})


def _runs(trainer: FederatedTrainer) -> list[Any]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]
