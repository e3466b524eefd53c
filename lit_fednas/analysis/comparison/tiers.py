"""The device tiers at which methods are compared: budgets by name, given after the fact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lit_fednas.analysis.comparison.results import Methods
from lit_fednas.config_files import find
from lit_fednas.errors import DataError
from lit_fednas.records import ALL_TIERS, COST_NAMES, SearchFiles

#: What each tier affords, by the names of costs; a tier without limits holds every network.
Tiers = Mapping[str, Mapping[str, float]]

#: Costs that a tier may limit; ``memory_bytes`` is the sum of two.
_MEMORY = "memory_bytes"
_LIMITS = (*COST_NAMES, _MEMORY)
_NESTED = ("search", "tiers", "init_args", "budgets")


def read_tiers(path: Path | str) -> dict[str, dict[str, float]]:
    """Reads tiers from a YAML file: budgets by name, alone or as in a search's configuration (``Budgets``).

    Args:
        path: The file, such as ``{small: {macs: 0.8e+6}, large: {macs: 2.5e+6}}``, also one of the package's, or that
            of a study or a search.

    Returns:
        The budgets.

    Raises:
        DataError: It cannot be read, or does not hold budgets of known costs.
    """
    try:
        content = yaml.safe_load(find(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"tiers: {path} cannot be read: {' '.join(str(error).split())}") from error
    return checked_tiers(content, str(path))


def checked_tiers(content: Any, where: str) -> dict[str, dict[str, float]]:
    """Returns budgets by tier, out of what a configuration holds around them.

    Raises:
        DataError: There are none, or one is not a number above 0 of a known cost.

    Example:
        >>> checked_tiers({"search": {"tiers": {"init_args": {"budgets": {"small": {"macs": "1e6"}}}}}}, "x.yaml")
        {'small': {'macs': 1000000.0}}
    """
    for name in _NESTED:
        if isinstance(content, dict) and name in content:
            content = content[name]
    form = "write {small: {macs: 0.8e+6}, large: {macs: 2.5e+6}}"
    if not isinstance(content, dict) or not content:
        raise DataError(f"tiers: {where} holds no budgets; {form}")
    tiers: dict[str, dict[str, float]] = {}
    for tier, limits in content.items():
        if not isinstance(limits, dict):
            raise DataError(f"tiers: {where}: {tier}: {limits} is not a budget; {form}")
        tiers[str(tier)] = {name: _number(f"{where}: {tier}.{name}", name, value) for name, value in limits.items()}
    return tiers


def _number(where: str, name: str, value: Any) -> float:
    if name not in _LIMITS:
        raise DataError(f"tiers: {where}: is not a known cost; choose from {', '.join(_LIMITS)}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not number > 0:
        raise DataError(f"tiers: {where}: {value} is not a number above 0; correct it")
    return number


def tiers_of(methods: Methods) -> dict[str, dict[str, float]]:
    """Returns the tiers that all searches of the methods had, or one tier without limits if there is no such set."""
    found: list[dict[str, dict[str, float]]] = []
    for results in methods.values():
        for result in results:
            for name in result.run.searches if result.part is None else [result.part]:
                tiers = SearchFiles(result.run.folder / name).settings().get("tiers", [])
                found.append({str(tier["name"]): dict(tier["at_most"]) for tier in tiers})
    if found and all(tiers == found[0] for tiers in found):
        return found[0]
    return {ALL_TIERS: {}}


def within(networks: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Returns the networks whose costs are known and at most the limits."""
    costs = networks.assign(**{_MEMORY: networks["bytes"] + networks["activation_bytes"]})
    fits = pd.Series(True, index=networks.index)
    for name, limit in limits.items():
        fits &= costs[name] <= limit
    return networks[fits]
