"""Messages as Flower carries them: plain values as JSON, and tensors as one array per dtype; never a pickle."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, RecordDict
from torch import Tensor

from lit_fednas.errors import ClientError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import SearchSpace

#: Flower's type of each kind of message.
KINDS = {
    "join": f"{MessageType.QUERY}.join",
    "train": MessageType.TRAIN,
    "score": MessageType.EVALUATE,
    "test": f"{MessageType.EVALUATE}.test",
}
#: Data types that can be sent; numpy has no bfloat16.
_DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "int64", "int8")}
#: The greatest number that a device may send: sums over many clients, weighted by examples, stay finite in float32.
MAX_NUMBER = 1e18
#: The greatest number of examples of a class in a client's split.
MAX_EXAMPLES = 2**32
_LONGEST = 300  # characters of a device's text
#: The splits of a client's examples.
SPLITS = ("train", "val", "test")


def digest(text: str) -> str:
    """Returns the hash of a text, such as a run's configuration, sixteen hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Packet:
    """The plain values and the tensors of one message, by name."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def record(self) -> RecordDict:
        """Returns the packet as Flower's records: one array per dtype, since Flower sends a request for each array."""
        layout: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
        parts: dict[str, list[Tensor]] = defaultdict(list)
        for name, tensor in self.tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in _DTYPES:
                raise ClientError(f"flower: {name} is of {tensor.dtype}, which cannot be sent; use float32")
            layout[dtype].append((name, list(tensor.shape)))
            parts[dtype].append(tensor.detach().flatten().cpu())
        text = json.dumps({"fields": self.fields, "layout": layout})
        blocks = {dtype: Array(torch.cat(flat).numpy()) for dtype, flat in parts.items()}
        return RecordDict({"message": ConfigRecord({"json": text}), "tensors": ArrayRecord(blocks)})

    @classmethod
    def read(cls, record: RecordDict) -> Packet:
        """Returns the packet of :meth:`record`; raises ClientError if the message is not one of this package."""
        try:
            message = json.loads(str(record.config_records["message"]["json"]))
            tensors: dict[str, Tensor] = {}
            arrays = record.array_records["tensors"]
            for dtype, layout in message["layout"].items():
                array = arrays[dtype].numpy()
                block = torch.from_numpy(np.array(array)).to(_DTYPES[dtype])
                parts = block.split([prod(shape) for _, shape in layout])
                tensors |= {str(name): part.view(shape) for (name, shape), part in zip(layout, parts, strict=True)}
            return cls(dict(message["fields"]), tensors)
        except Exception as error:  # the other side may send anything
            reason = one_line(f"{type(error).__name__}: {error}")
            raise ClientError(f"flower: a message cannot be read ({reason})") from error


def task_fields(task: ClientTask) -> dict[str, Any]:
    """Returns a task as plain values, its architecture as text."""
    return {**asdict(task), "arch": str(task.arch)}


def read_task(fields: Mapping[str, Any], space: SearchSpace[Any]) -> ClientTask:
    """Returns the task of :func:`task_fields`."""
    if fields["steps"] is not None:  # a wrong number could make training endless
        read_count("steps", fields["steps"], minimum=1)
    plain = {**fields, "arch": space.parse(fields["arch"]), "unsupported": tuple(fields["unsupported"])}
    return ClientTask(**plain)


def result_fields(result: ClientResult) -> dict[str, Any]:
    """Returns a result without its task as plain values."""
    plain = {name: value for name, value in vars(result).items() if name not in ("task", "statistics")}
    return {**plain, "statistics": {type(item).__name__: asdict(item) for item in result.statistics}}


@dataclass(frozen=True)
class Joined:
    """A device's disclosure when it joins."""

    client: int  # the client's number
    counts: Mapping[str, list[int]]  # examples of each class, by split
    kind: Mapping[str, Any]  # the properties that its data must share with the server's, by name
    macs_per_second: float | None  # when it trains the largest architecture; None if MACs cannot be counted

    def __str__(self) -> str:
        speed = "" if self.macs_per_second is None else f", {self.macs_per_second / 1e9:.3g} GMACs/s"
        return f"{sum(self.counts['train'])} training examples{speed}"


def read_joined(fields: Mapping[str, Any]) -> Joined:
    """Returns a device's disclosure, validated, since a device may send anything."""
    counts = {split: [read_count(split, number) for number in fields["counts"][split]] for split in SPLITS}
    if len({len(numbers) for numbers in counts.values()}) != 1:
        raise ValueError("splits of different classes")
    speed = fields["macs_per_second"]
    return Joined(
        read_count("client", fields["client"]),
        counts,
        dict(fields["kind"]),
        None if speed is None else read_number("macs_per_second", speed, MAX_NUMBER, minimum=1e-3),
    )


def read_count(name: str, value: Any, maximum: int = MAX_EXAMPLES, minimum: int = 0) -> int:
    """Returns a whole number that a device has sent."""
    if not isinstance(value, int):
        raise ValueError(f"{name}: {value!r:.20} is not a count")
    read_number(name, value, maximum, minimum)
    return value


def read_number(name: str, value: Any, maximum: float, minimum: float = 0.0) -> float:
    """Returns a number that a device has sent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: {value!r:.20} is not a number")
    if not minimum <= value <= maximum:
        raise ValueError(f"{name}: {value!r:.20} is not from {minimum:g} to {maximum:g}")
    return float(value)


def read_figure(name: str, value: Any, maximum: float, minimum: float = 0.0) -> float:
    """Returns a number that a device has sent, or one that is not finite."""
    return value if isinstance(value, float) and not isfinite(value) else read_number(name, value, maximum, minimum)


def max_of(name: str) -> float:
    """Returns the greatest value of a task's metric."""
    return 1 + 1e-6 if name == "accuracy" else MAX_NUMBER


def one_line(text: Any) -> str:
    """Returns the printable part of a device's text, in one line and shortened."""
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[:_LONGEST])
    return " ".join(printable.split())


def unreadable(error: Exception) -> str:
    """Returns the reason for discarding an answer, from the error that reading it raised."""
    return f"the answer cannot be read ({one_line(f'{type(error).__name__}: {error}')})"
