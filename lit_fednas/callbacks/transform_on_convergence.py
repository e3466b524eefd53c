"""FedTrans' model transformer, which adds a larger model when training converges (section 4.1, Alg. 1)."""

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

    As the degree is a difference of noisy losses, the sum of the degree and ``certainty`` times its standard error must
    be at most the threshold, and ``window`` rounds must have trained the newest model.

    The new model is the newest one with its most active cells transformed; then the losses are collected again. The
    strongest device must be able to run it. If the selected cells make it too large, the least active are left out; if
    each cell alone does, the most active other cell is tried. When no cell is left, or ``max_models`` is reached, no
    model is added, and training may stop at the next convergence. Deviations: The loss is the mean over the cohort,
    which the paper does not define. Copies have noise, as their gradients would be equal forever without it.

    Logs ``transform/doc`` and its standard error ``transform/doc_error`` (NaN for fewer than gamma + delta losses) and
    ``transform/models``; writes ``suite.json`` (guide *records*).

    Args:
        threshold: beta; the degree of convergence per round at which a model is transformed.
        certainty: Number of standard errors by which the degree must be below the threshold; 0 for Eq. 1 alone.
        gamma: Number of slopes in the degree of convergence.
        delta: Number of rounds per slope.
        alpha: Minimum activeness of a transformed cell, as a share of the largest.
        window: T; the number of rounds with the newest model over which activeness is averaged.
        factor: Factor of the units of a widened cell.
        insert: Number of cells that are inserted behind a deepened cell.
        order: The transformations: widening and deepening in turns, or only one of them.
        selection: Cells by ``activeness``, or as many ``random`` cells (Table 3, without layer selection).
        warm_up: Whether a new model inherits weights (Table 3, without warm-up).
        new_units: New units of a widened cell are ``drawn``, with outgoing weights of 0, or ``copies`` (the paper).
        noise: Standard deviation of the shares by which copies divide a unit, relative to equal shares.
        max_models: Maximum number of models, including the initial one; unlimited by default.
        stop: Whether training stops when it has converged and no larger model can be added.
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
        self.losses: list[float] = []  # mean losses per round since the newest model was added
        self.activeness: list[dict[str, float]] = []  # the newest model's cells, per round
        self.reasons: list[dict[str, Any]] = []  # one per model that this callback has added
        self.complete = self.converged = False

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._write(trainer, pl_module)
        trainer.should_stop |= self.stop and self.converged  # a finished run stops again

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Measures the activeness of the newest model's cells if the round trains the model."""
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
        # The comparison is false for NaN.
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
        """Adds the first model of :meth:`_selections` that a device can run."""
        suite = _suite(module)
        parent = suite.models[-1]
        history = self.activeness
        activeness = {cell: sum(values[cell] for values in history) / len(history) for cell in history[0]}
        is_full = self.max_models is not None and len(suite.models) >= self.max_models
        steps = None if is_full else self._first_that_fits(module, activeness)
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
        """Returns the steps of the first selection of cells with a model that fits a device."""
        suite = _suite(module)
        parent, number = suite.models[-1], len(suite.models)
        tiers = [tier for tier in module.population.tiers if module.population.members(tier.name)]
        for cells in dict.fromkeys(self._selections(suite, activeness, module.seed)):
            if steps := plan(parent.blueprint, cells, number, self.factor, self.insert, self.order):
                costs = ArchitectureCosts(suite.planned_network(parent.number, steps))
                if not tiers or any(costs.excess("whole", tier) == 0 for tier in tiers):
                    return steps
        return None

    def _selections(self, suite: ModelSuite, activeness: Mapping[str, float], seed: int) -> Iterator[tuple[str, ...]]:
        """Yields sets of cells to transform: the most active ones, ever fewer of them, then each other cell."""
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
        num_initial = len(suite.models) - len(self.reasons)  # the first model, and those of an initial checkpoint
        reasons = [{"degree_of_convergence": None, "activeness": {}}] * num_initial + self.reasons
        models = zip(suite.model_rows(), suite.models, reasons, strict=True)
        rows = [{**row, "steps": to_plain(model.steps), **reason} for row, model, reason in models]
        tiers = [asdict(tier) for tier in module.population.tiers]
        settings = {"family": described(suite.family), "tiers": tiers}
        replace_json(run_folder(trainer) / SUITE_FILE, {"models": rows, "complete": self.complete, **settings})


def _suite(module: FederatedLightningModule) -> ModelSuite:
    return cast(ModelSuite, module.supernet)  # ``setup`` has validated the type


def degree_of_convergence(losses: Sequence[float], gamma: int, delta: int) -> tuple[float, float]:
    """Returns the mean of the last ``gamma`` slopes of the loss, each over ``delta`` rounds (Eq. 1), and its error.

    The standard error assumes losses of a trend with independent noise. Both values are NaN for too few losses.
    """
    if len(losses) < gamma + delta:
        return nan, nan
    slopes = [(losses[-index - delta] - losses[-index]) / delta for index in range(1, gamma + 1)]
    steps = [second - first for first, second in pairwise(losses[-gamma - delta :])]
    mean = sum(steps) / len(steps)
    # The noise has half the variance of differences of successive losses (von Neumann, 1941).
    variance = sum((step - mean) ** 2 for step in steps) / len(steps) / 2
    # In the sum of slopes all losses cancel out except the first and the last min(gamma, delta).
    return sum(slopes) / gamma, sqrt(variance * 2 * min(gamma, delta)) / gamma / delta


@torch.no_grad()
def cell_activeness(suite: ModelSuite, number: int, averages: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns each cell's norm of the average update, relative to the norm of its weights, without buffers."""
    shared = dict(suite.named_parameters())
    squares: dict[str, list[Tensor]] = {}
    prefix = f"networks.{number}.cells."
    for name, weights in shared.items():
        if name.startswith(prefix):
            cell = name.removeprefix(prefix).partition(".")[0]
            squared_update = (averages[name] - weights).square().sum()
            squares.setdefault(cell, []).append(torch.stack([squared_update, weights.square().sum()]))
    activeness = {}
    for cell, pairs in squares.items():
        update_norm, weight_norm = torch.stack(pairs).double().sum(0).sqrt().tolist()
        activeness[cell] = update_norm / weight_norm if weight_norm > 0 else float("inf") if update_norm > 0 else 0.0
    return activeness
