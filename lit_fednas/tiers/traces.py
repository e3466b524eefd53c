"""Traces of devices: how fast the phones of a population are."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import numpy as np
from typing_extensions import override

from lit_fednas.config_files import find
from lit_fednas.errors import DataError, require_different
from lit_fednas.ranges import PositiveFloat, Range, checked


class DeviceTrace(ABC):
    """Speeds of a population's devices, in multiply-accumulates per second."""

    @abstractmethod
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws devices and returns the speed of each, ``[count]``."""

    @abstractmethod
    def quantile(self, share: float) -> float:
        """Returns the speed that this share of the devices does not exceed."""


@checked("trace")
@dataclass(frozen=True)
class SyntheticTrace(DeviceTrace):
    """A log-normal population: a few fast devices and a long tail of slow ones, as among phones.

    Args:
        median: Speed of the device in the middle, in multiply-accumulates per second.
        spread: The ratio between the fastest and the slowest of the middle 90 %; about an order of magnitude among
            benchmarks of phones.

    Example:
        >>> trace = SyntheticTrace(median=1e9, spread=10)
        >>> round(trace.quantile(0.95) / trace.quantile(0.05), 6)
        10.0
    """

    median: PositiveFloat = 2e9
    spread: Annotated[float, Range(above=1)] = 12.0

    @property
    def _sigma(self) -> float:
        return float(np.log(self.spread) / (2 * NormalDist().inv_cdf(0.95)))

    @override
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return self.median * np.exp(self._sigma * rng.standard_normal(count))

    @override
    def quantile(self, share: float) -> float:
        # the distribution is unbounded: a share of 1 means its 99.9 %
        return float(self.median * np.exp(self._sigma * NormalDist().inv_cdf(min(share, 0.999))))


@dataclass(frozen=True)
class CSVTrace(DeviceTrace):
    """A measured trace: one device per row.

    Args:
        path: The file, with a line of column names; also one of the package's (``fedtrans/devices.csv``).
        column: The column of speeds, in multiply-accumulates per second, or in anything proportional to it.
        milliseconds: Whether the column holds times instead, as benchmarks of latency do; a speed is one over it.

    Raises:
        DataError: The file is missing or not a CSV file, has no such column, or a value is not a positive number.
    """

    path: Path
    column: str = "macs_per_second"
    milliseconds: bool = False

    @cached_property
    def _all(self) -> np.ndarray:
        try:
            with open(find(self.path), newline="", encoding="utf-8") as file:
                table = csv.DictReader(file)
                names = table.fieldnames or []
                rows = [(table.reader.line_num, row) for row in table]  # empty lines are passed over
        except OSError as error:
            raise DataError(f"trace.path: {self.path} cannot be read ({error.strerror})") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"trace.path: {self.path} is not a CSV file in UTF-8 ({error})") from None
        require_different(names, "trace.path", self.path)
        if not rows or self.column not in names:
            columns = ", ".join(names) if rows else "no rows"
            raise DataError(f"trace.column: {self.path} has no {self.column!r}; it has {columns}")
        values = []
        for line, row in rows:
            try:
                value = float(row[self.column])
            except (TypeError, ValueError):
                value = 0.0
            if not 0 < value < float("inf"):
                raise DataError(
                    f"{self.path}, line {line}: {self.column} is {row[self.column]!r}; give a positive number"
                )
            values.append(value)
        speeds = np.array(values)
        return 1000 / speeds if self.milliseconds else speeds

    @override
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(self._all, size=count)

    @override
    def quantile(self, share: float) -> float:
        return float(np.quantile(self._all, share))
