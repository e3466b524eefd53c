"""Golden runs on a device of its own, ``second_device.cpp``, against the same on the CPU, bit for bit.

python -m tests.golden.second_device FOLDER NAMES    in a process of its own, as the device stays
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.strategies import SingleDeviceStrategy

from lit_fednas.data import Normalize
from lit_fednas.federation import FederatedTrainer
from tests.golden.runs import digests, run

NAME = "second"


class SecondDevice(Accelerator):
    """What Lightning asks of a device."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def name() -> str:
        return NAME

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True


def install(folder: Path) -> None:
    """Compiles the device, and makes it known to torch, before any backward pass, and to Lightning."""
    there, source = Path(torch.__file__).parent, Path(__file__).with_suffix(".cpp")
    include = [f"-I{there / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    words = [
        "c++",
        *["-O0", "-w", "-shared", "-fPIC", "-std=c++20"],
        *include,
        str(source),
        "-o",
        str(folder / "device.so"),
    ]
    subprocess.run([*words, f"-L{there / 'lib'}", "-ltorch_cpu", "-lc10"], check=True)
    torch.ops.load_library(folder / "device.so")
    torch.utils.rename_privateuse1_backend(NAME)
    module = {name: lambda *_: None for name in ("manual_seed_all", "set_rng_state")}
    module |= {"_is_in_bad_fork": lambda: False, "is_available": lambda: True, "device_count": lambda: 1}
    module |= {"get_rng_state": lambda *_: torch.empty(0, dtype=torch.uint8), "device": lambda _: nullcontext()}
    module |= {"current_device": lambda: 0, "get_amp_supported_dtype": list}
    torch._register_device_module(NAME, SimpleNamespace(**module))
    torch.utils.generate_methods_for_privateuse1_backend()
    AcceleratorRegistry.register(NAME, SecondDevice)


def use() -> set[str]:
    """Lets every ``FederatedTrainer`` use the device; returns the types of devices on which batches are normalised."""
    device = torch.device(NAME, 0)
    made, normalised = FederatedTrainer.__init__, Normalize.__call__

    @wraps(made)
    def on_device(self: FederatedTrainer, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"accelerator": NAME, "devices": 1, "strategy": SingleDeviceStrategy(device)}
        made(self, *args, **kwargs)

    FederatedTrainer.__init__ = on_device  # type: ignore[method-assign]
    seen: set[str] = set()

    def as_on_cpu(self: Normalize, batch: torch.Tensor) -> torch.Tensor:
        """Rounds twice, where other devices round once."""
        seen.add(batch.device.type)
        return normalised(self, batch.cpu()).to(batch.device)

    Normalize.__call__ = as_on_cpu  # type: ignore[method-assign]
    return seen


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    sys.argv = sys.argv[:1]  # LightningCLI looks at it
    install(Path(folder))
    found: dict[str, dict[str, dict[str, str]]] = {}
    seen: set[str] = set()
    for place in ("cpu", NAME):
        if place == NAME:
            seen = use()
        for name in names:
            (Path(folder) / place / name).mkdir(parents=True)
        found[place] = {name: digests(run(name, Path(folder) / place / name)) for name in names}
    assert NAME in seen, "nothing ran on the device"
    on_cpu, there = found.values()
    differing = [
        f"{name}: {key}" for name in names for key in on_cpu[name] if on_cpu[name][key] != there[name].get(key)
    ]
    sys.exit("\n".join(differing) or 0)
