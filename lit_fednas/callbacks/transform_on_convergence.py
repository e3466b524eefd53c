"""Derives a larger model when training slows down: FedTrans' model transformer (section 4.1, Alg. 1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import nan, sqrt
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.trainer import keeps_files, run_folder
from lit_fednas.parts import described
from lit_fednas.ranges import NonNegativeFloat, PositiveInt, Range, UnitInterval, checked
from lit_fednas.records.run import step_words, write_suite
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model, ModelSuite, members_of
from lit_fednas.supernets.growing.growth import NewUnits, Order, Step, plan, to_plain
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)


@checked("transform_on_convergence")
class TransformOnConvergence(FederatedCallback):
    """Adds a model to the suite when the degree of convergence is below a threshold.

    The degree is a difference of noisy losses. If its noise exceeded the threshold, models would be added as soon as
    there are enough losses, whatever the training does. So the degree plus ``certainty`` times its standard error
    (:func:`standard_error`) must be at most the threshold, and the newest model must have been trained in ``window``
    rounds.

    The new model is derived from the newest one by transforming its most active cells. Then the losses are collected
    again. A model must fit the strongest device: if the selected cells make it too large, the least active of them are
    left out; if each of them alone does, the most active cell that does not is selected. When no cell is left, or
    ``max_models`` is reached, no more models are added, and training may stop at the next convergence.

    The paper does not say whose loss it is: by default that of the round's whole cohort, as few clients may train
    the newest model, and their losses are noisy. The noise of copies is ours: without it, copies of a unit would have
    equal gradients forever (``lit_fednas.supernets.growing.growth``).

    Logs ``transform/doc`` and its standard error ``transform/doc_error`` (NaN before there are gamma + delta losses)
    and ``transform/models``; writes ``suite.json`` (``lit_fednas.records``).

    Args:
        threshold: beta; the degree of convergence, per round, at which a model is transformed.
        certainty: The number of standard errors by which the degree must be below it; 0 for Eq. 1 alone.
        gamma: Slopes in the degree of convergence.
        delta: Rounds of a slope.
        alpha: Cells are transformed whose activeness is at least this share of the largest.
        window: T; the number of rounds that trained the model over which activeness is averaged.
        factor: The factor by which the units of a widened cell are multiplied.
        insert: Cells that are inserted behind a deepened one.
        order: Whether cells are widened and deepened in turns, or only one of both.
        selection: ``random`` selects as many cells at random (Table 3, without layer selection).
        warm_up: Whether a new model inherits weights (Table 3, without warm-up).
        new_units: New units of a widened cell are ``drawn``, and have no outgoing weights at first, or are ``copies``
            of others (the paper).
        noise: Standard deviation of the parts that copies of a unit have, relative to an even division.
        loss: Of the whole ``cohort``, or of the clients that train the ``newest`` model.
        max_models: Maximum number of models, including the initial one.
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
        self.losses: dict[int, list[float]] = {}  # by model; those of the cohort under the newest
        self.activeness: list[dict[str, float]] = []  # of the newest model
        self.reasons: list[dict[str, Any]] = []  # for each model that this callback has added
        self.complete = False
        self.converged = False

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes the models so far; a run whose suite is complete and has converged stops again."""
        self._write(trainer, pl_module)
        trainer.should_stop |= self._at_the_end

    @property
    def _at_the_end(self) -> bool:
        return self.stop and self.complete and self.converged

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
        degree, error = self._degree(newest)
        module.log("transform/doc", degree)
        module.log("transform/doc_error", error)
        self.converged = False
        if self._has_converged(newest) and len(self.activeness) == self.window:
            if not self.complete:
                self._transform(trainer, module, round, degree)
            else:
                numbers = range(newest + 1) if self.loss == "newest" else [newest]
                self.converged = all(map(self._has_converged, numbers))
        module.log("transform/models", float(len(suite.models)))

    def _degree(self, number: int) -> tuple[float, float]:
        """Returns a model's degree of convergence and its standard error."""
        losses = self.losses.get(number, [])
        return degree_of_convergence(losses, self.gamma, self.delta), standard_error(losses, self.gamma, self.delta)

    def _has_converged(self, number: int) -> bool:
        degree, error = self._degree(number)
        return degree + self.certainty * error <= self.threshold  # False for NaN

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Stops when the suite is complete and has converged."""
        if self._at_the_end:
            log.info("round %d: the largest model has been reached and training has converged", trainer.current_epoch)
            trainer.should_stop = True

    def _note_losses(self, round: ServerRound, newest: int) -> None:
        """Adds the round's mean losses, weighted by examples."""
        seen: dict[int, list[tuple[float, int]]] = {}
        for result in round.survivors:
            number = newest if self.loss == "cohort" else result.task.arch.number
            seen.setdefault(number, []).append((result.loss, result.num_seen))
        most = self.gamma + self.delta
        for number, pairs in seen.items():
            mean = sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)
            self.losses[number] = [*self.losses.get(number, []), mean][-most:]

    def _transform(
        self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound, degree: float
    ) -> None:
        """Adds the first selected model that a device can run."""
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
        if not keeps_files(trainer):
            return
        suite = _suite(module)
        given = len(suite.models) - len(self.reasons)  # the first, and those of an initial checkpoint
        reasons = [{"degree_of_convergence": None, "activeness": {}}] * given + self.reasons
        rows = [
            {**row, "steps": to_plain(model.steps), **reason}
            for row, model, reason in zip(suite.model_rows(), suite.models, reasons, strict=True)
        ]
        tiers = [asdict(tier) for tier in module.population.tiers]
        write_suite(run_folder(trainer), rows, self.complete, described(suite.family), tiers)

    def state_dict(self) -> dict[str, Any]:
        """Returns losses, activeness and the models' reasons; plain values."""
        return {
            "losses": {number: list(losses) for number, losses in self.losses.items()},
            "activeness": [dict(one) for one in self.activeness],
            "reasons": list(self.reasons),
            "complete": self.complete,
            "converged": self.converged,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores losses, activeness and the models' reasons."""
        self.losses = {int(number): list(losses) for number, losses in state_dict["losses"].items()}
        self.activeness = [dict(one) for one in state_dict["activeness"]]
        self.reasons = list(state_dict["reasons"])
        self.complete, self.converged = state_dict["complete"], state_dict["converged"]


def _suite(module: FederatedLightningModule) -> ModelSuite:
    return cast(ModelSuite, module.supernet)  # ``setup`` has checked it


def degree_of_convergence(losses: Sequence[float], gamma: int, delta: int) -> float:
    """Returns the mean of the last ``gamma`` slopes of the loss per round, each over ``delta`` rounds (Eq. 1).

    DoC = 1/gamma * sum over i of (L(i - delta) - L(i)) / delta, for i = the last round and the gamma - 1 before; NaN
    with fewer than gamma + delta losses. The faster the loss falls, the greater it is. (Eq. 1 prints i from 1 to
    gamma, without a round to count from.)

    Example:
        >>> degree_of_convergence([3.0, 2.0, 1.5, 1.25], gamma=2, delta=2)  # (1.5 + 0.75) / 2 / 2
        0.5625
    """
    if len(losses) < gamma + delta:
        return nan
    slopes = [(losses[-index - delta] - losses[-index]) / delta for index in range(1, gamma + 1)]
    return sum(slopes) / gamma


def standard_error(losses: Sequence[float], gamma: int, delta: int) -> float:
    """Returns the standard error of the degree of convergence, if the losses are a trend and independent noise.

    In the sum of the slopes all losses but the first and the last min(gamma, delta) cancel out. The variance of the
    noise is half of that of the differences of successive losses (von Neumann, 1941). NaN as the degree.

    Example:
        >>> standard_error([3.0, 2.0, 1.0, 0.0], gamma=2, delta=2)
        0.0
        >>> round(standard_error([1.0, 0.0, 1.0, 0.0, 1.0], gamma=2, delta=3), 4)  # sqrt(1 / 2 * 2 * 2) / 2 / 3
        0.2357
    """
    if len(losses) < gamma + delta:
        return nan
    window = losses[-gamma - delta :]
    steps = [after - before for before, after in pairwise(window)]
    mean = sum(steps) / len(steps)
    variance = sum((step - mean) ** 2 for step in steps) / len(steps) / 2
    return sqrt(variance * 2 * min(gamma, delta)) / gamma / delta


@torch.no_grad()
def cell_activeness(suite: ModelSuite, number: int, averages: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns each cell's norm of the clients' average update over the norm of its weights, without buffers."""
    shared = dict(suite.named_parameters())
    squares: dict[str, list[Tensor]] = {}
    start = f"networks.{number}.cells."
    for name, weights in shared.items():
        if name.startswith(start):
            cell = name.removeprefix(start).partition(".")[0]
            moved = (averages[name] - weights).square().sum()
            squares.setdefault(cell, []).append(torch.stack([moved, weights.square().sum()]))
    activeness = {}
    for cell, pairs in squares.items():
        moved, present = torch.stack(pairs).double().sum(0).sqrt().tolist()
        activeness[cell] = moved / present if present > 0 else float("inf") if moved > 0 else 0.0
    return activeness


def mean_activeness(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over rounds, by cell.

    Example:
        >>> mean_activeness([{"conv1": 0.25, "head": 0.5}, {"conv1": 0.75, "head": 0.5}])
        {'conv1': 0.5, 'head': 0.5}
    """
    return {cell: sum(one[cell] for one in rounds) / len(rounds) for cell in rounds[0]} if rounds else {}


def most_active(activeness: Mapping[str, float], alpha: float) -> list[str]:
    """Returns the cells whose activeness is at least ``alpha`` times the largest, the most active first.

    Example:
        >>> most_active({"conv1": 0.5, "conv2": 1.0, "conv3": 0.95}, alpha=0.9)
        ['conv2', 'conv3']
    """
    if not activeness:
        return []
    largest = max(activeness.values())
    ranked = sorted(activeness, key=lambda cell: -activeness[cell])
    return [cell for cell in ranked if activeness[cell] >= alpha * largest]
