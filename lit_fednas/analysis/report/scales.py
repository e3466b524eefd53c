"""From numbers to places in a drawing: round ticks, linear and logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """An axis: a range of numbers and the range of pixels it takes.

    Attributes:
        low: Least number.
        high: Greatest number; above ``low``.
        start: Pixel of ``low``.
        end: Pixel of ``high``.
        log: Whether factors, not differences, are equally long.

    Example:
        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 100, log=True)(10)
        (150.0, 50.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, number: float) -> float:
        """Pixel of a number, to a tenth."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, number))
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    @property
    def ticks(self) -> list[float]:
        """Round numbers within the range, about four of them."""
        if not self.log:
            return ticks(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5)):
            found = [step * 10.0**power for power in powers for step in steps]
            found = [one for one in found if self.low <= one <= self.high]
            if len(found) >= 3:
                break
        return found


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most so many multiples of 1, 2 or 5 times a power of ten within a range.

    Example:
        >>> ticks(0.62, 0.97), ticks(0, 9)
        ([0.7, 0.8, 0.9], [0.0, 2.0, 4.0, 6.0, 8.0])
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [float(f"{place * step:.10g}") for place in range(first, last + 1)]


def spread(values: Iterable[float], start: float, end: float, log: bool = False, margin: float = 0.04) -> Scale:
    """An axis that holds all the values with a margin at both ends; logarithmic only beyond a factor of 20."""
    known = [float(value) for value in values if value == value]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log and low > 0 and high / low > 20:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    reach = margin * (high - low) or abs(high) * 0.1 or 1.0
    return Scale(low - reach, high + reach, start, end)
