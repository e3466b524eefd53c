"""Runs over devices equal simulated ones, whatever the method; failures become statuses; nothing else is let in."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.data import IID, FederatedDataModule
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation import FaultPolicy, FederatedCallback, UniformCohort
from lit_fednas.federation.data_checks import check_data
from lit_fednas.messages import ClientResult
from tests.federation import methods
from tests.federation.methods import METHODS
from tests.support import assert_same, fit, linear_net, make_module, one_of_many, tiny_data, weights

loopback = pytest.importorskip("tests.flower.loopback")
from flwr.app import ConfigRecord, Error, Message  # noqa: E402

from lit_fednas.flower.wire import Packet, result_fields, task_fields  # noqa: E402

RUN = [name for name in METHODS if methods.refusal(name) is None]
QUICK = (
    *("assignment subspaces", "aggregation operators", "paths of operators", "objective side-objective"),
    *("clients that fail", "clients that test", "recalibration", "buffers and dropout of tokens"),
    *(name for name in RUN if METHODS[name].kind in ("suites", "sequences") and not METHODS[name].subject),
)


class Notes(FederatedCallback):
    """Keeps all results, but for their seconds, as plain values."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def on_client_end(self, trainer: Any, module: Any, result: ClientResult, update: Any) -> None:
        self.results.append({**result_fields(result), "task": task_fields(result.task), "seconds": 0.0})


def number_of(data: FederatedDataModule) -> int:
    data.setup("fit")
    return data.clients.num_clients


def devices(make: Callable[[], Any], data: Callable[[], Any], share: bool = True) -> dict[int, Any]:
    """A device for every client, by the number of its node."""
    count = number_of(data())
    return {1000 + 7 * number: loopback.device(make, data(), number, share) for number in range(count)}


# ---- equality -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_many(RUN, *QUICK))
def test_a_run_over_devices_equals_the_simulated_one(name: str) -> None:
    simulated, over = METHODS[name](), METHODS[name]()
    here, there = Notes(), Notes()
    fit(simulated, methods.data(name), 3, callbacks=[here, *methods.callbacks(name)])
    link = loopback.connected(loopback.Loopback(devices(METHODS[name], partial(methods.data, name))))
    loopback.fit_over(link, over, methods.data(name), 3, callbacks=[there, *methods.callbacks(name)])
    if simulated.client.clients_per_fit > 1:  # devices train alone
        assert_same(weights(over), weights(simulated), rtol=1e-4, atol=1e-6)
    else:
        assert json.dumps(there.results) == json.dumps(here.results)
        assert_same(weights(over), weights(simulated))
