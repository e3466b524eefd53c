"""Methods as data: one row per run with the value of each factor, so that few runs cover the pairs of values.

Tests use them to compare runs on several ranks, resumed runs, stacked clients, and runs over devices. ``test_methods``
validates the covered pairs; a new assignment, aggregation or objective needs a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lit_fednas import assignment, objectives
from lit_fednas.aggregation import Aggregation, ClassAverage, MaxNet, OperatorAverage, OverlapAverage
from lit_fednas.assignment import Assignment
from lit_fednas.callbacks import (
    BetaDecay,
    DeviceAverage,
    PoolGrowth,
    Privacy,
    PruneByBudgets,
    SoftAverage,
    TransformOnConvergence,
    WeightAverage,
)
from lit_fednas.data import IID, ArraySource, Dirichlet, Examples, FederatedDataModule, MultiLabel, Regression, Task
from lit_fednas.federation import (
    ClientSettings,
    CyclicCohort,
    EvaluationSettings,
    FaultPolicy,
    FedAdam,
    FederatedCallback,
    FederatedLightningModule,
    FedYogi,
    PoissonCohort,
    UniformCohort,
)
from lit_fednas.objectives import Objective, WrappedObjective
from lit_fednas.supernets import (
    BaseNetworks,
    CellSupernet,
    EarlyExitResNet,
    ElasticResNet,
    ElasticTCN,
    GroupNorm,
    PathCNN,
    PathRNN,
    PlainNetwork,
    SlicedCNN,
    Supernet,
    WidthSupernet,
)
from lit_fednas.supernets.elastic_networks import ChannelsAndTokens
from lit_fednas.tiers import ArchitectureTiers, Budgets, ClientTiers
from lit_fednas.transport import Float16, Int8, Transport
from tests.examples.depthfl import DepthFL
from tests.examples.feddyn import FedDyn
from tests.federation.tokens import LENGTH, VOCABULARY, token_data
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite
from tests.support import make_module, seeded, sgd, tiny_data, tiny_examples

ROUNDS = 3
IMAGE, OUTPUTS = (1, 8, 8), 4

# ---- tasks and data -----------------------------------------------------------------------------------


def image_data(task: Task | None = None, **settings: Any) -> FederatedDataModule:
    """Images with classes; for another task, with numbers or labels for the light in their quarters."""
    if task is None:
        return tiny_data(num_clients=7, partitioner=Dirichlet(alpha=1.0, min_size=4), **settings)
    splits = []
    for seed, count in enumerate((120, 40, 40)):
        examples = tiny_examples(count, seed)
        splits.append(Examples(examples.inputs, torch.eye(OUTPUTS)[examples.targets]))
    return FederatedDataModule(ArraySource(*splits, task=task), IID(), num_clients=7, **settings)


SUBJECTS: dict[str, Callable[..., FederatedDataModule]] = {
    "images": image_data,
    "tokens": token_data,
    "numbers": partial(image_data, Regression(OUTPUTS)),
    "labels": partial(image_data, MultiLabel(OUTPUTS)),
}

# ---- shared weights -----------------------------------------------------------------------------------
# no norms, or group norm, because batch norms would amplify roundings of the weights


def steady_net(shape: tuple[int, ...], classes: int) -> ElasticResNet:
    sizes = {"stem_width": 4, "stage_widths": [8, 16], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}
    return ElasticResNet(shape, classes, norm=GroupNorm(2), width_multipliers=[0.5, 1.0], **sizes)


def counting_net(shape: tuple[int, ...], classes: int) -> PlainNetwork:
    """A network with batch norm: its running statistics and counter are averaged too."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, classes))
    return PlainNetwork(layers, shape, classes)


def steady_tokens(shape: tuple[int, ...], classes: int) -> ElasticTCN:
    """An elastic TCN with an embedding that learns in a few steps."""
    net = ElasticTCN(shape, classes, channels=10, depths=[0, 1], ratios=[0.2, 0.5])
    nn.init.normal_(net.network.get_parameter("embedding.weight"), std=0.5)
    return net


def counting_tokens(shape: tuple[int, ...], classes: int) -> PlainNetwork:
    """Like :func:`counting_net`, for tokens; padding is included in the norm's statistics."""
    norm = nn.Sequential(ChannelsAndTokens(), nn.BatchNorm1d(8), ChannelsAndTokens())
    layers = nn.Sequential(nn.Embedding(classes, 8), norm, nn.Dropout(0.2), nn.Linear(8, classes))
    return PlainNetwork(layers, shape, classes, torch.int64)


NETS: dict[str, Callable[[tuple[int, ...], int], Supernet]] = {
    "elastic": steady_net,
    "counting": counting_net,
    "operators": lambda *sizes: PathCNN(*sizes, width=8, stage_layers=[1, 1], strides=[2, 2], norm=GroupNorm(2)),
    "widths": lambda *sizes: WidthSupernet(*sizes, SlicedCNN((4, 6), norm=None), widths=[1, 0.5]),
    "bases": lambda *sizes: BaseNetworks(*sizes, SlicedCNN((8, 8), norm=None), count=4),
    "exits": lambda *sizes: EarlyExitResNet(*sizes, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2]),
    "suites": lambda shape, classes: grown_suite(input_shape=shape, num_classes=classes),
    "sequences": lambda shape, classes: pruned_sequence(hidden=(6, 8), input_shape=shape, num_classes=classes),
    "cells": lambda *sizes: CellSupernet(*sizes, width=4, cells=3, nodes=1, norm=GroupNorm(4)),
}
#: Networks of tokens; the other kinds support images alone.
TOKEN_NETS: dict[str, Callable[[tuple[int, ...], int], Supernet]] = {
    "elastic": steady_tokens,
    "counting": counting_tokens,
    "operators": lambda *sizes: PathRNN(*sizes, embedding=4, width=6, operators=["qrnn", "linear", "id", "zero"]),
}

# ---- parts --------------------------------------------------------------------------------------------


class Troubled(WrappedObjective):
    """Two clients fail: one raises an error, and one has a NaN loss."""

    def begin(self, network, task, generator):
        self.client = task.client
        super().begin(network, task, generator)

    def loss(self, network, inputs, targets):
        if self.client == 1:
            raise ArithmeticError("seven apples")
        loss = self.objective.loss(network, inputs, targets)
        return loss * torch.nan if self.client == 2 else loss


class OwnSteps(assignment.FixedArchitecture):
    """Clients take one, two or three steps."""

    def plan(self, round):
        return [replace(task, steps=1 + task.client % 3) for task in super().plan(round)]


LOSSES: dict[str, Callable[[], Objective]] = {
    "task": objectives.TaskLoss,
    "entropy": lambda: objectives.CrossEntropy(label_smoothing=0.1),
    "masked": objectives.MaskedCrossEntropy,
}
OBJECTIVES: dict[str, Callable[[Objective], Objective]] = {
    "-": lambda loss: loss,
    "proximal": lambda loss: objectives.Proximal(loss, mu=0.5),
    "paths": objectives.PathSampling,
    "ordered": objectives.OrderedDropout,
    "distilled": lambda loss: objectives.OrderedDropout(loss, distill=True),
    "changes": objectives.UnitChanges,
    "bases": objectives.IndependentBases,
    "side": objectives.SideObjective,
    "search": objectives.DifferentiableSearch,
    "dynamic": FedDyn,
    "depthwise": DepthFL,
}
ASSIGNMENTS: dict[str, Callable[[], Assignment]] = {
    "largest": assignment.FixedArchitecture,
    "smallest": lambda: OwnSteps("smallest"),
    "mixture": lambda: assignment.FixedArchitecture("mixture"),
    "random": assignment.RandomArchitectures,
    "cost": assignment.CostWeighted,
    "sandwich": assignment.Sandwich,
    "tracking": assignment.TrackingSandwich,
    "by-tier": assignment.ByTier,
    "share": lambda: assignment.Subspaces(share=0.5),
    "bytes": lambda: assignment.Subspaces(0.3, size="bytes"),
    "invariant": lambda: assignment.InvariantUnits({"weak": 0.5, "strong": 1}),
    "rolling": lambda: assignment.RollingWidths({"weak": "width: 0.5", "strong": "largest"}),
    "bases": lambda: assignment.RandomBases({"weak": 1, "strong": 3}),
    "utility": assignment.ByUtility,
    "own": assignment.ByOwnUtility,
    "groups": assignment.CandidateGroups,
    "few-groups": lambda: assignment.CandidateGroups(initial_clients=2),
}
AGGREGATIONS: dict[str, type[Aggregation]] = {
    "overlap": OverlapAverage,
    "maxnet": MaxNet,
    "classes": ClassAverage,
    "operators": OperatorAverage,
}
#: Weights of clients in an aggregation; operators are always weighted, but one client may be enough.
MERGES: dict[str, Callable[[type[Aggregation]], dict[str, Any]]] = {
    "-": lambda kind: {},
    "alike": lambda kind: {"min_clients": 1} if kind is OperatorAverage else {"weighted": False},
    "trimmed": lambda kind: {"trim": 0.3},
}
FAULTS: dict[str, FaultPolicy] = {
    "-": FaultPolicy(),
    "away": FaultPolicy(dropout_rate=0.5),
    "fail": FaultPolicy(max_failed_rounds=2),
    "late": FaultPolicy(straggler_rate=0.7),
    "few": FaultPolicy(dropout_rate=0.4, min_survivors=3),
    "reject": FaultPolicy(norm_bound=1.02),
}
SERVERS: dict[str, dict[str, Any]] = {
    "-": {},
    "adam": {"server_optimizer": lambda params: FedAdam(params, lr=0.01)},
    "yogi": {"server_optimizer": lambda params: FedYogi(params, lr=0.01)},
}
WIRES = {"-": Transport(), "packed": Transport(down=Float16(), up=Int8())}
FITS: dict[str, dict[str, Any]] = {
    "-": {},
    "half": {"precision": "bf16-mixed"},
    "stacked": {"clients_per_fit": 3},
    "layout": {"channels_last": True},
}
#: Tests on clients, and further settings of the server's evaluation.
MEASURES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "-": (None, {}),
    "received": ("received", {}),
    "trained": ("trained", {}),
    "sampled": (None, {"sampled": 3}),
    "batches": (None, {"recalibrate_batches": 2}),
}
COHORTS = {
    "-": UniformCohort(count=5),
    "one": UniformCohort(count=1),
    "all": UniformCohort(ratio=1.0),
    "poisson": PoissonCohort(0.7),
    "turns": CyclicCohort(count=2),
}
CALLBACKS: dict[str, Callable[[], list[FederatedCallback]]] = {
    "-": list,
    "devices": lambda: [DeviceAverage()],
    "beta": lambda: [BetaDecay(rounds=ROUNDS)],
    "private": lambda: [Privacy(0.02, 2.0, noise_seed=0, bands=2)],
}
#: Callbacks that a kind of shared weights needs: a suite grows, and one iteration of candidates follows another.
OF_KIND: dict[str, Callable[[], list[FederatedCallback]]] = {
    "suites": lambda: [
        TransformOnConvergence(threshold=1e9, gamma=1, delta=1, window=1),
        SoftAverage(),
        WeightAverage(),
    ],
    "sequences": lambda: [PruneByBudgets(budget=0.2, first=0.2, rounds={1: 2}, groups=2)],
}
#: One tier can train only the smallest architecture, the other all.
TWO_TIERS = ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}))
LOOSE = replace(TWO_TIERS, enforced=False)
TIERS: dict[str, ClientTiers] = {
    "operators": ClientTiers(Budgets({"weak": {"operations": 4e4}, "strong": {"operations": 2e5}})),
    **dict.fromkeys(("widths", "bases", "exits", "suites", "sequences"), TWO_TIERS),
}

# ---- methods ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A method as the value of each factor; a call creates its module."""

    kind: str
    subject: str
    assignment: str
    objective: str
    loss: str
    average: str
    merge: str
    fault: str
    callback: str
    server: str
    wire: str
    fit: str
    measure: str
    cohort: str

    @property
    def private(self) -> bool:
        return self.callback == "private"

    def aggregation(self) -> Aggregation:
        kind = AGGREGATIONS[self.average]
        settings = MERGES[self.merge](kind)
        if self.kind == "suites" and kind is ClassAverage:
            settings["classifier"] = "cells.head.classifier"
        return kind(**settings)

    def __call__(self) -> FederatedLightningModule:
        tokens = self.subject == "tokens"
        make = {**NETS, **(TOKEN_NETS if tokens else {})}[self.kind]
        supernet = seeded(make, (LENGTH,), VOCABULARY) if tokens else seeded(make, IMAGE, OUTPUTS)
        objective = OBJECTIVES[self.objective](LOSSES[self.loss]())
        faults = FAULTS[self.fault]
        if self.private:
            faults = replace(faults, min_survivors=0, max_failed_rounds=None)
        validate, measured = MEASURES[self.measure]
        subnets = ["mixture"] if self.assignment == "mixture" else ["smallest", "largest"]
        changing = self.kind in ("suites", "sequences")
        return make_module(
            supernet,
            ASSIGNMENTS[self.assignment](),
            self.aggregation(),
            COHORTS[self.cohort],
            ClientSettings(
                sgd(0.05), batch_size=8, epochs=1 + 2 * (self.fault == "late"), validate=validate, **FITS[self.fit]
            ),
            objective=Troubled(objective) if self.fault == "fail" else objective,
            tiers=LOOSE
            if self.assignment == "random"
            else TIERS.get(self.kind, TWO_TIERS if self.assignment == "by-tier" else None),
            evaluation=EvaluationSettings(None if changing else subnets, **measured),
            faults=faults,
            transport=WIRES[self.wire],
            **SERVERS[self.server],
        )


#: Each column is a factor, each row a run; "-" is a factor's default. A row's name is its kind and its fault.
TABLE = """
kind      subject assignment objective loss    average   merge   fault  callback server wire   fit     measure  cohort
elastic   images  sandwich   proximal  masked  classes   alike   -      -        -      -      -       trained  poisson
elastic   tokens  smallest   -         entropy overlap   alike   away   private  -      -      stacked received turns
elastic   labels  tracking   -         task    overlap   trimmed reject devices  yogi   packed stacked received -
counting  tokens  largest    -         task    maxnet    alike   -      beta     yogi   -      layout  received one
counting  tokens  largest    proximal  task    overlap   trimmed fail   devices  adam   -      -       trained  poisson
counting  labels  largest    proximal  task    overlap   trimmed reject -        adam   packed -       batches  all
operators images  bytes      paths     task    operators trimmed -      -        -      -      half    sampled  -
operators images  bytes      paths     task    operators alike   late   -        -      -      -       sampled  one
operators tokens  share      paths     entropy operators -       reject -        adam   packed half    -        -
widths    images  by-tier    distilled masked  classes   alike   -      -        -      packed layout  received one
widths    numbers rolling    ordered   task    maxnet    trimmed late   beta     -      packed -       trained  all
widths    numbers invariant  changes   task    overlap   alike   reject devices  -      -      -       -        all
bases     numbers by-tier    -         task    overlap   alike   -      private  -      packed half    -        turns
bases     labels  bases      -         task    maxnet    -       away   devices  yogi   packed stacked -        one
bases     numbers bases      bases     task    maxnet    -       reject devices  adam   -      stacked trained  poisson
exits     images  by-tier    side      task    maxnet    trimmed -      devices  yogi   packed layout  -        -
exits     labels  cost       -         task    maxnet    alike   away   devices  -      -      -       -        poisson
exits     images  random     -         task    overlap   alike   reject devices  adam   -      -       trained  all
exits     images  by-tier    dynamic   task    overlap   alike   late   devices  -      -      -       trained  -
exits     images  by-tier    depthwise task    overlap   alike   few    -        adam   -      half    -        -
suites    images  own        -         task    maxnet    alike   -      beta     yogi   -      stacked received one
suites    images  own        -         masked  classes   -       late   -        yogi   -      half    received -
suites    images  utility    proximal  masked  classes   trimmed reject -        -      packed -       received poisson
sequences labels  groups     -         task    maxnet    -       -      devices  adam   packed stacked trained  all
sequences labels  groups     proximal  task    overlap   alike   few    -        -      packed layout  trained  all
sequences images  few-groups -         masked  classes   trimmed reject devices  yogi   -      layout  trained  all
cells     numbers mixture    search    task    overlap   -       -      -        -      packed -       trained  -
cells     numbers mixture    search    task    overlap   alike   away   private  -      -      layout  received turns
cells     labels  mixture    -         task    maxnet    -       reject beta     adam   -      half    received -
"""


def read_methods(table: str) -> dict[str, Method]:
    """Returns the methods of a table, by kind and fault."""
    factors, *rows = (line.split() for line in table.strip().splitlines())
    assert factors == [field.name for field in fields(Method)]
    methods = [Method(*row) for row in rows]
    return {f"{method.kind} {method.fault}".removesuffix(" -"): method for method in methods}


METHODS = read_methods(TABLE)
#: The names of all runs; the first rows of a kind have no fault.
COVERING = list(METHODS)


def data(name: str) -> FederatedDataModule:
    """Returns the clients' data for a method; all clients have validation data, because some methods need them."""
    return SUBJECTS[METHODS[name].subject](client_val=0.3, eval_batch_size=16)


def callbacks(name: str) -> list[FederatedCallback]:
    growth = [PoolGrowth(0.3, threshold=None, least=0.0)] if METHODS[name].assignment == "cost" else []
    return [*growth, *OF_KIND.get(METHODS[name].kind, list)(), *CALLBACKS[METHODS[name].callback]()]
