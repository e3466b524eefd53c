"""Device tiers: what classes of devices afford, which clients belong to which, how fast their devices are."""

from lit_fednas.tiers.limits import ArchitectureCosts, Tier
from lit_fednas.tiers.population import Allocation, ClientTiers, ListedTiers, Population, TierShares, TraceTiers
from lit_fednas.tiers.simulated_time import (
    ClientSpeed,
    CompletionTimes,
    DeviceSpeeds,
    client_seconds,
    whole_round_seconds,
)
from lit_fednas.tiers.sources import ArchitectureTiers, Budgets, Capacities, CumulativeCostTiers, TiersOfRun, TierSource
from lit_fednas.tiers.traces import CSVTrace, DeviceTrace, SyntheticTrace

__all__ = [
    "Allocation",
    "ArchitectureCosts",
    "ArchitectureTiers",
    "Budgets",
    "CSVTrace",
    "Capacities",
    "ClientSpeed",
    "ClientTiers",
    "CompletionTimes",
    "CumulativeCostTiers",
    "DeviceSpeeds",
    "DeviceTrace",
    "ListedTiers",
    "Population",
    "SyntheticTrace",
    "Tier",
    "TierShares",
    "TierSource",
    "TiersOfRun",
    "TraceTiers",
    "client_seconds",
    "whole_round_seconds",
]
