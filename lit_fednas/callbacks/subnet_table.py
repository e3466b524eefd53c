"""A table of the evaluated subnets."""

import logging
from collections.abc import Sequence
from typing import Any

from lit_fednas.callbacks.weight_average import weights_evaluated
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.formatting import rows_text
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import write_subnets

log = logging.getLogger(__name__)

NAMES = ("subnet", "arch", "split", "weights")
COSTS = ("macs", "parameters", "bytes")


class SubnetTable(FederatedCallback):
    """Prints the subnets after ``fit``, ``validate`` and ``test``, and writes ``subnets-<split>.csv``."""

    state_names = ("rows", "rounds")

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # rows of the last validation, also of a resumed run
        self.rounds = 0  # number of rounds before that validation

    def on_validation_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        with weights_evaluated(trainer, pl_module):
            rows = table_rows(pl_module, trainer.callback_metrics, "val")
        self.rows, self.rounds = rows, trainer.global_step
        if trainer.state.fn == "validate":
            self._show(trainer, self.rows, "val")

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if self.rounds == trainer.global_step:  # a round is a step
            self._show(trainer, self.rows, "val")
        elif trainer.enable_validation:
            log.info("round %d was not validated; run lit-fednas validate to see its subnets", trainer.global_step)

    def on_test_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._show(trainer, table_rows(pl_module, trainer.callback_metrics, "test"), "test")

    @staticmethod
    def _show(trainer: FederatedTrainer, rows: list[dict[str, Any]], split: str) -> None:
        if not rows:
            return
        if keeps_files(trainer):
            write_subnets(run_folder(trainer), split, rows)
        if trainer.is_global_zero:
            print(format_table(rows))


def table_rows(module: FederatedLightningModule, metrics: Any, split: str) -> list[dict[str, Any]]:
    """Returns one row per evaluated subnet with metrics of the split; ``weights`` is the supernet's digest."""
    rows, weights = [], module.supernet.digest()
    for name, arch in module.subnets.items():
        if f"{split}/{name}/{module.task.metric}" not in metrics:
            continue
        figures = {key: round(float(metrics[f"{split}/{name}/{key}"]), 6) for key in module.val_metrics.directions}
        costs = {key: getattr(module.supernet.cost(arch), key) for key in COSTS}
        rows.append({"subnet": name, "arch": str(arch), "split": split, **figures, **costs, "weights": weights})
    return rows


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as aligned text."""
    metrics = {f"{rows[0]['split']}_{name}": name for name in rows[0] if name not in (*NAMES, *COSTS)}
    rows_with_columns = [{**row, **{column: row[name] for column, name in metrics.items()}} for row in rows]
    return rows_text(rows_with_columns, ["subnet", "arch", *COSTS, *metrics], left=2)
