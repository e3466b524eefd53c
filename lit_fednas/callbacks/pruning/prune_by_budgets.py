"""The loop over budgets, which prunes filters step by step (FedNAS, Algorithm 4.1, lines 1 to 11)."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, cast

from typing_extensions import override

from lit_fednas.assignment.candidate_groups import CandidateSchedule
from lit_fednas.callbacks.pruning.groups import available_groups, groups_of_candidates
from lit_fednas.callbacks.pruning.iteration import CandidateTrials, SequenceRecord, Trial, fused_accuracy
from lit_fednas.costs import LatencySource, RoundCost
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.ranges import (
    NonNegativeInt,
    OpenUnitInterval,
    PositiveInt,
    PositiveShare,
    ShareBelowOne,
    UnitInterval,
    checked,
)
from lit_fednas.records.files import replace_json
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import SEQUENCE_FILE
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model, PrunedSequence, UnitCounts, find_cuts
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)

_LATENCY_SAMPLES = 24


@checked("prune_by_budgets")
@dataclass(eq=False)
class PruneByBudgets(FederatedCallback):
    """Prunes a model budget by budget: groups of clients try candidates for some rounds, and the best is selected.

    An iteration begins with the clients that are available after the previous iteration. A ``PrunedSequence`` holds the
    candidates, and ``CandidateGroups`` assigns them to the groups that this callback schedules. After each round the
    candidates are ranked by their accuracy degradation, and the weakest are dropped before their updates are sent.
    Training stops after the last budget.

    Candidates are compared with their parent's accuracy in its last round (the paper's ``Acc(prev_GM)``). Without
    ``initial_rounds``, all clients train and test the initial model in an additional first round, and send no update.

    Logs ``prune/iteration``, ``prune/candidates`` (the number of remaining ones), ``prune/budget`` and
    ``prune/resource`` (shares of the initial model's), and ``prune/accuracy`` (the newest model's, on the clients'
    validation data). Writes ``sequence.json`` (guide *records*).

    Args:
        budget: The last budget, as a share of the initial model's resource.
        resource: The cost that budgets limit; ``memory_bytes`` includes the weights and the largest activations.
        first: The reduction in the first iteration, as a share of the initial model's resource.
        decay: Factor of the reduction per iteration.
        least: Minimum reduction per iteration, as a share of the initial model's resource.
        rounds: Number of rounds of each iteration from a given one on, counted from 1; 0 tests without training.
        drop: Share of an iteration's candidates that is dropped after each round; 0 keeps all, 1 keeps only the best.
        groups: Number of groups of clients (section 4.2).
        schedule: The time for which a group keeps a candidate: an ``iteration``, or a ``round``, after which the next
            free group takes it (Algorithm 4.1, line 15).
        partition: ``balanced`` is the greedy algorithm of section 4.2; ``random`` distributes clients at random.
        initial_rounds: Number of rounds that train the initial model before the first iteration.
        latency: The source of latencies if ``latency_ms`` is the resource.
    """

    supernet_kind: ClassVar[type] = PrunedSequence
    gives = (CandidateSchedule,)
    metric_names = tuple(f"prune/{name}" for name in ("candidates", "iteration", "resource", "budget", "accuracy"))

    budget: OpenUnitInterval
    resource: Literal["macs", "parameters", "bytes", "memory_bytes", "latency_ms"] = "macs"
    first: OpenUnitInterval = 0.05
    decay: PositiveShare = 0.98
    least: ShareBelowOne = 0.0
    rounds: Mapping[int, NonNegativeInt] = field(default_factory=lambda: {1: 5})
    drop: UnitInterval = 0.33
    groups: PositiveInt = 1
    partition: Literal["balanced", "random"] = "balanced"
    schedule: Literal["iteration", "round"] = "iteration"
    initial_rounds: NonNegativeInt = 0
    latency: LatencySource | None = None

    def __post_init__(self) -> None:
        # The paper has no ``least``, although its decay of 0.93 cannot reach ConvNet's 25 % and 15 % (Table 3).
        reach = self.first / (1 - self.decay) if self.least == 0 and self.decay < 1 else math.inf
        if reach < 1 - self.budget:
            raise ConfigError(
                f"prune_by_budgets.decay: {self.decay} with first {self.first} reduces the resource by {reach:.3g} at "
                f"most, but budget {self.budget} needs {1 - self.budget:.3g}; raise decay, first or least"
            )
        if 1 not in self.rounds or min(self.rounds) < 1:
            raise ConfigError(
                f"prune_by_budgets.rounds: {dict(self.rounds)} must have 1 as its smallest key; map first iterations "
                f"to numbers of rounds, such as {{1: 2, 6: 5}}"
            )
        if (self.resource == "latency_ms") != (self.latency is not None):
            state = "null" if self.latency is None else "set"
            raise ConfigError(
                f"prune_by_budgets.latency: is {state} and resource is {self.resource}; set it "
                "(lit_fednas.costs.MeasuredLatency) if and only if the resource is latency_ms"
            )
        self._reset()

    def budget_of(self, iteration: int, present: float) -> float:
        """Returns the budget of an iteration from 1 on (NetAdapt's rule); ``present`` is the newest model's share."""
        step = max(self.first * self.decay ** (iteration - 1), self.least)
        return max(present - step, self.budget)

    def rounds_of(self, iteration: int) -> int:
        """Returns the number of rounds of an iteration from 1 on (section 3.3)."""
        return self.rounds[max(first for first in self.rounds if first <= iteration)]

    def _reset(self) -> None:
        self.complete = False  # whether the last iteration is over
        self.record = SequenceRecord()
        self.trials: CandidateTrials | None = None  # the current iteration

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        clients, count = trainer.datamodule.clients, trainer.datamodule.clients.num_clients
        if "accuracy" not in clients.task.metrics:
            raise ConfigError(
                f"prune_by_budgets: needs the metric accuracy, which {type(clients.task).__name__} does not have; set "
                f"prune_by_budgets to null, or choose data with classes"
            )
        if pl_module.client.validate is None:
            raise ConfigError(
                "model.client.validate: is null, but candidates need tests; set it to trained, and data.client_val"
            )
        if (size := pl_module.cohort.size(count)) < count:
            raise ConfigError(
                f"model.cohort: takes {size} of {count} clients, but groups need all available clients; set "
                f"cohort.ratio to 1 (and assignment.initial_clients for fewer clients in the initial rounds)"
            )
        if self.groups > count:
            raise ConfigError(f"prune_by_budgets.groups: {self.groups} is more than {count} clients; lower it")
        self._costs = ArchitectureCosts(pl_module.supernet, self.latency)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        sequence = _sequence(pl_module)
        if self.latency is not None:
            rng, whole = numpy_generator(pl_module.seed, "prune-latency"), sequence.models[0].sizes
            multiple = sequence.family.multiple
            networks = (
                {group: multiple * int(rng.integers(1, size // multiple + 1)) for group, size in whole.items()}
                for _ in range(_LATENCY_SAMPLES)
            )
            self._costs.prepare_latency([UnitCounts.of(sizes) for sizes in networks])
        if trainer.global_step == 0 and len(sequence.models) == 1 and not sequence.cuts:  # a new run
            self._reset()
            if pl_module.initial is None and self.initial_rounds == 0:
                log.warning(
                    "model.initial: is null and prune_by_budgets.initial_rounds is 0, so an untrained network is "
                    "pruned; set one of them"
                )
        self._write(trainer, pl_module)
        trainer.should_stop |= self.complete

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if self.trials is not None:
            trials, number = self.trials, len(_sequence(module).models)
            if self.schedule == "round" and trials.rounds:
                for unit, group in self._scheduled(module, trials.live, trials.rounds).items():
                    trials.trials[unit].group = group
            candidates = tuple((Model(number, unit), trials.trials[unit].group) for unit in trials.live)
            round.give(CandidateSchedule(candidates, tuple(map(tuple, trials.groups))))
        elif self._measures(round):
            round.give(CandidateSchedule())

    def _measures(self, round: ServerRound) -> bool:
        """Returns whether the round measures the initial model without using updates."""
        return self.trials is None and not self.record.entries and round.number >= self.initial_rounds

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Rejects the updates of dropped candidates, or of a round that measures the initial model."""
        number = len(_sequence(module).models)
        if self.trials is None:
            if self._measures(round):
                round.reject(Model(number - 1))
            return
        accuracies = {
            unit: fused_accuracy([result for result in round.results if result.task.arch == Model(number, unit)])
            for unit in self.trials.live
        }
        trials, rejected = self.trials.after(accuracies, self.drop)
        round.commit(self, trials=trials)
        for unit in rejected:
            round.reject(Model(number, unit))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Ends the iteration after its last round, and begins the next iteration."""
        sequence = _sequence(module)
        for result in round.results:
            self.record.spent += module.cost(result)
        num_candidates = 0
        if self.trials is None:
            if not self.complete and round.number + 1 >= self.initial_rounds:
                self._end_initial(trainer, module, round)
        else:
            num_candidates = len(self.trials.live)
            if self.trials.rounds >= max(1, self.rounds_of(len(sequence.models))):
                self._select(trainer, module, round)
        module.log("prune/candidates", float(num_candidates))
        for name, value in self.record.figures().items():
            module.log(f"prune/{name}", value, prog_bar=name == "accuracy")
        self._write(trainer, module)
        trainer.should_stop |= self.complete

    def _end_initial(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Records the initial model with its accuracy in this round, and begins the first iteration."""
        sequence = _sequence(module)
        accuracy = fused_accuracy(round.results)
        if math.isnan(accuracy):
            log.warning("round %d: no client could test the initial model; it is tested again", round.number + 1)
            return
        resource = self._costs.cost(UnitCounts.of(sequence.models[0].sizes), self.resource)
        resource = trainer.fit_loop.ranks.gather(resource)[0]  # measured latencies differ between ranks
        entry: dict[str, Any] = {"first_round": 0, "budget": None, "groups": [], "candidates": []}
        self.record.add(sequence, resource, **entry, rounds=round.number + 1, accuracy=accuracy)
        self._begin(trainer, module, round)

    def _begin(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Begins an iteration with the next round, or completes the sequence."""
        sequence, next_round = _sequence(module), round.number + 1
        number = len(sequence.models)
        whole, present = self.record.initial, self.record.newest["resource"]
        if present <= self.budget * whole:
            self.complete = True
            log.info("model %d meets the last budget", number - 1)
            return
        budget = self.budget_of(number, present / whole) * whole

        def cost(sizes: Mapping[str, int]) -> float:
            return self._costs.cost(UnitCounts.of(sizes), self.resource)

        cuts = find_cuts(sequence.models[-1].sizes, sequence.family.multiple, cost, budget)
        cuts = trainer.fit_loop.ranks.gather(cuts)[0]  # measured latencies differ between ranks
        if not cuts:
            self.complete = True
            log.info("no unit of model %d can be cut to meet the budget %.4g", number - 1, budget)
            return
        round.restructure(lambda: sequence.propose(cuts))
        clients, balanced = trainer.datamodule.clients, self.partition == "balanced"
        groups, reports = available_groups(module, clients, next_round, self.groups, balanced)
        entry = {"number": number, "first_round": next_round, "budget": budget, "rounds": 0}
        self.record.under_way = {**entry, "groups": reports, "candidates": []}
        scheduled = self._scheduled(module, [cut.unit for cut in cuts])
        trials = {cut.unit: Trial(scheduled[cut.unit], (present - cut.resource) / whole) for cut in cuts}
        # The parent's accuracy is None if its group failed; the initial model's accuracy is never None.
        accuracies = [entry["accuracy"] for entry in self.record.entries if entry["accuracy"] is not None]
        rounds = self.rounds_of(number)
        self.trials = CandidateTrials(groups, trials, accuracies[-1], rounds > 0)
        log.info(
            "iteration %d: %.4g %s at most (%.3g of the initial model's), %d candidates, %d groups, %d rounds",
            *(number, budget, self.resource, budget / whole, len(cuts), len(groups), rounds),
        )

    def _scheduled(self, module: FederatedLightningModule, units: Sequence[str], *round: int) -> dict[str, int]:
        """Returns the group of each candidate by unit."""
        sequence, under_way = _sequence(module), self.record.under_way
        assert under_way is not None
        macs = {cut.unit: sequence.cost(UnitCounts.of(cut.sizes)).macs for cut in sequence.cuts if cut.unit in units}
        rng = numpy_generator(module.seed, "candidate-groups", len(sequence.models), *round)
        return groups_of_candidates(macs, [report["examples"] for report in under_way["groups"]], rng)

    def _select(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Makes the best candidate the newest model, and begins the next iteration."""
        sequence, trials = _sequence(module), self.trials
        assert trials is not None
        unit = trials.best
        accuracies = [value for value in trials.trials[unit].accuracies if not math.isnan(value)]
        iteration_entry = self.record.described(sequence, trials)
        (cut,) = (cut for cut in sequence.cuts if cut.unit == unit)
        round.restructure(lambda: sequence.select(unit, round.number))
        self.record.add(sequence, cut.resource, **iteration_entry, accuracy=accuracies[-1] if accuracies else None)
        self.record.under_way = self.trials = None
        newest = self.record.newest
        log.info(
            "model %d: %s loses %d filters; %.4g %s, %.3g of the initial model's; accuracy %s",
            *(newest["number"], unit, cut.removed, newest["resource"]),
            *(self.resource, newest["resource"] / self.record.initial),
            "unknown" if newest["accuracy"] is None else f"{newest['accuracy']:.1%}",
        )
        self._begin(trainer, module, round)

    def _write(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        if keeps_files(trainer) and self.record.entries:
            sequence, record, trials = _sequence(module), self.record, self.trials
            content = {
                "resource": self.resource,
                "initial": record.initial,
                "budget": self.budget * record.initial,
                "clients": module.population.num_clients,
                "complete": self.complete,
                "units": {group: [group] for group in sequence.models[0].sizes},
                "models": record.entries,
                "under_way": None if trials is None else record.described(sequence, trials),
            }
            replace_json(run_folder(trainer) / SEQUENCE_FILE, content)

    def state_dict(self) -> dict[str, Any]:
        trials = None if self.trials is None else asdict(self.trials)
        return {"complete": self.complete, **asdict(self.record), "trials": trials}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        trials, spent = state_dict["trials"], RoundCost(**state_dict["spent"])
        self.complete = state_dict["complete"]
        self.record = SequenceRecord(list(state_dict["entries"]), state_dict["under_way"], spent)
        self.trials = None if trials is None else CandidateTrials.from_plain(trials)


def _sequence(module: FederatedLightningModule) -> PrunedSequence:
    return cast(PrunedSequence, module.supernet)  # ``setup`` has validated the type
