"""Progress of a run: a bar over rounds and a bar over the cohort, or plain lines without a terminal."""

import sys
from time import perf_counter
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.formatting import draws_bars, metric_text, scale_of, short


class RoundProgress(FederatedCallback, ProgressBar):
    """Shows rounds, clients, their loss and the mean validation metric.

    While the cohort trains several architectures, it shows how many, and their least and greatest cost.

    Args:
        refresh_seconds: Without a terminal, a line is printed at most this often (and for the last round).
    """

    def __init__(self, refresh_seconds: float = 10.0) -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self._enabled = True
        self._rounds: Any = None
        self._cohort: Any = None
        self._line = ""

    def disable(self) -> None:
        """Shows nothing (Lightning calls it on all ranks but the first)."""
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._started = self._printed = perf_counter()
        self._first = trainer.current_epoch
        if not self._enabled:
            return
        total = trainer.max_rounds if trainer.max_rounds > 0 else None
        if not draws_bars():
            print(f"training starts at round {self._first + 1}/{total or '...'}", file=sys.stderr, flush=True)
            return
        self._rounds = tqdm(total=total, initial=trainer.current_epoch, desc="rounds", unit="round")
        self._cohort = tqdm(desc="clients", unit="client", leave=False)

    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if self._cohort is not None:
            self._cohort.reset(total=len(round.tasks))
            costs = [module.supernet.cost(arch).macs for arch in {task.arch for task in round.tasks}]
            text = f"{len(costs)} networks, {short(min(costs))} to {short(max(costs))} MACs" if costs[1:] else ""
            self._cohort.set_postfix_str(text, refresh=False)

    def on_client_end(self, *arguments: Any) -> None:
        if self._cohort is not None:
            self._cohort.update()

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if not self._enabled:
            return
        metric = trainer.datamodule.task.metric
        shown = {"clients/loss": "loss", f"val/mean/{metric}": f"val {metric}", "clients/failed": "failed"}
        shown |= {"privacy/epsilon": "epsilon"}
        known = trainer.callback_metrics
        figures = {label: f"{float(known[name]):.4g}" for name, label in shown.items() if name in known}
        if (label := f"val {metric}") in figures and scale_of(metric)[1]:
            figures[label] = metric_text(metric, float(known[f"val/mean/{metric}"]), "%")
        if self._rounds is not None:
            self._rounds.set_postfix(figures, refresh=False)
            self._rounds.update()
            return
        now = perf_counter()
        done = trainer.current_epoch + 1
        text = "  ".join(f"{name} {value}" for name, value in figures.items())
        pace = (now - self._started) / (done - self._first)
        total = f"/{trainer.max_rounds}" if trainer.max_rounds > 0 else ""
        self._line = f"round {done}{total}  {text}  {pace:.2f} s/round"
        if now - self._printed >= self.refresh_seconds:
            self._printed = now
            self._print_line()

    def on_train_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Prints the last round, if it was not, and closes the bars."""
        self._print_line()
        self.on_exception()

    def _print_line(self) -> None:
        if self._line:
            print(self._line, file=sys.stderr, flush=True)
        self._line = ""

    def on_exception(self, *arguments: Any) -> None:
        for bar in (self._cohort, self._rounds):
            if bar is not None:
                bar.close()
        self._rounds = self._cohort = None
