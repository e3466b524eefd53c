"""Settings of all benchmarks: options with their defaults, tasks, and compared client settings."""

from __future__ import annotations

import os
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_ELASTIC = {"network": "elastic", "examples": 128, "image": 16}
#: Tasks of the clients, as arguments of ``Setting``.
TASKS: dict[str, dict[str, Any]] = {
    "cnn-500": {"network": "cnn", "examples": 500},
    "cnn-32": {"network": "cnn", "examples": 32},
    "resnet18-32": {"network": "resnet18", "examples": 32},
    "elastic-smallest": _ELASTIC,
    "elastic-random": _ELASTIC,
    "tiny-50": {"network": "tiny", "examples": 50, "batch_size": 10},
}
TOGETHER = 50
_LAST, _BF16, _COMPILED = {"channels_last": True}, {"precision": "bf16-mixed"}, {"compile": True}
#: Settings of ``model.client`` that may make fits faster.
LEVERS: dict[str, dict[str, Any]] = {
    "channels last": _LAST,
    "compiled": _COMPILED,
    "compiled, ch. last": _LAST | _COMPILED,
    "bf16": _BF16,
    "bf16, ch. last": _BF16 | _LAST,
    "bf16, ch. last, compiled": _BF16 | _LAST | _COMPILED,
    "stacked": {"clients_per_fit": TOGETHER},
    "stacked, compiled": {"clients_per_fit": TOGETHER} | _COMPILED,
}
#: The choice of ``client.fast``.
AUTO = "auto"

BENCHMARKS = ("round", "memory", "population", "subnets", "levers", "ranks", "evaluations", "search", "start")
_ELASTIC_ONES = ("memory", "subnets", "ranks", "evaluations")
_WIDTHS = [16, 32, 64, 128]
#: The permitted values of options.
CHOICES = {"tasks": list(TASKS), "levers": [*LEVERS, AUTO]}
#: Options: name, help, and default in each benchmark that has the option; the default sets the type.
OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("tasks", "trained networks and sizes", {"round": list(TASKS)[:3], "levers": list(TASKS)}),
    ("levers", "settings of clients", {"levers": CHOICES["levers"]}),
    ("archs", "as 'd: [0,1,0,1], e: 0.14', or by name", {"subnets": ["smallest", "middle", "largest"]}),
    ("archs", "architectures, without warm-up", {"evaluations": 30}),
    ("archs", "rankings of 16 architectures each", {"search": 4}),
    ("evaluations", "architectures that a search evaluates", {"search": 80}),
    ("grid", "RANKSxTHREADS; the first is the baseline", {"ranks": [(1, 1), (CORES, 1)]}),
    ("together", "clients in one fit; the first is the baseline", {"round": [1]}),
    ("rounds", "rounds, without warm-up", {"round": 5, "memory": 12, "population": 100, "ranks": 5}),
    ("rounds", "rounds of training", {"search": 100}),
    ("warmup", "warm-up rounds", {"round": 1, "population": 10, "ranks": 2}),
    ("settled", "first rounds left out of the growth", {"memory": 3}),
    ("fits", "client fits of each worker, without warm-up", {"subnets": 20, "levers": 5}),
    ("warmup", "warm-up fits or architectures", {"subnets": 3, "levers": 2, "evaluations": 3}),
    ("steps", "steps per client", {"subnets": 4}),
    ("batch_size", "examples per step", {"subnets": 32, "evaluations": 512}),
    ("batch_size", "examples per step; by default the task's", {"round": None}),
    ("clients", "clients in the population", {"round": 100, "ranks": 100}),
    ("clients", "clients in the population", {"population": [10**power for power in range(3, 7)]}),
    ("cohort", "clients per round", {"round": 10, "population": 10, "ranks": 20}),
    ("cohorts", "clients per round", {"memory": [10, 100]}),
    ("examples", "examples per client; by default as in the task's name", {"round": None}),
    ("examples", "examples of the largest client", {"memory": 8, "ranks": 128}),
    ("examples", "validation examples", {"evaluations": 512}),
    ("unequal", "the largest client over the smallest", {"ranks": 8.0}),
    ("tiers", "three device tiers and clients that are away", {"population": False}),
    ("every", "rounds between checkpoints", {"population": 1}),
    ("generation", "architectures of a generation; 0 for none", {"evaluations": 64}),
    ("repetitions", "runs of each way, or generations", {"ranks": 2, "evaluations": 2}),
    ("repetitions", "seeds of each search", {"search": 3}),
    ("repeats", "processes per population, or of each start", {"population": 2, "start": 2}),
    ("ranks", "processes that share a cohort", {"round": 1}),
    ("processes", "processes that share a generation", {"evaluations": 2}),
    ("image", "pixels along an image's side", dict.fromkeys(_ELASTIC_ONES, 16) | {"memory": 8}),
    ("stem", "channels of the elastic network's first convolution", dict.fromkeys(_ELASTIC_ONES, 16) | {"memory": 8}),
    ("widths", "channels of its stages", dict.fromkeys(_ELASTIC_ONES, _WIDTHS) | {"memory": [8, 16, 32, 64]}),
    ("tolerance", "greatest difference of weights", {"round": 1e-6, "subnets": 1e-6, "levers": 0.3}),
    ("no_memory", "skip the peak memory", {"round": False}),
]
