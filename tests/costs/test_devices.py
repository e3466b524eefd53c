from __future__ import annotations

from typing import Any

import pytest

from lit_fednas.costs import DeviceProfile
from lit_fednas.errors import ConfigError

PHONE: dict[str, Any] = {"name": "phone", "memory_mb": 16, "macs_per_second": 5e8, "bandwidth_mbps": 8}


def test_limits_by_hand() -> None:
    assert DeviceProfile(**PHONE).limits() == {"memory_bytes": 16_000_000}
    assert DeviceProfile(**PHONE, latency_ms=20).limits() == {"memory_bytes": 16_000_000, "macs": 10_000_000}


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        ({"macs": 1e9, "bytes_down": 0, "bytes_up": 0}, 6.0),  # three passes' worth at 5e8 a second
        ({"macs": 0, "bytes_down": 2_000_000, "bytes_up": 0}, 2.0),  # 8 Mbit/s are 1 MB/s
        ({"macs": 0, "bytes_down": 0, "bytes_up": 3_000_000}, 3.0),
        ({"macs": 1e9, "bytes_down": 2_000_000, "bytes_up": 3_000_000}, 11.0),
    ],
)
def test_seconds_of_a_round_by_hand(costs: dict[str, float], seconds: float) -> None:
    assert DeviceProfile(**PHONE).round_seconds(**costs) == pytest.approx(seconds)


@pytest.mark.parametrize("field", ["memory_mb", "macs_per_second", "bandwidth_mbps", "latency_ms"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_numbers_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"device\.{field}: {value} \(of 'phone'\)"):
        DeviceProfile(**{**PHONE, field: value})
