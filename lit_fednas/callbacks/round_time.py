"""The simulated time of rounds on the clients' devices (FedTrans, App. C, Table 6; FedNAS, Alg. 4.1)."""

import logging
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.tiers import CompletionTimes, DeviceSpeeds
from lit_fednas.tiers.devices import round_seconds

log = logging.getLogger(__name__)


class RoundTime(FederatedCallback):
    """Computes the time of each round on the clients' devices, and the spread of the clients' times.

    A client's time includes download, training (three times the multiply-accumulates of a forward pass), the test if
    there is one (a forward pass) and upload. Failed and dropped clients count with their download and the training in
    their results. A client runs several tasks one after the other; a group of clients starts its next candidate when
    all its clients have finished the previous one.

    Logs, in seconds, ``time/round``, the time until the last client ends; ``time/mean`` and ``time/std`` over the
    clients; and ``time/total``, the sum of all rounds; 0 without clients. At the end it logs mean and standard
    deviation over all clients and rounds (Table 6).

    Args:
        speeds: The speeds of the clients' devices.

    Raises:
        ConfigError: The speeds depend on tiers, and a tier has no limit of ``macs`` (reported before training).
    """

    metric_names = ("time/round", "time/mean", "time/std", "time/total")

    def __init__(self, speeds: DeviceSpeeds = DeviceSpeeds()) -> None:
        self.speeds = speeds
        self.times = CompletionTimes()

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self.speeds.check(pl_module.population)
        # Raises errors of unreadable traces before training.
        self.speeds.client_speed(0, pl_module.population, pl_module.seed)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if trainer.global_step == 0:  # a round is a step
            self.times = CompletionTimes()

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        seconds_of_tasks = []
        for result in round.results:
            tested = module.supernet.macs(result.task.arch) * result.num_tested
            speed = self.speeds.client_speed(result.task.client, module.population, module.seed)
            seconds_of_tasks.append((result.task, speed.seconds(module.cost(result), tested)))
        seconds, round_time = round_seconds(seconds_of_tasks)
        self.times, times = self.times.after(seconds, round_time), CompletionTimes().after(seconds, round_time)
        logged = {"round": round_time, "mean": times.mean, "std": times.deviation, "total": self.times.total}
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
