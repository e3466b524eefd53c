"""The evaluated subnets as a table: costs beside metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning import Callback

from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.trainer import keeps_files, run_folder
from lit_fednas.formatting import cost_text, text_table
from lit_fednas.records.files import replace_table

NAMES = ("subnet", "arch", "split")
COSTS = ("macs", "parameters", "bytes")


class SubnetTable(Callback):
    """Prints the subnets after ``fit``, ``validate`` and ``test``, and writes ``subnets-<split>.csv``."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []  # of the last validation, which may have been before a resume

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Drops the rows in a new run."""
        if trainer.global_step == 0:  # a round is a step
            self._rows = []

    def on_validation_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Keeps the rows, and shows them after ``validate``."""
        self._rows = table_rows(pl_module, trainer.callback_metrics, "val")
        if trainer.state.fn == "validate":
            self._show(trainer, self._rows, "val")

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Shows the last validation's figures."""
        self._show(trainer, self._rows, "val")

    def on_test_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Shows the test set's figures."""
        self._show(trainer, table_rows(pl_module, trainer.callback_metrics, "test"), "test")

    def state_dict(self) -> dict[str, Any]:
        """Returns the last validation's figures."""
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the last validation's figures."""
        self._rows = state_dict["rows"]

    @staticmethod
    def _show(trainer: FederatedTrainer, rows: list[dict[str, Any]], split: str) -> None:
        if not rows:
            return
        if keeps_files(trainer):
            replace_table(run_folder(trainer) / f"subnets-{split}.csv", list(rows[0]), rows)
        if trainer.is_global_zero:
            print(format_table(rows))


def table_rows(module: FederatedLightningModule, metrics: Any, split: str) -> list[dict[str, Any]]:
    """Returns one row per evaluated subnet that has metrics of the split."""
    rows = []
    for name, arch in module.subnets.items():
        if f"{split}/{name}/{module.task.metric}" not in metrics:
            continue
        figures = {one: round(float(metrics[f"{split}/{name}/{one}"]), 6) for one in module.val_metrics.directions}
        costs = {one: getattr(module.supernet.cost(arch), one) for one in COSTS}
        rows.append({"subnet": name, "arch": str(arch), "split": split, **figures, **costs})
    return rows


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as aligned text."""
    first, *others = metrics = [name for name in rows[0] if name not in (*NAMES, *COSTS)]
    head = ["subnet", "architecture", "MACs", "parameters", "bytes", f"{rows[0]['split']} {first}", *others]
    body = []
    for row in rows:
        costs, figures = (cost_text(name, row[name]) for name in COSTS), (f"{row[name]:.4f}" for name in metrics)
        body.append([row["subnet"], row["arch"], *costs, *figures])
    return text_table(head, body, left=2)
