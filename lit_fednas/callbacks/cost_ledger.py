"""A run's costs, compared with training each subnet alone (SuperFed, section 3.3, App. E, G)."""

import logging
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from lit_fednas.costs import RoundCost, independent_cost
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.ranges import PositiveFloat, checked
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import write_ledger

log = logging.getLogger(__name__)


@checked("cost_ledger")
class CostLedger(FederatedCallback):
    """Counts multiply-accumulates and bytes per round and in total; the round records have the costs of clients.

    Logs ``cost/macs``, ``cost/bytes_down`` and ``cost/bytes_up`` of each round, and their totals as
    ``cost/total_macs`` and ``cost/total_bytes``. At the end it writes ``ledger.json`` and logs the ratio of the costs
    of federated averaging of each evaluated subnet alone with the same cohorts (iFedAvg) to the run's costs. The
    comparison includes an added model from its first round on, and excludes removed models.

    Args:
        max_macs: Budget of multiply-accumulates; training ends after the round that uses it up.
        max_bytes: Budget of bytes, down and up; training ends after the round that uses it up.
    """

    metric_names = tuple(f"cost/{name}" for name in ("macs", "bytes_down", "bytes_up", "total_macs", "total_bytes"))

    def __init__(self, max_macs: PositiveFloat | None = None, max_bytes: PositiveFloat | None = None) -> None:
        self.max_macs, self.max_bytes = max_macs, max_bytes
        self.rounds, self.total = 0, RoundCost()
        self.baseline: dict[str, RoundCost] = {}

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        compared = pl_module.subnets
        grows = bool(pl_module.supernet.structure())  # new models have no baseline yet
        changed = self.baseline.keys() - compared.keys() if grows else self.baseline.keys() ^ compared.keys()
        if self.rounds and changed:
            raise CheckpointError(
                f"evaluation.subnets: {', '.join(compared)} are not the checkpoint's {', '.join(self.baseline)}, with "
                f"which the run is compared; keep the checkpoint's subnets"
            )
        self._end_if_spent(trainer)  # a resumed run may have used up its budget

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Sets the round's progress to the greatest share spent of any budget."""
        budgets = (self.total.macs, self.max_macs), (self.total.bytes, self.max_bytes)
        shares = [round.progress, *(spent / budget for spent, budget in budgets if budget is not None)]
        round.progress = max((share for share in shares if share is not None), default=None)

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        supernet = module.supernet
        spent = sum((module.cost(result) for result in round.results), RoundCost())
        previous, self.baseline = self.baseline, {}
        for name, arch in module.subnets.items():
            alone = independent_cost(round.results, supernet.cost(arch), module.traffic(arch))
            self.baseline[name] = previous.get(name, RoundCost()) + alone
        self.total += spent
        self.rounds += 1
        totals = {"total_macs": self.total.macs, "total_bytes": self.total.bytes}
        for name, value in {**asdict(spent), **totals}.items():
            module.log(f"cost/{name}", float(value))
        self._end_if_spent(trainer)

    def _end_if_spent(self, trainer: FederatedTrainer) -> None:
        for name, spent in {"max_macs": self.total.macs, "max_bytes": self.total.bytes}.items():
            budget = getattr(self, name)
            if budget is not None and spent >= budget:
                log.info("cost_ledger.%s: %g are spent after %d rounds; training ends", name, spent, self.rounds)
                trainer.should_stop = True

    def summary(self) -> dict[str, Any]:
        """Returns totals and the comparison with independent training, in plain values."""
        total, alone = self.total, sum(self.baseline.values(), RoundCost())
        return {
            "rounds": self.rounds,
            "total": asdict(total),
            "independent": {name: asdict(cost) for name, cost in self.baseline.items()},
            "times_less_computation": alone.macs / total.macs if total.macs else None,
            "times_less_communication": alone.bytes / total.bytes if total.bytes else None,
        }

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        summary = self.summary()
        if keeps_files(trainer) and self.rounds:
            write_ledger(run_folder(trainer), summary)
        if trainer.is_global_zero and self.total.macs:
            log.info(
                "%.2f times less computation, %.2f times less communication than training %d subnets separately: %s",
                *(summary["times_less_computation"], summary["times_less_communication"]),
                *(len(self.baseline), ", ".join(self.baseline)),
            )

    def state_dict(self) -> dict[str, Any]:
        baseline = {name: asdict(cost) for name, cost in self.baseline.items()}
        return {"rounds": self.rounds, "total": asdict(self.total), "baseline": baseline}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rounds = state_dict["rounds"]
        self.total = RoundCost(**state_dict["total"])
        self.baseline = {name: RoundCost(**cost) for name, cost in state_dict["baseline"].items()}
