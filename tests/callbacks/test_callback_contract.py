"""The package's callbacks that remember something keep the contract of callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import CostWeighted
from lit_fednas.callbacks import (
    CostLedger,
    DeviceAverage,
    PoolGrowth,
    Privacy,
    RoundTime,
    SubnetTable,
    WeightAverage,
)
from lit_fednas.federation import FaultPolicy, FederatedLightningModule
from lit_fednas.testing import CallbackContract


class TestCallbacks(CallbackContract):
    instances: ClassVar[dict[str, Callable[[], Any]]] = {
        "costs": CostLedger,
        "devices": DeviceAverage,
        "pool": lambda: PoolGrowth(0.25, threshold=None, least=0.0),
        "privacy": lambda: Privacy(1.0, 0.5, noise_seed=3),
        "subnets": SubnetTable,
        "time": RoundTime,
        "weights": lambda: WeightAverage(0.5),
    }

    @override
    def module(self) -> FederatedLightningModule:
        module = super().module()
        module.aggregation = OverlapAverage(weighted=False)  # privacy needs equal weights
        module.assignment = CostWeighted()  # pool growth needs a pool
        module.faults = FaultPolicy(min_survivors=0, max_failed_rounds=None)
        return module
