"""What runs on a device: it answers the server's messages with its own data, of which no example leaves it."""

import json
import logging
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from io import BytesIO
from timeit import repeat
from typing import Any

import numpy as np
import torch
import yaml
from flwr.app import RecordDict
from jsonargparse import ArgumentParser
from typing_extensions import override

from lit_fednas import __version__
from lit_fednas.data import ClientData, FederatedDataModule
from lit_fednas.data.clients import Partition
from lit_fednas.data.examples import ExampleDataset
from lit_fednas.data.sources.base import Split
from lit_fednas.errors import ClientError, ConfigError, DataError, FedNASError
from lit_fednas.federation import ClientSettings, FederatedLightningModule
from lit_fednas.federation.client import LocalRunner
from lit_fednas.federation.evaluation import fresh_statistics
from lit_fednas.federation.process import keep_freed_memory, threads_set
from lit_fednas.finetune.finetuning import alone, averaging
from lit_fednas.flower.wire import KINDS, SPLITS, Packet, digest, one_line, read_task, result_fields
from lit_fednas.objectives import Objective, TaskLoss
from lit_fednas.rng import isolated
from lit_fednas.search import FederatedEvaluation, FederatedEvaluator
from lit_fednas.search.evaluator import ClientDraw, covered
from lit_fednas.search.tier_models import scores_of_clients
from lit_fednas.tiers import Population
from lit_fednas.transport import Transport

#: The number of a node's share of a data set that every node has (Flower's own name for it).
SHARE = "partition-id"
#: The number of the node's client, where its data are its own and its key has no name.
CLIENT = "client"
_NUMBERS = (SHARE, CLIENT, "num-partitions")
#: What a node may set: where its data are, and how they are read.
_SETTABLE = ("data.source.", "data.eval_batch_size.", "data.in_memory.", "data.num_workers.")

log = logging.getLogger(__name__)
_TRIALS = 5  # batches that measure a device's speed


@contextmanager
def _reading() -> Iterator[None]:
    """Raises DataError where the server's message is damaged; what the device lacks is reported with its traceback."""
    try:
        yield
    except (FedNASError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"flower: the server's message cannot be read ({reason})") from error


def device_settings(config: str, changed: str = "") -> str:
    """Returns the settings that devices read, as YAML."""
    read = yaml.safe_load(config)
    threads = (read.get("trainer") or {}).get("threads")
    settings = {**{name: read[name] for name in ("seed_everything", "data", "model")}, "trainer": {"threads": threads}}
    return yaml.safe_dump({**settings, **yaml.safe_load(changed or "{}")})


def kind_of(data: FederatedDataModule) -> dict[str, Any]:
    """Returns what the data of a device and of the server must have in common, names and numbers as hashes."""
    normalization = data.source.normalization
    numbers = None if normalization is None else [list(normalization.mean), list(normalization.std)]
    return {
        "task": type(data.task).__name__,
        "input_shape": list(data.input_shape),
        "num_classes": data.num_classes,
        "task_settings": {name: str(value) for name, value in vars(data.task).items()},
        "augmentation": [f"{type(step).__name__} {vars(step)}" for step in data.source.augmentation],
        "class_names": digest(json.dumps(list(data.class_names))),
        "normalization": digest(json.dumps(numbers)),
    }


class DeviceData(FederatedDataModule):
    """The data of one device: its share of a source's, or a source of its own without a validation split."""

    number = 0  # of the client
    share = False  # whether the source holds the data of all clients

    @override
    def _open(self, split: Split) -> ExampleDataset | None:
        return None if split == "val" and not self.share else super()._open(split)

    @override
    def _deal(self, train: ExampleDataset, targets: np.ndarray, pool: np.ndarray) -> ClientData:
        if self.share:
            return super()._deal(train, targets, pool)
        self.targets = targets[pool]
        self.partition = Partition(np.arange(len(pool)), np.array([0, len(pool)]))
        none = [np.empty(0, dtype=np.int64)] * self.number  # clients before it, whose data are elsewhere
        rows = {split: [*none, *parts] for split, parts in self._client_rows(pool, self.number).items()}
        return ClientData(self._readers["train"], rows, self._readers.get("test"), self.task)


@dataclass(eq=False)
class Device:
    """Answers the server's messages with a module that ``make`` makes from the data."""

    data: DeviceData
    make: Callable[[FederatedDataModule], FederatedLightningModule]
    number: int | None  # the client's; None if it is the one that the node's key is registered as
    threads: int | None = None
    _made: dict[int | None, tuple[FederatedLightningModule, LocalRunner]] = field(default_factory=dict)
    _tuned: tuple[str, FederatedLightningModule, LocalRunner] | None = None
    _memory: MutableMapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keep_freed_memory()

    def answer(self, kind: str, packet: Packet, memory: MutableMapping[str, bytes] | None = None) -> Packet:
        """Returns the answer to a message, or the reason why the device refuses as its field ``refused``."""
        self._memory = self._memory if memory is None else memory
        try:
            if (version := packet.fields.get("version")) != __version__:
                raise ConfigError(
                    f"version: the device has lit-fednas {__version__}, the server {version}; install that"
                )
            return {"join": self._join, "train": self._train, "score": self._score, "test": self._test}[kind](packet)
        except FedNASError as error:
            return Packet({"refused": one_line(error)})

    def _ready(self, fields: Mapping[str, Any]) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns what trains a client, with the server's structure; its data are still those that it joined with."""
        with _reading():
            client = int(fields.get("task", fields)["client"])
        module, runner = self._parts(client)
        with _reading():
            if fields["data"] != digest(json.dumps(kind_of(self.data))):
                raise ConfigError(
                    "data.source: the device's data differ from the server's in their shape, classes or "
                    "normalisation; start the device with the data that it began with"
                )
            if module.supernet.structure() != fields["structure"]:
                module.supernet.restore(fields["structure"])
        return module, runner

    def _join(self, packet: Packet) -> Packet:
        """Discloses which client this is, how many examples of each class it has, and how fast the device is."""
        number = self._own_number(packet)
        module, _ = self._parts(number)
        data, clients = self.data, self.data.clients
        if not 0 <= number < clients.num_clients:
            raise ConfigError(f"{SHARE}: {number} is not one of the {clients.num_clients} clients of the partition")
        counts = {split: clients.label_counts(number, len(data.strata), [split]).tolist() for split in SPLITS}
        known = {"client": number, "counts": counts, "kind": kind_of(data), "macs_per_second": self._speed(module)}
        return Packet(known)

    def _own_number(self, packet: Packet) -> int:
        """Returns the client's number: that of its registered key, or its own setting."""
        registered, number = packet.fields.get("client"), self.number
        with _reading():
            registered = None if registered is None else int(registered)
        if registered is not None and number not in (None, registered):
            raise ConfigError(f"node-config: the client's number is {number}, and its key is of client {registered}")
        number = number if registered is None else registered
        if number is None:
            raise ConfigError(
                f"node-config: has no number of a client; set {SHARE} or {CLIENT}, or register the key as client-NUMBER"
            )
        return number

    def _speed(self, module: FederatedLightningModule) -> float | None:
        """Returns the MACs per second of training the largest architecture; ``None`` if they cannot be counted."""
        supernet, arch, size = module.supernet, module.supernet.space.largest, module.client.batch_size
        try:
            macs = supernet.macs(arch)
        except ConfigError:
            return None
        network = supernet.subnet(arch).train()
        inputs = torch.zeros(size, *supernet.input_shape, dtype=supernet.input_dtype)
        with self._threads(module), isolated(0, "speed"):
            seconds = repeat(lambda: network(inputs).float().sum().backward(), number=1, repeat=_TRIALS)
        return size * macs / min(seconds)

    @torch.no_grad()
    def _train(self, packet: Packet) -> Packet:
        """Trains a task on the tensors that it receives."""
        fields = packet.fields
        module, runner = self._ready(fields)
        with _reading():
            if fields["candidate"] is not None:
                module, runner = self._candidate(module, fields["candidate"])
            supernet, runner.seed = module.supernet, int(fields["seed"])
            task = read_task(fields["task"], supernet.space)
            transport, like = module.transport, supernet.views(task.arch)
            received = transport.unpack_down(packet.tensors, like)
            shared = supernet.shared_tensors()
            for name, region in supernet.regions(task.arch).items():
                shared[region.name][... if region.index is None else region.index] = received[name]
            kept, new = fields["kept"], fields["keep"]  # names that the server knows states by, which stay here
            state = torch.load(BytesIO(self._memory[kept]), weights_only=True) if kept in self._memory else {}
        runner.state_of = lambda client: state
        with torch.enable_grad(), self._threads(module):
            ((result, update),) = runner.run([task])
        if update is None:
            return Packet({"result": result_fields(result)})
        for name in [name for name in self._memory if name.startswith(f"{task.client}-") and name != kept]:
            del self._memory[name]  # of updates that did not count
        if update.state is not None:
            torch.save(update.state, buffer := BytesIO())
            self._memory[new] = buffer.getvalue()
        if kept is not None and kept not in self._memory:
            result = replace(result, reason="the device has lost what the objective kept of it, and has started anew")
            log.warning("client %d: %s", task.client, result.reason)
        packed = transport.pack_up(update.weights, received, runner.seed, task)
        return Packet({"result": result_fields(result)}, packed)

    @torch.no_grad()
    def _score(self, packet: Packet) -> Packet:
        """Evaluates architectures on the device's own examples; it receives the shared elements that they cover."""
        fields = packet.fields
        module, _ = self._ready(fields)
        with _reading():
            archs = [module.supernet.space.parse(text) for text in fields["archs"]]
            shared = module.supernet.shared_tensors()
            for name, mask in covered(module.supernet, archs).items():
                shared[name][mask] = packet.tensors[name]
        clients = self.data.clients
        draw = ClientDraw(clients, Population(clients.num_clients), 1, FederatedEvaluation(), module.seed)
        evaluator = FederatedEvaluator(module.supernet, draw, module.evaluation, (), self.data.eval_batch_size)
        with self._threads(module):
            answers = [evaluator.answers(arch, [int(fields["client"])])[0].tolist() for arch in archs]
        return Packet({"answers": answers})

    def _test(self, packet: Packet) -> Packet:
        """Tests a network on the device's own test examples."""
        fields = packet.fields
        module, _ = self._ready(fields)
        with _reading():
            arch = module.supernet.space.parse(fields["arch"])
            network = module.supernet.empty_subnet(arch).eval()
            if packet.tensors.keys() != network.state_dict().keys():
                fresh_statistics(network)  # it has some, from the server's examples
            network.load_state_dict(dict(packet.tensors))
        with self._threads(module):
            (score,) = scores_of_clients(module, self.data, network, [int(fields["client"])])
        return Packet({"num_units": score.num_units, "means": dict(score.means)})

    def _candidate(
        self, module: FederatedLightningModule, candidate: Mapping[str, Any]
    ) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns what trains a network that a fine-tuning has taken from the supernet."""
        key = str(candidate)
        if self._tuned is None or self._tuned[0] != key:
            supernet, arch = module.supernet, module.supernet.space.parse(candidate["arch"])
            network = alone(supernet, supernet.empty_subnet(arch))
            parser = ArgumentParser(exit_on_error=False)
            parser.add_argument("--client", type=ClientSettings | None)
            parser.add_argument("--objective", type=Objective | None)
            section = {name: candidate[name] for name in ("client", "objective")}
            settings = parser.instantiate(parser.parse_object(section))
            objective: Objective = settings.objective or TaskLoss()
            tuned = averaging(module, network, objective, client=settings.client or module.client, seed=module.seed)
            tuned.objective.setup(network, self.data.clients)
            self._tuned = (key, tuned, self._runner(tuned))
        return self._tuned[1], self._tuned[2]

    def _threads(self, module: FederatedLightningModule) -> AbstractContextManager[object]:
        """Sets the number of threads of a simulated run, which decides the order of sums."""
        return threads_set(self.threads, module.supernet, module.client.batch_size, 1)

    def _parts(self, number: int) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns the module of the configuration, and what trains its client, which are made once."""
        known = None if self.data.share else number  # a module and a runner serve all clients of one data set
        if known not in self._made:
            self.data.number = number
            self.data.prepare_data()
            self.data.setup("fit")
            module = self.make(self.data)
            module.objective.setup(module.supernet, self.data.clients)
            module.faults = replace(module.faults, on_client_error="skip")  # the server decides
            self._made = {known: (module, self._runner(module))}
        return self._made[known]

    def _runner(self, module: FederatedLightningModule) -> LocalRunner:
        runner = LocalRunner(module, self.data.clients, lambda: None)
        runner.transport = Transport()  # what is sent is packed here and at the server
        return runner


def read_data(config: Mapping[str, Any], settings: Mapping[str, Any], share: bool) -> DeviceData:
    """Returns a device's data."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DeviceData, "data")
    options = [f"--{name}={value}" for name, value in settings.items()]
    own = {} if share else {"server_val": 0}  # the server has data of its own
    with _reading():
        at_server = parser.parse_object({"data": {**config["data"], "seed": config["seed_everything"], **own}})
    try:
        parsed = parser.parse_args(options, at_server.clone())
    except ArgumentError as error:
        raise ConfigError(f"node-config: {' '.join(str(error).split())}; correct the setting") from error
    for name in settings:
        if not f"{name}.".startswith(_SETTABLE) and (given := parsed.get(name)) != (wanted := at_server.get(name)):
            raise ConfigError(f"{name}: {given} on the device and {wanted} at the server; leave it out of node-config")
    data: DeviceData = parser.instantiate(parsed).data
    data.share = share
    return data


def read_module(config: Mapping[str, Any], data: FederatedDataModule) -> FederatedLightningModule:
    """Returns the module of a run's configuration, given the data that its networks read; the server sends weights."""
    inputs = {"input_shape": list(data.input_shape), "num_classes": data.num_classes}
    with _reading():  # settings with which the server has made its own
        return FederatedLightningModule.from_settings(config["model"], seed=config["seed_everything"], **inputs)


@lru_cache(maxsize=2)  # a simulation's process answers for many nodes, which share one data set
def _device(config: str, changed: str, share: bool, settings: tuple[tuple[str, Any], ...]) -> Device:
    for name, _ in settings:
        if not name.startswith("data."):
            raise ConfigError(f"node-config: {name} is not a setting; give {', '.join(_NUMBERS)}, or data.SETTING")
    with _reading():
        read = yaml.safe_load(device_settings(config, changed))
        threads = read["trainer"]["threads"]
    data = read_data(read, dict(settings), share)
    return Device(data, partial(read_module, read), None, threads)


def device_of(config: str, settings: Mapping[str, Any], changed: str = "") -> Device:
    """Returns the device of a configuration and a node's settings, until the next call."""
    number = settings.get(SHARE, settings.get(CLIENT))
    if not isinstance(number, int | None):
        raise ConfigError(f"node-config: {SHARE} or {CLIENT} is {number!r}; give the number of a client")
    others = tuple(sorted((name, value) for name, value in settings.items() if name not in _NUMBERS))
    device = _device(config, changed, SHARE in settings, others)
    device.number = number
    return device


def answered(
    message_type: str, content: RecordDict, config: str, settings: Mapping[str, Any], memory: MutableMapping[str, Any]
) -> tuple[RecordDict, MutableMapping[str, Any]]:
    """Returns a node's answer to a message of Flower, and what it keeps for its next one."""
    kind = next(name for name, type_ in KINDS.items() if type_ == message_type)
    try:
        packet = Packet.read(content)
        answer = device_of(config, settings, str(packet.fields.get("changed", ""))).answer(kind, packet, memory)
    except (ClientError, FedNASError) as error:
        answer = Packet({"refused": one_line(error)})
    if "refused" in answer.fields:
        log.warning("%s", answer.fields["refused"])
    return answer.record(), memory
