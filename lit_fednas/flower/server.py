"""The server on Flower: the same round loop, with tasks that devices train."""

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import torch
import yaml
from torch import nn
from typing_extensions import override

from lit_fednas.cli.lightning_cli import FederatedCLI
from lit_fednas.data import ClientData, FederatedDataModule
from lit_fednas.data.examples import ExampleDataset
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.checkpoints import read_checkpoint
from lit_fednas.federation.evaluation import ClientScore
from lit_fednas.federation.fit import Outcome, TaskRunner
from lit_fednas.finetune import Finetune
from lit_fednas.finetune.candidates import Candidate
from lit_fednas.flower.device import device_settings, kind_of
from lit_fednas.flower.folder import check_over_devices
from lit_fednas.flower.link import Link, Reply
from lit_fednas.flower.wire import (
    MAX_NUMBER,
    SPLITS,
    Joined,
    Packet,
    digest,
    max_of,
    one_line,
    read_count,
    read_figure,
    read_number,
    task_fields,
    unreadable,
)
from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate
from lit_fednas.objectives.base import keeps_state
from lit_fednas.search import ClientDraw, FederatedEvaluator, Search
from lit_fednas.search.command import AfterTraining
from lit_fednas.search.evaluator import covered

T = TypeVar("T")

log = logging.getLogger(__name__)


class RemoteClients(ClientData):
    """The clients as their devices have disclosed them, without examples, and the server's own training examples."""

    def __init__(self, devices: Sequence[Joined], link: Link, at_server: ClientData) -> None:
        self.task = at_server.task
        self.reader = at_server.reader
        self.link = link
        self._at_server = at_server
        self._counts = {split: np.array([device.counts[split] for device in devices]) for split in SPLITS}
        self._sizes = {split: counts.sum(1) for split, counts in self._counts.items()}
        self.sizes = self._sizes["train"]
        speeds = [device.macs_per_second for device in devices if device.macs_per_second is not None]
        self.speeds = speeds if len(speeds) == len(devices) else None

    @property
    @override
    def at_server(self) -> ClientData:
        return self._at_server

    @override
    def classes(self, client: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._counts["train"][client]).tolist())

    @override
    def label_counts(self, client: int, num_classes: int, splits: Sequence[str] = ("train", "val")) -> np.ndarray:
        return np.sum([self._counts[split][client] for split in splits], axis=0)

    @override
    def rows(self, client: int, split: str = "train") -> NoReturn:
        raise ConfigError("the server asks for examples that stay on clients' devices; leave this out, or simulate")

    @override
    def move_to(self, device: torch.device | str) -> None:
        self._at_server.move_to(device)

    def answers(
        self,
        kind: str,
        clients: Sequence[int],
        question: Packet,
        read: Callable[[int, Mapping[str, Any]], T],
        check: Callable[[], None],
    ) -> Iterator[tuple[int, T]]:
        """Asks all clients one question; yields positions with the read answers, and logs unusable ones."""

        def packet_of(position: int) -> Packet:
            return Packet({**question.fields, "client": clients[position]}, question.tensors)

        for position, reply in self.link.ask(kind, clients, packet_of, check):
            reason = f"{reply.status} ({reply.reason})"
            if reply.packet is not None:
                try:
                    yield position, read(clients[position], reply.packet.fields)
                    continue
                except Exception as error:  # a device may send anything
                    reason = unreadable(error)
            log.warning("client %d does not %s: %s", clients[position], kind, reason)


#: The remedy if a device's data differ from the server's, by the name of the property.
_REMEDIES = {
    "task": "give both the same kind of data",
    "input_shape": "give both the same kind of data",
    "num_classes": "set it, since a device may lack some",
    "task_settings": "give both the same data.source.init_args.task",
    "augmentation": "give both the same data.source.init_args.augmentation",
    "class_names": "set data.source.init_args.classes, since a device may lack some",
    "normalization": "set mean and std, or standardise inputs beforehand, since each measures them on its own data",
}


class ServerData(FederatedDataModule):
    """The server's own data for validation, tests and recalibrated norms; the clients' data stay with them."""

    link: Link
    speeds: Sequence[float] | None = None  # measured by devices at the run's start; a resumed run keeps its tiers

    @override
    def _deal(self, train: ExampleDataset, targets: np.ndarray, pool: np.ndarray) -> ClientData:
        assert self.num_clients is not None
        kind = kind_of(self)
        devices = self.link.join(self.num_clients)
        for device in devices:
            for name, value in kind.items():
                if (other := device.kind.get(name)) != value:
                    fault = f"client {device.client} has {name} {one_line(other)}, the server {value}"
                    raise ConfigError(f"data.source: {fault}; {_REMEDIES[name]}")
            if (num_classes := len(device.counts["train"])) != len(self.strata):
                fault = f"client {device.client} counts {num_classes} classes, the server {len(self.strata)}"
                raise ConfigError(f"data.source: {fault}; give both the same kind of data")
        self.link.data = digest(json.dumps(kind))
        at_server = ClientData(self._readers["train"], {"train": [pool]}, None, self.task)
        clients = RemoteClients(devices, self.link, at_server)
        if self.speeds is not None:
            clients.speeds = self.speeds
        self._class_counts = np.sum([clients._counts[split] for split in SPLITS], axis=0)
        return clients

    @property
    @override
    def class_counts(self) -> np.ndarray:
        return self._class_counts

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"speeds": self.clients.speeds}


class FlowerRunner(TaskRunner):
    """Trains a round's tasks on devices; ``fields`` are the candidate and the structure of a fine-tuning."""

    def __init__(
        self,
        module: FederatedLightningModule,
        data: ClientData,
        check: Callable[[], None],
        **fields: Any,
    ) -> None:
        assert isinstance(data, RemoteClients)
        if module.client.clients_per_fit != 1:
            log.warning("client.clients_per_fit: %s has no effect, devices train alone", module.client.clients_per_fit)
        self.module = module
        self.clients = data
        self.link = data.link
        self.check = check
        self.fields = {"seed": module.seed, "candidate": None, **fields}
        # devices keep the clients' states; the server keeps only the names of the valid states
        self._run_id = secrets.token_hex(4) if keeps_state(module.objective) else ""

    @override
    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Outcome]:
        supernet = self.module.supernet
        shared = supernet.shared_tensors()
        # a fine-tuning sends the structure of the searched supernet, from which its network was taken
        common = {"structure": supernet.structure(), **self.fields}

        def packet_of(position: int) -> Packet:
            task = tasks[position]
            packed = self.module.transport.pack_down(supernet.views(task.arch, shared), self.module.seed, task)
            old_state = self.state_of(task.client).get("", {}).get("name")
            fields = {"task": task_fields(task), "kept": old_state, "keep": self._state_name(task)}
            return Packet({**common, **fields}, packed)

        replies: dict[int, Reply] = {}
        next_position = 0  # outcomes follow the order of tasks, so that sums equal a simulated run's to the bit
        for position, reply in self.link.ask("train", [task.client for task in tasks], packet_of, self.check):
            replies[position] = reply
            while next_position in replies:
                outcome = self._read(tasks[next_position], replies.pop(next_position))
                self.module.faults.check(outcome[0])  # raises if the policy says so
                yield outcome
                next_position += 1

    def _read(self, task: ClientTask, reply: Reply) -> Outcome:
        """Returns an answer as the outcome of a simulated client's fit."""
        if (packet := reply.packet) is None:
            return ClientResult(task, reply.status, reply.reason), None
        expected = self.module.supernet.views(task.arch)
        try:
            result = self._result(packet.fields["result"], task)
            if not result.ok:
                return result, None
            finite = all(item.finite for item in result.statistics)
            if finite:
                self.module.objective.check_result(result)
            sent = {name: tensor.to(next(iter(expected.values())).device) for name, tensor in packet.tensors.items()}
            weights = self.module.transport.unpack_up(sent, expected)
        except Exception as error:  # a device may send anything
            return ClientResult(task, "error", unreadable(error)), None
        forms = [{name: (value.shape, value.dtype) for name, value in group.items()} for group in (expected, weights)]
        if misfits := [name for name in {**expected, **weights} if forms[0].get(name) != forms[1].get(name)]:
            reason = f"the answer's tensor {one_line(misfits[0])} is not that of {task.arch}"
            return ClientResult(task, "error", reason), None
        largest = {name: _largest(tensor) for name, tensor in weights.items()}
        if not finite or not all(map(isfinite, (*largest.values(), result.loss, *result.tested.values()))):
            return ClientResult(task, "non-finite", "a number that the device sent is not finite"), None
        if huge := [name for name, number in largest.items() if number > MAX_NUMBER]:
            return ClientResult(task, "error", f"the answer's tensor {huge[0]} has a number above {MAX_NUMBER:g}"), None
        return result, ClientUpdate(result, weights, {"": {"name": self._state_name(task)}} if self._run_id else None)

    def _state_name(self, task: ClientTask) -> str:
        """Returns the name of the client's state after the task."""
        return f"{task.client}-{self._run_id}-{task.round}"

    def _result(self, fields: Mapping[str, Any], task: ClientTask) -> ClientResult:
        """Returns the result of ``result_fields``, validated by the task and the client's disclosure."""
        status, seconds = fields["status"], read_number("seconds", fields["seconds"], self.link.longest)
        if status in ("error", "non-finite", "timeout", "dropped", "empty"):
            return ClientResult(task, status, one_line(fields["reason"]), seconds=seconds)
        if status != "ok":
            raise ValueError(f"status {status!r}")
        client, size, objective = self.module.client, task.num_examples, self.module.objective
        kinds = {kind.__name__: kind for kind in objective.statistics_types}
        if fields["statistics"].keys() != kinds.keys():
            raise ValueError(f"statistics of {sorted(fields['statistics'])}")
        statistics = tuple(kinds[name].from_plain(values) for name, values in fields["statistics"].items())
        if any(MAX_NUMBER < abs(number) < inf for item in statistics for number in item.numbers):
            raise ValueError(f"a statistic of more than {MAX_NUMBER:g}")
        fixed_steps = client.steps if task.steps is None else task.steps
        batch = min(client.batch_size, size)
        max_steps = client.epochs * -(-size // client.batch_size) if fixed_steps is None else fixed_steps
        max_seen = client.epochs * size if fixed_steps is None else fixed_steps * batch
        steps = read_count("num_steps", fields["num_steps"], max_steps, minimum=1)
        seen = read_count("num_seen", fields["num_seen"], min(max_seen, steps * batch), minimum=steps)
        tests = 0 if client.validate is None else self.clients.size(task.client, "val")
        num_tested = read_count("num_tested", fields["num_tested"], tests, minimum=tests)
        tested = {name: read_figure(name, value, max_of(name)) for name, value in fields["tested"].items()}
        if set(tested) != (set(objective.data_task.averaged) if tests else set()):
            raise ValueError(f"tested by {sorted(tested)}")
        max_count = objective.data_task.max_count(self.module.supernet.input_shape)  # per example
        max_tested = max_count * num_tested
        return ClientResult(
            task,
            reason=one_line(fields["reason"]),
            num_steps=steps,
            num_seen=seen,
            num_units=read_count("num_units", fields["num_units"], max_count * seen, minimum=seen),
            loss=read_figure("loss", fields["loss"], MAX_NUMBER, minimum=-MAX_NUMBER),
            seconds=seconds,
            statistics=statistics,
            tested=tested,
            num_tested=num_tested,
            num_tested_units=read_count("num_tested_units", fields["num_tested_units"], max_tested, minimum=num_tested),
        )


def _largest(tensor: torch.Tensor) -> float:
    """Returns the greatest magnitude; NaN or infinity if there is one."""
    return max(abs(end.item()) for end in tensor.aminmax()) if tensor.numel() else 0.0


class FlowerEvaluator(FederatedEvaluator):
    """Scores a generation on the devices' own data; leaves out devices that do not answer."""

    def __init__(self, *args: Any, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(*args)
        self.check = check

    @override
    def answers_of(self, archs: Sequence[Any], clients: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        data = self.draw.clients
        assert isinstance(data, RemoteClients)
        shared = self.supernet.shared_tensors()
        fields = {"archs": [str(arch) for arch in archs], "structure": self.supernet.structure()}
        tensors = {name: shared[name][mask] for name, mask in covered(self.supernet, archs).items()}
        max_count = data.task.max_count(self.supernet.input_shape)
        # the tolerance covers sums in single precision
        limits = (1 + 1e-5) * max_count * np.array([1.0, *map(max_of, data.task.averaged)])
        answers = np.zeros((len(clients), len(archs), 1 + len(data.task.averaged)))

        def read(client: int, fields: Mapping[str, Any]) -> np.ndarray:
            bounds = limits * int(self.draw.sizes[client])
            rows = fields["answers"]
            sums = np.array([[read_number("answers", *pair) for pair in zip(row, bounds, strict=True)] for row in rows])
            if sums.shape != answers.shape[1:] or (sums[:, 0] != sums[0, 0]).any():
                raise ValueError("answers: not sums over the client's examples")
            return sums

        for position, answer in data.answers("score", clients, Packet(fields, tensors), read, self.check):
            answers[position] = answer
        if not answers[:, :, 0].sum():
            raise ClientError(f"search.federated: none of {len(clients)} devices has answered; see the warnings")
        yield from zip(archs, answers.transpose(1, 0, 2), strict=True)


class TestedOnDevices(AfterTraining):
    """Tests networks on the clients' own devices; leaves out devices that do not answer."""

    @override
    def scores_of_clients(self, arch: Any, network: nn.Module, clients: Iterable[int]) -> list[ClientScore]:
        data, supernet = self.datamodule.clients, self.model.supernet
        assert isinstance(data, RemoteClients)
        tested_clients = [client for client in clients if data.size(client, "test")]
        question = Packet({"arch": str(arch), "structure": supernet.structure()}, network.state_dict())
        task, max_count = data.task, data.task.max_count(supernet.input_shape)

        def read(client: int, fields: Mapping[str, Any]) -> ClientScore:
            size = data.size(client, "test")
            num_units = read_count("num_units", fields["num_units"], max_count * size, minimum=size)
            means = {name: read_number(name, fields["means"][name], max_of(name)) for name in task.averaged}
            metrics = task.derived(means)
            if not all(map(isfinite, metrics.values())):  # an infinite value would decide every mean
                raise ValueError("means: their metrics are not finite")
            return ClientScore(client, size, num_units, means, metrics)

        scores = dict(data.answers("test", tested_clients, question, read, self.interrupts.check))
        return [scores[position] for position in sorted(scores)]


class FlowerSearch(TestedOnDevices, Search):
    """The command ``search`` over devices."""

    @override
    def federated(self, draw: ClientDraw, recalibration: Sequence[torch.Tensor]) -> FederatedEvaluator:
        model, size = self.model, self.datamodule.eval_batch_size
        if recalibration:
            raise ConfigError(
                "model.evaluation.recalibrate_batches: is above 0, but devices do not recalibrate networks; set it to 0"
            )
        check = self.interrupts.check
        return FlowerEvaluator(model.supernet, draw, model.evaluation, recalibration, size, check=check)


class FlowerFinetune(TestedOnDevices, Finetune):
    """Trains the candidates on devices, with the configuration's client settings and objective."""

    def __init__(self, *args: Any, settings_of_devices: Mapping[str, Any]) -> None:
        self._settings_of_devices = settings_of_devices
        super().__init__(*args)

    @override
    def _trainer(self, candidate: Candidate, folder: Path) -> FederatedTrainer:
        trainer = super()._trainer(candidate, folder)
        candidate_fields = {**self._settings_of_devices, "arch": str(candidate.arch)}
        trainer.fit_loop.runner = partial(FlowerRunner, candidate=candidate_fields, structure=self.supernet.structure())
        return trainer


class FlowerCLI(FederatedCLI):
    """The commands ``fit``, ``search`` and ``finetune`` over devices."""

    data_class: ClassVar[type[FederatedDataModule]] = ServerData

    def __init__(self, words: Sequence[str], link: Link) -> None:
        self.link = link
        super().__init__(words)

    @override
    def instantiate_classes(self) -> None:
        """Connects data and trainer to the devices, which use the command's settings."""
        resolved = self._resolved()
        check_over_devices(yaml.safe_load(resolved))
        self.link.use(device_settings(resolved))
        super().instantiate_classes()
        if self.trainer.world_size > 1:
            raise ConfigError(f"trainer.devices: {self.trainer.world_size} processes are too many; set it to 1")
        self.datamodule.link = self.link
        if path := self.config[self.subcommand].get("ckpt_path"):
            self.datamodule.speeds = read_checkpoint(path).get(ServerData.__qualname__, {}).get("speeds")
        trainer: Any = self.trainer
        trainer.fit_loop.runner = FlowerRunner

    def _resolved(self) -> str:
        """Returns the command's configuration with all defaults, as YAML."""
        name = str(self.subcommand)
        return str(self._parser(name).dump(self.config[name], skip_none=False))

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        parts: tuple[Any, ...] = self.trainer, self.model, self.datamodule
        if subcommand == "search":
            FlowerSearch(*parts).run(**self.options)
        elif subcommand == "finetune":
            settings = yaml.safe_load(self._resolved())["finetune"]
            settings = {name: settings[name] for name in ("client", "objective")}
            FlowerFinetune(*parts, settings_of_devices=settings).run(**self.options)
        else:
            super()._run_subcommand(subcommand)
