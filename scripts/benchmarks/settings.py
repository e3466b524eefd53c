"""The settings of all benchmarks: options with their defaults, tasks, and settings of clients that are compared."""

from __future__ import annotations

import os
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_ELASTIC = {"network": "elastic", "examples": 128, "image": 16}
#: What clients train, as ``Setting`` takes it.
TASKS: dict[str, dict[str, Any]] = {
    "cnn-500": {"network": "cnn", "examples": 500},
    "cnn-32": {"network": "cnn", "examples": 32},
    "resnet18-32": {"network": "resnet18", "examples": 32},
    "elastic-smallest": _ELASTIC,
    "elastic-random": _ELASTIC,
    "tiny-50": {"network": "tiny", "examples": 50, "batch_size": 10, "clients": 50},
}
TOGETHER = 50
_LAST, _BF16, _COMPILED = {"channels_last": True}, {"precision": "bf16-mixed"}, {"compile": True}
#: Settings of ``model.client`` that may make fits faster.
LEVERS: dict[str, dict[str, Any]] = {
    "fused optimizer": {"fused": True},
    "channels last": _LAST,
    "compiled": _COMPILED,
    "compiled, ch. last": _LAST | _COMPILED,
    "bf16": _BF16,
    "bf16, ch. last": _BF16 | _LAST,
    "bf16, ch. last, compiled": _BF16 | _LAST | _COMPILED,
    "stacked": {"clients_per_fit": TOGETHER},
    "stacked, compiled": {"clients_per_fit": TOGETHER} | _COMPILED,
}
#: What ``client.fast`` chooses.
AUTO = "auto"

_NETWORK = {"stem": 16, "widths": [16, 32, 64, 128], "image": 16}
#: The options of each benchmark and their defaults, whose types they have.
SETTINGS: dict[str, dict[str, Any]] = {
    "round": {
        "tasks": list(TASKS)[:3],
        "rounds": 15,
        "warmup": 3,
        "ranks": 1,
        "clients": 100,
        "cohort": 10,
        "examples": None,
        "tolerance": 1e-6,
        "no_memory": False,
    },
    "memory": {**_NETWORK, "rounds": 50, "cohorts": [10, 50, 100], "examples": 8, "settled": 5},
    "population": {
        "clients": [10**power for power in range(3, 7)],
        "cohort": 10,
        "rounds": 100,
        "warmup": 10,
        "repeats": 3,
        "every": 1,
        "tiers": False,
    },
    "subnets": {
        **_NETWORK,
        "archs": ["smallest", "middle", "largest"],
        "steps": 4,
        "batch_size": 32,
        "fits": 20,
        "warmup": 3,
        "tolerance": 1e-6,
    },
    "layout": {
        **_NETWORK,
        "networks": ["cnn", "resnet18", "elastic"],
        "variants": ["bf16", "channels last", "bf16, ch. last", "compiled"],
        "steps": 4,
        "batch_size": 32,
        "fits": 12,
        "warmup": 2,
        "passes": 20,
    },
    "levers": {"tasks": list(TASKS), "levers": [*LEVERS, AUTO], "fits": 12, "warmup": 2, "tolerance": 0.02},
    "ranks": {
        **_NETWORK,
        "grid": [(1, CORES), (CORES, 1), (1, 1)],
        "rounds": 8,
        "warmup": 2,
        "repetitions": 2,
        "clients": 100,
        "cohort": 20,
        "examples": 128,
        "unequal": 8.0,
    },
    "together": {
        "networks": ["cnn", "tiny"],
        "together": [1, 5, 10, 25, 50],
        "rounds": 4,
        "warmup": 1,
        "clients": 1000,
        "cohort": 50,
        "examples": 50,
        "batch_size": 10,
        "image": 32,
        "tolerance": 1e-4,
    },
    "evaluations": {
        **_NETWORK,
        "examples": 512,
        "batch_size": 512,
        "archs": 30,
        "warmup": 3,
        "generation": 64,
        "repetitions": 2,
        "processes": 2,
    },
}
#: Options that are chosen from their default.
CHOSEN = {"tasks", "networks", "variants", "levers"}
#: What options mean; where one differs, after the benchmark's name.
HELP = {
    "archs": "as 'd: [0,1,0,1], e: 0.14', or smallest, middle, largest",
    "batch_size": "examples per batch",
    "clients": "clients in the population",
    "cohort": "clients per round",
    "cohorts": "clients per round",
    "evaluations archs": "architectures that count",
    "evaluations examples": "validation examples",
    "every": "rounds between checkpoints, which wait for the disk",
    "examples": "examples per client, or the most that one has (round: as the task's name says)",
    "fits": "fits of clients that count, of each",
    "generation": "architectures of a generation; 0 for none",
    "grid": "ways to use the cores, RANKSxTHREADS; the first is what the others are compared with",
    "image": "pixels along an image's side",
    "levers": "settings of clients",
    "networks": "what is trained",
    "no_memory": "leave the peak memory out",
    "passes": "forward passes per subnet and way",
    "processes": "that share a generation",
    "ranks": "processes that share a cohort",
    "repeats": "processes per population",
    "repetitions": "runs of each, in turns",
    "rounds": "rounds that count",
    "settled": "first rounds left out of the growth",
    "stem": "channels of the elastic network's first convolution; SuperFed's own is --stem 64 --image 32",
    "steps": "steps per client",
    "tasks": "what is trained",
    "tiers": "three device tiers, and clients that are away",
    "together": "clients in one fit",
    "tolerance": "greatest difference of weights",
    "unequal": "the largest client over the smallest",
    "variants": "settings of clients",
    "warmup": "rounds, fits or architectures before them that do not count",
    "widths": "channels of the elastic network's stages; SuperFed's own are 256 512 1024 2048",
}
