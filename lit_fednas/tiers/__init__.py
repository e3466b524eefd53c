"""Device tiers: what classes of devices afford, which clients belong to which, how fast their devices are.

A :class:`TierSource` says what the devices of each tier afford, and an :class:`Allocation` says which clients belong to
which tier; every part of a method respects both. :class:`DeviceSpeeds` and :class:`CompletionTimes` simulate how long
clients take. The guide *Device tiers* lists the sources and allocations.
"""

from lit_fednas.tiers.allocation import Allocation, ClientTiers, ListedTiers, TierShares, TraceTiers
from lit_fednas.tiers.devices import (
    ClientSpeed,
    CompletionTimes,
    CSVTrace,
    DeviceSpeeds,
    DeviceTrace,
    Population,
    SyntheticTrace,
)
from lit_fednas.tiers.limits import (
    EVERYBODY,
    ArchitectureCosts,
    ArchitectureTiers,
    Budgets,
    Capacities,
    CumulativeCostTiers,
    EvenBudgets,
    Tier,
    TiersOfRun,
    TierSource,
)

__all__ = [
    "EVERYBODY",
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
    "EvenBudgets",
    "ListedTiers",
    "Population",
    "SyntheticTrace",
    "Tier",
    "TierShares",
    "TierSource",
    "TiersOfRun",
    "TraceTiers",
]
