"""The progress of a run: bars for rounds and clients, or plain lines without a terminal."""

import sys
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.formatting import Progress, draws_bars, metric_text, scale_of, short


class RoundProgress(FederatedCallback, ProgressBar):
    """Shows rounds, clients, their loss, the mean validation metric, and the number and cost of a round's networks.

    Args:
        refresh_seconds: Minimum time between two lines without a terminal, in seconds; the last round is always shown.
    """

    def __init__(self, refresh_seconds: float = 10.0) -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self._enabled = True
        self._rounds: Any = None

    def disable(self) -> None:
        """Disables the output; Lightning calls this on all ranks except the first."""
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        bars, first = draws_bars(), trainer.current_epoch
        total = trainer.max_rounds if trainer.max_rounds > 0 else None
        if self._enabled and not bars:
            print(f"training starts at round {first + 1}/{total or '...'}", file=sys.stderr, flush=True)
        self._rounds = Progress("round", total, first, seconds=self.refresh_seconds, enabled=self._enabled)
        self._cohort = tqdm(desc="clients", unit="client", leave=False, disable=not (self._enabled and bars))

    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if self._cohort.disable:
            return  # computing costs takes time
        self._cohort.reset(total=len(round.tasks))
        costs = [module.supernet.cost(arch).macs for arch in {task.arch for task in round.tasks}]
        text = f"{len(costs)} networks, {short(min(costs))} to {short(max(costs))} MACs" if costs[1:] else ""
        self._cohort.set_postfix_str(text, refresh=False)

    def on_client_end(self, *arguments: Any) -> None:
        self._cohort.update()

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        metric = trainer.datamodule.task.metric
        labels = {"clients/loss": "loss", f"val/mean/{metric}": f"val {metric}", "clients/failed": "failed"}
        labels |= {"privacy/epsilon": "epsilon"}
        metrics = trainer.fit_loop.round_metrics
        figures = {label: f"{float(metrics[name]):.4g}" for name, label in labels.items() if name in metrics}
        if (label := f"val {metric}") in figures and scale_of(metric)[1]:
            figures[label] = metric_text(metric, float(metrics[f"val/mean/{metric}"]), "%")
        self._rounds.show(trainer.current_epoch + 1, figures)

    def on_train_end(self, *arguments: Any) -> None:
        self.on_exception()

    def on_exception(self, *arguments: Any) -> None:
        """Closes the bars; without a terminal, prints the last round."""
        if self._rounds is not None:
            self._cohort.close()
            self._rounds.close()
