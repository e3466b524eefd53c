"""Derives a larger model when training slows down: FedTrans' model transformer (section 4.1, Alg. 1)."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan, sqrt
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.messages import mean_loss
from lit_fednas.parts import described
from lit_fednas.ranges import NonNegativeFloat, PositiveInt, Range, UnitInterval, checked
from lit_fednas.records.files import replace_json
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import SUITE_FILE, step_words
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model, ModelSuite
from lit_fednas.supernets.growing.growth import NewUnits, Order, Step, plan, to_plain
from lit_fednas.supernets.side_by_side import members_of
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)


@checked("transform_on_convergence")
@dataclass(eq=False)
class TransformOnConvergence(FederatedCallback):
    """Adds a model to the suite when the degree of convergence is below a threshold.

    As the degree is a difference of noisy losses, it plus ``certainty`` times its standard error must be at most the
    threshold, and the newest model must have been trained in ``window`` rounds.

    The new model is derived from the newest one by transforming its most active cells; then the losses are collected
    again. It must fit the strongest device: if the selected cells make it too large, the least active of them are left
    out; if each of them alone does, the most active cell that does not is selected. When no cell is left, or
    ``max_models`` is reached, no more models are added, and training may stop at the next convergence. Deviations: the
    paper does not say whose loss it is, and has no noise of copies, which would have equal gradients forever.

    Logs ``transform/doc`` and its standard error ``transform/doc_error`` (NaN before there are gamma + delta losses)
    and ``transform/models``; writes ``suite.json`` (guide *records*).

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
        max_models: Maximum number of models, including the initial one.
        stop: Whether training stops when no larger model can be added and training has converged again.
    """

    supernet_kind: ClassVar[type] = ModelSuite
    state_names = ("losses", "activeness", "reasons", "complete", "converged")
    metric_names = ("transform/doc", "transform/doc_error", "transform/models")

    threshold: NonNegativeFloat = 0.003
    certainty: NonNegativeFloat = 1.0
    gamma: PositiveInt = 10
    delta: PositiveInt = 20
    alpha: UnitInterval = 0.9
    window: PositiveInt = 5
    factor: Annotated[float, Range(above=1)] = 2.0
    insert: PositiveInt = 1
    order: Order = "alternate"
    selection: Literal["activeness", "random"] = "activeness"
    warm_up: bool = True
    new_units: NewUnits = "drawn"
    noise: NonNegativeFloat = 0.1
    max_models: PositiveInt | None = None
    stop: bool = True

    def __post_init__(self) -> None:
        self.losses: list[float] = []  # of the cohorts since the newest model was added
        self.activeness: list[dict[str, float]] = []  # of the newest model
        self.reasons: list[dict[str, Any]] = []  # for each model that this callback has added
        self.complete = self.converged = False

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes the models so far; a run whose suite is complete and has converged stops again."""
        self._write(trainer, pl_module)
        trainer.should_stop |= self.stop and self.converged

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Measures the activeness of the newest model's cells, if the round has trained it."""
        suite = _suite(module)
        newest = len(suite.models) - 1

        def measure(averages: dict[str, Tensor]) -> None:
            activeness = [*self.activeness, cell_activeness(suite, newest, averages)][-self.window :]
            round.commit(self, activeness=activeness)

        if any(newest == model.number for result in round.survivors for model in members_of(result.task.arch)):
            round.watch(measure)

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if round.survivors:
            self.losses = [*self.losses, mean_loss(round.survivors)][-self.gamma - self.delta :]
        degree, error = degree_of_convergence(self.losses, self.gamma, self.delta)
        module.log("transform/doc", degree)
        module.log("transform/doc_error", error)
        # False for NaN
        has_converged = degree + self.certainty * error <= self.threshold and len(self.activeness) == self.window
        self.converged = has_converged and self.complete
        if has_converged and not self.complete:
            self._transform(trainer, module, round, degree)
        module.log("transform/models", float(len(_suite(module).models)))
        if self.stop and self.converged:
            log.info("round %d: the largest model is reached and training has converged", round.number + 1)
            trainer.should_stop = True

    def _transform(
        self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound, degree: float
    ) -> None:
        """Adds the first selected model that a device can run."""
        suite = _suite(module)
        parent = suite.models[-1]
        cells, rounds = self.activeness[0], self.activeness
        activeness = {cell: sum(each[cell] for each in rounds) / len(rounds) for cell in cells}
        full = self.max_models is not None and len(suite.models) >= self.max_models
        steps = None if full else self._first_that_fits(module, activeness)
        if steps is None:
            self.complete = True
            log.info("round %d: no larger model is added; %d models", round.number + 1, len(suite.models))
        else:
            self.reasons.append({"degree_of_convergence": degree, "activeness": activeness})
            self.activeness = []
            settings = module.seed, round.number, self.noise, self.warm_up, self.new_units
            round.restructure(lambda: suite.add(parent.number, steps, *settings))
            log.info(
                "round %d: model %d, derived from model %d (%s): %d MACs, %s",
                *(round.number + 1, parent.number + 1, parent.number, step_words(to_plain(steps))),
                *(suite.macs(Model(parent.number + 1)), suite.models[-1].blueprint),
            )
        self.losses = []
        self._write(trainer, module)

    def _first_that_fits(
        self, module: FederatedLightningModule, activeness: Mapping[str, float]
    ) -> tuple[Step, ...] | None:
        """Returns the steps of the first selection of cells whose model fits a device."""
        suite = _suite(module)
        parent, number = suite.models[-1], len(suite.models)
        tiers = [tier for tier in module.population.tiers if module.population.members(tier.name)]
        for cells in dict.fromkeys(self._selections(suite, activeness, module.seed)):
            if steps := plan(parent.blueprint, cells, number, self.factor, self.insert, self.order):
                costs = ArchitectureCosts(suite.planned(parent.number, steps))
                if not tiers or any(costs.excess("whole", tier) == 0 for tier in tiers):
                    return steps
        return None

    def _selections(self, suite: ModelSuite, activeness: Mapping[str, float], seed: int) -> Iterator[tuple[str, ...]]:
        """Yields cells to transform: the selected ones, always fewer of them, then every other cell alone."""
        blueprint = suite.models[-1].blueprint
        growable = {cell: value for cell, value in activeness.items() if blueprint.cell(cell).growable}
        ranked = sorted(growable, key=lambda cell: -growable[cell])
        count = sum(value >= self.alpha * growable[ranked[0]] for value in growable.values())
        if self.selection == "random":
            rng = numpy_generator(seed, "random-cells", len(suite.models))
            ranked = [ranked[index] for index in rng.permutation(len(ranked))]
        yield from (tuple(ranked[:fewer]) for fewer in range(count, 0, -1))
        yield from ((cell,) for cell in ranked[1:])

    def _write(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        if not keeps_files(trainer):
            return
        suite = _suite(module)
        given = len(suite.models) - len(self.reasons)  # the first, and those of an initial checkpoint
        reasons = [{"degree_of_convergence": None, "activeness": {}}] * given + self.reasons
        models = zip(suite.model_rows(), suite.models, reasons, strict=True)
        rows = [{**row, "steps": to_plain(model.steps), **reason} for row, model, reason in models]
        tiers = [asdict(tier) for tier in module.population.tiers]
        begun = {"family": described(suite.family), "tiers": tiers}
        replace_json(run_folder(trainer) / SUITE_FILE, {"models": rows, "complete": self.complete, **begun})


def _suite(module: FederatedLightningModule) -> ModelSuite:
    return cast(ModelSuite, module.supernet)  # ``setup`` has checked it


def degree_of_convergence(losses: Sequence[float], gamma: int, delta: int) -> tuple[float, float]:
    """Returns the mean of the last ``gamma`` slopes of the loss, each over ``delta`` rounds (Eq. 1), and its error.

    The standard error is that of losses which are a trend and independent noise; both are NaN of too few losses.
    """
    if len(losses) < gamma + delta:
        return nan, nan
    slopes = [(losses[-index - delta] - losses[-index]) / delta for index in range(1, gamma + 1)]
    steps = [after - before for before, after in pairwise(losses[-gamma - delta :])]
    mean = sum(steps) / len(steps)
    # of the noise: half of that of the differences of successive losses (von Neumann, 1941)
    variance = sum((step - mean) ** 2 for step in steps) / len(steps) / 2
    # in the sum of the slopes all losses but the first and the last min(gamma, delta) cancel out
    return sum(slopes) / gamma, sqrt(variance * 2 * min(gamma, delta)) / gamma / delta


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
