"""Starts Lightning without all of torchmetrics, of which it needs two classes.

``import torchmetrics`` also imports SciPy and torchvision with all its models, and takes longer than torch itself. With
:func:`defer_torchmetrics` its module is there at once, and the rest is imported when something of it is used, such as
a metric of ``model.metrics``.
"""

import logging
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: What Lightning uses, and where torchmetrics defines it.
_NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


class _Deferred(ModuleType):
    """A package whose ``__init__`` runs when a name of it is asked for that is not among :data:`_NEEDED`."""

    __spec__: ModuleSpec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "CompositionalMetric":  # inspection asks for it, --help for the other
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in _NEEDED:
            import_module("torchmetrics.utilities")  # metric.py cannot be imported before it
            return getattr(import_module(_NEEDED[name]), name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # an ordinary module from now on
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def defer_torchmetrics() -> None:
    """Makes ``torchmetrics`` a module that imports its parts when they are used, unless it has been imported."""
    if "torchmetrics" in sys.modules or (spec := find_spec("torchmetrics")) is None:
        return
    module = _Deferred(spec.name)
    module.__dict__.update(
        __spec__=spec,
        __loader__=spec.loader,
        __file__=spec.origin,
        __path__=spec.submodule_search_locations,
        __package__=spec.name,
        __version__=version("torchmetrics"),
        _logger=logging.getLogger("torchmetrics"),
    )
    sys.modules[spec.name] = module
