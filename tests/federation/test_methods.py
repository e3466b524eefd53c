"""Methods by pairs of factors: covered pairs, exact resume of each method, and stacked clients."""

from __future__ import annotations

import itertools
import math
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import lit_fednas.aggregation
import lit_fednas.assignment
import lit_fednas.objectives
from lit_fednas.aggregation import Aggregation
from lit_fednas.assignment import Assignment
from lit_fednas.errors import ConfigError
from lit_fednas.federation.process import Interrupted
from lit_fednas.objectives import Objective, WrappedObjective
from lit_fednas.testing.contract import assert_alike
from tests.federation import methods
from tests.federation.methods import COVERING, METHODS
from tests.federation.runs import LAST, Results, run, straight
from tests.support import Noted, assert_same, concrete_classes, fit, one_of_many, weights

#: Together these have all kinds of state: of a suite, candidates, clients, a server optimizer and a callback.
QUICK = ("elastic away", "counting fail", "suites", "sequences", "exits late")

# ---- covered pairs ------------------------------------------------------------------------------------

#: Values that count as one in pairs.
ALIKE = {
    "fault": {**dict.fromkeys(("away", "fail", "late", "few"), "missing"), "reject": "bound"},
    "server": {"adam": "adaptive", "yogi": "adaptive"},
}
PLAIN, BY_CLASS = {"overlap", "maxnet"}, {"overlap", "maxnet", "classes"}
IMAGES, SIMPLE, ALONE = {"images", "numbers", "labels"}, {"-", "devices"}, {"-", "half", "layout"}
#: A factor and a value of it; another factor, and the only values of it that can be combined with that value. Without
#: a line, all values can be combined.
ONLY: tuple[tuple[str, str, str, set[str]], ...] = (
    *(("kind", kind, "average", PLAIN) for kind in ("counting", "bases", "exits", "cells")),
    *(("kind", kind, "average", BY_CLASS) for kind in ("elastic", "widths", "suites", "sequences")),
    ("kind", "operators", "average", {"operators"}),
    *(("kind", kind, "subject", IMAGES) for kind in ("widths", "bases", "exits", "cells", "suites")),
    ("kind", "sequences", "subject", {"images", "labels"}),
    *(("kind", kind, "callback", {*SIMPLE, "beta"}) for kind in ("counting", "suites")),
    ("kind", "sequences", "callback", SIMPLE),
    ("kind", "sequences", "measure", {"trained"}),
    ("kind", "sequences", "cohort", {"all"}),
    *(("average", average, "fit", ALONE) for average in ("classes", "operators")),
    *(("average", average, "callback", SIMPLE) for average in ("classes", "operators")),
    ("average", "classes", "subject", {"images"}),
    ("callback", "beta", "average", {"maxnet"}),
    ("callback", "private", "average", {"overlap"}),
    ("callback", "private", "merge", {"alike"}),
    ("callback", "private", "fault", {"-", "missing"}),
    ("callback", "private", "server", {"-"}),
    ("fault", "bound", "cohort", {"-", "all", "poisson"}),
)
#: Pairs of factors; a row covers every pair of their values.
PAIRS = {
    "kind": ("fault",),
    "average": ("merge", "fault", "server", "wire"),
    "merge": ("fault", "server", "wire"),
    "fault": ("server", "wire", "fit", "cohort", "callback", "subject"),
    "fit": ("subject", "wire", "server"),
    "callback": ("server", "wire"),
}


def fits(row: dict[str, str]) -> bool:
    """Returns whether the values of some factors can be combined."""
    return all(row.get(factor) != value or row.get(other, "") in {"", *only} for factor, value, other, only in ONLY)


def test_a_row_covers_every_possible_pair_of_values() -> None:
    """A pair is possible if it is possible with any kind."""
    rows = [
        {factor: ALIKE.get(factor, {}).get(value, value) for factor, value in asdict(METHODS[name]).items()}
        for name in COVERING
    ]
    assert all(map(fits, rows))
    pairs = [(factor, other) for factor, others in PAIRS.items() for other in others]
    for factor, other in pairs:
        products = itertools.product({row[factor] for row in rows}, {row[other] for row in rows})
        missing = {*products} - {(row[factor], row[other]) for row in rows}
        for value, another in missing:
            kinds = [{"kind": kind, factor: value, other: another} for kind in methods.NETS if factor != "kind"]
            assert not any(map(fits, kinds or [{factor: value, other: another}])), (factor, value, other, another)


def test_every_class_is_in_a_row() -> None:
    modules = [METHODS[name]() for name in COVERING]
    objectives = [module.objective for module in modules]
    for objective in objectives:
        if isinstance(objective, WrappedObjective):
            objectives.append(objective.objective)
    for base, package, parts in (
        (Assignment, lit_fednas.assignment, [module.assignment for module in modules]),
        (Aggregation, lit_fednas.aggregation, [module.aggregation for module in modules]),
        (Objective, lit_fednas.objectives, objectives),
    ):
        missing = {kind.__name__ for kind in concrete_classes(base, package)} - {type(part).__name__ for part in parts}
        missing.discard("PrivateAverage")  # the callback privacy creates it in each round; see test_privacy.py
        assert not missing, f"add a row with {missing} to tests/federation/methods.py"


# ---- a stop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_many(COVERING, *QUICK))
def test_a_stopped_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    stop = Noted("on_cohort_start", lambda _, module, round: round.number == 2 and os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        run(name, tmp_path, [stop])
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == 2
    assert_alike(run(name, tmp_path, ckpt_path=tmp_path / LAST).files, straight(name).files)


# ---- clients in one fit -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_many(COVERING, *QUICK))
def test_stacked_clients_train_as_alone_or_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = METHODS[name]()
    monkeypatch.setattr(module.client, "clients_per_fit", 4 - module.client.clients_per_fit)  # 3 for 1, and 1 for 3
    monkeypatch.setattr(module.client, "channels_last", False)  # this layout is for images
    if not module.objective.stackable:
        with pytest.raises(ConfigError, match=r"client.clients_per_fit: 3.*set client.clients_per_fit to 1"):
            fit(module, methods.data(name), 1, callbacks=methods.callbacks(name))
        return
    results, alone = Results(), straight(name)
    fit(module, methods.data(name), methods.ROUNDS, callbacks=[results, *methods.callbacks(name)])
    half = module.client.precision == "bf16-mixed"
    assert_same(weights(module), alone.weights, rtol=1e-4, atol=2e-2 if half else 1e-5)
    losses = {(turn, result[0]): result[4] for turn, results in enumerate(alone.rounds) for result in results}
    stacked = {(result.task.round, result.task.client): result.loss for result in results.all}
    stacked = {key: loss for key, loss in stacked.items() if not math.isnan(loss)}
    assert stacked == pytest.approx({key: losses[key] for key in stacked}, rel=1e-2 if half else 1e-5)
