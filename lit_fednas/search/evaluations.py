"""Every distinct architecture is evaluated once, and what was evaluated is on disk at once."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from lit_fednas.records import SearchFiles
from lit_fednas.search.evaluator import Metrics
from lit_fednas.tiers.costs import ArchitectureCosts


class Evaluations:
    """The evaluated architectures, in the order of their first evaluation.

    Args:
        evaluate: What evaluates an architecture.
        costs: What an architecture costs.
        files: Where they are kept; those that are there already are taken as they are.
    """

    def __init__(self, evaluate: Callable[[Any], Metrics], costs: ArchitectureCosts, files: SearchFiles) -> None:
        self.evaluate = evaluate
        self.costs = costs
        self.files = files
        self.fresh = 0  # evaluated by this process
        self._rows: dict[Any, dict[str, Any]] = {}
        for row in files.rows("evaluations"):
            self._rows[costs.supernet.space.parse(row["arch"])] = row
        files.write("evaluations", self._rows.values())  # without a line that was cut short

    def __getitem__(self, arch: Any) -> dict[str, Any]:
        """The row of an architecture (``lit_fednas.records.search``); evaluates it if it was not."""
        if arch not in self._rows:
            started = perf_counter()
            metrics = self.evaluate(arch)
            row = {
                "number": len(self._rows),
                "arch": str(arch),
                "encoding": "-".join(map(str, self.costs.supernet.space.encode(arch))),
                **metrics._asdict(),
                **self.costs.all(arch),
                "seconds": round(perf_counter() - started, 6),
            }
            self.files.append("evaluations", [row])
            self._rows[arch] = row
            self.fresh += 1
        return self._rows[arch]

    def items(self) -> list[tuple[Any, dict[str, Any]]]:
        """Architectures and their rows."""
        return list(self._rows.items())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)
