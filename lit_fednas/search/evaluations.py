"""The evaluated architectures: each is scored once, in any process, and written immediately."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from torch import distributed

from lit_fednas.federation.ranks import Ranks, deal
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import reading
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.tiers import ArchitectureCosts

#: Architectures per exchange between several processes.
TOGETHER = 16


class Scorer:
    """Scores architectures and counts their costs; the first of several processes sends them to the others."""

    def __init__(self, evaluator: Evaluator, costs: ArchitectureCosts, ranks: Ranks = Ranks()) -> None:
        self.evaluator, self.costs, self.ranks = evaluator, costs, ranks
        self._others_are_waiting = ranks.size > 1

    def __call__(
        self, archs: Sequence[Any], score: Callable[[Any], dict[str, float]]
    ) -> Iterator[dict[Any, dict[str, Any]]]:
        """Yields metrics, costs and ``seconds`` by architecture, as soon as they are available."""
        if self.ranks.size == 1:
            yield from ({arch: self._figures(arch, score)} for arch in archs)
        else:
            for start in range(0, len(archs), TOGETHER):
                yield self._score_together(self._send(archs[start : start + TOGETHER]))

    def serve(self) -> None:
        """Scores the architectures that the first process sends, until it closes."""
        while archs := self._send(()):
            self._score_together(archs)

    def close(self) -> None:
        """Ends :meth:`serve` in the other processes."""
        if self._others_are_waiting:
            self._others_are_waiting = False
            self._send(())

    def _send(self, archs: Sequence[Any]) -> Sequence[Any]:
        """Sends architectures from the first process to the others; returns them in all processes."""
        box = [archs]
        distributed.broadcast_object_list(box, src=0, device=self.ranks.device)
        return box[0]

    def _score_together(self, archs: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        """Scores this process's share of the architectures; returns the figures of all processes."""
        shares = deal([self.costs.cost(arch, "macs") for arch in archs], self.ranks.size)

        def score_share() -> dict[int, dict[str, Any]]:
            return {index: self._figures(archs[index], self.evaluator) for index in shares[self.ranks.rank]}

        self._others_are_waiting = False  # stays False if a process fails
        rows = ChainMap(*self.ranks.gather_results(score_share))
        self._others_are_waiting = True
        return {arch: rows[index] for index, arch in enumerate(archs)}

    def _figures(self, arch: Any, score: Callable[[Any], dict[str, float]]) -> dict[str, Any]:
        started = perf_counter()
        metrics, costs = score(arch), self.costs.all(arch)
        return {**metrics, **costs, "seconds": round(perf_counter() - started, 6)}


class Evaluations(dict[Any, dict[str, Any]]):
    """The rows of the evaluated architectures in the order of evaluation, including those of a stopped search."""

    def __init__(self, scorer: Scorer, files: SearchFiles) -> None:
        super().__init__(_stored_rows(scorer.costs, files))
        self.scorer, self.files = scorer, files
        self.proposed: dict[Any, tuple[str, int]] = {}  # tier and generation of the first proposal
        files.write("evaluations", self.values())  # drops a line that a kill cut short

    def evaluate(self, tier: str, generation: int, archs: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Yields the rows of a generation (``lit_fednas.records``) one by one."""
        proposer = tier, generation
        new_archs = [arch for arch in archs if self.proposed.setdefault(arch, proposer) == proposer]
        score = self.scorer.evaluator.scorer(tier, generation, new_archs)
        scored_rows = self.scorer([arch for arch in archs if arch not in self], score)
        for arch in archs:
            if arch not in self:
                for scored_arch, row in next(scored_rows).items():
                    self._append(scored_arch, row)
            yield self[arch]

    def _append(self, arch: Any, figures: dict[str, Any]) -> None:
        costs = self.scorer.costs
        if costs.latency is not None:
            figures["latency_ms"] = costs.cost(arch, "latency_ms")  # always the latency of this process
        self[arch] = {"number": len(self), "arch": str(arch), **figures}
        self.files.append("evaluations", [self[arch]])


def _stored_rows(costs: ArchitectureCosts, files: SearchFiles) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the architectures and rows of a stopped search, and validates their costs."""
    for row in files.rows("evaluations"):
        with reading(files.folder / "evaluations.csv"):
            arch = costs.supernet.space.parse(row["arch"])
            expected = {**costs.all(arch), "latency_ms": row["latency_ms"]}
            if changed := [name for name, value in expected.items() if row[name] != value]:
                raise ValueError(f"row {row['number']} has {changed[0]} {row[changed[0]]}, not {expected[changed[0]]}")
        yield arch, row
