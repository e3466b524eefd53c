"""The clients' training: fits by one reused sub-Trainer, each of one client or of several together."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.data.clients import ClientData
from lit_fednas.errors import ConfigError, in_one_line
from lit_fednas.federation.evaluation import RECALIBRATION_BATCHES, client_scores, normalises_over_batches, recalibrated
from lit_fednas.federation.fit import ClientModule, ClientNetwork, Fit, Outcome, TaskRunner
from lit_fednas.federation.kernels import MAX_ARCHITECTURES, check_compilable, compile_network, with_channels_last
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.federation.process import Interrupted
from lit_fednas.federation.stacked import StackedClient, StackedGradients, StackedModule, check_stackable
from lit_fednas.messages import DROPPED, ClientResult, ClientTask
from lit_fednas.objectives.base import collect_state, give_state, is_finite
from lit_fednas.rng import generator, isolated, numpy_generator
from lit_fednas.supernets.base import recent

if TYPE_CHECKING:
    from lit_fednas.federation.module import FederatedLightningModule

_MAX_NETWORKS = 4
_MAX_GRADIENTS = 64  # functions, which take no memory

log = logging.getLogger(__name__)


class LocalRunner(TaskRunner):
    """Trains clients with one reused Trainer, module and few networks; an update is valid until the next fit."""

    def __init__(self, module: FederatedLightningModule, data: ClientData, check: Callable[[], None]) -> None:
        self.supernet = module.supernet
        self.objective = module.objective
        self.data = data
        self.settings = module.client
        self.faults = module.faults
        self.transport = module.transport  # a device sets Transport(), because it packs its messages itself
        self.seed = module.seed
        self.check = check
        self.device = next(iter(self.supernet.shared_tensors().values())).device
        self.trainer = ClientTrainer(self.device, self.settings.precision, check)
        self._networks: OrderedDict[Any, ClientNetwork] = OrderedDict()
        self._gradients: OrderedDict[Any, StackedGradients] = OrderedDict()
        self._shared: dict[str, Tensor] | None = None  # looked up once for all clients of a round
        self._received: dict[int, Mapping[str, Tensor]] = {}  # weights by client of the present fit
        self._module = ClientModule(self.objective, self.settings)

    @override
    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Outcome]:
        """Trains the clients in the order of their tasks, or grouped by architecture if fits have several clients."""
        self._shared = self.supernet.shared_tensors()
        try:
            for group in self._groups(tasks):
                self.check()
                if len(group) == 1:
                    yield self.fit(group[0])
                else:
                    yield from self._fit_together(group)
        finally:
            self._shared = None

    def fit(self, task: ClientTask) -> Outcome:
        """Trains one client."""
        fit, start = Fit(ClientResult(task)), perf_counter()
        with fit.isolating_failures():
            self._train(fit)
            self._finish(fit)
        fit.note(seconds=perf_counter() - start)
        return self._outcome(fit)

    def _groups(self, tasks: Sequence[ClientTask]) -> Iterator[Sequence[ClientTask]]:
        """Yields tasks of one architecture, most examples first, so that a fit's clients take similarly many steps."""
        if self.settings.clients_per_fit == 1:
            yield from ([task] for task in tasks)
            return
        groups: dict[Any, list[ClientTask]] = {}
        for task in tasks:
            if self._drops_out(task):
                yield [task]
            else:
                groups.setdefault((task.arch, task.round, task.lr_factor), []).append(task)
        for group in groups.values():
            group.sort(key=lambda task: -task.num_examples)
            for first in range(0, len(group), self.settings.clients_per_fit):
                yield group[first : first + self.settings.clients_per_fit]

    def _fit_together(self, tasks: Sequence[ClientTask]) -> Iterator[Outcome]:
        """Trains clients of one architecture in one fit; if it fails, one by one, which isolates the failure."""
        start = perf_counter()
        try:
            module = self._train_together(tasks)
            outcomes = module.outcomes()
        except (ConfigError, Interrupted):
            raise
        except Exception as error:
            reason = in_one_line(error)
        else:
            share = (perf_counter() - start) / len(tasks)
            for row, (client, (loss_sum, loss_count, size)) in enumerate(zip(module.clients, outcomes, strict=True)):
                weights = {name: tensor[row] for name, tensor in module.weights.items()}
                fit = Fit(ClientResult(client.task))
                with fit.isolating_failures():
                    fit.fill(weights, client.num_steps, client.num_seen, loss_sum=loss_sum, count=loss_count, size=size)
                    self._finish(fit)
                fit.note(seconds=share)
                yield self._outcome(fit)
            return
        log.warning(
            "round %d, clients %s: training them in one fit failed (%s); they are trained one by one",
            tasks[0].round + 1,
            ", ".join(str(task.client) for task in tasks),
            reason,
        )
        for task in tasks:
            self.check()
            yield self.fit(task)

    def _train_together(self, tasks: Sequence[ClientTask]) -> StackedModule:
        arch = tasks[0].arch
        with self.trainer.precision_plugin.train_step_context():
            build = partial(StackedGradients, self.supernet, arch, self.objective, self.settings)
            gradients = recent(self._gradients, arch, _MAX_GRADIENTS, build)
        self._receive(tasks)
        received = [self._received[task.client] for task in tasks]
        stacked = {name: torch.stack([weights[name].detach() for weights in received]) for name in received[0]}
        clients = [StackedClient(task) for task in tasks]
        for client in clients:
            client.batches = self._batches(client.task, client, whole_epochs=True)
        module = StackedModule(gradients, stacked, clients, self.settings, tasks[0].lr_factor)
        self.trainer.fit(module, train_dataloaders=module.steps())
        return module

    def _finish(self, fit: Fit) -> None:
        """Tests the trained network, and passes the update through the transport."""
        if fit.weights is None:
            return
        self._test(fit, fit.weights)
        if not self.transport.exact:
            task, views = fit.result.task, self.supernet.views(fit.result.task.arch, self._shared)
            packed = self.transport.pack_up(fit.weights, self._received[task.client], self.seed, task)
            fit.weights = self.transport.unpack_up(packed, views)

    def _outcome(self, fit: Fit) -> Outcome:
        """Returns the outcome of a fit; raises its failure if the fault policy stops at failures."""
        result, update = fit.outcome
        self.faults.check(result, fit.cause)
        return result, update

    @torch.no_grad()
    def _receive(self, tasks: Sequence[ClientTask]) -> None:
        """Passes the global weights of one architecture through the transport, for each client of the next fit."""
        weights, transport = self.supernet.views(tasks[0].arch, self._shared), self.transport
        self._received = {
            task.client: transport.unpack_down(transport.pack_down(weights, self.seed, task), weights) for task in tasks
        }

    def _test(self, fit: Fit, weights: Mapping[str, Tensor]) -> None:
        """Tests the network on the client's own validation split if ``client.validate`` is set."""
        if self.settings.validate is None:
            return
        arch, client = fit.result.task.arch, fit.result.task.client
        weights = weights if self.settings.validate == "trained" else self._received[client]
        network: Callable[[Tensor], Tensor] = partial(self.supernet.run, arch, weights)
        if normalises_over_batches(self.supernet.skeleton(arch)):
            copy = self.supernet.subnet(arch)
            copy.load_state_dict(dict(weights))
            draws = generator(self.seed, "local-statistics", client)
            batches = self.data.batches(client, self.settings.batch_size, draws, augment=False)
            # batch norm refuses batches of one example
            inputs = (inputs for inputs, _ in islice(batches, RECALIBRATION_BATCHES) if len(inputs) > 1)
            network = recalibrated(copy, inputs)
        for score in client_scores(network, self.data, [client], "val"):
            fit.note(tested=score.means, num_tested=score.num_examples, num_tested_units=score.num_units)

    def _train(self, fit: Fit) -> None:
        task = fit.result.task
        address = task.round, task.client
        if self._drops_out(task):
            fit.fail(DROPPED, "the client went away")
            return
        capacity = MAX_ARCHITECTURES if self.settings.compile else _MAX_NETWORKS
        network = recent(self._networks, task.arch, capacity, partial(self._build_network, task.arch))
        self._receive([task])
        network.receive(self._received[task.client])
        module = self._module
        module.begin(network, task.lr_factor, self._max_steps(task))
        with isolated(self.seed, "client", *address, device=self.device):
            give_state(self.objective, self.state_of(task.client), self.device)
            try:
                self.objective.begin(network.network, task, generator(self.seed, "objective", *address))
                self.trainer.fit(module, train_dataloaders=self._batches(task, module))
                statistics = self.objective.statistics() if module.num_steps else ()
                fit.state = collect_state(self.objective) if module.num_steps else None
            finally:
                self.objective.end(network.network)
        for parameter in network.parameters:
            parameter.grad = None
        # the norm is read last, because Objective.end may change the weights
        loss_sum, loss_count, size = module.outcome()
        fit.fill(network.weights, module.num_steps, module.num_seen, loss_sum=loss_sum, count=loss_count, size=size)
        if fit.weights is None:
            return
        fit.note(statistics=statistics)
        if not all(item.finite for item in statistics):
            fit.fail("non-finite", "a number in its statistics is not finite")
        elif fit.state is not None and not is_finite(fit.state):
            fit.fail("non-finite", "the state that the objective keeps of it is not finite")

    def _drops_out(self, task: ClientTask) -> bool:
        if self.faults.dropout_rate == 0:
            return False
        draw = numpy_generator(self.seed, "dropout-of-client", task.round, task.client).random()
        return bool(draw < self.faults.dropout_rate)

    def _max_steps(self, task: ClientTask) -> int | None:
        """Returns the client's number of steps, or ``None`` if it trains by epochs."""
        return self.settings.steps if task.steps is None else task.steps

    def _epochs(self, task: ClientTask) -> int:
        """Returns the client's number of passes over its data; stragglers complete fewer."""
        if self.faults.straggler_rate == 0:
            return self.settings.epochs
        draws = numpy_generator(self.seed, "epochs-of-client", task.round, task.client)
        is_late = draws.random() < self.faults.straggler_rate
        return int(draws.integers(1, self.settings.epochs, endpoint=True)) if is_late else self.settings.epochs

    def _batches(
        self, task: ClientTask, progress: ClientModule | StackedClient, whole_epochs: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of the client's epochs; if it trains by steps, until an epoch adds no step."""
        max_steps = self._max_steps(task)
        for epoch in count() if max_steps is not None else range(self._epochs(task)):
            draws = generator(self.seed, "batches", task.round, task.client, epoch)
            num_steps = progress.num_steps
            batches = self.data.batches(task.client, self.settings.batch_size, draws, drop_last=self.settings.drop_last)
            yield from list(islice(batches, max_steps and max_steps - num_steps)) if whole_epochs else batches
            if progress.num_steps == num_steps:
                return

    def _build_network(self, arch: Any) -> ClientNetwork:
        network = self.supernet.empty_subnet(arch)
        if self.settings.channels_last:
            network = with_channels_last(network)
        client_network = ClientNetwork(network)
        if self.settings.compile:
            client_network.receive(self.supernet.views(arch, self._shared))
            shape, dtype = self.supernet.input_shape, self.supernet.input_dtype
            batch = torch.zeros(self.settings.batch_size, *shape, dtype=dtype, device=self.device)
            with self.trainer.precision_plugin.train_step_context():
                compile_network(network, batch)
        return client_network


def check_clients(module: FederatedLightningModule, data: ClientData) -> None:
    """Validates before the first round that clients can train with the module's settings."""
    supernet, objective, settings, faults = module.supernet, module.objective, module.client, module.faults
    if settings.clients_per_fit > 1:
        check_stackable(settings, objective)
    if faults.straggler_rate and (settings.epochs == 1 or settings.steps is not None):
        raise ConfigError(
            f"faults.straggler_rate: {faults.straggler_rate:g} of the clients would train fewer passes, but each "
            f"trains {'one' if settings.steps is None else 'a number of steps'}; set client.epochs above 1 and "
            f"client.steps to null, or straggler_rate to 0"
        )
    if settings.compile:
        check_compilable(supernet, objective, settings.clients_per_fit)
    try:
        settings.local_optimizer([torch.zeros(1, requires_grad=True)])
    except Exception as error:  # otherwise every client would fail with it
        raise ConfigError(f"client.optimizer: cannot be made ({error}); change its settings") from error
    if settings.validate is not None and not objective.testable:
        raise ConfigError(
            f"client.validate: {settings.validate!r} tests each client's network, and with model.objective "
            f"{type(objective).__name__} clients hold several; set it to null, and evaluation.sampled for the mean of "
            f"sampled ones"
        )
    if settings.validate is not None and not data.split_sizes("val").any():
        raise ConfigError("client.validate: no client has validation data; set data.client_val, for instance to 0.2")
