"""Devices: how much memory, computation and bandwidth a client has."""

from __future__ import annotations

from dataclasses import dataclass

from lit_fednas.errors import ConfigError

_TRAINING = 3  # a backward pass takes about two forward passes (gradients of the inputs and of the weights)


@dataclass(frozen=True)
class DeviceProfile:
    """What a class of devices can do.

    Args:
        name: What it is called.
        memory_mb: Memory for the network, in units of 10^6 bytes.
        macs_per_second: Multiply-accumulates per second that it sustains.
        bandwidth_mbps: Of its connection, each way, in units of 10^6 bits per second.
        latency_ms: How long the inference of one example may take, if that matters.

    Raises:
        ConfigError: A number is not positive.

    Example:
        >>> phone = DeviceProfile("phone", memory_mb=8, macs_per_second=2e9, bandwidth_mbps=10, latency_ms=5)
        >>> phone.limits()
        {'memory_bytes': 8000000.0, 'macs': 10000000.0}
        >>> phone.round_seconds(macs=2 * 10**9, bytes_down=10**6, bytes_up=10**6)
        4.6
    """

    name: str
    memory_mb: float
    macs_per_second: float
    bandwidth_mbps: float
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        for field in ("memory_mb", "macs_per_second", "bandwidth_mbps", "latency_ms"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"device.{field}: {value} (of {self.name!r}) must be above 0")

    def limits(self) -> dict[str, float]:
        """What an architecture may cost at most.

        Returns:
            By cost: ``memory_bytes`` (weights and activations together), and with a target of latency ``macs``
            of one example.
        """
        limits = {"memory_bytes": 1e6 * self.memory_mb}
        if self.latency_ms is not None:
            limits["macs"] = self.macs_per_second * self.latency_ms / 1000
        return limits

    def round_seconds(self, macs: float, bytes_down: float, bytes_up: float) -> float:
        """Simulated time of a client's part in a round: download, training, upload.

        Args:
            macs: Multiply-accumulates of the forward passes; the backward passes come on top.
            bytes_down: Bytes from the server.
            bytes_up: Bytes to the server.
        """
        return round_seconds(macs, bytes_down + bytes_up, self.macs_per_second, self.bandwidth_mbps)


def round_seconds(
    macs: float, num_bytes: float, macs_per_second: float, bandwidth_mbps: float, tested: float = 0
) -> float:
    """Simulated time of a client's part in a round.

    Args:
        macs: Multiply-accumulates of the forward passes; the backward passes of training come on top.
        num_bytes: Bytes from the server and to it.
        macs_per_second: Multiply-accumulates per second that the client sustains.
        bandwidth_mbps: Of its connection, each way, in units of 10^6 bits per second.
        tested: Those among ``macs`` that were a test, which has no backward passes.

    Example:
        >>> round_seconds(5e6, 0, macs_per_second=1e6, bandwidth_mbps=1, tested=2e6)  # 3 * 3 + 2
        11.0
    """
    computed = _TRAINING * (macs - tested) + tested
    return computed / macs_per_second + 8 * num_bytes / (1e6 * bandwidth_mbps)
