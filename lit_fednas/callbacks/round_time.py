"""The simulated time of rounds (FedTrans, App. C, Table 6; FedNAS, Alg. 4.1)."""

import logging
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.tiers import CompletionTimes, DeviceSpeeds
from lit_fednas.tiers.devices import round_seconds

log = logging.getLogger(__name__)


class RoundTime(FederatedCallback):
    """Computes how long each round would take on the clients' devices, and how much their times differ.

    FedTrans, App. C, Table 6; FedNAS, Alg. 4.1.

    A client's part is its download, its training (three times the forward passes' multiply-accumulates), its test
    if it was asked for one (a forward pass alone) and its upload. A client that failed or dropped out counts with
    its download and the training that it reports. Several tasks of one client follow one another; in groups of clients,
    a group's next candidate begins when all its clients have ended the one before.

    Logs ``time/round``, until the last client has ended; ``time/mean`` and ``time/std`` over the cohort's clients,
    without waiting; and ``time/total``, the rounds so far; all in seconds, and 0 where nobody took part. At the end it
    logs mean and standard deviation over all parts of clients in rounds (Table 6).

    Args:
        speeds: How fast the clients' devices are.

    Raises:
        ConfigError: The speeds follow from tiers, and a tier has no limit of ``macs`` (reported before training).
    """

    metric_names = ("time/round", "time/mean", "time/std", "time/total")

    def __init__(self, speeds: DeviceSpeeds = DeviceSpeeds()) -> None:
        self.speeds = speeds
        self.times = CompletionTimes()

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the clients' speeds are known; the tiers have been set up before."""
        self.speeds.check(pl_module.population)
        # a trace that cannot be read is reported before training
        self.speeds.client_speed(0, pl_module.population, pl_module.seed)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if trainer.global_step == 0:  # a round is a step
            self.times = CompletionTimes()

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        parts = []
        for result in round.results:
            tested = module.supernet.macs(result.task.arch) * result.num_tested
            speed = self.speeds.client_speed(result.task.client, module.population, module.seed)
            parts.append((result.task, speed.seconds(module.cost(result), tested)))
        seconds, whole = round_seconds(parts)
        self.times, alone = self.times.after(seconds, whole), CompletionTimes().after(seconds, whole)
        logged = {"round": whole, "mean": alone.mean, "std": alone.deviation, "total": self.times.total}
        for name, value in logged.items():
            module.log(f"time/{name}", value)

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if trainer.is_global_zero and self.times.parts:
            log.info(
                "simulated time: a client's part in a round took %.4g s on average, standard deviation %.4g s (%d "
                "parts); the rounds took %.4g s",
                *(self.times.mean, self.times.deviation, self.times.parts, self.times.total),
            )

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.times)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.times = CompletionTimes(**state_dict)
