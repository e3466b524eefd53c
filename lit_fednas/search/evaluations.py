"""Every distinct architecture is evaluated once, and what was evaluated is on disk at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from lit_fednas.records import SearchFiles
from lit_fednas.search.evaluator import Evaluator, Generation
from lit_fednas.tiers import ArchitectureCosts


class Evaluations:
    """The evaluated architectures, in the order of their first evaluation.

    Args:
        evaluator: What scores architectures.
        costs: What an architecture costs.
        files: Where they are kept; those that are there already are taken as they are.
    """

    def __init__(self, evaluator: Evaluator, costs: ArchitectureCosts, files: SearchFiles) -> None:
        self.evaluator = evaluator
        self.costs = costs
        self.files = files
        self.fresh = 0  # evaluated by this process
        self._rows: dict[Any, dict[str, Any]] = {}
        self._first: dict[Any, tuple[str, int]] = {}  # the tier and generation that proposed each first
        for row in files.rows("evaluations"):
            self._rows[costs.supernet.space.parse(row["arch"])] = row
        files.write("evaluations", self._rows.values())  # without a line that was cut short

    def of(self, generation: Generation) -> Iterator[dict[str, Any]]:
        """The rows of a generation (``lit_fednas.records.tiers``), one by one, as they are evaluated.

        The evaluator is told which architectures no generation before has proposed. It is told the same when a
        search is replayed over its rows.
        """
        place = generation.tier, generation.number
        new = [arch for arch in generation.archs if self._first.setdefault(arch, place) == place]
        score = self.evaluator.scorer(replace(generation, archs=new))
        for arch in generation.archs:
            if arch not in self._rows:
                started = perf_counter()
                metrics = score(arch)
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
            yield self._rows[arch]

    def __getitem__(self, arch: Any) -> dict[str, Any]:
        """The row of an architecture that was evaluated."""
        return self._rows[arch]

    def items(self) -> list[tuple[Any, dict[str, Any]]]:
        """Architectures and their rows."""
        return list(self._rows.items())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)
