"""The loop over budgets: a model is made smaller step by step (FedNAS, Algorithm 4.1, lines 1 to 11)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from typing_extensions import override

from lit_fednas.assignment.candidate_groups import CandidateSchedule
from lit_fednas.callbacks.budget_schedule import BudgetSchedule, RoundSchedule
from lit_fednas.callbacks.candidate_trials import CandidateTrials, Trial, check_comparable, fused_accuracy
from lit_fednas.callbacks.client_division import ClientDivision, groups_of_candidates
from lit_fednas.callbacks.sequence_record import SequenceRecord, empty_entry
from lit_fednas.costs import LatencySource, client_cost
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.initial_weights import load_initial
from lit_fednas.federation.run_folder import keeps_files, run_folder
from lit_fednas.ranges import (
    NonNegativeInt,
    OpenUnitInterval,
    PositiveInt,
    PositiveShare,
    Range,
    ShareBelowOne,
    UnitInterval,
    checked,
)
from lit_fednas.records import write_sequence
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Cut, Model, PrunedSequence, UnitCounts, find_cuts
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)

_LATENCY_SAMPLES = 24  # networks that a source of latencies may learn from


@checked("prune_by_budgets")
class PruneByBudgets(FederatedCallback):
    """In each iteration a budget, groups of clients, candidates, some rounds, and the best becomes the model.

    An iteration begins as soon as the one before has ended, with the next round's available clients. Its first
    round is the next one. The rounds themselves are the engine's: the candidates are architectures side by side
    (``PrunedSequence``), which the assignment (``CandidateGroups``) gives to the groups that this callback
    schedules. After a round's tests the candidates are ranked by their accuracy degradation, and the ``drop``
    share with the largest leaves before its updates are sent. When the last budget is met, training stops.

    The accuracy of a model, with which the next iteration's candidates are compared, was measured by its clients
    its last round; that must be the paper's ``Acc(prev_GM)``, for nobody tests it again. With initial rounds, the
    initial model is trained federatedly first, and has such a round. Without, there is one more round at the
    start, in which all clients train and test it as they do with candidates, and send nothing.

    Logs ``prune/iteration``, ``prune/candidates`` (that are left), ``prune/budget`` and ``prune/resource`` (of the
    newest model; both as shares of the initial one's), ``prune/accuracy`` (of the newest model, on the clients'
    validation data). Writes ``sequence.json`` (``lit_fednas.records.models``).

    Args:
        budget: The last budget, as a share of what the initial model takes.
        resource: What budgets limit.
        first: By how much the first iteration goes down, as a share of what the initial model takes.
        decay: What that is multiplied with from iteration to iteration.
        least: By how much each iteration goes down at least (:class:`~.budget_schedule.BudgetSchedule`).
        rounds: From which iteration on, from 1, there are how many rounds (:class:`~.budget_schedule.RoundSchedule`).
        drop: Share of an iteration's candidates that is dropped after each round; 0 for none, 1 for all but the
            best after the first round.
        groups: The number of groups that the clients are divided into (section 4.2).
        balance: How unbalanced groups may be: most examples of a group over fewest.
        schedule: For how long a candidate stays with a group of clients: an ``iteration``, so that it is the same
            clients' tests that are compared from round to round, or a ``round``, after which it waits for any group
            that is free (Algorithm 4.1, line 15).
        partition: ``balanced`` is the greedy algorithm of section 4.2; ``random`` deals clients out at random.
        initial: A file with the initial model's weights: a checkpoint of a run, or a state dictionary
            (:func:`~lit_fednas.federation.initial_weights.load_initial`). It is read when training begins, and not
            again on resuming.
        initial_rounds: Rounds in which the initial model is trained before the first iteration.
        latency: How latency is estimated, where it is the resource.

    Attributes:
        complete: Whether no iteration is to follow.
        trials: The iteration that is under way; ``None`` before the first.

    Raises:
        ConfigError: A setting is out of range, or does not fit the others (reported before training).
    """

    supernet_kind: ClassVar[type] = PrunedSequence
    gives = (CandidateSchedule,)

    def __init__(
        self,
        budget: OpenUnitInterval,
        resource: Literal["macs", "parameters", "bytes", "latency_ms"] = "macs",
        first: OpenUnitInterval = 0.05,
        decay: PositiveShare = 0.98,
        least: ShareBelowOne = 0.0,
        rounds: Mapping[int, NonNegativeInt] = {1: 5},
        drop: UnitInterval = 0.33,
        groups: PositiveInt = 1,
        balance: Annotated[float, Range(at_least=1)] = 1.1,
        partition: Literal["balanced", "random"] = "balanced",
        schedule: Literal["iteration", "round"] = "iteration",
        initial: str | None = None,
        initial_rounds: NonNegativeInt = 0,
        latency: LatencySource | None = None,
    ) -> None:
        self.budgets = BudgetSchedule(budget, first, decay, least)
        self.rounds = RoundSchedule(rounds)
        if (resource == "latency_ms") != (latency is not None):
            raise ConfigError(
                f"prune_by_budgets.latency: is {'null' if latency is None else 'given'} and resource is "
                f"{resource}; give it if, and only if, latency_ms is the resource "
                "(lit_fednas.costs.MeasuredLatency)"
            )
        self.resource = resource
        self.drop = drop
        self.division = ClientDivision(groups, balance, partition)
        self.schedule = schedule
        self.initial = initial
        self.initial_rounds = initial_rounds
        self.latency = latency
        self._reset()

    def _reset(self) -> None:
        self.complete = False
        self.record = SequenceRecord()
        self.trials: CandidateTrials | None = None
        self._ranked: CandidateTrials | None = None  # as the round that is running has ranked them
        self.measuring = False  # whether all clients train and test the initial model, and nothing of it is used
        self.accuracy: float | None = None  # what the clients' last tests of the initial model came to

    # ---- before the first round -----------------------------------------------------------------------

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the parts fit together."""
        clients = trainer.datamodule.clients
        check_comparable(clients.task)
        if pl_module.client.validate is None:
            raise ConfigError(
                "client.validate: is null, and candidates are compared by their clients' tests; set "
                "model.client.validate to trained, and data.client_val above 0"
            )
        if pl_module.cohort.size(clients.num_clients) < clients.num_clients:
            raise ConfigError(
                f"model.cohort: takes {pl_module.cohort.size(clients.num_clients)} of {clients.num_clients} "
                f"clients, and groups are made of all that are available; set cohort.ratio to 1 (fewer clients "
                f"for the initial rounds: assignment.initial_clients)"
            )
        if self.division.groups > clients.num_clients:
            raise ConfigError(
                f"prune_by_budgets.groups: {self.division.groups} is more than {clients.num_clients} clients; lower it"
            )
        if self.initial is not None and not Path(self.initial).is_file():
            raise ConfigError(f"prune_by_budgets.initial: {self.initial} does not exist; give a file, or null")
        self._costs = ArchitectureCosts(pl_module.supernet, self.latency)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Begins the sequence; a run that had come to its end stays there."""
        sequence = _sequence(pl_module)
        self._prepare_latency(pl_module)
        if trainer.global_step == 0 and len(sequence.models) == 1 and not sequence.cuts:  # a new run
            self._reset()
            if self.initial is not None:
                load_initial(sequence.networks[0], Path(self.initial), "prune_by_budgets.initial")
            elif self.initial_rounds == 0:
                log.warning(
                    "prune_by_budgets.initial: is null and initial_rounds is 0, so an untrained network is pruned; "
                    "give a file of weights, or rounds to train it in"
                )
            self.measuring = self.initial_rounds == 0
        self._write(trainer, pl_module)
        trainer.should_stop |= self.complete

    def _prepare_latency(self, module: FederatedLightningModule) -> None:
        if self.latency is None:
            return
        sequence = _sequence(module)
        rng = numpy_generator(module.seed, "prune-latency")
        multiple = sequence.prunable.multiple
        samples = [
            {group: multiple * int(rng.integers(1, size // multiple + 1)) for group, size in first.items()}
            for first in [sequence.models[0].sizes] * _LATENCY_SAMPLES
        ]
        self._costs.prepare_latency([UnitCounts.of(sizes) for sizes in samples])

    # ---- a round --------------------------------------------------------------------------------------

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if self.trials is not None:
            trials, number = self.trials, len(_sequence(module).models)
            if self.schedule == "round" and trials.rounds:
                self._reschedule(module, trials)
            candidates = tuple((Model(number, unit), trials.trials[unit].group) for unit in trials.live)
            round.give(CandidateSchedule(candidates, tuple(map(tuple, trials.groups))))
        elif self.measuring:
            round.give(CandidateSchedule())

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Rejects what the candidates lost that are dropped, or all of a round that measures the initial model."""
        number = len(_sequence(module).models)
        if self.trials is None:
            if self.measuring:
                round.reject(Model(number - 1))
            return
        accuracies = {
            unit: fused_accuracy([one for one in round.results if one.task.arch == Model(number, unit)])
            for unit in self.trials.live
        }
        self._ranked, rejected = self.trials.after(accuracies, self.drop)
        for unit in rejected:
            round.reject(Model(number, unit))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Ends the iteration after its last round, and begins the next."""
        sequence = _sequence(module)
        for result in round.results:
            arch = result.task.arch
            self.record.spent += client_cost(result, sequence.cost(arch), module.traffic(arch))
        left = 0
        if self.trials is None:
            accuracy = fused_accuracy(round.results)
            self.accuracy = None if math.isnan(accuracy) else accuracy
            if not self.complete and round.number + 1 >= self.initial_rounds:
                self._end_initial(trainer, module, round)
        else:
            self.trials = self._ranked or self.trials
            left = len(self.trials.live)
            if self.trials.rounds >= max(1, self.rounds.of(len(sequence.models))):
                self._select(trainer, module, round)
        self._log(module, left)
        self._write(trainer, module)

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Stops when the last budget is met."""
        trainer.should_stop |= self.complete

    def _log(self, module: FederatedLightningModule, left: int) -> None:
        newest, whole = self.record.newest, self.record.initial
        module.log("prune/iteration", float(max(0, len(self.record.entries) - 1)))
        module.log("prune/candidates", float(left))
        module.log("prune/resource", newest.get("resource", math.nan) / whole)
        module.log("prune/budget", (self.record.under_way or newest).get("budget", math.nan) / whole)
        accuracy = newest.get("accuracy")
        module.log("prune/accuracy", math.nan if accuracy is None else accuracy, prog_bar=True)

    # ---- an iteration ---------------------------------------------------------------------------------

    def _end_initial(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Records the initial model as its clients have tested it in a round, and begins the first iteration."""
        sequence = _sequence(module)
        if self.accuracy is None:
            log.warning("round %d: no client could test the initial model; it is measured again", round.number)
            self.measuring = True
            return
        resource = self._costs.cost(UnitCounts.of(sequence.models[0].sizes), self.resource)
        # a latency is what the first rank has measured
        (resource, *_) = trainer.fit_loop.ranks.gather(resource)
        entry = {**empty_entry(0, 0, None), "rounds": round.number + 1, "accuracy": self.accuracy}
        self.record.add(sequence, Model(0), resource, {**entry, "round": None, "unit": None})
        self._begin(trainer, module, round)

    def _begin(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Begins an iteration with the next round; ends the sequence if there is none to begin."""
        sequence, next_round = _sequence(module), round.number + 1
        self.measuring, self.accuracy = False, None
        number = len(sequence.models)
        whole, present = self.record.initial, self.record.newest["resource"]
        if present <= self.budgets.final * whole:
            self._finish("model %d meets the last budget", number - 1)
            return
        budget = self.budgets.budget(number, present / whole) * whole
        cuts = self._cuts(trainer, sequence, budget)
        if not cuts:
            self._finish("no unit of model %d can be cut so that it meets %.4g", number - 1, budget)
            return
        round.restructure(lambda: sequence.propose(cuts))
        groups, reports = self.division.divide(module, trainer.datamodule.clients, next_round)
        scheduled = self._scheduled(module, cuts, [report.examples for report in reports])
        saved = {cut.unit: (present - cut.resource) / whole for cut in cuts}
        fuse = self.rounds.of(number) > 0
        # all clients of a group may have failed; the initial model's accuracy is always known
        known = [entry["accuracy"] for entry in self.record.entries if entry["accuracy"] is not None]
        trials = {unit: Trial(group, saved[unit]) for unit, group in scheduled.items()}
        self.trials = CandidateTrials(groups, trials, known[-1], fuse)
        self.record.under_way = {**empty_entry(number, next_round, budget), "groups": [asdict(one) for one in reports]}
        log.info(
            "iteration %d: %.4g %s at most (%.3g of the initial model's), %d candidates, %d groups, %d rounds",
            *(number, budget, self.resource, budget / whole, len(cuts), len(groups)),
            self.rounds.of(number),
        )

    def _cuts(self, trainer: FederatedTrainer, sequence: PrunedSequence, budget: float) -> list[Cut]:
        """Returns the candidates' cuts; all ranks take the first's, for measured latencies differ."""
        cuts = find_cuts(
            sequence.units,
            sequence.models[-1].sizes,
            sequence.prunable.multiple,
            lambda sizes: self._costs.cost(UnitCounts.of(sizes), self.resource),
            budget,
        )
        return trainer.fit_loop.ranks.gather(cuts)[0]

    def _reschedule(self, module: FederatedLightningModule, trials: CandidateTrials) -> None:
        """Gives the candidates that are left to groups anew."""
        assert self.record.under_way is not None
        cuts = [cut for cut in _sequence(module).cuts if cut.unit in trials.live]
        examples = [report["examples"] for report in self.record.under_way["groups"]]
        for unit, group in self._scheduled(module, cuts, examples, trials.rounds).items():
            trials.trials[unit].group = group

    def _scheduled(
        self, module: FederatedLightningModule, cuts: Sequence[Cut], examples: Sequence[int], *round: int
    ) -> dict[str, int]:
        """Returns the group of each candidate."""
        sequence = _sequence(module)
        macs = {cut.unit: sequence.cost(UnitCounts.of(cut.sizes)).macs for cut in cuts}
        rng = numpy_generator(module.seed, "candidate-groups", len(sequence.models), *round)
        return groups_of_candidates(macs, examples, rng)

    def _select(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Makes the best candidate the newest model, and begins the next iteration."""
        sequence, trials = _sequence(module), self.trials
        assert trials is not None
        unit = trials.best
        known = [value for value in trials.trials[unit].accuracies if not math.isnan(value)]
        ended = self.record.described(sequence, trials)
        (resource,) = (cut.resource for cut in sequence.cuts if cut.unit == unit)
        round.restructure(lambda: sequence.select(unit, round.number))
        entry = {**ended, "round": round.number, "unit": unit, "accuracy": known[-1] if known else None}
        self.record.add(sequence, Model(len(sequence.models) - 1), resource, entry)
        self.record.under_way = self.trials = self._ranked = None
        newest = self.record.newest
        log.info(
            "model %d: %s loses %s filters; %.4g %s, %.3g of the initial model's; accuracy %s",
            *(newest["number"], unit, "+".join(map(str, self._removed(newest, unit))), newest["resource"]),
            *(self.resource, newest["resource"] / self.record.initial),
            "unknown" if newest["accuracy"] is None else f"{newest['accuracy']:.4g}",
        )
        self._begin(trainer, module, round)

    @staticmethod
    def _removed(entry: Mapping[str, Any], unit: str) -> list[int]:
        return [n for one in entry["candidates"] if one["unit"] == unit for n in one["removed"].values()]

    def _finish(self, why: str, *values: Any) -> None:
        self.complete = True
        log.info(why, *values)

    # ---- what is written down -------------------------------------------------------------------------

    def _write(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        """Writes ``sequence.json``."""
        if not keeps_files(trainer) or not self.record.entries:
            return
        sequence = _sequence(module)
        under_way = None if self.trials is None else self.record.described(sequence, self.trials)
        write_sequence(
            run_folder(trainer),
            {
                "resource": self.resource,
                "initial": self.record.initial,
                "budget": self.budgets.final * self.record.initial,
                "clients": module.population.num_clients,
                "units": {unit: list(groups) for unit, groups in sequence.units.items()},
                "complete": self.complete,
                "models": self.record.entries,
                "under_way": under_way,
            },
        )

    # ---- checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the sequence and the iteration that is under way; plain values."""
        return {
            "complete": self.complete,
            **self.record.to_plain(),
            "trials": None if self.trials is None else self.trials.to_plain(),
            "measuring": self.measuring,
            "accuracy": self.accuracy,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the sequence and the iteration that is under way."""
        self.complete = state_dict["complete"]
        self.record = SequenceRecord.from_plain(state_dict)
        trials = state_dict["trials"]
        self.trials = None if trials is None else CandidateTrials.from_plain(trials)
        self.measuring, self.accuracy = state_dict["measuring"], state_dict["accuracy"]


def _sequence(module: FederatedLightningModule) -> PrunedSequence:
    return cast(PrunedSequence, module.supernet)  # ``setup`` has checked it
