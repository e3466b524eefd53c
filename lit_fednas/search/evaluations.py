"""The evaluated architectures: each is scored once, in this process or another, and written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np
from torch import distributed

from lit_fednas.federation.ranks import Ranks, deal
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import reading
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.racing import Candidate, Race, Standings
from lit_fednas.tiers import ArchitectureCosts, Tier

#: Architectures that are scored at the same time: none of them can drop another.
TOGETHER = 16


class Scorer:
    """Scores candidates and counts their costs; of several processes the first sends them to the others."""

    def __init__(
        self, evaluator: Evaluator, costs: ArchitectureCosts, race: Race | None = None, ranks: Ranks = Ranks()
    ) -> None:
        self.evaluator, self.costs, self.race, self.ranks = evaluator, costs, race, ranks
        self._others_wait = ranks.size > 1

    def __call__(
        self, candidates: Sequence[Candidate], score: Callable[[Any], dict[str, float]]
    ) -> Iterator[dict[Any, dict[str, Any]]]:
        """Yields metrics, costs and ``seconds``, with a race also ``examples``, by architecture, as they are known."""
        if self.ranks.size == 1:
            yield from ({candidate.arch: self._scored(candidate, score)} for candidate in candidates)
        elif candidates:
            yield self._shared(self._send(candidates))

    def serve(self) -> None:
        """Scores what the first process sends, until it closes."""
        while candidates := self._send(()):
            self._shared(candidates)

    def close(self) -> None:
        """Ends the other processes' :meth:`serve`, unless they have ended."""
        if self._others_wait:
            self._others_wait = False
            self._send(())

    def _send(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Sends candidates from the first process to the others; returns, in all, those that were sent."""
        box = [candidates]
        distributed.broadcast_object_list(box, src=0, device=self.ranks.device)
        return box[0]

    def _shared(self, candidates: Sequence[Candidate]) -> dict[Any, dict[str, Any]]:
        """Scores this process's share of the candidates; returns what all have found."""
        shares = deal([self.costs.cost(candidate.arch, "macs") for candidate in candidates], self.ranks.size)
        found: dict[int, tuple[dict[str, Any], np.ndarray | None]] = {}
        failure = None
        try:
            for index in shares[self.ranks.rank]:
                arch = candidates[index].arch
                row = self._scored(candidates[index], self.evaluator)
                found[index] = row, None if self.race is None else self.race.kept(arch)
        except Exception as error:  # every process raises it: they would wait for this one otherwise
            failure = error
        self._others_wait = False  # if one has failed
        gathered = {
            index: value for share in self.ranks.gather_unless(found, failure) for index, value in share.items()
        }
        self._others_wait = True
        rows = {}
        for index, candidate in enumerate(candidates):
            rows[candidate.arch], answers = gathered[index]
            if self.race is not None and answers is not None:
                self.race.keep(candidate.arch, answers)
        return rows

    def _scored(self, candidate: Candidate, score: Callable[[Any], dict[str, float]]) -> dict[str, Any]:
        started = perf_counter()
        metrics = score(candidate.arch) if self.race is None else self.race.score(candidate)
        costs = self.costs.all(candidate.arch)
        return {**metrics, **costs, "seconds": round(perf_counter() - started, 6)}


class Evaluations(dict[Any, dict[str, Any]]):
    """The rows of the evaluated architectures, in the order of their first evaluation, also of an earlier process.

    In a race, architectures are compared by ``metric`` and ``cost`` on the fronts of ``tiers``.
    """

    def __init__(self, scorer: Scorer, files: SearchFiles, metric: str, cost: str, tiers: Sequence[Tier]) -> None:
        super().__init__(_earlier(scorer.costs, files))
        self.scorer, self.files = scorer, files
        self.metric, self.cost, self.tiers = metric, cost, tiers
        self._first: dict[Any, tuple[str, int]] = {}  # the tier and generation that proposed each first
        self._standings = None if scorer.race is None else Standings(scorer.race.racing)
        files.write("evaluations", self.values())  # without a line that was cut short

    @property
    def price(self) -> int:
        """Cost of one full evaluation: with a race its examples, else 1."""
        return 1 if self.scorer.race is None else self.scorer.race.population

    def spent(self, row: Mapping[str, Any]) -> int:
        """Returns what the evaluation of a row has taken, as :attr:`price`."""
        return 1 if self.scorer.race is None else int(row["examples"])

    def complete(self, row: Mapping[str, Any]) -> bool:
        """Returns whether a row's architecture was evaluated in full."""
        return self.spent(row) == self.price

    def evaluate(self, tier: str, generation: int, archs: Sequence[Any], budget: int) -> Iterator[dict[str, Any]]:
        """Yields the rows of a generation (``lit_fednas.records``), one by one, until the budget is spent."""
        if self._standings is None:
            archs = archs[:budget]
        proposer = tier, generation
        new = [arch for arch in archs if self._first.setdefault(arch, proposer) == proposer]
        score = self.scorer.evaluator.scorer(tier, generation, new)
        start = 0
        while start < len(archs) and budget > 0:
            group = archs[start : start + min(TOGETHER, ceil(budget / self.price))]
            candidates = [self._candidate(arch, place) for place, arch in enumerate(group)]
            scored = self.scorer([candidate for candidate in candidates if candidate.arch not in self], score)
            for arch in group:
                if arch not in self:
                    for known, row in next(scored).items():
                        self._keep(known, row)
                budget -= self.spent(self[arch])
                yield self[arch]
            if self._standings is not None:
                for candidate in candidates:
                    row = self[candidate.arch]
                    if self.complete(row):
                        tiers = self._fitting(candidate.arch)
                        self._standings.add(candidate, row[self.cost], 1 - row[self.metric], tiers)
            start += len(group)

    def _keep(self, arch: Any, scored: dict[str, Any]) -> None:
        costs = self.scorer.costs
        if costs.latency is not None:
            scored["latency_ms"] = costs.cost(arch, "latency_ms")  # of this process, also where another has scored
        self[arch] = {"number": len(self), "arch": str(arch), "encoding": _encoding(costs, arch), **scored}
        self.files.append("evaluations", [self[arch]])

    def _candidate(self, arch: Any, place: int) -> Candidate:
        if self._standings is None:
            return Candidate(arch)
        return self._standings.candidate(arch, self.scorer.costs.cost(arch, self.cost), self._fitting(arch), place)

    def _fitting(self, arch: Any) -> frozenset[str]:
        return frozenset(tier.name for tier in self.tiers if self.scorer.costs.excess(arch, tier) == 0)


def _earlier(costs: ArchitectureCosts, files: SearchFiles) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the architectures and rows of an earlier process, whose costs must be those that they have."""
    for row in files.rows("evaluations"):
        with reading(files.folder / "evaluations.csv"):
            arch = costs.supernet.space.parse(row["arch"])
            known = {"encoding": _encoding(costs, arch), **costs.all(arch), "latency_ms": row["latency_ms"]}
            if wrong := [name for name, value in known.items() if row[name] != value]:
                raise ValueError(f"row {row['number']} has {wrong[0]} {row[wrong[0]]}, not {known[wrong[0]]}")
        yield arch, row


def _encoding(costs: ArchitectureCosts, arch: Any) -> str:
    return "-".join(map(str, costs.supernet.space.encode(arch)))
