"""Forms of a run's JSON files, and the validation of their content.

A form is a type (``int`` is at least 0, ``float`` is finite) or a set of words. ``(form,)`` also allows null.
``[form]`` is a list of any length, ``[form, form]`` a list of this length. In a dictionary of forms by key, ``"key?"``
may be missing or null, and ``"*"`` is any other key.
"""

import math
from reprlib import repr
from typing import Any


def _each(names: str, form: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), form)


_SPENT = _each("macs bytes_down bytes_up", int)
_METRICS, _DIRECTIONS, _LIMITS = ({"*": form} for form in ((float,), (bool,), float))
_CLIENT = _each("client num_examples num_seen num_units num_steps", int) | _SPENT
_CLIENT |= _each("arch tier? reason", str) | {"loss": (float,), "seconds": float}
_CLIENT |= {"status": {"ok", "error", "non-finite", "timeout", "dropped", "away", "empty", "withheld", "wild"}}
#: A line of ``rounds.jsonl``.
ROUND = {"round": int, "weights?": str, "metrics": _METRICS, "clients": [_CLIENT]}
#: ``ledger.json``.
LEDGER = {"rounds": int, "total": _SPENT, "independent": {"*": _SPENT}, "after_training?": {"*": _SPENT}}
LEDGER |= _each("times_less_computation times_less_communication", (float,))
#: ``inputs.json``.
INPUTS = {"task": str, "class_names": [str], "metrics": _DIRECTIONS}
#: The keys that are read from ``config.yaml``, and its last key, which a truncated file lacks.
RUN_SETTINGS = {
    "seed_everything?": int,
    "data?": {"num_clients?": int},
    "privacy?": dict,
    "model?": dict,
    "ckpt_path": type(None),
}
#: ``settings.json`` of a search or a fine-tuning.
SETTINGS = {"metric": str} | _each("cost? search? initial?", str) | _each("client? architectures? num_examples?", int)
SETTINGS |= {"weights": (str,), "metrics": _DIRECTIONS, "complete": bool, "federated?": dict, "method?": {"class": str}}
SETTINGS |= {"tiers": [{"name": str, "at_most": _LIMITS, "above?": _LIMITS}]}
SETTINGS |= {"communication?": _SPENT}
#: ``architecture.json`` of a tier.
TIER_MODEL = (
    _each("tier arch supernet", str) | _each("encoding input_shape", [int]) | _each("recalibrated finetuned", bool)
)
TIER_MODEL |= {"num_classes": int, "costs": _LIMITS, "metrics": _METRICS, "stages": [[([str, float],)]]}
_NETWORK = _each("number macs parameters bytes", int)
_GROWN = _NETWORK | _each("parent round", (int,)) | {"steps": [_each("widen? deepen?", str)], "cells?": str}
_GROWN |= {"degree_of_convergence?": float, "activeness?": _METRICS}
#: ``suite.json``.
SUITE = {"models": [_GROWN], "complete?": bool, "family?": dict, "tiers?": [dict]}
_CANDIDATE = {"unit": str, "accuracies": [(float,)], "dropped": (int,)}
_PRUNED = _NETWORK | _each("budget accuracy", (float,)) | _each("round first_round", (int,)) | {"unit": (str,)}
_PRUNED |= {"resource": float, "rounds": int, "sizes": {"*": int}, "costs": _SPENT}
_PRUNED |= {"groups": [{"distance": float}], "candidates": [_CANDIDATE]}
#: ``sequence.json``.
SEQUENCE = {"resource": str, "initial": float, "clients": int, "units": {"*": [str]}, "models": [_PRUNED]}
SEQUENCE |= {"budget?": float, "complete?": bool, "under_way?": {"number": int}}
_RUN = _each("folder arm", str) | _each("seed done", int) | {"minutes": float, "parameters": dict, "needs": [str]}
_RUN |= {"commands": [[str]], "status": {"waiting", "running", "stopped", "failed", "finished"}}
#: ``study.json``.
STUDY = {"study": str, "file": str, "runs": [_RUN]}


def check_form(value: Any, form: Any, where: str = "content") -> None:
    """Validates that a plain value has a form; raises ValueError with the path of the fault."""
    match form, value:
        case (inner,), _ if isinstance(form, tuple):
            if value is not None:
                check_form(value, inner, where)
        case dict(), dict():
            keys = {key.removesuffix("?"): key for key in form}
            if missing := [key for name, key in keys.items() if name == key != "*" and name not in value]:
                raise ValueError(f"{where} lacks {missing[0]}")
            for name, item in value.items():
                key = keys.get(name, "*")
                if key in form and (item is not None or not key.endswith("?")):
                    check_form(item, form[key], f"{where}.{name}")
        case list(), list() if len(form) in (1, len(value)):
            for number, item in enumerate(value):
                check_form(item, form[number % len(form)], f"{where}[{number}]")
        case _ if not _is(value, form):
            raise ValueError(f"{where} is {repr(value)}")


def _is(value: Any, kind: Any) -> bool:
    if isinstance(kind, set):
        return isinstance(value, str) and value in kind
    if kind is int:
        return type(value) is int and value >= 0
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return isinstance(kind, type) and isinstance(value, kind)
