"""A search of device tiers, from its first proposal to the tiers' networks.

It keeps no state: methods draw from addressed generators and every evaluation is on disk. A stopped search starts
again, reads its evaluations, and continues.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pymoo.indicators.hv import Hypervolume
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

from lit_fednas.costs import LatencySource
from lit_fednas.errors import ConfigError
from lit_fednas.formatting import metric_text
from lit_fednas.ranges import NonNegativeInt, PositiveInt, PositiveShare, checked
from lit_fednas.records import COST_NAMES, SearchFiles
from lit_fednas.records.files import check_folder_name, check_folder_names
from lit_fednas.records.run import choose_metric, error
from lit_fednas.records.tiers import CostName
from lit_fednas.rng import numpy_generator
from lit_fednas.search.evaluations import Evaluations, Scorer
from lit_fednas.search.evaluator import Evaluator, FederatedEvaluation
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.search.tier_models import save_tier_model, tier_model
from lit_fednas.tiers import EVERYBODY, ArchitectureCosts, Tier, TierSource

log = logging.getLogger(__name__)

_MIN_WORST = 1e-12  # lower bound of a divisor
_LATENCY_SAMPLES = 24  # architectures to prepare a source of latencies
#: Settings that may change when a search continues.
_CHANGEABLE = {"evaluations", "complete", "reference", "latency", "checkpoint"}


@checked("search")
@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search after training.

    Args:
        tiers: The device tiers; those of the clients (``model.tiers``) if not given.
        method: The method that searches each tier.
        evaluations: Distinct architectures to evaluate per tier (FedorAS: 1000), or a number for each tier by name
            (FedorAS, Table 10: ``{tier1: 100, tier2: 150}``). 0 is for methods without evaluations (``ProxySearch``):
            no networks are tested or written, and with ``--ckpt_path null`` the search uses untrained weights in a
            new folder.
        cost: The second objective besides the metric.
        metric: The metric that decides which architecture is best on the validation data: one of the task or of
            ``model.metrics``; the task's first (``accuracy``, for tokens ``perplexity``) if not given.
        val_share: The share of the validation data to search on, drawn uniformly (FedorAS, App. K.1).
        federated: Settings of scores by clients on their own data (FedorAS, section 4.7); the server scores on its
            validation data if not given.
        client: The client that searches for itself (SuperFed, App. I): on its own validation data
            (``data.client_val``), and for its own tier unless ``tiers`` are given. The result is tested on the
            server's test data. The server searches if not given.
        latency: The source of latencies; no latencies if not given.
        seed: The search's seed; the run's if not given.
        name: The name of the search's folder in the run's folder.
    """

    tiers: TierSource | None = None
    method: SearchMethod = field(default_factory=NSGA2)
    evaluations: NonNegativeInt | dict[str, PositiveInt] = 1000
    cost: CostName = "macs"
    metric: str | None = None
    val_share: PositiveShare = 1.0
    federated: FederatedEvaluation | None = None
    client: NonNegativeInt | None = None
    latency: LatencySource | None = None
    seed: int | None = None
    name: str = "search"

    def __post_init__(self) -> None:
        check_folder_name("search.name", self.name)
        if self.client is not None and self.federated is not None:
            raise ConfigError(f"search.client: {self.client} has no effect with search.federated; leave one out")
        if self.val_share < 1 and (self.federated is not None or not self.evaluations):
            other = "evaluations 0" if self.federated is None else "federated"
            raise ConfigError(f"search.val_share: {self.val_share} has no effect with search.{other}; leave one out")

    def evaluations_of(self, tier: str) -> int:
        """Returns the number of a tier's evaluations."""
        return self.evaluations[tier] if isinstance(self.evaluations, dict) else self.evaluations


class TierSearch:
    """Searches tiers with one method and writes the results.

    Args:
        files: The search's folder.
        seed: The run's seed.
        checkpoint: The file of the weights, as information in ``settings.json``.
        tiers: The clients' tiers, for settings without tiers.
        watch: Called after every evaluation with the tier, its number of evaluations, the best metric, and the
            hypervolume of finished generations; may raise to stop.
        subnets: The first architectures of each search, in addition to the smallest and the largest.
        scorer: The evaluator's scorer, if several processes share it; a new one if not given.

    Raises:
        ConfigError: There are no tiers, no architecture fits one, or the folder has another search.
    """

    def __init__(
        self,
        settings: SearchSettings,
        evaluator: Evaluator,
        files: SearchFiles,
        seed: int,
        checkpoint: str = "",
        tiers: Sequence[Tier] = (),
        watch: Callable[[str, int, float, float | None], None] = lambda *progress: None,
        subnets: Iterable[Any] = (),
        scorer: Scorer | None = None,
    ) -> None:
        self.settings = settings
        self.evaluator = evaluator
        self.files = files
        self.seed = seed if settings.seed is None else settings.seed
        self.watch = watch
        self.metric, self.higher = choose_metric(settings.metric, evaluator.directions, "search.metric")
        self.supernet = evaluator.supernet
        self.space = self.supernet.space
        scorer = scorer or Scorer(evaluator, ArchitectureCosts(self.supernet, settings.latency))
        self.costs = scorer.costs
        if settings.tiers is None and not tiers:
            raise ConfigError(
                "search.tiers: null leaves no device tiers to search for, as model.tiers is null too; set one of the "
                f"two, such as --search.tiers '{_example_tiers(self.costs)}'"
            )
        self.costs.recall_latencies(files)
        rng = numpy_generator(self.seed, "search-latency")
        latency = self.costs.prepare_latency([self.space.sample(rng) for _ in range(_LATENCY_SAMPLES)])
        self.tiers = list(tiers)
        if settings.tiers is not None:
            self.tiers = settings.tiers.tiers(self.space, self.costs, numpy_generator(self.seed, "search-tiers"))
        _check_names(self.tiers, tiers)
        tier_names = [tier.name for tier in self.tiers]
        if isinstance(settings.evaluations, dict) and sorted(settings.evaluations) != sorted(tier_names):
            names = ", ".join(settings.evaluations)
            raise ConfigError(
                f"search.evaluations: has the tiers {names or '(none)'}, not {', '.join(tier_names)}; give a number "
                f"for each of these, or one for all"
            )
        self.feasible: dict[str, Feasible] = {}
        for tier in self.tiers:
            rng = numpy_generator(self.seed, f"search-feasible-{tier.name}")
            # with these starts, the search's result is at least as good as the run's own subnets
            space = self.space
            starts = [space.smallest, space.largest, *(arch for arch in subnets if space.values_of(arch) is not None)]
            self.feasible[tier.name] = Feasible(space, self.costs, tier, rng, starts, evaluator.batch())
        self.written = self._description(checkpoint, latency)
        # clients' scores depend on the tier that proposes an architecture first, and so on the budgets
        fixed = {"evaluations"} if settings.federated else set()
        files.begin(self.written, _CHANGEABLE - fixed)
        self.costs.keep_latencies(files)
        self.evaluations = Evaluations(scorer, files)

    def _description(self, checkpoint: str, latency: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the content of ``settings.json``."""
        settings = self.settings
        largest = self.costs.cost(self.space.largest, settings.cost)
        limits = {tier.name: tier.at_most.get(settings.cost, largest) for tier in [*self.tiers, EVERYBODY]}
        return {
            "seed": self.seed,
            "method": _plain(settings.method),
            **{name: getattr(settings, name) for name in ("evaluations", "cost", "client")},
            "metric": self.metric,
            "metrics": dict(self.evaluator.directions),
            "tiers": [tier.plain() for tier in self.tiers],
            "supernet": type(self.supernet).__name__,
            "weights": self.supernet.digest(),
            "checkpoint": checkpoint,
            **self.evaluator.description([tier.name for tier in self.tiers]),
            "reference": {name: float(min(limit, largest)) for name, limit in limits.items()},
            "latency": latency,
            "latency_source": None if settings.latency is None else settings.latency.identity,
            "complete": False,
        }

    def run(self) -> None:
        """Searches all tiers; writes the history, the fronts, and the costs of evaluations."""
        history = [row for tier in self.tiers for row in self._search(tier)]
        self.files.write("history", history)
        fronts = []
        for tier in [*self.tiers, EVERYBODY]:
            rows = list(self.fitting(tier).values())
            front = pareto_front([row[self.settings.cost] for row in rows], [-self._error(row) for row in rows])
            fronts += [{"tier": tier.name, **rows[number]} for number in front]
        self.files.write("front", fronts)
        self.written |= self.evaluator.finish(self.files)

    def _search(self, tier: Tier) -> list[dict[str, Any]]:
        """Runs the method until the evaluations are spent or it proposes no new architecture."""
        settings, budget = self.settings, self.settings.evaluations_of(tier.name)
        rng = numpy_generator(self.seed, f"search-{tier.name}")
        proposals = settings.method.search(self.feasible[tier.name], rng)
        history: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        # architectures of earlier tiers' searches count if they fit, as in :meth:`best`
        values = [row[self.metric] for arch, row in self.fitting(tier).items() if arch in self.evaluations.proposed]
        best = min(values, key=lambda metric: error(metric, self.higher), default=None)
        volume = scores = None
        while len(rows) < budget:
            try:
                archs = next(proposals) if scores is None else proposals.send(scores)
            except StopIteration:
                log.info("%s: no more architectures after %d evaluations of %d", tier.name, len(rows), budget)
                break
            scores = []
            archs = archs[: budget - len(rows)]
            for row, arch in zip(self.evaluations.evaluate(tier.name, len(history), archs), archs, strict=True):
                rows.append(row)
                scores.append(Score(arch, self._error(row), row[settings.cost]))
                if best is None or self._error(row) < error(best, self.higher):
                    best = row[self.metric]
                self.watch(tier.name, len(rows), best, volume)
            volume = self._hypervolume(rows, tier.name)
            figures = {"evaluations": len(rows), f"best_{self.metric}": best, "hypervolume": volume}
            history.append({"tier": tier.name, "generation": len(history), **figures})
        return history

    def _error(self, row: dict[str, Any]) -> float:
        return error(row[self.metric], self.higher)

    def _hypervolume(self, rows: Sequence[dict[str, Any]], tier: str) -> float:
        worst = 1.0 if self.higher or not rows else max(rows[0][self.metric], _MIN_WORST)
        costs = [row[self.settings.cost] for row in rows]
        return hypervolume(costs, [1 - self._error(row) / worst for row in rows], self.written["reference"][tier])

    def fitting(self, tier: Tier) -> dict[Any, dict[str, Any]]:
        """Returns the rows of all evaluated architectures that fit a tier."""
        return {arch: row for arch, row in self.evaluations.items() if self.costs.excess(arch, tier) == 0}

    def best(self, tier: Tier) -> Any | None:
        """Returns the best architecture that fits a tier: by error, then cost, then the order of evaluation."""
        rows = self.fitting(tier)
        return min(rows, key=lambda arch: (self._error(rows[arch]), rows[arch][self.settings.cost]), default=None)

    def write_plan(self) -> list[dict[str, Any]]:
        """Writes and returns the rows of ``tiers.csv`` with the method's choice without evaluations."""
        rows = []
        for tier in self.tiers:
            arch = self.settings.method.plan(
                self.feasible[tier.name], numpy_generator(self.seed, f"search-{tier.name}")
            )
            rows.append({"tier": tier.name, "arch": str(arch), **self.costs.all(arch), "evaluations": 0})
        self.files.write("tiers", rows)
        return rows

    def write_tiers(self, test: Callable[[Any], dict[str, float]] | None) -> list[dict[str, Any]]:
        """Tests the best architectures, if there are test data; writes networks and ``tiers.csv``, returns its rows."""
        rows = []
        for tier in self.tiers:
            arch = self.best(tier)
            if arch is None:
                log.warning("%s: none of %d evaluated architectures fits", tier.name, len(self.evaluations))
                continue
            row = self.evaluations[arch]
            metrics = {f"val_{name}": row[name] for name in self.evaluator.directions}
            if test is not None:
                metrics |= {f"test_{name}": value for name, value in test(arch).items()}
            costs = {name: row[name] for name in COST_NAMES}
            fitting = [*self.fitting(tier).values()]
            ties = sum(other[self.metric] == row[self.metric] for other in fitting)
            if ties > 1:
                text = metric_text(self.metric, row[self.metric], "%")
                log.info("%s: %d candidates tie at %s %s; the cheapest is taken", tier.name, ties, self.metric, text)
            counts = {"evaluations": len(fitting), "hypervolume": self._hypervolume(fitting, tier.name)}
            rows.append({"tier": tier.name, "arch": row["arch"], **metrics, **costs, **counts})
            known_costs = {name: cost for name, cost in costs.items() if cost is not None}
            recalibrated = bool(self.evaluator.recalibration)
            model = tier_model(self.supernet, tier.name, arch, recalibrated, costs=known_costs, metrics=metrics)
            save_tier_model(self.files, model, self.evaluator.network(arch))
        self.files.write("tiers", rows)
        return rows


def _check_names(tiers: Sequence[Tier], clients_tiers: Sequence[Tier]) -> None:
    check_folder_names("search.tiers", [tier.name for tier in tiers])
    for tier in tiers:
        for other in clients_tiers:
            if tier.name == other.name and tier != other:
                raise ConfigError(
                    f"search.tiers: {tier.name!r} is also a tier of the clients, with other limits "
                    f"({other}; here {tier}); leave search.tiers out, or rename the tier"
                )


def _plain(part: Any) -> dict[str, Any]:
    """Returns a part's class and settings as plain values, with those of nested parts."""
    settings = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
    plain_settings = {name: _plain(value) if is_dataclass(value) else value for name, value in settings.items()}
    return {"class": type(part).__name__, **plain_settings}


def _example_tiers(costs: ArchitectureCosts) -> str:
    """Returns an example of tiers for the supernet: the mean of its minimum and maximum MACs, and the maximum."""
    space = costs.supernet.space
    min_macs, max_macs = (costs.cost(arch, "macs") for arch in (space.smallest, space.largest))
    limits = {"small": (min_macs + max_macs) / 2, "large": max_macs} if min_macs < max_macs else {"all": max_macs}
    budgets = ", ".join(f"{name}: {{macs: {ceil(limit)}}}" for name, limit in limits.items())
    return f"{{class_path: lit_fednas.tiers.Budgets, init_args: {{budgets: {{{budgets}}}}}}}"


def pareto_front(costs: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Returns the indices of the non-dominated points, by cost; of equal points the first."""
    points = np.column_stack([np.asarray(costs, dtype=float), -np.asarray(scores, dtype=float)])
    _, distinct = np.unique(points, axis=0, return_index=True)  # sorts by ascending cost
    return distinct[sorted(NonDominatedSorting().do(points[distinct], only_non_dominated_front=True))]


def hypervolume(costs: ArrayLike, scores: ArrayLike, reference: float) -> float:
    """Returns the share that the points dominate of the square: cost from 0 to ``reference``, score from 0 to 1."""
    points = np.column_stack([np.asarray(costs, dtype=float) / reference, 1 - np.asarray(scores, dtype=float)])
    return float(Hypervolume(ref_point=np.array([1.0, 1.0])).do(points))
