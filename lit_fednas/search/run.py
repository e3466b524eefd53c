"""A search from its first proposal to the tiers' networks.

The search itself keeps no state: methods draw from addressed generators and every evaluation is on disk. So a
search that was stopped is started again, meets its own evaluations, and goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

from lit_fednas.errors import ConfigError
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.rng import numpy_generator
from lit_fednas.search.evaluations import Evaluations
from lit_fednas.search.evaluator import Evaluator, Generation
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Score
from lit_fednas.search.pareto import hypervolume, pareto_front
from lit_fednas.search.settings import SearchSettings
from lit_fednas.supernets import OWN, labelled_space
from lit_fednas.tiers import ArchitectureCosts, CumulativeCostTiers, Tier

log = logging.getLogger(__name__)

_LATENCY_SAMPLES = 24  # architectures that a source of latencies may learn from
#: Settings that a search that goes on may change.
_FREE = {"evaluations", "complete", "reference", "latency", "checkpoint"}


@dataclass(frozen=True)
class Progress:
    """Where a search is.

    Attributes:
        tier: The tier that is searched.
        evaluations: Its evaluations so far.
        best: The best accuracy among them.
        hypervolume: Of the tier's finished generations; none before the first.
    """

    tier: str
    evaluations: int
    best: float
    hypervolume: float | None


class TierSearch:
    """Searches tiers with one method and writes down what it finds.

    Args:
        settings: What to do.
        evaluator: The weights, and what scores architectures with them.
        files: The search's folder.
        seed: The run's seed.
        checkpoint: Where the weights came from, for the reader of ``settings.json``.
        tiers: Those of the clients, for settings that name none.
        watch: Called after every evaluation; may raise to stop the search.

    Raises:
        ConfigError: The folder holds another search, or a tier cannot be met.
    """

    def __init__(
        self,
        settings: SearchSettings,
        evaluator: Evaluator,
        files: SearchFiles,
        seed: int,
        checkpoint: str = "",
        tiers: Sequence[Tier] = (),
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.settings = settings
        self.evaluator = evaluator
        self.files = files
        self.seed = seed if settings.seed is None else settings.seed
        self.watch = watch
        self.supernet = evaluator.supernet
        self.space = self.supernet.space
        self.costs = ArchitectureCosts(self.supernet, settings.latency)
        self.costs.recall_latencies(files)
        latency = self._prepare_latency()
        self.tiers = list(tiers)
        if settings.tiers is not None or not tiers:
            source = settings.tiers or CumulativeCostTiers()
            self.tiers = source.tiers(self.space, self.costs, numpy_generator(self.seed, "search-tiers"))
        if settings.labels is not None:
            self.tiers = [replace(tier, labels=settings.labels) for tier in self.tiers]
        self._refuse_names_that_stand_twice()
        self.feasible = {tier.name: self._feasible(tier) for tier in self._searched()}
        self.written = self._description(checkpoint, latency)
        self._check_and_begin()
        self.evaluations = Evaluations(evaluator, self.costs, files)

    # ---- before the first evaluation ------------------------------------------------------------------

    def _prepare_latency(self) -> dict[str, Any] | None:
        if self.settings.latency is None:
            return None
        rng = numpy_generator(self.seed, "search-latency")
        return self.costs.prepare_latency([self.space.sample(rng) for _ in range(_LATENCY_SAMPLES)])

    def _refuse_names_that_stand_twice(self) -> None:
        names = [tier.name for tier in self.tiers]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"search.tiers: two tiers are called {name!r}; give each a name of its own")

    def _searched(self) -> list[Tier]:
        return self.tiers if self.settings.per_tier else [self._everything]

    @property
    def _everything(self) -> Tier:
        """No limits; its accuracies are comparable, so of one label set."""
        return Tier(ALL_TIERS, {}, labels=self.settings.labels or OWN)

    def _feasible(self, tier: Tier) -> Feasible:
        rng = numpy_generator(self.seed, f"search-feasible-{tier.name}")
        return Feasible(labelled_space(self.space, tier.labels), self.costs, tier, rng)

    def reference(self, tier: str) -> float:
        """What costs are divided by in a tier's hypervolume: its budget, or the largest architecture's cost."""
        largest = self.costs.cost(self.space.largest, self.settings.cost)
        limits = {one.name: one.at_most.get(self.settings.cost, largest) for one in self.tiers}
        return float(min(limits.get(tier, largest), largest))

    def _description(self, checkpoint: str, latency: dict[str, Any] | None) -> dict[str, Any]:
        """``settings.json``."""
        method = self.settings.method
        return {
            "seed": self.seed,
            "method": {"class": type(method).__name__, **(asdict(method) if is_dataclass(method) else {})},
            "evaluations": self.settings.evaluations,
            "per_tier": self.settings.per_tier,
            "cost": self.settings.cost,
            "metric": self.settings.metric,
            "tiers": [
                {
                    "name": tier.name,
                    "at_most": dict(tier.at_most),
                    "above": dict(tier.above),
                    **({"unsupported": list(tier.unsupported)} if tier.unsupported else {}),
                    **({"labels": tier.labels} if tier.labels != OWN else {}),
                }
                for tier in self.tiers
            ],
            "supernet": type(self.supernet).__name__,
            "weights": self.supernet.digest(),
            "checkpoint": checkpoint,
            **self.evaluator.description([tier.name for tier in self._searched()]),
            "reference": {name: self.reference(name) for name in [*(t.name for t in self.tiers), ALL_TIERS]},
            "latency": latency,
            "latency_source": None if self.settings.latency is None else self.settings.latency.identity,
            "complete": False,
        }

    def _check_and_begin(self) -> None:
        # a client's scores belong to the tier that asked first: with more evaluations, that may be another
        self.files.begin(self.written, _FREE - ({"evaluations"} if self.written["federated"] else set()))
        self.costs.keep_latencies(self.files)

    # ---- the search -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Searches all tiers; writes the history, the front, and what the evaluator has to say."""
        history = [row for tier in self._searched() for row in self._search(tier)]
        self.files.write("history", history)
        self.files.write("front", self._front_rows())
        self.written |= self.evaluator.finish(self.files)

    def _search(self, tier: Tier) -> list[dict[str, Any]]:
        """Drives the method until the tier's evaluations are spent or nothing new is proposed."""
        proposals = self.settings.method.search(
            self.feasible[tier.name], numpy_generator(self.seed, f"search-{tier.name}")
        )
        history: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        volume: float | None = None
        try:
            proposed = next(proposals)
            while True:
                scores = []
                archs = proposed[: self.settings.evaluations - len(rows)]
                generation = Generation(tier.name, len(history), archs)
                for arch, row in zip(archs, self.evaluations.of(generation), strict=True):
                    rows.append(row)
                    scores.append(self._score(arch))
                    self.watch(Progress(tier.name, len(rows), max(row["accuracy"] for row in rows), volume))
                volume = self._hypervolume(rows, tier.name)
                history.append(
                    {
                        "tier": tier.name,
                        "generation": len(history),
                        "evaluations": len(rows),
                        "best_accuracy": max((row["accuracy"] for row in rows), default=None),
                        "hypervolume": volume,
                    }
                )
                if len(rows) >= self.settings.evaluations:
                    return history
                proposed = proposals.send(scores)
        except StopIteration:
            log.info(
                "%s: no more architectures after %d evaluations of %d",
                tier.name,
                len(rows),
                self.settings.evaluations,
            )
            return history
        finally:
            proposals.close()

    def _score(self, arch: Any) -> Score:
        row = self.evaluations[arch]
        return Score(arch, self._error(row), row[self.settings.cost])

    def _error(self, row: dict[str, Any]) -> float:
        return 1 - row["accuracy"] if self.settings.metric == "accuracy" else row["loss"]

    def _hypervolume(self, rows: list[dict[str, Any]], tier: str) -> float:
        costs = [row[self.settings.cost] for row in rows]
        return hypervolume(costs, [row["accuracy"] for row in rows], self.reference(tier))

    # ---- what was found -------------------------------------------------------------------------------

    def fitting(self, tier: Tier) -> list[tuple[Any, dict[str, Any]]]:
        """The evaluated architectures, by whichever tier's search, that fit a tier."""
        return [(arch, row) for arch, row in self.evaluations.items() if self.costs.excess(arch, tier) == 0]

    def best(self, tier: Tier) -> Any | None:
        """The best architecture that fits a tier: of least error, then cost, then the one found first."""
        found = self.fitting(tier)
        if not found:
            return None
        return min(found, key=lambda pair: (self._error(pair[1]), pair[1][self.settings.cost]))[0]

    def hypervolume(self, tier: Tier) -> float:
        """The share of a tier's square of cost and accuracy that what fits it dominates."""
        return self._hypervolume([row for _, row in self.fitting(tier)], tier.name)

    def _front_rows(self) -> list[dict[str, Any]]:
        rows = []
        for tier in [*self.tiers, self._everything]:
            found = [row for _, row in self.fitting(tier)]
            costs = [row[self.settings.cost] for row in found]
            places = pareto_front(costs, [row["accuracy"] for row in found])
            rows += [{"tier": tier.name, **found[place]} for place in places]
        return rows
