"""A device: answers the server's messages with its own data; no example leaves it."""

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

#: Node setting: the number of its share, if all nodes have the whole data set (Flower's own name for it).
SHARE = "partition-id"
#: Node setting: the number of its client, if it has its own data and a key without a number.
CLIENT = "client"
_NUMBERS = (SHARE, CLIENT, "num-partitions")
#: Data settings that a node may change: where its data are, and how they are read.
_SETTABLE = ("data.source.", "data.eval_batch_size.", "data.in_memory.", "data.num_workers.")

log = logging.getLogger(__name__)
_TRIALS = 5  # batches that measure a device's speed


@contextmanager
def _reading() -> Iterator[None]:
    """Raises DataError for a damaged message; missing packages and memory keep their own errors."""
    try:
        yield
    except (FedNASError, ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"flower: the server's message cannot be read ({reason})") from error


def device_settings(config: str, changed: str = "") -> str:
    """Returns the settings that devices read, as YAML; ``changed`` has sections that replace the configuration's."""
    run = yaml.safe_load(config)
    threads = (run.get("trainer") or {}).get("threads")
    settings = {**{name: run[name] for name in ("seed_everything", "data", "model")}, "trainer": {"threads": threads}}
    return yaml.safe_dump({**settings, **yaml.safe_load(changed or "{}")})


def kind_of(data: FederatedDataModule) -> dict[str, Any]:
    """Returns the properties that a device's data must share with the server's, names and numbers as hashes."""
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
    """The data of one device: a share of the common source, or its own source without a validation split."""

    number = 0  # the client's number
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
        others = [np.empty(0, dtype=np.int64)] * self.number  # clients with lower numbers have no data here
        rows = {split: [*others, *parts] for split, parts in self._client_rows(pool, self.number).items()}
        return ClientData(self._readers["train"], rows, self._readers.get("test"), self.task)


@dataclass(eq=False)
class Device:
    """Answers the server's messages with the module that ``make`` builds for the data."""

    data: DeviceData
    make: Callable[[FederatedDataModule], FederatedLightningModule]
    number: int | None  # the client's number; None: the number in the node's registered key
    threads: int | None = None
    _made: dict[int | None, tuple[FederatedLightningModule, LocalRunner]] = field(default_factory=dict)
    _tuned: tuple[str, FederatedLightningModule, LocalRunner] | None = None
    _memory: MutableMapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keep_freed_memory()

    def answer(self, kind: str, packet: Packet, memory: MutableMapping[str, bytes] | None = None) -> Packet:
        """Returns the answer to a message; the field ``refused`` is the reason of a refusal."""
        self._memory = self._memory if memory is None else memory
        try:
            if (version := packet.fields.get("version")) != __version__:
                raise ConfigError(f"version: {__version__} is not the server's; install lit-fednas {version}")
            return {"join": self._join, "train": self._train, "score": self._score, "test": self._test}[kind](packet)
        except FedNASError as error:
            return Packet({"refused": one_line(error)})

    def _ready(self, fields: Mapping[str, Any]) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns the client's module and runner, with the server's structure; validates unchanged data."""
        with _reading():
            client = int(fields.get("task", fields)["client"])
        module, runner = self._parts(client)
        with _reading():
            if fields["data"] != digest(json.dumps(kind_of(self.data))):
                raise ConfigError(
                    "data.source: the device's data have changed; start it with those that it joined with"
                )
            if module.supernet.structure() != fields["structure"]:
                module.supernet.restore(fields["structure"])
        return module, runner

    def _join(self, packet: Packet) -> Packet:
        """Discloses the client's number, its examples per class and split, and the device's speed."""
        number = self._own_number(packet)
        module, _ = self._parts(number)
        data, clients = self.data, self.data.clients
        if not 0 <= number < clients.num_clients:
            raise ConfigError(f"{SHARE}: {number} is not one of the {clients.num_clients} clients of the partition")
        counts = {split: clients.label_counts(number, len(data.strata), [split]).tolist() for split in SPLITS}
        disclosure = {"client": number, "counts": counts, "kind": kind_of(data), "macs_per_second": self._speed(module)}
        return Packet(disclosure)

    def _own_number(self, packet: Packet) -> int:
        """Returns the client's number: from its registered key, or from the node's settings."""
        registered, number = packet.fields.get("client"), self.number
        with _reading():
            registered = None if registered is None else int(registered)
        if registered is not None and number not in (None, registered):
            raise ConfigError(f"node-config: {number} is not the key's client, {registered}; leave {CLIENT} out")
        number = number if registered is None else registered
        if number is None:
            raise ConfigError(
                f"node-config: no client's number; set {SHARE} or {CLIENT}, or register key client-NUMBER"
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
        """Trains a task on received tensors; returns its result and its update."""
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
            old, new = fields["kept"], fields["keep"]  # names of the client's states, which stay on the device
            state = torch.load(BytesIO(self._memory[old]), weights_only=True) if old in self._memory else {}
        runner.state_of = lambda client: state
        with torch.enable_grad(), self._threads(module):
            ((result, update),) = runner.run([task])
        if update is None:
            return Packet({"result": result_fields(result)})
        for name in [name for name in self._memory if name.startswith(f"{task.client}-") and name != old]:
            del self._memory[name]  # a state of an update that did not count
        if update.state is not None:
            torch.save(update.state, buffer := BytesIO())
            self._memory[new] = buffer.getvalue()
        if old is not None and old not in self._memory:
            result = replace(result, reason="the device has lost the objective's state, and has started a new one")
            log.warning("client %d: %s", task.client, result.reason)
        packed = transport.pack_up(update.weights, received, runner.seed, task)
        return Packet({"result": result_fields(result)}, packed)

    @torch.no_grad()
    def _score(self, packet: Packet) -> Packet:
        """Evaluates architectures on the device's own examples, with the shared elements that they cover."""
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
                fresh_statistics(network)  # the server has measured some on its examples
            network.load_state_dict(dict(packet.tensors))
        with self._threads(module):
            (score,) = scores_of_clients(module, self.data, network, [int(fields["client"])])
        return Packet({"num_units": score.num_units, "means": dict(score.means)})

    def _candidate(
        self, module: FederatedLightningModule, candidate: Mapping[str, Any]
    ) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns the module and the runner of a fine-tuning's candidate; the last one is kept."""
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
            client = settings.client or module.client
            candidate_module = averaging(module, network, objective, client=client, seed=module.seed)
            candidate_module.objective.setup(network, self.data.clients)
            self._tuned = (key, candidate_module, self._runner(candidate_module))
        return self._tuned[1], self._tuned[2]

    def _threads(self, module: FederatedLightningModule) -> AbstractContextManager[object]:
        """Sets as many threads as a simulated run has, since their number decides the order of sums."""
        return threads_set(self.threads, module.supernet, module.client.batch_size, 1)

    def _parts(self, number: int) -> tuple[FederatedLightningModule, LocalRunner]:
        """Returns the configuration's module and its runner, which are built once."""
        key = None if self.data.share else number  # one module serves all clients of a common data set
        if key not in self._made:
            self.data.number = number
            self.data.prepare_data()
            self.data.setup("fit")
            module = self.make(self.data)
            module.objective.setup(module.supernet, self.data.clients)
            module.faults = replace(module.faults, on_client_error="skip")  # the server applies the policy
            self._made = {key: (module, self._runner(module))}
        return self._made[key]

    def _runner(self, module: FederatedLightningModule) -> LocalRunner:
        runner = LocalRunner(module, self.data.clients, lambda: None)
        runner.transport = Transport()  # the device packs updates itself
        return runner


def read_data(config: Mapping[str, Any], settings: Mapping[str, Any], share: bool) -> DeviceData:
    """Returns a device's data; ``settings`` are the node's, ``share`` says whether all nodes have the same source."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DeviceData, "data")
    options = [f"--{name}={value}" for name, value in settings.items()]
    server_val = {} if share else {"server_val": 0}  # the server has its own data
    with _reading():
        at_server = parser.parse_object({"data": {**config["data"], "seed": config["seed_everything"], **server_val}})
    try:
        parsed = parser.parse_args(options, at_server.clone())
    except ArgumentError as error:
        raise ConfigError(f"node-config: {' '.join(str(error).split())}; correct the setting") from error
    for name in settings:
        if not f"{name}.".startswith(_SETTABLE) and (value := parsed.get(name)) != at_server.get(name):
            raise ConfigError(f"{name}: {value} is not the server's {at_server.get(name)}; remove it from node-config")
    data: DeviceData = parser.instantiate(parsed).data
    data.share = share
    return data


def read_module(config: Mapping[str, Any], data: FederatedDataModule) -> FederatedLightningModule:
    """Returns the module of a run's configuration for a device's data; weights arrive with each message."""
    inputs = {"input_shape": list(data.input_shape), "num_classes": data.num_classes}
    with _reading():  # the server has built its module from the same settings
        return FederatedLightningModule.from_settings(config["model"], seed=config["seed_everything"], **inputs)


@lru_cache(maxsize=2)  # a simulation's process answers for many nodes, which share one data set
def _device(config: str, changed: str, share: bool, settings: tuple[tuple[str, Any], ...]) -> Device:
    for name, _ in settings:
        if not name.startswith("data."):
            raise ConfigError(f"node-config: {name} is not a setting; give {', '.join(_NUMBERS)}, or data.SETTING")
    with _reading():
        run = yaml.safe_load(device_settings(config, changed))
        threads = run["trainer"]["threads"]
    data = read_data(run, dict(settings), share)
    return Device(data, partial(read_module, run), None, threads)


def device_of(config: str, settings: Mapping[str, Any], changed: str = "") -> Device:
    """Returns the device of a configuration and a node's settings; the next call may change its number."""
    number = settings.get(SHARE, settings.get(CLIENT))
    if not isinstance(number, int | None):
        raise ConfigError(f"node-config: {SHARE} or {CLIENT} is {number!r}; give the number of a client")
    data_settings = tuple(sorted((name, value) for name, value in settings.items() if name not in _NUMBERS))
    device = _device(config, changed, SHARE in settings, data_settings)
    device.number = number
    return device


def answer_message(
    message_type: str, content: RecordDict, config: str, settings: Mapping[str, Any], memory: MutableMapping[str, Any]
) -> tuple[RecordDict, MutableMapping[str, Any]]:
    """Returns a node's answer to a Flower message, and the clients' states that the node keeps."""
    kind = next(name for name, type_ in KINDS.items() if type_ == message_type)
    try:
        packet = Packet.read(content)
        answer = device_of(config, settings, str(packet.fields.get("changed", ""))).answer(kind, packet, memory)
    except (ClientError, FedNASError) as error:
        answer = Packet({"refused": one_line(error)})
    if "refused" in answer.fields:
        log.warning("%s", answer.fields["refused"])
    return answer.record(), memory
