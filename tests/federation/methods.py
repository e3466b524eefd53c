"""Every method that there is, as small runs: each assignment and each aggregation, and what else changes a round.

Used to see that a run does not depend on the number of ranks. A new assignment or aggregation joins by its line
in the instances of its contract's tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import ByTier, ByUtility, CandidateGroups, RandomBases, RollingWidths, Subspaces
from lit_fednas.data import Dirichlet
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FaultPolicy,
    FedAdam,
    FederatedLightningModule,
    UniformCohort,
)
from lit_fednas.messages import OperatorReport
from lit_fednas.objectives import CrossEntropy, IndependentBases, MaskedCrossEntropy, PathSampling, SideObjective
from lit_fednas.supernets import BaseNetworks, EarlyExitResNet, ElasticResNet, GroupNorm, PathCNN, PlainNetwork
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.supernet import WidthSupernet
from lit_fednas.tiers import ArchitectureTiers, Budgets, ClientTiers
from tests.aggregation.instances import INSTANCES as AGGREGATIONS
from tests.assignment.instances import INSTANCES as ASSIGNMENTS
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite
from tests.support import make_module, sgd, tiny_data

ROUNDS = 3
#: Candidates by groups; it wants a callback, and clients that test.
CANDIDATES = "candidates by groups"
#: A suite of models; callbacks let them grow, and lend each other weights.
SUITE = "a suite of models"


def data(name: str = ""):
    """The clients' data; with splits of their own where a method wants them."""
    split = {"client_val": 0.3} if name == CANDIDATES else {}
    return tiny_data(num_clients=7, partitioner=Dirichlet(alpha=1.0, min_size=4), eval_batch_size=16, **split)


def steady_net() -> ElasticResNet:
    """Group norm, so that a rounding of the weights stays one in what they compute."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ElasticResNet(
            (1, 8, 8),
            4,
            stem_width=4,
            stage_widths=[8, 16],
            depths=[0, 1],
            ratios=[0.25, 0.5],
            divisor=2,
            norm=GroupNorm(2),
        )


def counting_net() -> PlainNetwork:
    """Batch norm with running statistics and a counter, which are averaged too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 4))
        return PlainNetwork(layers, (1, 8, 8), 4)


def path_net() -> PathCNN:
    """Paths of operators; group norm, as in :func:`steady_net`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PathCNN((1, 8, 8), 4, width=8, stage_layers=[1, 1], strides=[2, 2], norm=GroupNorm(2))


def exits_net() -> EarlyExitResNet:
    """A simple network in a complex one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return EarlyExitResNet((1, 8, 8), 4, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])


def width_net() -> WidthSupernet:
    """Widths; without norms, as steady as group norm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WidthSupernet((1, 8, 8), 4, SlicedCNN((4, 6), norm=None), widths=[1, 0.5])


def bases_net() -> BaseNetworks:
    """Base networks; as :func:`width_net`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks((1, 8, 8), 4, SlicedCNN((8, 8), norm=None), count=4)


#: Clients that can train the least and clients that can train all.
TWO_TIERS = ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}))


class NoOperators(CrossEntropy):
    """Reports, of a network without a choice among operators, that nothing went through any."""

    report_types = (OperatorReport,)

    def report(self):
        return (OperatorReport({}),)


#: What the clients optimise for the aggregations that need a report.
OBJECTIVES = {"classes": MaskedCrossEntropy, "operators": NoOperators}


def method(**settings) -> Callable[[], FederatedLightningModule]:
    def make() -> FederatedLightningModule:
        chosen = {name: value() if callable(value) else value for name, value in settings.items()}
        return make_module(
            **{
                "supernet": steady_net(),
                "cohort": UniformCohort(count=5),
                "client": ClientSettings(sgd(0.05), batch_size=8),
                "evaluation": EvaluationSettings(["smallest", "largest"]),
                **chosen,
            }
        )

    return make


METHODS: dict[str, Callable[[], FederatedLightningModule]] = {
    **{f"assignment {name}": method(assignment=kind) for name, kind in ASSIGNMENTS.items()},
    **{
        f"aggregation {name}": method(
            assignment=ASSIGNMENTS["tracking-sandwich"],
            aggregation=kind,
            objective=OBJECTIVES.get(name.partition("-")[0], CrossEntropy),
        )
        for name, kind in AGGREGATIONS.items()
    },
    "paths of operators": method(
        supernet=path_net,
        assignment=lambda: Subspaces(share=0.6),
        objective=PathSampling,
        aggregation=OperatorAverage,
        tiers=ClientTiers(Budgets({"weak": {"operations": 4e4}, "strong": {"operations": 2e5}})),
        evaluation=EvaluationSettings(["smallest", "largest"], sampled=3),
    ),
    "base networks": method(supernet=bases_net, assignment=RandomBases, objective=IndependentBases, tiers=TWO_TIERS),
    "side objective": method(
        supernet=exits_net,
        assignment=ByTier,
        objective=SideObjective,
        tiers=TWO_TIERS,
        cohort=UniformCohort(count=6),
    ),
    SUITE: method(supernet=grown_suite, assignment=ByUtility, tiers=TWO_TIERS),
    CANDIDATES: method(
        supernet=lambda: pruned_sequence(hidden=(6, 8)),
        assignment=CandidateGroups,
        cohort=UniformCohort(ratio=1.0),
        client=ClientSettings(sgd(0.05), batch_size=8, validate="trained"),
    ),
    "rolling widths": method(supernet=width_net, assignment=RollingWidths, tiers=TWO_TIERS),
    # not invariant units: which units are kept may hang on the rounding of what several ranks report
    "buffers and dropout": method(supernet=counting_net),
    "server optimizer": method(server_optimizer=lambda: lambda params: FedAdam(params, lr=0.01)),
    "recalibration": method(supernet=counting_net, evaluation=EvaluationSettings(["largest"], recalibrate_batches=2)),
    "clients that go away": method(faults=FaultPolicy(dropout_rate=0.5)),
    "too few survivors": method(faults=FaultPolicy(dropout_rate=0.4, min_survivors=3)),
    "norms bounded": method(
        assignment=ASSIGNMENTS["tracking-sandwich"],
        faults=FaultPolicy(norm_bound=1.05, on_wild_update="scale"),
    ),
    "large norms rejected": method(supernet=counting_net, faults=FaultPolicy(norm_bound=1.02)),
    "a cohort of one": method(cohort=UniformCohort(count=1)),
    "bfloat16": method(client=ClientSettings(sgd(0.05), batch_size=8, precision="bf16-mixed")),
    "together": method(supernet=counting_net, client=ClientSettings(sgd(0.05), batch_size=8, clients_per_fit=3)),
    "channels last": method(client=ClientSettings(sgd(0.05), batch_size=8, channels_last=True)),
}
