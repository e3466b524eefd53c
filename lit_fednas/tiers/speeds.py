"""How fast each client's device computes and sends."""

from __future__ import annotations

from dataclasses import dataclass, field

from lit_fednas.costs import ClientSpeed
from lit_fednas.errors import ConfigError
from lit_fednas.rng import numpy_generator
from lit_fednas.tiers.population import Population
from lit_fednas.tiers.traces import DeviceTrace, SyntheticTrace


@dataclass(frozen=True)
class DeviceSpeeds:
    """Every client's speed and bandwidth, drawn once for a whole run: they belong to its seed and the client.

    Args:
        compute: Speeds of the population's devices, in multiply-accumulates per second.
        bandwidth: Bandwidths of their connections, in units of 10^6 bits per second (so a trace's ``median`` and
            columns are in that unit here), the same each way. Drawn independently of the speeds. (Connections of
            phones differ by more than an order of magnitude; the default is a parameter, not a measurement.)
        latency_ms: If given, a client is as fast as its tier says, and ``compute`` does not matter: the tier's
            limit of multiply-accumulates is what its devices run in this time. So a device gets models that its
            speed allows (FedTrans, App. C). The paper does not say how its limits follow from speed; a common
            target of latency is what makes them proportional.

    Raises:
        ConfigError: ``latency_ms`` is not positive; or, once the clients are known, a tier has no limit of
            ``macs``.

    Example:
        >>> from lit_fednas.tiers import Tier
        >>> population = Population(2, (Tier("slow", {"macs": 1e6}), Tier("fast", {"macs": 4e6})), (0, 1))
        >>> speeds = DeviceSpeeds(latency_ms=10)
        >>> [speeds.of(client, population, seed=0).macs_per_second for client in (0, 1)]
        [100000000.0, 400000000.0]
    """

    compute: DeviceTrace = field(default_factory=SyntheticTrace)
    bandwidth: DeviceTrace = field(default_factory=lambda: SyntheticTrace(median=10, spread=20))
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if self.latency_ms is not None and not self.latency_ms > 0:
            raise ConfigError(
                f"speeds.latency_ms: {self.latency_ms} must be above 0, or null for speeds of the trace 'compute'"
            )

    def check(self, population: Population) -> None:
        """Sees that every client's speed is known, before training.

        Raises:
            ConfigError: As above.
        """
        if self.latency_ms is None:
            return
        without = [tier.name for tier in population.tiers if "macs" not in tier.at_most]
        if without or not population.tiers:
            said = f"the tier {without[0]!r} has no limit of macs" if without else "there are no tiers"
            raise ConfigError(
                f"speeds.latency_ms: {self.latency_ms:g} makes speeds of the tiers' limits of macs, but {said}; "
                f"set model.tiers to tiers with a limit of macs, or speeds.latency_ms to null"
            )

    def of(self, client: int, population: Population, seed: int) -> ClientSpeed:
        """A client's speed.

        Args:
            client: Its number.
            population: The clients and their tiers; one that :meth:`check` lets pass.
            seed: The run's seed.

        Raises:
            DataError: A trace's file cannot be read.
        """
        tier = population.tier(client)
        if self.latency_ms is not None and tier is not None:
            speed = 1000 * tier.at_most["macs"] / self.latency_ms
        else:
            speed = float(self.compute.speeds(1, numpy_generator(seed, "device-speed", client))[0])
        bandwidth = float(self.bandwidth.speeds(1, numpy_generator(seed, "device-bandwidth", client))[0])
        return ClientSpeed(speed, bandwidth)
