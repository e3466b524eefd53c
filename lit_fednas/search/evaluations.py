"""The evaluated architectures: each is scored once, in this process or another, and written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from torch import distributed

from lit_fednas.federation.ranks import Failure, Ranks, deal
from lit_fednas.records import SearchFiles
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.racing import Candidate, Race, Standings
from lit_fednas.tiers import ArchitectureCosts, Tier

T = TypeVar("T")

#: Architectures that are scored at the same time: none of them can drop another.
TOGETHER = 16


class Processes:
    """The processes that share a search: the first searches, the others score what it sends.

    Args:
        ranks: This process among all.
    """

    def __init__(self, ranks: Ranks = Ranks()) -> None:
        self.ranks = ranks
        self._open = ranks.size > 1

    def send(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Sends candidates from the first process to the others; returns, in all, those that were sent."""
        box = [candidates]
        distributed.broadcast_object_list(box, src=0, device=self.ranks.device)
        return box[0]

    def gather(self, found: Mapping[int, T] | Failure) -> dict[int, T]:
        """Returns what all processes have found, in all."""
        shares = self.ranks.gather(found)
        for rank, share in enumerate(shares):
            if isinstance(share, Failure):
                self._open = False
                raise share.as_error(rank)
        return {index: value for share in shares for index, value in share.items()}  # type: ignore[union-attr]

    def close(self) -> None:
        """Ends the others' wait."""
        if self._open:
            self._open = False
            self.send(())


class Scorer:
    """Scores candidates and counts their costs.

    Args:
        evaluator: Holds the weights and the data; in every process the same.
        costs: Counts what architectures cost.
        race: Scores candidates on parts of the data; on all if not given.
        processes: Those that share the work; the others than the first :meth:`serve` it.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        costs: ArchitectureCosts,
        race: Race | None = None,
        processes: Processes = Processes(),
    ) -> None:
        self.evaluator = evaluator
        self.costs = costs
        self.race = race
        self.processes = processes

    def __call__(
        self, candidates: Sequence[Candidate], score: Callable[[Any], dict[str, float]]
    ) -> Iterator[dict[str, Any]]:
        """Yields for each candidate its metrics, costs and ``seconds``, with a race also ``examples``."""
        if self.processes.ranks.size == 1:
            yield from (self._scored(candidate, score) for candidate in candidates)
        elif candidates:
            yield from self._together(self.processes.send(candidates))

    def serve(self) -> None:
        """Scores what the first process sends, until it closes."""
        while candidates := self.processes.send(()):
            self._together(candidates)

    def _together(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Scores this process's share of the candidates; returns what all have found."""
        ranks = self.processes.ranks
        shares = deal([self.costs.cost(candidate.arch, "macs") for candidate in candidates], ranks.size)
        found: dict[int, Any] | Failure = {}
        try:
            found = {index: self._answered(candidates[index]) for index in shares[ranks.rank]}
        except Exception as error:  # every process raises it: they would wait for this one otherwise
            found = Failure.of(error)
        rows = self.processes.gather(found)
        for index, (_, answers) in rows.items():
            if self.race is not None and answers is not None:
                self.race.keep(candidates[index].arch, answers)
        return [rows[index][0] for index in range(len(candidates))]

    def _answered(self, candidate: Candidate) -> tuple[dict[str, Any], np.ndarray | None]:
        """Returns a candidate's row, and its answers to all examples, if a race has asked it all."""
        row = self._scored(candidate, self.evaluator)
        return row, None if self.race is None else self.race.kept(candidate.arch)

    def _scored(self, candidate: Candidate, score: Callable[[Any], dict[str, float]]) -> dict[str, Any]:
        started = perf_counter()
        metrics = score(candidate.arch) if self.race is None else self.race.score(candidate)
        costs = self.costs.all(candidate.arch)
        return {**metrics, **costs, "seconds": round(perf_counter() - started, 6)}


class Evaluations(dict[Any, dict[str, Any]]):
    """The rows of the evaluated architectures, in the order of their first evaluation.

    Args:
        scorer: Scores architectures.
        files: Where their rows are kept; rows that are there already are not evaluated again.
        metric: By what architectures are compared in a race.
        cost: What else they are compared by.
        tiers: Those for which the search has a best and a front.
    """

    def __init__(
        self,
        scorer: Scorer,
        files: SearchFiles,
        metric: str = "accuracy",
        cost: str = "macs",
        tiers: Sequence[Tier] = (),
    ) -> None:
        space = scorer.costs.supernet.space
        super().__init__({space.parse(row["arch"]): row for row in files.rows("evaluations")})
        self.scorer = scorer
        self.files = files
        self.metric = metric
        self.cost = cost
        self.tiers = tiers
        self.fresh = 0  # evaluated by this process
        self._first: dict[Any, tuple[str, int]] = {}  # the tier and generation that proposed each first
        self._standings = None if scorer.race is None else Standings(scorer.race.racing)
        files.write("evaluations", self.values())  # without a line that was cut short

    @property
    def price(self) -> int:
        """What an evaluation in full takes of a budget: with a race its examples, else 1."""
        return 1 if self.scorer.race is None else self.scorer.race.population

    def spent(self, row: Mapping[str, Any]) -> int:
        """Returns what the evaluation of a row has taken, as :attr:`price`."""
        return 1 if self.scorer.race is None else int(row["examples"])

    def complete(self, row: Mapping[str, Any]) -> bool:
        """Returns whether a row's architecture was evaluated in full."""
        return self.spent(row) == self.price

    def of(self, tier: str, generation: int, archs: Sequence[Any], room: int) -> Iterator[dict[str, Any]]:
        """Yields the rows of a generation (``lit_fednas.records``), one by one, as they are evaluated."""
        if self._standings is None:
            archs = archs[:room]
        proposer = tier, generation
        new = [arch for arch in archs if self._first.setdefault(arch, proposer) == proposer]
        score = self.scorer.evaluator.scorer(tier, generation, new)
        start = 0
        while start < len(archs) and room > 0:
            group = archs[start : start + min(TOGETHER, ceil(room / self.price))]
            candidates = [self._candidate(arch, place) for place, arch in enumerate(group)]
            unknown = [one for one in candidates if one.arch not in self]
            scored = zip(unknown, self.scorer(unknown, score), strict=True)
            together = self.scorer.processes.ranks.size > 1  # then all are scored once the first is
            for candidate in candidates:
                arch = candidate.arch
                if arch not in self:
                    for one, row in scored if together else islice(scored, 1):
                        self._keep(one.arch, row)
                room -= self.spent(self[arch])
                yield self[arch]
            self._conclude(candidates)
            start += len(group)

    def _keep(self, arch: Any, scored: dict[str, Any]) -> None:
        costs = self.scorer.costs
        if costs.latency is not None:
            scored["latency_ms"] = costs.cost(arch, "latency_ms")  # of this process, also where another has scored
        encoding = "-".join(map(str, costs.supernet.space.encode(arch)))
        self[arch] = {"number": len(self), "arch": str(arch), "encoding": encoding, **scored}
        self.files.append("evaluations", [self[arch]])
        self.fresh += 1

    def _candidate(self, arch: Any, place: int) -> Candidate:
        if self._standings is None:
            return Candidate(arch)
        return self._standings.candidate(arch, self.scorer.costs.cost(arch, self.cost), self._fitting(arch), place)

    def _conclude(self, candidates: Sequence[Candidate]) -> None:
        """Adds a group that was scored to the standings."""
        for candidate in candidates:
            row = self[candidate.arch]
            if self._standings is not None and self.complete(row):
                self._standings.add(candidate, row[self.cost], 1 - row[self.metric], self._fitting(candidate.arch))

    def _fitting(self, arch: Any) -> frozenset[str]:
        return frozenset(tier.name for tier in self.tiers if self.scorer.costs.excess(arch, tier) == 0)
