"""How quantities are written: names and units of costs, prefixes for large numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """What a number means.

    Attributes:
        label: In words.
        unit: Symbol behind the number; may be empty.
        prefixed: Whether k, M, G, T stand for powers of a thousand.
    """

    label: str
    unit: str = ""
    prefixed: bool = True


#: The costs of ``lit_fednas.records.COST_NAMES``, what a tier may limit beside them, and those of a run's ledger.
QUANTITIES = {
    "macs": Quantity("MACs per example"),
    "parameters": Quantity("parameters"),
    "bytes": Quantity("bytes sent one way", "B"),
    "activation_bytes": Quantity("peak of activations", "B"),
    "memory_bytes": Quantity("bytes sent and peak of activations", "B"),
    "operations": Quantity("operations per example"),
    "latency_ms": Quantity("latency", "ms", prefixed=False),
    "total_macs": Quantity("MACs so far"),
    "total_bytes": Quantity("bytes so far", "B"),
}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def prefix(number: float) -> tuple[float, str]:
    """The greatest power of a thousand within a number, and its symbol.

    Example:
        >>> prefix(2_416_896)
        (1000000.0, 'M')
    """
    return next(((scale, symbol) for scale, symbol in _PREFIXES if abs(number) >= scale), (1.0, ""))


def axis(name: str, largest: float) -> tuple[float, str]:
    """What to divide a cost by, and its axis label.

    Args:
        name: One of :data:`QUANTITIES`; another name stands for itself.
        largest: The greatest number on the axis.

    Example:
        >>> axis("bytes", 1.5e6)
        (1000000.0, 'bytes sent one way (MB)')
    """
    quantity = QUANTITIES.get(name, Quantity(name.replace("_", " "), prefixed=False))
    scale, symbol = prefix(largest) if quantity.prefixed else (1.0, "")
    unit = symbol + quantity.unit
    return scale, f"{quantity.label} ({unit})" if unit else quantity.label


def short(number: float | None, unit: str = "", prefixed: bool = True) -> str:
    """A number in three digits with its prefix; a dash where there is none.

    Example:
        >>> short(2_416_896, "B"), short(0.28, "ms", prefixed=False), short(None)
        ('2.42 MB', '0.28 ms', '–')
    """
    if number is None or number != number:
        return "–"
    scale, symbol = prefix(number) if prefixed else (1.0, "")
    value = number / scale
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {symbol}{unit}".strip()


def cost_text(name: str, number: float | None) -> str:
    """A cost with its unit.

    Example:
        >>> cost_text("macs", 766_080)
        '766 k'
    """
    quantity = QUANTITIES[name]
    return short(number, quantity.unit, quantity.prefixed)
