"""Device tiers: what classes of devices can afford, and which clients belong to which."""

from lit_fednas.tiers.allocation import Allocation, ListedTiers, RandomTiers, TierShares, TraceTiers
from lit_fednas.tiers.capacities import Capacities
from lit_fednas.tiers.costs import ArchitectureCosts
from lit_fednas.tiers.limits import ArchitectureTiers, Budgets, CumulatedShares, DeviceTiers, Tier, TierSource
from lit_fednas.tiers.population import ClientTiers, Population
from lit_fednas.tiers.speeds import DeviceSpeeds
from lit_fednas.tiers.traces import CSVTrace, DeviceTrace, SyntheticTrace

__all__ = [
    "Allocation",
    "ArchitectureCosts",
    "ArchitectureTiers",
    "Budgets",
    "CSVTrace",
    "Capacities",
    "ClientTiers",
    "CumulatedShares",
    "DeviceSpeeds",
    "DeviceTiers",
    "DeviceTrace",
    "ListedTiers",
    "Population",
    "RandomTiers",
    "SyntheticTrace",
    "Tier",
    "TierShares",
    "TierSource",
    "TraceTiers",
]
