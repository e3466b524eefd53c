"""Numbers out of their range are refused where they are given, by the setting's name; absurd sizes at once."""

import math

import torch

from lit_fednas.aggregation import MaxNet, OperatorAverage
from lit_fednas.assignment import RisingPath, WholeSpace
from lit_fednas.callbacks import BetaDecay, PruneByBudgets, TransformOnConvergence
from lit_fednas.costs import MeasuredLatency
from lit_fednas.federation import EvaluationSettings, FedAdam, FederatedTrainer, MilestoneRate, StepRate
from lit_fednas.search import Evolution, SearchSettings
from lit_fednas.supernets import SlicedCNN
from lit_fednas.tiers import ArchitectureTiers, Budgets, Capacities, CumulativeCostTiers, SyntheticTrace
from tests.support import refusals, tiny_supernet

test_numbers_out_of_range = refusals(
    (lambda: MaxNet(0.0), "aggregation.beta: 0.0 must be above 0 and below 1"),
    (lambda: MaxNet(1.5), "aggregation.beta: 1.5 must be above 0 and below 1"),
    (lambda: MaxNet(trim=0.6), "aggregation.trim: .*at most 0.5"),
    (lambda: OperatorAverage(0), "aggregation.min_clients: 0 must be at least 1"),
    (lambda: BetaDecay(beta0=0.0), "beta_decay.beta0: 0.0 must be above 0 and below 1"),
    (lambda: StepRate(2, gamma=math.nan), "client.lr_schedule.gamma: nan is not a number; give one"),
    (lambda: MilestoneRate((0.5, math.nan)), r"client.lr_schedule.milestones\[1\]: nan is not a number"),
    (lambda: BetaDecay(rounds=0), "beta_decay.rounds: 0 must be above 0"),
    (lambda: PruneByBudgets(0.0), "prune_by_budgets.budget: .* must be "),
    (lambda: PruneByBudgets(0.5, drop=1.5), "prune_by_budgets.drop: .* must be "),
    (lambda: PruneByBudgets(0.5, rounds={1: -1}), "prune_by_budgets.rounds.1: .* must be "),
    (lambda: TransformOnConvergence(alpha=1.5), "transform_on_convergence.*alpha: 1.5"),
    (lambda: MeasuredLatency(batch_size=0), "latency.batch_size: 0"),
    (lambda: MeasuredLatency(device="gpu"), "latency.device: 'gpu"),
    (lambda: MeasuredLatency(device="cuda:99"), "latency.device: 'cuda:99"),
    (lambda: SlicedCNN(()), "supernet.family.hidden: is empty; give at least one"),
    (lambda: SlicedCNN((8, 0)), r"supernet.family.hidden\[1\]: 0 must be at least 1"),
    (lambda: ArchitectureTiers({}), "tiers.archs: is empty"),
    (lambda: Budgets({1: {"macs": 1e6}}), r"tiers.budgets: the name 1 is not text.*quote it \('1'\)"),
    (lambda: FedAdam([torch.nn.Parameter(torch.ones(1))], beta2=1.0), "server_optimizer"),
    (lambda: FederatedTrainer(threads=0), "trainer.threads: 0 must be at least 1"),
    (lambda: Evolution(parent_share=0.0), "search.method.parent_share: 0.0 must be above 0"),
    (lambda: SearchSettings(evaluations=-1), "search.evaluations: -1 must be at least 0"),  # a number or a mapping
    (lambda: SearchSettings(evaluations={"small": 0}), "search.evaluations.small: 0 must be at least 1"),
    (lambda: SyntheticTrace(median=0.0), "trace.median: 0.0 must be above 0"),
    (lambda: SyntheticTrace(spread=1.0), "trace.spread: 1.0 must be above 1"),
    *(
        (absurd, "at most 1")
        for absurd in (
            lambda: CumulativeCostTiers(samples=10**9),
            lambda: CumulativeCostTiers(count=10**9),
            lambda: Capacities(levels=10**9),
            lambda: WholeSpace(count=10**9),
            lambda: RisingPath(count=10**9),
            lambda: EvaluationSettings(sampled=10**9),
            lambda: FederatedTrainer(devices=10**6),
            lambda: tiny_supernet(depths=[0, 10**9]),
        )
    ),
)
