"""Every method that there is, as small runs: each assignment, aggregation and objective, and what else changes a round.

Used to see that a run does not depend on the number of ranks, goes on after a stop, and can be one of tokens. A new
assignment, aggregation or objective joins by its line in the instances of its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lit_fednas.aggregation import OperatorAverage, OverlapAverage
from lit_fednas.assignment import ByTier, FixedArchitecture, RandomArchitectures, RandomBases, Subspaces
from lit_fednas.callbacks import AdaptiveNorm, Privacy, PruneByBudgets, SoftAverage, TransformOnConvergence
from lit_fednas.data import (
    IID,
    ArraySource,
    Dirichlet,
    Examples,
    FederatedDataModule,
    MultiLabel,
    Regression,
    Task,
)
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FaultPolicy,
    FedAdam,
    FederatedCallback,
    FederatedLightningModule,
    PoissonCohort,
    UniformCohort,
)
from lit_fednas.messages import OperatorReport
from lit_fednas.objectives import (
    CrossEntropy,
    IndependentBases,
    MaskedCrossEntropy,
    PathSampling,
    TaskLoss,
    UnitChanges,
)
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
from lit_fednas.supernets.elastic_tcn import ChannelsAndTokens
from lit_fednas.tiers import ArchitectureTiers, Budgets, ClientTiers
from lit_fednas.transport import Float16, Int8, Transport
from tests.aggregation import instances as aggregations
from tests.assignment import instances as assignments
from tests.federation.tokens import LENGTH, VOCABULARY, token_data
from tests.objectives import instances as objectives
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite
from tests.support import make_module, sgd, tiny_data, tiny_examples

ROUNDS = 3
#: What the names of methods that learn tokens end with.
OF_TOKENS = " of tokens"

IMAGE, OUTPUTS = (1, 8, 8), 4

# ---- data ---------------------------------------------------------------------------------------------


def image_data(task: Task | None = None, **settings: Any) -> FederatedDataModule:
    """Images by their class; for another task, which quarters have light in them, as numbers or labels."""
    if task is None:
        return tiny_data(num_clients=7, partitioner=Dirichlet(alpha=1.0, min_size=4), **settings)
    splits = []
    for seed, count in enumerate((120, 40, 40)):
        examples = tiny_examples(count, seed)
        splits.append(Examples(examples.inputs, torch.eye(OUTPUTS)[examples.targets]))
    return FederatedDataModule(ArraySource(*splits, task=task), IID(), num_clients=7, **settings)


#: What methods learn, by what their names end with.
SUBJECTS: dict[str, Callable[..., FederatedDataModule]] = {
    "": image_data,
    OF_TOKENS: token_data,
    " of numbers": partial(image_data, Regression(OUTPUTS)),
    " of labels": partial(image_data, MultiLabel(OUTPUTS)),
}


def data(name: str = "") -> FederatedDataModule:
    """The clients' data for a method; all clients have validation data, which some methods want."""
    return SUBJECTS[METHODS[name].subject if name else ""](client_val=0.3, eval_batch_size=16)


def callbacks(name: str) -> list[FederatedCallback]:
    """Those of a method: a suite grows on the way; an iteration of candidates ends on the way, another begins."""
    return {
        "suites": [TransformOnConvergence(threshold=1e9, gamma=1, delta=1, window=1), SoftAverage()],
        "sequences": [PruneByBudgets(budget=0.2, first=0.2, rounds={1: 2}, groups=2)],
        "private": [Privacy(0.02, 2.0, adaptive=AdaptiveNorm(count_noise=2.0), noise_seed=0)],
    }.get(METHODS[name].kind, [])


# ---- shared weights -----------------------------------------------------------------------------------
# without norms, or with group norm, so that a rounding of the weights stays one in what they compute


def steady_net(shape: tuple[int, ...], classes: int) -> ElasticResNet:
    sizes = {"stem_width": 4, "stage_widths": [8, 16], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}
    return ElasticResNet(shape, classes, norm=GroupNorm(2), **sizes)


def counting_net(shape: tuple[int, ...], classes: int) -> PlainNetwork:
    """Batch norm with running statistics and a counter, which are averaged too."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, classes))
    return PlainNetwork(layers, shape, classes)


def steady_tokens(shape: tuple[int, ...], classes: int) -> ElasticTCN:
    """With an embedding that lets it learn in a few steps."""
    net = ElasticTCN(shape, classes, channels=10, depths=[0, 1], ratios=[0.2, 0.5])
    nn.init.normal_(net.network.get_parameter("embedding.weight"), std=0.5)
    return net


def counting_tokens(shape: tuple[int, ...], classes: int) -> PlainNetwork:
    """As :func:`counting_net`; padding is in the statistics of its norm."""
    norm = nn.Sequential(ChannelsAndTokens(), nn.BatchNorm1d(8), ChannelsAndTokens())
    layers = nn.Sequential(nn.Embedding(classes, 8), norm, nn.Dropout(0.2), nn.Linear(8, classes))
    return PlainNetwork(layers, shape, classes, torch.int64)


#: By what methods need of them.
NETS: dict[str, Callable[[tuple[int, ...], int], Supernet]] = {
    "any": steady_net,
    "counting": counting_net,
    "operators": lambda *sizes: PathCNN(*sizes, width=8, stage_layers=[1, 1], strides=[2, 2], norm=GroupNorm(2)),
    "widths": lambda *sizes: WidthSupernet(*sizes, SlicedCNN((4, 6), norm=None), widths=[1, 0.5]),
    "bases": lambda *sizes: BaseNetworks(*sizes, SlicedCNN((8, 8), norm=None), count=4),
    "exits": lambda *sizes: EarlyExitResNet(*sizes, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2]),
    "suites": lambda shape, classes: grown_suite(input_shape=shape, num_classes=classes),
    "sequences": lambda shape, classes: pruned_sequence(hidden=(6, 8), input_shape=shape, num_classes=classes),
    "private": steady_net,
    "cells": lambda *sizes: CellSupernet(*sizes, width=4, cells=3, nodes=1, norm=GroupNorm(4)),
}
#: Those of tokens; the others are for images alone.
TOKEN_NETS: dict[str, Callable[[tuple[int, ...], int], Supernet]] = {
    "any": steady_tokens,
    "private": steady_tokens,
    "counting": counting_tokens,
    "operators": lambda *sizes: PathRNN(*sizes, embedding=4, width=6, operators=["qrnn", "linear", "id", "zero"]),
}

# ---- methods ------------------------------------------------------------------------------------------

#: Clients that can train the least and clients that can train all.
TWO_TIERS = ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}))


class NoOperators(TaskLoss):
    """Reports, of a network without a choice among operators, that nothing went through any."""

    report_types = (OperatorReport,)

    def report(self):
        return (OperatorReport({}),)


class Troubled(TaskLoss):
    """Two clients fail, one by an error and one by a loss that is not a number."""

    def begin(self, network, task, generator):
        self.client = task.client

    def loss(self, network, inputs, targets):
        if self.client == 1:
            raise ArithmeticError("seven apples")
        loss = super().loss(network, inputs, targets)
        return loss * torch.nan if self.client == 2 else loss


#: What the clients optimise for the aggregations that need a report.
OBJECTIVES = {"classes": MaskedCrossEntropy, "operators": NoOperators}


def client(**settings: Any) -> ClientSettings:
    return ClientSettings(sgd(0.05), batch_size=8, **settings)


#: What goes with a kind of shared weights.
OF_KIND: dict[str, dict[str, Any]] = {
    "any": {},
    "counting": {},
    "operators": {
        "assignment": lambda: Subspaces(share=0.6),
        "objective": PathSampling,
        "aggregation": OperatorAverage,
    },
    "widths": {"assignment": ByTier, "objective": UnitChanges, "tiers": TWO_TIERS},
    "bases": {"assignment": RandomBases, "objective": IndependentBases, "tiers": TWO_TIERS},
    "exits": {"assignment": ByTier, "tiers": TWO_TIERS, "cohort": UniformCohort(count=6)},
    "suites": {"tiers": TWO_TIERS},
    "sequences": {"tiers": TWO_TIERS, "cohort": UniformCohort(ratio=1.0), "client": client(validate="trained")},
    "private": {
        "assignment": RandomArchitectures,
        "aggregation": lambda: OverlapAverage(weighted=False),
        "cohort": PoissonCohort(0.7),
        "faults": FaultPolicy(min_survivors=0, max_failed_rounds=None),
    },
    "cells": {"assignment": lambda: FixedArchitecture("mixture"), "evaluation": EvaluationSettings(["mixture"])},
}


@dataclass(frozen=True)
class Method:
    """A method; calling it makes the module.

    Attributes:
        kind: Of its shared weights, in :data:`NETS`.
        settings: Of the module; what can be called is called.
        subject: What it learns, in :data:`SUBJECTS`.
    """

    kind: str
    settings: Mapping[str, Any]
    subject: str = ""

    def __call__(self) -> FederatedLightningModule:
        of_all = {
            "cohort": UniformCohort(count=5),
            "client": client(),
            "evaluation": EvaluationSettings(["smallest", "largest"]),
        }
        tokens = self.subject == OF_TOKENS
        make = {**NETS, **(TOKEN_NETS if tokens else {})}[self.kind]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            supernet = make((LENGTH,), VOCABULARY) if tokens else make(IMAGE, OUTPUTS)
        settings = {**of_all, **OF_KIND[self.kind], **self.settings}
        return make_module(supernet, **{key: value() if callable(value) else value for key, value in settings.items()})


def method(kind: str = "any", **settings: Any) -> Method:
    return Method(kind, settings)


def of_each(role: str, instances: Any, **kinds: Mapping[str, Callable[[], Any]]) -> dict[str, Method]:
    """A method for every instance of a role, by the kind of shared weights that it needs."""
    kinds = {"any": instances, **kinds}
    return {
        f"{role} {name}": method(kind, **{role: make}) for kind, made in kinds.items() for name, make in made.items()
    }


ON_IMAGES: dict[str, Method] = {
    **of_each(
        "assignment",
        assignments.INSTANCES,
        operators=assignments.OF_OPERATORS,
        widths=assignments.OF_WIDTHS,
        bases=assignments.OF_BASES,
        suites=assignments.OF_SUITES,
        sequences=assignments.OF_SEQUENCES,
    ),
    **{
        f"aggregation {name}": method(
            assignment=assignments.INSTANCES["tracking-sandwich"],
            aggregation=kind,
            objective=OBJECTIVES.get(name.partition("-")[0], TaskLoss),
        )
        for name, kind in aggregations.INSTANCES.items()
    },
    **of_each(
        "objective",
        objectives.INSTANCES,
        operators=objectives.OF_OPERATORS,
        widths=objectives.OF_WIDTHS,
        bases=objectives.OF_BASES,
        exits=objectives.OF_EXITS,
        cells=objectives.OF_CELLS,
    ),
    "paths of operators": method(
        "operators",
        tiers=ClientTiers(Budgets({"weak": {"operations": 4e4}, "strong": {"operations": 2e5}})),
        evaluation=EvaluationSettings(["smallest", "largest"], sampled=3),
    ),
    "buffers and dropout": method("counting"),
    "server optimizer": method(server_optimizer=lambda: lambda params: FedAdam(params, lr=0.01)),
    "recalibration": method("counting", evaluation=EvaluationSettings(["largest"], recalibrate_batches=2)),
    "clients that test": method(client=client(validate="received")),
    "clients that go away": method(faults=FaultPolicy(dropout_rate=0.5)),
    "clients that fail": method(objective=Troubled, faults=FaultPolicy(max_failed_rounds=2)),
    "clients that are late": method(client=client(epochs=3), faults=FaultPolicy(straggler_rate=0.7, time_limit=60)),
    "too few survivors": method(faults=FaultPolicy(dropout_rate=0.4, min_survivors=3)),
    "norms bounded": method(
        assignment=assignments.INSTANCES["tracking-sandwich"],
        faults=FaultPolicy(norm_bound=1.05, on_wild_update="scale"),
    ),
    "large norms rejected": method("counting", faults=FaultPolicy(norm_bound=1.02)),
    "fewer bits": method("counting", transport=Transport(down=Float16(), up=Int8())),
    "a cohort of one": method(cohort=UniformCohort(count=1)),
    "bfloat16": method(client=client(precision="bf16-mixed")),
    "together": method("counting", client=client(clients_per_fit=3)),
    "channels last": method(client=client(channels_last=True)),
    "differential privacy": method("private"),
}
#: Methods that learn numbers and labels, too: what asks for classes, and what else there is of each kind.
NOT_OF_CLASSES = (
    *("assignment by-own-utility", "assignment candidate-groups", "assignment rolling-widths", "objective masked"),
    *("objective cross-entropy", "objective independent-bases", "objective ordered-dropout-distilled"),
    *("objective side-objective", "objective differentiable-search", "paths of operators", "recalibration"),
    *("clients that fail", "clients that test", "together"),
)
METHODS = {
    f"{name}{subject}": replace(method, subject=subject)
    for subject in SUBJECTS
    for name, method in ON_IMAGES.items()
    if subject in ("", OF_TOKENS) or name in NOT_OF_CLASSES
}


def part_of(name: str) -> Any:
    """The class of the assignment, aggregation or objective that a method is there for, or else its name."""
    role = name.partition(" ")[0]
    return type(METHODS[name].settings[role]()) if role in ("assignment", "aggregation", "objective") else name


def refusal(name: str) -> str | None:
    """The line that refuses a method before any training; none where it learns."""
    method = METHODS[name]
    if method.subject == OF_TOKENS and method.kind not in TOKEN_NETS:
        return f"supernet.input_shape: [{LENGTH}] must be channels, height, width for "
    objective, task = method.settings.get("objective", TaskLoss)(), data(name).task
    if isinstance(objective, CrossEntropy) and not task.has_classes:
        return f"model.objective: {type(objective).__name__} needs classes, and the data's task is "
    if isinstance(objective, MaskedCrossEntropy) and not task.labelled:
        return "model.objective: MaskedCrossEntropy needs one class per example, and the data's task is NextToken; use"
    if getattr(objective, "distill", False) and not task.labelled:
        return "model.objective.distill: true compares the classes of examples, and the data's task is "
    if method.kind == "sequences" and "accuracy" not in task.metrics:
        return "prune_by_budgets: compares candidates by their accuracy, which a Regression has not; "
    return None
