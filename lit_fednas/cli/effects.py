"""Settings without effect, as data: a command warns about each setting that nothing reads."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """A setting that is read only if one of ``readers`` has a value for which its function returns true."""

    setting: str
    usual: Any
    readers: Mapping[str, Callable[[Any], bool]]


def _is_set(value: Any) -> bool:
    return value is not None


RULES = (
    Rule("checkpoint.save_top_k", 1, {"checkpoint.monitor": _is_set}),
    Rule("checkpoint.mode", None, {"checkpoint.monitor": _is_set}),
    Rule("model.client.epochs", 1, {"model.client.steps": lambda steps: steps is None}),
    Rule(
        "data.client_val",
        0.0,
        {
            "model.client.validate": _is_set,
            "model.objective": lambda objective: "DifferentiableSearch" in str(objective),
            "deployed_accuracy.split": lambda split: split == "val",
            "search.federated": _is_set,
            "search.client": _is_set,
        },
    ),
)


def has_other_parts(settings: Any) -> bool:
    """Returns whether plain settings name a class of another package, which may read any setting."""
    classes = re.findall(r'"class_path": "(\w+)\.', json.dumps(settings, default=str))
    return not {"lit_fednas", "lightning", "torch", "torchmetrics", "torchvision"}.issuperset(classes)


def without_effect(settings: Mapping[str, Any], command: str) -> list[str]:
    """Returns a line for each of a command's plain settings that nothing reads."""
    lines = []
    for setting, usual, readers in () if has_other_parts(settings) else RULES:
        value, values = _at(settings, setting, usual), {reader: _at(settings, reader) for reader in readers}
        if value != usual and not any(reads(values[reader]) for reader, reads in readers.items()):
            reasons = [f"{reader} is {json.dumps(value)}" for reader, value in values.items()]
            lines.append(f"{setting}: {json.dumps(value)} has no effect on {command}, as {' and '.join(reasons)}")
    return lines


def _at(settings: Any, name: str, default: Any = None) -> Any:
    """Returns the value of a dotted name, also inside the arguments of classes."""
    for word in name.split("."):
        if not isinstance(settings, Mapping):
            return default
        settings = {**settings, **(settings.get("init_args") or {})}.get(word, default)
    return settings
