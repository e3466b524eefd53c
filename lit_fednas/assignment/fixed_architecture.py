"""The same architecture for all clients (SuperFed's baseline, section 3.1)."""

from typing import Any

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population


class FixedArchitecture(Assignment):
    """Every client trains the same architecture in every round: federated averaging, and SuperFed's iFedAvg.

    Args:
        arch: ``largest``, ``smallest``, or the text of an architecture.

    Raises:
        ConfigError: The space has no such architecture (reported before training).
    """

    depends_on = "client"

    def __init__(self, arch: str = "largest") -> None:
        self.arch = arch

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        supernet.space.named(self.arch)

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        arch = round.space.named(self.arch)
        return [round.task(client, arch) for client in round.cohort]

    @override
    def deployed(self, client: int) -> Any:
        return self._supernet.space.named(self.arch)
