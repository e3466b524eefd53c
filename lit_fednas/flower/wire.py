"""Messages as Flower carries them: plain values as JSON, and tensors as one array per dtype; never a pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from lit_fednas.errors import ClientError
from lit_fednas.messages import ClientResult, ClientTask, Report
from lit_fednas.supernets import SearchSpace

#: Those that travel; bfloat16 has no counterpart in numpy.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float16, torch.int64, torch.int8)
}

#: A client's splits, of which a device counts its examples.
SPLITS = ("train", "val", "test")


def digest(text: str) -> str:
    """Returns the hash of a text, such as a run's configuration, sixteen hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Packet:
    """What one message holds.

    Attributes:
        fields: Plain values.
        tensors: By name.
    """

    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def record(self) -> RecordDict:
        """Returns the packet as Flower's records: many small arrays would each be a request of their own.

        Raises:
            ClientError: A tensor is of a dtype that cannot be sent.
        """
        names: dict[str, list[str]] = {}
        for name, tensor in self.tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in _DTYPES:
                raise ClientError(f"flower: {name} is of {tensor.dtype}, which cannot be sent; use float32")
            names.setdefault(dtype, []).append(name)
        blocks = {
            dtype: torch.cat([self.tensors[one].detach().reshape(-1).cpu() for one in of])
            for dtype, of in names.items()
        }
        layout = {dtype: [(name, list(self.tensors[name].shape)) for name in of] for dtype, of in names.items()}
        text = json.dumps({"fields": self.fields, "layout": layout})
        arrays = ArrayRecord({dtype: Array(block.numpy()) for dtype, block in blocks.items()})
        return RecordDict({"message": ConfigRecord({"json": text}), "tensors": arrays})

    @classmethod
    def of(cls, record: RecordDict) -> Packet:
        """Returns what :meth:`record` was made of.

        Args:
            record: Flower's records.

        Raises:
            ClientError: The message is not one of ours.
        """
        try:
            message = json.loads(str(record.config_records["message"]["json"]))
            tensors: dict[str, Tensor] = {}
            for dtype, layout in message["layout"].items():
                array = record.array_records["tensors"][dtype].numpy()
                block = torch.from_numpy(np.array(array)).to(_DTYPES[dtype])
                parts = block.split([prod(shape) for _, shape in layout])
                tensors |= {str(name): part.view(shape) for (name, shape), part in zip(layout, parts, strict=True)}
            return cls(dict(message["fields"]), tensors)
        except Exception as error:  # the other side may send anything
            raise ClientError(f"flower: a message cannot be read ({type(error).__name__}: {error})") from error


def size_of(record: RecordDict) -> int:
    """Returns a message's bytes: its arrays with their headers, and its text."""
    arrays = sum(len(array.data) for array in record.array_records["tensors"].values())
    return arrays + len(str(record.config_records["message"]["json"]).encode())


def task_fields(task: ClientTask) -> dict[str, Any]:
    """Returns a task as plain values; its architecture as text."""
    return {**asdict(task), "arch": str(task.arch)}


def read_task(fields: Mapping[str, Any], space: SearchSpace[Any]) -> ClientTask:
    """Returns the task of :func:`task_fields`.

    Args:
        fields: The plain values.
        space: That of the architectures.
    """
    plain = {**fields, "arch": space.parse(fields["arch"]), "unsupported": tuple(fields["unsupported"])}
    return ClientTask(**plain)


def result_fields(result: ClientResult) -> dict[str, Any]:
    """Returns a result without its task as plain values."""
    plain = {name: value for name, value in vars(result).items() if name not in ("task", "reports")}
    return {**plain, "reports": {type(one).__name__: one.to_plain() for one in result.reports}}


def read_result(
    fields: Mapping[str, Any], task: ClientTask, reports: tuple[type[Report], ...], tested: Sequence[str]
) -> ClientResult:
    """Returns the result of :func:`result_fields`, of which a device may send anything.

    Args:
        fields: The plain values.
        task: The task that was answered.
        reports: The types of the reports that a client sends.
        tested: What is measured on a client's own validation split, where it is tested.

    Raises:
        ValueError: It is not the result that such a task has. Other exceptions mean so, too.
    """
    if fields["status"] not in ("ok", "error", "non-finite", "timeout", "dropped", "empty"):
        raise ValueError(f"status {fields['status']!r}")
    if fields["status"] == "ok" and set(fields["reports"]) != {kind.__name__ for kind in reports}:
        raise ValueError(f"reports of {sorted(fields['reports'])}")
    known = {kind.__name__: kind for kind in reports}
    found = tuple(known[name].from_plain(values) for name, values in fields["reports"].items())
    if not all(isinstance(report.finite, bool) for report in found):  # which reads all its numbers
        raise ValueError("a report without numbers")
    if set(fields["tested"]) not in (set(), set(tested)):
        raise ValueError(f"tested by {sorted(fields['tested'])}")
    return ClientResult(
        task,
        str(fields["status"]),
        str(fields["reason"]),
        _count(fields["num_steps"]),
        _count(fields["num_seen"]),
        float(fields["loss"]),
        float(fields["seconds"]),
        found,
        {name: float(value) for name, value in fields["tested"].items()},
        _count(fields["num_tested"]),
    )


@dataclass(frozen=True)
class Joined:
    """What a device says of itself when it joins.

    Attributes:
        client: The client's number.
        counts: Numbers of examples of each class, by split.
        kind: What its data must have in common with the server's, by name.
        memory: The machine's, in bytes.
        macs_per_second: Of training the largest architecture; ``None`` if they cannot be counted.
    """

    client: int
    counts: Mapping[str, list[int]]
    kind: Mapping[str, Any]
    memory: int
    macs_per_second: float | None

    def __str__(self) -> str:
        speed = "" if self.macs_per_second is None else f", {self.macs_per_second / 1e9:.3g} GMACs/s"
        return f"{sum(self.counts['train'])} training examples, {self.memory / 2**30:.1f} GiB of memory{speed}"


def read_joined(fields: Mapping[str, Any]) -> Joined:
    """Returns a device's :class:`Joined` as it was sent, of which it may send anything.

    Args:
        fields: The plain values.

    Raises:
        ValueError: It is not what a device says. Other exceptions mean so, too.
    """
    counts = {split: [_count(number) for number in fields["counts"][split]] for split in SPLITS}
    if len({len(numbers) for numbers in counts.values()}) != 1:
        raise ValueError("splits of different classes")
    speed = fields["macs_per_second"]
    if speed is not None and not 0 < float(speed) < inf:
        raise ValueError(f"macs_per_second {speed}")
    kind = dict(fields["kind"])
    memory = _count(fields["memory"])
    return Joined(_count(fields["client"]), counts, kind, memory, None if speed is None else float(speed))


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
