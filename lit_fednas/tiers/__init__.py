"""Device tiers: the limits of device classes, the clients of each class, and the speeds of their devices.

A :class:`TierSource` defines each tier's limits, and an :class:`Allocation` each client's tier; every part of a method
respects both. :class:`DeviceSpeeds` and :class:`CompletionTimes`
simulate clients' times. The guide *Device tiers* lists sources and allocations.
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
