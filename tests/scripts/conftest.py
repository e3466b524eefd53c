"""Imports scripts without a suffix, and the packages beside them."""

import functools
import logging
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))  # the import path of a running script


@pytest.fixture(autouse=True)
def as_quiet_as_before() -> Iterator[None]:
    """Restores Lightning's log levels, because scripts silence it for their process."""
    logs = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [log.level for log in logs]
    with warnings.catch_warnings():
        yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


@functools.cache
def load(name: str) -> ModuleType:
    """Imports a script as a module."""
    path = next(folder / name for folder in (SCRIPTS, SCRIPTS / "reproduction") if (folder / name).is_file())
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
