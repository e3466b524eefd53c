"""The evaluated architectures: each is scored once, in this process or another, and written at once."""

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

#: Architectures that several processes share at a time.
TOGETHER = 16


class Scorer:
    """Scores architectures and counts their costs; of several processes the first sends them to the others."""

    def __init__(self, evaluator: Evaluator, costs: ArchitectureCosts, ranks: Ranks = Ranks()) -> None:
        self.evaluator, self.costs, self.ranks = evaluator, costs, ranks
        self._others_wait = ranks.size > 1

    def __call__(
        self, archs: Sequence[Any], score: Callable[[Any], dict[str, float]]
    ) -> Iterator[dict[Any, dict[str, Any]]]:
        """Yields metrics, costs and ``seconds`` by architecture, as they are known."""
        if self.ranks.size == 1:
            yield from ({arch: self._scored(arch, score)} for arch in archs)
        else:
            for start in range(0, len(archs), TOGETHER):
                yield self._shared(self._send(archs[start : start + TOGETHER]))

    def serve(self) -> None:
        """Scores what the first process sends, until it closes."""
        while archs := self._send(()):
            self._shared(archs)

    def close(self) -> None:
        """Ends the other processes' :meth:`serve`, unless they have ended."""
        if self._others_wait:
            self._others_wait = False
            self._send(())

    def _send(self, archs: Sequence[Any]) -> Sequence[Any]:
        """Sends architectures from the first process to the others; returns, in all, those that were sent."""
        box = [archs]
        distributed.broadcast_object_list(box, src=0, device=self.ranks.device)
        return box[0]

    def _shared(self, archs: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        """Scores this process's share of the architectures; returns what all have found."""
        shares = deal([self.costs.cost(arch, "macs") for arch in archs], self.ranks.size)

        def found() -> dict[int, dict[str, Any]]:
            return {index: self._scored(archs[index], self.evaluator) for index in shares[self.ranks.rank]}

        self._others_wait = False  # if one fails
        gathered = ChainMap(*self.ranks.gather_results(found))
        self._others_wait = True
        return {arch: gathered[index] for index, arch in enumerate(archs)}

    def _scored(self, arch: Any, score: Callable[[Any], dict[str, float]]) -> dict[str, Any]:
        started = perf_counter()
        metrics, costs = score(arch), self.costs.all(arch)
        return {**metrics, **costs, "seconds": round(perf_counter() - started, 6)}


class Evaluations(dict[Any, dict[str, Any]]):
    """The rows of the evaluated architectures, in the order of their first evaluation, also of an earlier process."""

    def __init__(self, scorer: Scorer, files: SearchFiles) -> None:
        super().__init__(_earlier(scorer.costs, files))
        self.scorer, self.files = scorer, files
        self.proposed: dict[Any, tuple[str, int]] = {}  # the tier and generation that proposed each first
        files.write("evaluations", self.values())  # without a line that was cut short

    def evaluate(self, tier: str, generation: int, archs: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Yields the rows of a generation (``lit_fednas.records``), one by one."""
        proposer = tier, generation
        new = [arch for arch in archs if self.proposed.setdefault(arch, proposer) == proposer]
        score = self.scorer.evaluator.scorer(tier, generation, new)
        scored = self.scorer([arch for arch in archs if arch not in self], score)
        for arch in archs:
            if arch not in self:
                for known, row in next(scored).items():
                    self._keep(known, row)
            yield self[arch]

    def _keep(self, arch: Any, scored: dict[str, Any]) -> None:
        costs = self.scorer.costs
        if costs.latency is not None:
            scored["latency_ms"] = costs.cost(arch, "latency_ms")  # of this process, also where another has scored
        self[arch] = {"number": len(self), "arch": str(arch), **scored}
        self.files.append("evaluations", [self[arch]])


def _earlier(costs: ArchitectureCosts, files: SearchFiles) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the architectures and rows of an earlier process, whose costs must be those that they have."""
    for row in files.rows("evaluations"):
        with reading(files.folder / "evaluations.csv"):
            arch = costs.supernet.space.parse(row["arch"])
            known = {**costs.all(arch), "latency_ms": row["latency_ms"]}
            if wrong := [name for name, value in known.items() if row[name] != value]:
                raise ValueError(f"row {row['number']} has {wrong[0]} {row[wrong[0]]}, not {known[wrong[0]]}")
        yield arch, row
