"""Averaging by overlap: SuperFed's Algorithm 1, lines 9 to 15, and Algorithm 2 (MaxNet).

Elements in no update are known by counting, never by testing for zero (the paper's ``replace_zeros`` would mistake a
weight that is exactly zero for one that nobody trained). With one architecture this is federated averaging (App. C).
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.private import GaussianMechanism, PrivateSums
from lit_fednas.aggregation.sums import OverlapSums, TrimmedSums
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate, Largest, RoundValues, nbytes
from lit_fednas.ranges import OpenUnitInterval, Range, checked
from lit_fednas.supernets import Region

log = logging.getLogger(__name__)

#: The share of an element's values that a mean leaves out at either end; 0.5 for the median.
Trim = Annotated[float, Range(at_least=0, at_most=0.5)]


@checked("aggregation")
class OverlapAverage(Aggregation):
    """Weighted mean over the clients that hold an element; one that nobody trained keeps its value.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
        trim: The share of an element's values that its mean leaves out at either end, rounded up to whole values; 0.5
            for the median. It needs three clients or more. Above 0 a round's updates are kept in memory.
    """

    reads: ClassVar[tuple[type, ...]] = (GaussianMechanism,)

    #: Elements that fewer clients trained keep their value.
    min_clients = 1

    def __init__(self, weighted: bool = True, trim: Trim = 0.0) -> None:
        self.weighted = weighted
        self.trim = trim
        self._sums: OverlapSums | TrimmedSums | PrivateSums | None = None
        self._told = False
        self._values: RoundValues | None = None

    def coefficient(self, task: ClientTask) -> float:
        """Returns the weight of one client's update, n_k or 1."""
        return float(task.num_examples) if self.weighted else 1.0

    def weight(self, update: ClientUpdate, name: str) -> float:
        """Returns the weight of one tensor of an update, by the tensor's name in the subnet."""
        return self.coefficient(update.task)

    def contributions(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        """Yields what counts of an update: each tensor's name in the subnet, its region and its value."""
        for name, region in self._supernet.regions(update.task.arch).items():
            yield name, region, update.weights[name]

    def partially_covered(self, tasks: Sequence[ClientTask]) -> set[str]:
        """Returns the shared tensors of which a client may answer a part only; these have a weight per element."""
        return {
            region.name
            for arch in {task.arch for task in tasks}
            for region in self._supernet.regions(arch).values()
            if region.index is not None
        }

    @override
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        shared, partial = self._supernet.shared_tensors(), self.partially_covered(tasks)
        self._shared, self._values = shared, values
        mechanism = None if values is None else values.get(GaussianMechanism)
        if mechanism is not None:
            self._sums = self._private(mechanism, tasks)
            return
        total = sum(map(self.coefficient, tasks))
        if tasks and total <= 0:
            raise ConfigError(
                f"aggregation.weighted: true, and the round's {len(tasks)} clients have no examples; set it to false"
            )
        self._scale = 1.0 / total if tasks else 1.0  # the sums stay in the range of the weights
        self._sums = None  # the last round's memory is free before this one's is taken
        self._sums = self._trimmed(tasks) if self.trim else OverlapSums(shared, partial, self.min_clients)

    def _trimmed(self, tasks: Sequence[ClientTask]) -> TrimmedSums:
        holders: dict[str, list[Any]] = {}  # of each shared tensor: the clients with architectures that hold some of it
        for task in tasks:
            for name in {region.name for region in self._supernet.regions(task.arch).values()}:
                holders.setdefault(name, []).append(task.key)
        sums = TrimmedSums(self._shared, holders, self.trim, self.min_clients)
        if holders and not self._told:
            self._told = True
            size = nbytes(sums.values.values())
            log.info("aggregation.trim: a round's updates are kept in memory, %.1f MB", size / 1e6)
        return sums

    @override
    def add(self, update: ClientUpdate) -> None:
        assert self._sums is not None
        parts = (
            (region, value, self.weight(update, name) * self._scale)
            for name, region, value in self.contributions(update)
        )
        self._sums.add(update.task.key, parts)

    @override
    def sums(self) -> list[Tensor]:
        return [] if self._sums is None else self._sums.tensors

    @override
    def finish(self) -> dict[str, Tensor]:
        assert self._sums is not None
        averages = self._sums.averages(self._shared)
        self.untrained = self._sums.untrained()
        if isinstance(self._sums, PrivateSums) and self._values is not None:
            self._values.give(self._sums.released)
        return averages

    def _private(self, mechanism: GaussianMechanism, tasks: Sequence[ClientTask]) -> PrivateSums:
        """Returns sums with noise, where a bound on each client's influence is known."""
        sampled = mechanism.planned is not None
        planned = tasks if mechanism.planned is None else mechanism.planned
        merging = ("weight", "contributions", "add", "sums", "finish")
        own = [name for name in merging if _overrides(self, name)]
        for refused, reason in (
            (own, f"{type(self).__name__} merges in a way of its own ({', '.join(own)}); use OverlapAverage or MaxNet"),
            (self.trim, f"trim {self.trim:g} leaves out values by what other clients send; set it to 0"),
            (
                any(
                    self.coefficient(replace(task, num_examples=task.num_examples + 1)) != self.coefficient(task)
                    for task in planned
                ),
                "clients count by their examples, which are private and have no limit; set weighted to false",
            ),
            (
                sampled and _overrides(self, "coefficient"),
                f"the coefficients of {type(self).__name__} depend on the cohort, which PoissonCohort keeps secret; "
                f"use OverlapAverage, or model.cohort UniformCohort",
            ),
            (
                len({task.client for task in tasks}) < len(tasks),
                "a client has several tasks in a round; use an assignment that gives it one",
            ),
        ):
            if refused:
                raise ConfigError(
                    f"model.aggregation: no bound on a client's influence is known: {reason}; or set privacy to null"
                )
        counted = mechanism.expected / len(planned) if sampled and planned else 1.0
        weights = [self.coefficient(task) * counted for task in planned]
        self._scale = 1.0 / sum(weights) if sum(weights) > 0 else 1.0
        covered: dict[Any, float] = {}  # by architecture
        for task, weight in zip(planned, weights, strict=True):
            covered[task.arch] = covered.get(task.arch, 0.0) + weight * self._scale
        coefficients = {task.client: self.coefficient(task) * self._scale for task in tasks}
        greatest = max((self.coefficient(task) * self._scale for task in planned), default=1.0)
        return PrivateSums(self._supernet, mechanism, coefficients, covered, greatest)


def _overrides(aggregation: OverlapAverage, name: str) -> bool:
    """Returns whether an aggregation's class has a method of its own in place of overlap averaging's."""
    return getattr(type(aggregation), name) is not getattr(OverlapAverage, name)


@dataclass(frozen=True)
class Beta:
    """The largest architecture's weight in one round, between 0 and 1, where a schedule gives it."""

    value: float


@checked("aggregation")
class MaxNet(OverlapAverage):
    """Overlap averaging in which the largest architecture's client counts by beta (SuperFed, Algorithm 2).

    Its client j has the weight beta_t n_j, each other client (1 - beta_t) / (|S_t| - 1) n_k. A beta that starts high
    lets the largest network train first (section 2.4.1); the callback ``BetaDecay`` lowers it from round to round. A
    beta of 0.9 throughout is the worst of Figure 5b, so a run without a schedule logs a warning.

    Where the paper is silent: the largest architecture is the space's, or that of the pool that the assignment draws
    from (DeepFedNAS); of several clients with it the first in the cohort is j; if nobody
    has it, or j is alone, all count alike; |S_t| counts the clients that were asked, also if some of them failed.

    Args:
        beta: The largest architecture's weight, in rounds for which no schedule gives one.
        weighted: Whether a client counts by its examples n_k as well.
        trim: As for :class:`OverlapAverage`; beta weighs what is left.
    """

    reads = (Beta, GaussianMechanism)

    def __init__(self, beta: OpenUnitInterval = 0.9, weighted: bool = True, trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.beta = beta
        self._present = beta
        self._warned = False

    @override
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        given = None if values is None else values.get(Beta)
        if given is None and not self._warned:
            self._warned = True
            log.warning(
                "aggregation.beta: %g in every round, as no schedule gives another; set beta_decay, with decay: "
                "constant to keep it",
                self.beta,
            )
        self._present = self.beta if given is None else given.value
        largest = (None if values is None else values.get(Largest)) or Largest(self._supernet.space.largest)
        self._largest = next((task.client for task in tasks if task.arch == largest.arch), None)
        self._others = len(tasks) - 1
        super().start(tasks, values)

    @override
    def coefficient(self, task: ClientTask) -> float:
        examples = super().coefficient(task)
        if self._largest is None or self._others == 0:
            return examples
        if task.client == self._largest:
            return self._present * examples
        return (1 - self._present) / self._others * examples
