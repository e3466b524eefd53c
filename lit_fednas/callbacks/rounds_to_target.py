"""Rounds until a target accuracy: the measure of FedHeN (Acar and Saligrama, 2022), section 3, Tables 1 and 2."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

from lightning import Callback

from lit_fednas.callbacks.cost_ledger import CostLedger
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.monitors import check_logged, higher_is_better
from lit_fednas.federation.trainer import keeps_files, run_folder
from lit_fednas.formatting import short, text_table
from lit_fednas.ranges import PositiveFloat, checked
from lit_fednas.records.files import replace_table
from lit_fednas.records.run import TARGET_COLUMNS, TARGETS_FILE, reaches


@final
@checked("rounds_to_target")
class RoundsToTarget(Callback):
    """Records the first round after which a validation metric is as good as a target.

    Rounds count from 1. From then on ``rounds_to/<subnet>/<target>`` is logged, and the run's folder holds
    ``targets.csv``, with the clients' costs so far if there is a :class:`CostLedger`. Deviation: the paper uses test
    accuracy; a run knows only its validation set.

    Args:
        targets: Values above 0 by the metric that has to reach them, for instance
            ``{"val/largest/accuracy": [0.5, 0.6]}``, or fall to them, as ``{"val/largest/perplexity": [8]}``. The
            metrics are the module's, and those that other callbacks announce in an attribute ``metric_names``.
        stop: Whether training ends when all are reached.

    Raises:
        ConfigError: A target is out of range, or a metric will not be logged.
        CheckpointError: A resumed run has other targets than it began with.
    """

    def __init__(self, targets: Mapping[str, Sequence[PositiveFloat]], stop: bool = False) -> None:
        if not all(targets.values()) or not targets:
            raise ConfigError(
                f"rounds_to_target.targets: {dict(targets)} names no value; give every metric at least one "
                f"value, or set rounds_to_target to null"
            )
        self.targets = {metric: sorted(set(map(float, values))) for metric, values in targets.items()}
        for metric, values in self.targets.items():
            if metric.endswith("/accuracy") and values[-1] > 1:
                raise ConfigError(
                    f"rounds_to_target.targets: {metric} cannot reach {values[-1]:g}; give shares of 1, such as 0.8"
                )
        self.stop = stop
        self.rows = self._unreached()
        self.validated = 0  # the last round that was validated
        self._begun = False
        self._higher: dict[str, bool] = {}

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that every metric will be logged; other callbacks may learn theirs in ``setup``."""
        for metric in self.targets:
            check_logged(metric, "rounds_to_target.targets", trainer, pl_module)
            higher = higher_is_better(metric, pl_module.task, pl_module.metrics)
            if higher is None:
                raise ConfigError(
                    f"rounds_to_target.targets: {metric!r} does not say whether higher is better; choose another"
                )
            self._higher[metric] = higher

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that a resumed run continues with its targets, and writes them."""
        if trainer.global_step == 0:  # a round is a step
            self.rows, self.validated = self._unreached(), 0
        elif not self._begun or _pairs(self.rows) != _pairs(self._unreached()):
            before = ", ".join(f"{metric} {target:g}" for metric, target in _pairs(self.rows if self._begun else []))
            raise CheckpointError(
                f"rounds_to_target.targets: the run so far looked for {before or 'none'}; give these, "
                f"or set rounds_to_target to null and ask lit-fednas compare --targets when the run has ended"
            )
        self._begun = True
        self._write(trainer)
        self._stop(trainer)

    def on_validation_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self.validated = trainer.current_epoch + 1
        costs = [asdict(each.total) for each in trainer.callbacks if isinstance(each, CostLedger)]
        for row in self.rows:
            value, metric = trainer.callback_metrics.get(row["metric"]), row["metric"]
            if row["round"] is not None or value is None:
                continue
            if reaches(float(value), row["target"], self._higher[metric]):
                row.update({"round": self.validated}, **(costs[0] if costs else {}))

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Logs and writes the reached targets (metrics cannot be logged when a validation ends)."""
        for row in self.rows:
            if row["round"] is not None:
                name = row["metric"].removeprefix("val/").removesuffix("/accuracy").replace("/", "-")
                pl_module.log(f"rounds_to/{name}/{row['target']:g}", float(row["round"]))
        if any(row["round"] == trainer.current_epoch + 1 for row in self.rows):
            self._write(trainer)
        self._stop(trainer)

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Prints the targets as aligned text; one that was not reached shows the last validated round."""
        head = ["metric", "target", "rounds", "MACs so far", "bytes so far"]
        body = []
        for row in self.rows:
            rounds = f"> {self.validated}" if row["round"] is None else str(row["round"])
            traffic = None if row["bytes_up"] is None else row["bytes_down"] + row["bytes_up"]
            body.append([row["metric"], f"{row['target']:g}", rounds, short(row["macs"]), short(traffic, "B")])
        if trainer.is_global_zero:
            print(text_table(head, body))

    def state_dict(self) -> dict[str, Any]:
        return {"looked": self.validated, "rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validated, self.rows = state_dict["looked"], [dict(row) for row in state_dict["rows"]]
        self._begun = True

    def _unreached(self) -> list[dict[str, Any]]:
        return [
            {**dict.fromkeys(TARGET_COLUMNS), "metric": metric, "target": value}
            for metric, values in self.targets.items()
            for value in values
        ]

    def _write(self, trainer: FederatedTrainer) -> None:
        if keeps_files(trainer):
            replace_table(run_folder(trainer) / TARGETS_FILE, TARGET_COLUMNS, self.rows)

    def _stop(self, trainer: FederatedTrainer) -> None:
        if self.stop and all(row["round"] is not None for row in self.rows):
            trainer.should_stop = True


def _pairs(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    return sorted((row["metric"], row["target"]) for row in rows)
