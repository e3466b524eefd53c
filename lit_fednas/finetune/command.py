"""The command ``finetune``: networks trained federatedly on the clients of their tiers, after the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lit_fednas.finetune.finetuning import Finetuning
from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.formatting import cost_text, text_table
from lit_fednas.records import FinetuneFiles
from lit_fednas.search.command import AfterTraining


class Finetune(AfterTraining):
    """The command ``finetune``."""

    finetuning: Callable[..., Finetuning] = Finetuning

    def run(self, ckpt_path: str | None = "last", finetune: FinetuneSettings = FinetuneSettings()) -> FinetuneFiles:
        """Trains each tier's network federatedly on the clients of that tier and above, or models that are named.

        A fine-tuning that was stopped continues when it is started again.

        Args:
            ckpt_path: The checkpoint that was searched, or holds the models; ``None`` for the module as it is.
            finetune: The fine-tuning's settings.

        Returns:
            The fine-tuning's folder.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        tuning = self.finetuning(finetune, self.trainer, self.model, self.datamodule, self.folder)
        print(_finetuned_table(tuning.run(), tuning.metric))
        if (tau := tuning.files.rank_correlation()) is not None:
            print(
                f"Kendall's tau of val before and test {tuning.metric}, of {len(tuning.candidates)} networks: {tau:.2f}"
            )
        if tuning.tests:
            known = self.datamodule.task.metrics  # clients have no others
            print(f"\n{_tests_table(tuning.tests, tuning.metric if tuning.metric in known else next(iter(known)))}")
        return tuning.files


def _finetuned_table(rows: list[dict[str, Any]], metric: str) -> str:
    """Returns a metric in the rows of ``tiers.csv`` as aligned text."""
    head = ["tier", "architecture", "clients", "rounds", "MACs", "val before", f"val {metric}", f"test {metric}"]
    shown = (f"val_{metric}_before", f"val_{metric}", f"test_{metric}")
    body = [
        [
            row["tier"],
            row["arch"],
            str(row["eligible"]),
            str(row["rounds"]),
            cost_text("macs", row["macs_per_example"]),
            *("" if row[key] is None else f"{row[key]:.4f}" for key in shown),
        ]
        for row in rows
    ]
    return text_table(head, body, left=2)


def _tests_table(rows: list[dict[str, Any]], metric: str) -> str:
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
