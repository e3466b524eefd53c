"""The server's module: the global weights, the four roles of a method, and the server's step."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import lightning.pytorch as pl
import numpy as np
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from lit_fednas import __version__
from lit_fednas.aggregation import Aggregation
from lit_fednas.assignment import Assignment, Round
from lit_fednas.assignment.pools import PoolOfTiers
from lit_fednas.costs import RoundCost, client_cost
from lit_fednas.data import Classification, ClientData, FederatedDataModule, Task
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.checkpoints import check_supernet, load_initial, model_settings, read_checkpoint
from lit_fednas.federation.checks import check_architectures, check_data, check_monitors
from lit_fednas.federation.cohort import CohortSampler, UniformCohort
from lit_fednas.federation.evaluation import (
    RECALIBRATION_BATCHES,
    SAMPLED,
    EvaluationSettings,
    Recalibration,
    SubnetMetrics,
    normalises_over_batches,
    recalibration_batches,
)
from lit_fednas.federation.round import ServerRound, client_metrics
from lit_fednas.federation.server_optimizers import apply_changes, check_step, described, resting, set_pseudo_gradient
from lit_fednas.federation.settings import ClientSettings, FaultPolicy, check_finite
from lit_fednas.messages import ClientResult, ClientTask, Largest
from lit_fednas.objectives import Objective, TaskLoss
from lit_fednas.parts import check_callbacks, check_state
from lit_fednas.ranges import check_values
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import ClientTiers, Population
from lit_fednas.transport import Transport

log = logging.getLogger(__name__)

#: Parts with a state in checkpoints; Lightning saves the states of callbacks.
_PARTS = ("assignment", "objective", "aggregation", "cohort")


class FederatedLightningModule(pl.LightningModule):
    """A federated method as a composition of four roles, and the global weights.

    Args:
        supernet: The shared weights.
        assignment: Rule that gives each client of a round its subnet.
        aggregation: Rule that merges the updates into the next global weights.
        client: Settings of the clients' training.
        objective: Local loss of the clients' training.
        cohort: Sampler of the clients that take part in a round.
        server_optimizer: Optimizer along the pseudo-gradient (present weights minus aggregate). The default, SGD with
            a learning rate of 1, sets the weights to the aggregate. Elements that no client trained in the round rest:
            their values and their optimizer state stay.
        faults: Policy for clients that fail.
        evaluation: Settings of the evaluation of subnets.
        tiers: Device tiers of the clients; without tiers all clients have the same limits.
        transport: Encoding of weights between server and clients: exact, or in fewer bits.
        initial: File of the weights from which training starts: a run's checkpoint, the folder of an exported
            supernet, or a state dictionary of the same supernet (or of the one network that it holds). Resuming from a
            checkpoint replaces these weights.
        ignore_mismatched_sizes: Whether tensors of ``initial`` with other sizes, such as a head for other classes, are
            skipped and keep their random values (for transfer to another task). By default they are refused.
        metrics: Further metrics of torchmetrics, by name, of every evaluated subnet. They receive the network's outputs
            and the targets; for tokens, only those that the task does not ignore, one after the other.
        seed: Root of all randomness of the run except the initial weights, which depend on ``seed_everything``.

    Attributes:
        population: The clients and their tiers, after :meth:`setup`.
        task: The data's task, after :meth:`setup`; before it, a classification.

    Names of metrics tell network and data: ``val/<subnet>/accuracy`` and ``/loss`` (for classes) belong to the global
    weights on the server's validation set, ``val/mean/accuracy`` to the mean over the subnets, ``test/...`` likewise.
    ``clients/...`` belong to the local training; callbacks add their own, such as ``beta``.
    """

    def __init__(
        self,
        supernet: Supernet,
        assignment: Assignment,
        aggregation: Aggregation,
        client: ClientSettings,
        objective: Objective = TaskLoss(),
        cohort: CohortSampler = UniformCohort(ratio=0.1),
        server_optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=1.0),
        faults: FaultPolicy = FaultPolicy(),
        evaluation: EvaluationSettings = EvaluationSettings(),
        tiers: ClientTiers | None = None,
        transport: Transport = Transport(),
        initial: str | None = None,
        ignore_mismatched_sizes: bool = False,
        metrics: dict[str, Metric] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.supernet = supernet
        self.initial = initial
        if initial is not None:
            load_initial(supernet, Path(initial), "model.initial", ignore_mismatched_sizes)
        self.assignment = assignment
        self.aggregation = aggregation
        self.client = client
        self.objective = copy.deepcopy(objective)  # all modules share the default, and a part's setup changes it
        self.cohort = cohort
        self.server_optimizer = server_optimizer
        self.faults = faults
        self.evaluation = evaluation
        self.tiers = tiers
        self.transport = transport
        check_values({"metrics": metrics}, {"metrics": dict[str, Metric] | None}, "model.")
        self.metrics = dict(metrics or {})
        self.seed = int(seed)
        self.task: Task = Classification(supernet.num_classes)
        self._prepare_evaluation()
        self._recalibration: Recalibration | None = None

    def _prepare_evaluation(self) -> None:
        """Looks up the evaluated subnets and creates their metrics."""
        self.subnets = self.evaluation.named(self.supernet)
        evaluated = [*self.subnets, SAMPLED] if self.evaluation.sampled else self.subnets
        self.val_metrics, self.test_metrics = (
            SubnetMetrics(evaluated, self.task, self.metrics).to(self.device) for _ in range(2)
        )

    # ---- before the first round -----------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Validates that data and parts fit together, before any training."""
        if stage == "fit" and not hasattr(self.trainer, "max_rounds"):
            raise ConfigError(
                f"trainer: {type(self.trainer).__name__} trains batches, not rounds; use lit_fednas' FederatedTrainer"
            )
        data = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "clients"):
            raise ConfigError("data: the trainer has no data module; call fit(module, datamodule=data)")
        space = self.supernet.space
        check_architectures(self.supernet, [space.smallest, space.largest, *self.subnets.values()])
        check_data(self.supernet, data, self.metrics)
        # a user's data module may have no val_dataloader
        if stage in ("fit", "validate") and isinstance(data, FederatedDataModule) and not data.val_dataloader():
            message = "data.server_val: 0 leaves nothing to validate on"
            if stage == "validate":
                raise ConfigError(f"{message}; raise it")
            log.warning(message)
        cohort_size = self.cohort.size(data.clients.num_clients)
        if self.faults.min_survivors > cohort_size:
            raise ConfigError(
                f"faults.min_survivors: {self.faults.min_survivors} is more than the {cohort_size} clients of a "
                f"round, so the weights would never change; lower it, or raise the cohort"
            )
        self.meet(data.clients)
        self.objective.setup(self.supernet, data.clients)
        self.aggregation.setup(self.supernet)
        self.assignment.setup(self.supernet, self.population)
        for part in (self.aggregation, self.assignment):
            part.check_statistics(self.objective.statistics_types, type(self.objective).__name__)
        if stage == "fit":
            for name in _PARTS:
                check_callbacks(f"model.{name}", getattr(self, name), self.trainer.callbacks)  # type: ignore[attr-defined]
            self.assignment.check_first_plans(self.seed)

    def on_fit_start(self) -> None:
        """Validates the callbacks' monitors, and applies a changed server optimizer to a resumed checkpoint."""
        check_monitors(self.trainer, self)
        if checkpoint := vars(self).pop("_resumed", None):  # Lightning restores the optimizer from it later
            apply_changes(checkpoint, self.trainer.optimizers[0])

    def meet(self, clients: ClientData) -> None:
        """Sets :attr:`task` and :attr:`population` from the clients' data; tiers are the same for a seed."""
        if (type(clients.task), vars(clients.task)) != (type(self.task), vars(self.task)):
            self.task = clients.task
            self._prepare_evaluation()
        if self.tiers is None:
            population = Population(clients.num_clients)
        else:
            population = self.tiers.population(self.supernet, clients.num_clients, self.seed, clients.speeds)
        self.population = replace(population, sizes=clients.sizes)
        self.evaluation.check_norms(self.supernet.skeleton(self.supernet.space.smallest))

    def configure_optimizers(self) -> Optimizer:
        """Returns the server optimizer over the shared weights."""
        try:
            optimizer = self.server_optimizer(self.supernet.parameters())
            check_finite(optimizer)
        except ValueError as error:
            raise ConfigError(f"model.server_optimizer: cannot be made ({error}); change its settings") from error
        check_callbacks("model.server_optimizer", optimizer, self.trainer.callbacks)  # type: ignore[attr-defined]
        return optimizer

    # ---- a round --------------------------------------------------------------------------------------

    def plan(self, round: ServerRound) -> list[ClientTask]:
        """Draws the round's cohort and returns its tasks; some clients may have no task or several."""
        cohort = self.cohort.draw(round.number, self.population.sizes, round.seed)
        if not cohort:
            return []
        if isinstance(self.assignment.pools, PoolOfTiers):
            round.give(Largest(self.assignment.pools.largest))
        tasks = self.tasks(round, cohort, numpy_generator(round.seed, "assignment", round.number))
        self.assignment.check_limits(tasks)
        return tasks

    def tasks(self, round: ServerRound, cohort: Sequence[int], rng: np.random.Generator) -> list[ClientTask]:
        """Returns the assignment's tasks of a round for some clients."""
        schedule = self.client.lr_schedule
        plan = Round(
            number=round.number,
            cohort=cohort,
            space=self.supernet.space,
            population=self.population,
            rng=rng,
            lr_factor=schedule.factor(round.number, round.max_rounds, round.progress) if schedule else 1.0,
            values=round.values,
            max_rounds=round.max_rounds,
            progress=round.progress,
        )
        return self.assignment.plan(plan)

    def traffic(self, arch: Any) -> tuple[int, int]:
        """Returns the bytes that a client of an architecture receives, and those that it sends."""
        network = self.supernet.skeleton(arch)
        return self.transport.nbytes([*network.parameters(), *network.buffers()])

    def cost(self, result: ClientResult) -> RoundCost:
        """Returns the cost of a client's part in a round."""
        arch = result.task.arch
        return client_cost(result, self.supernet.cost(arch), self.traffic(arch))

    def restructure(self, change: Callable[[], Any]) -> Any:
        """Calls a function that adds or removes architectures, and updates the optimizer; returns its result."""
        result = change()
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        # the supernet's order is that of a resumed run, so that the saved optimizer state fits
        parameters = list(self.supernet.parameters())
        (group,) = optimizer.param_groups
        group["params"] = parameters
        for removed in optimizer.state.keys() - set(parameters):
            del optimizer.state[removed]
        self._prepare_evaluation()
        self._recalibration = None
        return result

    def training_step(self, batch: ServerRound, batch_idx: int) -> None:
        """Takes a server step along the pseudo-gradient; with too few survivors the weights stay."""
        optimizer: Any = self.optimizers()
        survivors = batch.survivors
        are_enough = len(survivors) >= self.faults.min_survivors
        optimizer.zero_grad(set_to_none=True)
        if are_enough:
            averages = batch.aggregation.finish()
            shared = self.supernet.shared_tensors()
            for region in (region for arch in batch.rejected for region in self.supernet.regions(arch).values()):
                present = region.of(shared[region.name].detach()).to(averages[region.name].dtype)
                averages[region.name][... if region.index is None else region.index] = present
            set_pseudo_gradient(self.supernet, batch.target(averages), optimizer.optimizer)
        elif survivors or not any(result.answered for result in batch.results):  # no warning if callbacks rejected all
            log.warning(
                "round %d: %d of %d updates can be used, faults.min_survivors requires %d; the weights stay",
                batch.number + 1,
                len(survivors),
                len(batch.results),
                self.faults.min_survivors,
            )
        with resting(self.supernet, batch.aggregation.untrained, optimizer.optimizer):
            optimizer.step()  # without gradients it only counts the step
        optimizer.zero_grad(set_to_none=True)
        if are_enough:
            check_step(self.supernet, optimizer.optimizer, batch.number)
        clients = {result.task.client for result in survivors if are_enough}
        self.trainer.fit_loop.clients.commit(clients)  # type: ignore[attr-defined]
        batch.end_step()
        self._log_round(batch)

    def on_train_batch_end(self, *step: Any) -> None:
        """Makes Lightning collect the round's metrics, for callbacks that monitor them at the validation."""
        _ = self.trainer.callback_metrics

    def _log_round(self, batch: ServerRound) -> None:
        if batch.tasks:
            self.log("clients/lr", self.client.learning_rate(batch.tasks[0].lr_factor))
        main_metrics = "clients/loss", f"clients/{self.task.metric}"
        for name, value in client_metrics(batch, self.task, self.faults.norm_bound is not None).items():
            self.log(name, value, prog_bar=name in main_metrics)

    # ---- evaluation -----------------------------------------------------------------------------------

    @property
    def validation_metrics(self) -> list[str]:
        """The names of the metrics on the server's validation set."""
        return [f"val/{name}" for name in (*self.val_metrics.metric_names, f"mean/{self.task.metric}")]

    def forward(self, x: Tensor, arch: Any = None) -> Tensor:
        """Runs a subnet of the global weights."""
        return self.supernet(x, arch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Evaluates every subnet on a batch of the server's validation set."""
        self._evaluate(self.val_metrics, batch, batch_idx)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Evaluates every subnet on a batch of the test set."""
        self._evaluate(self.test_metrics, batch, batch_idx)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the logits of the subnet ``evaluation.predicted``."""
        arch = self.supernet.space.named(self.evaluation.predicted)
        return self.evaluation.logits(self._network("predicted", arch), batch[0])

    def on_validation_epoch_start(self) -> None:
        """Drops statistics that belong to earlier weights."""
        self._recalibration = None

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/<subnet>/<metric>``, and the mean of the main metric over subnets."""
        self._log_metrics("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        """Logs ``test/...``."""
        self._log_metrics("test", self.test_metrics)

    def _evaluate(self, metrics: SubnetMetrics, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Evaluates each subnet on a whole batch on one rank, so that results do not depend on the number of ranks."""
        inputs, targets = batch
        # the draw changes with every server step
        rng, space = numpy_generator(self.seed, "sampled", self.trainer.global_step), self.supernet.space
        sampled = {f"{SAMPLED} {turn}": space.sample(rng) for turn in range(self.evaluation.sampled)}
        for turn, (name, arch) in enumerate({**self.subnets, **sampled}.items()):
            if (batch_idx + turn) % self.trainer.world_size == self.trainer.global_rank:
                logits = self.evaluation.logits(self._network(name, arch), inputs)
                metrics.update(min(turn, len(self.subnets)), logits, targets)

    def _network(self, name: str, arch: Any) -> Callable[[Tensor], Tensor]:
        if self._recalibration is None:
            clients = self.trainer.datamodule.clients  # type: ignore[attr-defined]
            self._recalibration = Recalibration(self.recalibration_batches(clients))
        return self._recalibration.network(name, self.supernet, arch)

    def recalibration_batches(self, clients: ClientData, count: int | None = None) -> list[Tensor]:
        """Returns batches of clients' training data: ``count`` batches, or as many as the settings require."""
        count = self.evaluation.recalibrate_batches if count is None else count
        if count is None:
            smallest = self.supernet.skeleton(self.supernet.space.smallest)
            count = RECALIBRATION_BATCHES if normalises_over_batches(smallest) else 0
        batches = recalibration_batches(clients.at_server, count, self.client.batch_size, self.seed)
        return [inputs.to(self.device) for inputs in batches]  # only a fit moves the data to the device

    def _log_metrics(self, split: str, metrics: SubnetMetrics) -> None:
        values = metrics.compute()
        self.log_dict({f"{split}/{name}": value for name, value in values.items()}, sync_dist=True)
        self.log(f"{split}/mean/{self.task.metric}", metrics.mean(values), prog_bar=True, sync_dist=True)

    # ---- checkpoints ----------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the parts' states and the :meth:`weights_record`; tensors and plain values only."""
        states = {name: getattr(self, name).state_dict() for name in _PARTS}
        checkpoint["federation"] = {**self.weights_record(), **states}
        for optimizer in self.trainer.optimizers[:1]:
            checkpoint["federation"]["server_optimizer"] = described(optimizer)
        for name in _PARTS:
            check_state(f"model.{name}: {type(getattr(self, name)).__name__}", checkpoint["federation"][name])
        for callback, state in checkpoint.get("callbacks", {}).items():
            check_state(f"callback {callback}", state)

    def weights_record(self) -> dict[str, Any]:
        """Returns a record of the weights' origin, by which a later load is validated."""
        return {
            "supernet": self.supernet.fingerprint,
            "structure": self.supernet.structure(),
            "seed": self.seed,
            "version": __version__,
            "data": {"input_shape": list(self.supernet.input_shape), "num_classes": self.supernet.num_classes},
        }

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Path | str, **parts: Any) -> Self:  # type: ignore[override]
        """Creates a run's module with the weights of a checkpoint, on the CPU and in evaluation mode.

        Args:
            checkpoint_path: A checkpoint in the run's folder, such as ``runs/<name>/version_0/checkpoints/last.ckpt``.
            **parts: Arguments of the constructor; by default those of the run's ``config.yaml``.

        Returns:
            The module.

        Raises:
            CheckpointError: The checkpoint cannot be read, or the run's folder has no configuration.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        saved = checkpoint["federation"]
        if not parts:
            settings = model_settings(Path(checkpoint_path), saved)
            module = cls.from_settings(settings, seed=saved["seed"], **saved["data"])
        else:
            module = cls(**parts)
        module._restore_supernet(checkpoint)
        module.load_state_dict(checkpoint["state_dict"])
        return module.eval()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], seed: int, **inputs: Any) -> Self:
        """Creates a module from a configuration's section ``model``; the data determine the supernet's ``inputs``."""
        supernet = settings["supernet"]
        supernet = {**supernet, "init_args": {**supernet.get("init_args", {}), **inputs}}
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(cls, "model")
        section = {**settings, "supernet": supernet, "seed": seed, "initial": None}
        return parser.instantiate(parser.parse_object({"model": section})).model

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the parts' states and the supernet's structure.

        Raises:
            CheckpointError: The checkpoint is of another supernet, part or seed.
        """
        saved = checkpoint["federation"]
        if checkpoint.get("hyper_parameters"):
            log.warning("checkpoint: its hyper_parameters are ignored; the configuration replaces them")
        self._restore_supernet(checkpoint)
        if getattr(self.trainer, "training", False):
            if saved["seed"] != self.seed:
                raise CheckpointError(f"seed_everything: {self.seed} is not the checkpoint's {saved['seed']}; give it")
            for name in _PARTS:
                getattr(self, name).load_state_dict(saved.get(name, {}))
            self._resumed = checkpoint

    def _restore_supernet(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the supernet's structure from a checkpoint, without the weights."""
        saved = checkpoint["federation"]
        if saved.get("structure", {}) != self.supernet.structure():
            self.supernet.restore(saved.get("structure", {}))
            self._prepare_evaluation()
        tensors = {
            name.removeprefix("supernet."): tensor
            for name, tensor in checkpoint["state_dict"].items()
            if name.startswith("supernet.") or name not in self.state_dict()
        }
        check_supernet(self.supernet, saved["supernet"], tensors)
