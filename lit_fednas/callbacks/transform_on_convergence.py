"""Derives a larger model when training slows down: FedTrans' model transformer (section 4.1, Alg. 1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal, cast

from typing_extensions import override

from lit_fednas.callbacks.activeness import cell_activeness, mean_activeness, most_active
from lit_fednas.callbacks.convergence import degree_of_convergence, standard_error
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.run_folder import keeps_files, run_folder
from lit_fednas.parts import described
from lit_fednas.ranges import NonNegativeFloat, PositiveInt, Range, UnitInterval, checked
from lit_fednas.records.models import step_words, write_suite
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model, ModelSuite, members_of
from lit_fednas.supernets.growing.growth import NewUnits, Order, Step, plan, to_plain
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)


@checked("transform_on_convergence")
class TransformOnConvergence(FederatedCallback):
    """Adds a model to the suite whenever the degree of convergence is at most a threshold.

    The degree is a difference of noisy losses, and where its noise exceeds the threshold, models would be added as soon
    as there are enough losses, whatever the training does. So it must be below the threshold by its own standard error
    (:func:`~lit_fednas.callbacks.convergence.standard_error`), times ``certainty``; and the newest model must have been
    trained in ``window`` rounds.

    The new model is derived from the newest, and transforms its most active cells. Counting then starts anew. A
    model must fit the strongest device: if the selected cells make it too large, the least active of them are left
    out, and if each of them does, the most active cell is taken that does not. When no cell is left, or there are
    as many models as asked, nothing is added any more, and training may stop at the next convergence.

    The paper does not say whose loss it is: by default that of the round's whole cohort, for few clients may train
    the newest model, and their losses are noisy. The noise is ours: without it, copies of a unit would get the
    same gradients for ever (``lit_fednas.supernets.growing.growth``).

    Logs ``transform/doc`` and its standard error ``transform/doc_error`` (NaN before there are gamma + delta losses)
    and ``transform/models``; writes ``suite.json`` (``lit_fednas.records.models``).

    Args:
        threshold: beta; the degree of convergence, per round, at which a model is transformed.
        certainty: How many standard errors the degree of convergence must be below it; 0 for Eq. 1 alone.
        gamma: Slopes in the degree of convergence.
        delta: Rounds that a slope goes over.
        alpha: Cells are transformed whose activeness is at least so many times the largest.
        window: T; rounds over which activeness is averaged, of those in which the model was trained.
        factor: How many times the units a widened cell has.
        insert: Cells that are inserted behind a deepened one.
        order: Whether cells are widened and deepened in turns, or only the one.
        selection: ``random`` takes as many cells, drawn at random (Table 3, without layer selection).
        warm_up: Whether a new model inherits weights (Table 3, without warm-up).
        new_units: The units that a widened cell did not have are ``drawn`` anew, and nothing takes them in at first,
            or they are ``copies`` of others (the paper).
        noise: Standard deviation of the parts that copies of a unit have, relative to an even division.
        loss: Of the whole ``cohort``, or of the clients that train the ``newest`` model.
        max_models: How many models there shall be at most, the initial one included.
        stop: Whether training stops when no larger model can be added and training (of every model, if ``loss`` is
            ``newest``) has converged again.

    Raises:
        ConfigError: A number is out of range, or the supernet is not a suite of models.
    """

    supernet_kind: ClassVar[type] = ModelSuite

    def __init__(
        self,
        threshold: NonNegativeFloat = 0.003,
        certainty: NonNegativeFloat = 1.0,
        gamma: PositiveInt = 10,
        delta: PositiveInt = 20,
        alpha: UnitInterval = 0.9,
        window: PositiveInt = 5,
        factor: Annotated[float, Range(above=1)] = 2.0,
        insert: PositiveInt = 1,
        order: Order = "alternate",
        selection: Literal["activeness", "random"] = "activeness",
        warm_up: bool = True,
        new_units: NewUnits = "drawn",
        noise: NonNegativeFloat = 0.1,
        loss: Literal["cohort", "newest"] = "cohort",
        max_models: PositiveInt | None = None,
        stop: bool = True,
    ) -> None:
        self.threshold, self.certainty, self.gamma, self.delta = threshold, certainty, gamma, delta
        self.alpha, self.window = alpha, window
        self.factor, self.insert, self.order = factor, insert, order
        self.selection, self.warm_up = selection, warm_up
        self.new_units, self.noise = new_units, noise
        self.loss, self.max_models, self.stop = loss, max_models, stop
        self.losses: dict[int, list[float]] = {}  # of each model, or of the cohort under that of the newest
        self.activeness: list[dict[str, float]] = []  # of the newest model
        self.reasons: list[dict[str, Any]] = []  # why each model that this callback has added was
        self.complete = False
        self.converged = False

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes down the models so far; a run that had come to its end stays there."""
        self._write(trainer, pl_module)
        trainer.should_stop |= self._at_the_end

    @property
    def _at_the_end(self) -> bool:
        return self.stop and self.complete and self.converged

    # ---- what a round shows ---------------------------------------------------------------------------

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Measures the activeness of the newest model's cells, if the round has trained it."""
        suite = _suite(module)
        newest = len(suite.models) - 1
        if any(newest == model.number for one in round.survivors for model in members_of(one.task.arch)):
            round.watch(lambda averages: self._measure(cell_activeness(suite, newest, averages)))

    def _measure(self, activeness: dict[str, float]) -> None:
        self.activeness = [*self.activeness, activeness][-self.window :]

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Adds a model if training has slowed down."""
        suite = _suite(module)
        newest = len(suite.models) - 1
        self._note_losses(round, newest)
        losses = self.losses.get(newest, [])
        degree = degree_of_convergence(losses, self.gamma, self.delta)
        error = standard_error(losses, self.gamma, self.delta)
        module.log("transform/doc", float("nan") if degree is None else degree)
        module.log("transform/doc_error", float("nan") if error is None else error)
        self.converged = False
        if self._has_converged(newest) and len(self.activeness) == self.window:
            if not self.complete:
                assert degree is not None
                self._transform(trainer, module, round, degree)
            else:
                numbers = range(newest + 1) if self.loss == "newest" else [newest]
                self.converged = all(map(self._has_converged, numbers))
        module.log("transform/models", float(len(suite.models)))

    def _has_converged(self, number: int) -> bool:
        """Returns whether a model's degree of convergence is below the threshold for sure."""
        losses = self.losses.get(number, [])
        degree = degree_of_convergence(losses, self.gamma, self.delta)
        error = standard_error(losses, self.gamma, self.delta)
        return degree is not None and error is not None and degree + self.certainty * error <= self.threshold

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Stops when all is done."""
        if self._at_the_end:
            log.info("round %d: the largest model has been reached and training has converged", trainer.current_epoch)
            trainer.should_stop = True

    def _note_losses(self, batch: ServerRound, newest: int) -> None:
        """Adds the round's mean losses, weighted by examples."""
        seen: dict[int, list[tuple[float, int]]] = {}
        for result in batch.survivors:
            of = newest if self.loss == "cohort" else result.task.arch.number
            seen.setdefault(of, []).append((result.loss, result.num_seen))
        most = self.gamma + self.delta
        for number, pairs in seen.items():
            mean = sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)
            self.losses[number] = [*self.losses.get(number, []), mean][-most:]

    # ---- the transformation ---------------------------------------------------------------------------

    def _transform(
        self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound, degree: float
    ) -> None:
        """Adds the largest of the models in question that a device can run."""
        suite = _suite(module)
        parent = suite.models[-1]
        activeness = mean_activeness(self.activeness)
        full = self.max_models is not None and len(suite.models) >= self.max_models
        steps = None if full else self._first_that_fits(module, activeness)
        if steps is None:
            self.complete = True
            log.info("round %d: no larger model is added; %d models", round.number, len(suite.models))
        else:
            self.reasons.append({"degree_of_convergence": degree, "activeness": activeness})
            self.activeness = []
            round.restructure(
                lambda: suite.add(
                    parent.number, steps, module.seed, round.number, self.noise, self.warm_up, self.new_units
                )
            )
            log.info(
                "round %d: model %d, derived from model %d (%s): %d MACs, %s",
                *(round.number, parent.number + 1, parent.number, step_words(to_plain(steps))),
                *(suite.macs(Model(parent.number + 1)), suite.models[-1].blueprint),
            )
        if self.loss == "cohort":
            self.losses = {}
        self._write(trainer, module)

    def _first_that_fits(
        self, module: FederatedLightningModule, activeness: Mapping[str, float]
    ) -> tuple[Step, ...] | None:
        """Returns the steps of the first selection of cells whose model fits a device."""
        suite = _suite(module)
        parent = suite.models[-1]
        tried = set()
        for cells in self._selections(suite, activeness, module.seed):
            steps = plan(parent.blueprint, cells, len(suite.models), self.factor, self.insert, self.order)
            if not steps or cells in tried:
                continue
            tried.add(cells)
            planned = suite.planned(parent.number, steps)
            costs, arch = ArchitectureCosts(planned), Model(len(suite.models))
            tiers = [tier for tier in module.population.tiers if module.population.members(tier.name)]
            if not tiers or any(costs.excess(arch, tier) == 0 for tier in tiers):
                return steps
        return None

    def _selections(self, suite: ModelSuite, activeness: Mapping[str, float], seed: int) -> Iterator[tuple[str, ...]]:
        """Yields cells to transform: the selected ones, always fewer of them, then every other cell alone."""
        blueprint = suite.models[-1].blueprint
        growable = {cell: value for cell, value in activeness.items() if blueprint.cell(cell).growable}
        ranked = sorted(growable, key=lambda cell: -growable[cell])
        count = len(most_active(growable, self.alpha))
        if self.selection == "random":
            rng = numpy_generator(seed, "random-cells", len(suite.models))
            ranked = [ranked[index] for index in rng.permutation(len(ranked))]
        for fewer in range(count, 0, -1):
            yield tuple(ranked[:fewer])
        for cell in ranked[1:]:
            yield (cell,)

    def _write(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        """Writes ``suite.json``."""
        if not keeps_files(trainer):
            return
        suite = _suite(module)
        rows = []
        given = len(suite.models) - len(self.reasons)  # the first, and what was there before this callback
        reasons = [{"degree_of_convergence": None, "activeness": {}}] * given + self.reasons
        for model, reason in zip(suite.models, reasons, strict=True):
            cost = suite.cost(Model(model.number))
            rows.append(
                {
                    "number": model.number,
                    "parent": model.parent,
                    "round": model.round,
                    "cells": str(model.blueprint),
                    "macs": cost.macs,
                    "parameters": cost.parameters,
                    "bytes": cost.bytes,
                    "steps": to_plain(model.steps),
                    **reason,
                }
            )
        tiers = [asdict(tier) for tier in module.population.tiers]
        write_suite(run_folder(trainer), rows, self.complete, described(suite.family), tiers)

    # ---- checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what later rounds need; plain values."""
        return {
            "losses": {number: list(losses) for number, losses in self.losses.items()},
            "activeness": [dict(one) for one in self.activeness],
            "reasons": list(self.reasons),
            "complete": self.complete,
            "converged": self.converged,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what later rounds need."""
        self.losses = {int(number): list(losses) for number, losses in state_dict["losses"].items()}
        self.activeness = [dict(one) for one in state_dict["activeness"]]
        self.reasons = list(state_dict["reasons"])
        self.complete, self.converged = state_dict["complete"], state_dict["converged"]


def _suite(module: FederatedLightningModule) -> ModelSuite:
    return cast(ModelSuite, module.supernet)  # ``setup`` has checked it
