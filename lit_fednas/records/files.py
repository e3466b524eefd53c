"""Files that are replaced as a whole: a kill leaves the old one or the new one; and numbers as JSON has them."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def replace_text(path: Path, text: str) -> None:
    """Writes a text file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def replace_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a CSV file of these columns; what a row has not stays empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(part, path)


def plain_numbers(value: Any) -> Any:
    """Numbers that JSON cannot write become null.

    Example:
        >>> plain_numbers({"loss": float("nan"), "seen": (1, 2)})
        {'loss': None, 'seen': [1, 2]}
    """
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
