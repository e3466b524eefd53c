"""What goes wrong with a client stays with that client."""

from __future__ import annotations

import math
import signal
import threading
import time

import numpy as np
import pytest
import torch

from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation import ClientSettings, FaultPolicy, FederatedCallback, UniformCohort
from lit_fednas.messages import UnitChangesReport
from lit_fednas.objectives import CrossEntropy
from tests.support import assert_same, fit, linear_net, make_module, sgd, tiny_data, weights


class Results(FederatedCallback):
    def __init__(self):
        self.all = []

    def on_client_end(self, trainer, module, result, update):
        self.all.append(result)

    def status(self):
        return {result.task.client: result.status for result in self.all}


class Troubled(CrossEntropy):
    """Clients 0, 1 and 2 raise, turn to NaN and dawdle."""

    def begin(self, network, task, generator):
        self.client = task.client

    def loss(self, network, inputs, targets):
        loss = super().loss(network, inputs, targets)
        if self.client == 0:
            raise RuntimeError("the disk is full")
        if self.client == 1:
            return loss * math.nan
        if self.client == 2:
            time.sleep(1.2)
        return loss


def run(rounds=1, objective=None, cohort=6, **faults):
    results = Results()
    module = make_module(
        linear_net(),
        objective=objective or Troubled(),
        cohort=UniformCohort(count=cohort),
        faults=FaultPolicy(**faults),
    )
    start = weights(module)
    trainer = fit(module, tiny_data(), rounds, callbacks=[results])
    return results, module, start, trainer


def test_each_trouble_is_skipped_named_and_counted():
    results, _, _, trainer = run(time_limit=1.0)
    assert results.status() == {0: "error", 1: "non-finite", 2: "timeout", 3: "ok", 4: "ok", 5: "ok"}
    assert "RuntimeError: the disk is full" in results.all[0].reason
    assert "not finite" in results.all[1].reason
    assert "1 s" in results.all[2].reason
    assert float(trainer.callback_metrics["clients/failed"]) == 3
    assert float(trainer.callback_metrics["clients/used"]) == 3


def test_the_others_average_as_if_the_troubled_were_not_there():
    class Only(UniformCohort):
        def asked(self, sizes, wanted, rng):
            yield np.array([3, 4, 5])

    results, module, _, _ = run()
    assert results.status()[0] == "error"
    healthy = make_module(linear_net(), cohort=Only(count=3))
    fit(healthy, tiny_data(), 1)
    # client 2 only dawdles, and without a limit that is no fault
    assert results.status()[2] == "ok"

    results, module, _, _ = run(time_limit=1.0)
    assert_same(weights(module), weights(healthy), rtol=1e-5, atol=1e-7)


def test_too_few_survivors_leave_the_weights():
    _, module, start, trainer = run(time_limit=1.0, min_survivors=4)
    assert_same(weights(module), start)
    assert trainer.global_step == 1


def test_a_round_in_which_all_fail_leaves_the_weights():
    class Broken(CrossEntropy):
        def loss(self, network, inputs, targets):
            raise RuntimeError("no")

    results, module, start, trainer = run(rounds=3, objective=Broken())
    assert_same(weights(module), start)
    assert all(result.status == "error" for result in results.all)
    assert trainer.current_epoch == 3


class Failing(CrossEntropy):
    """All clients fail in the rounds that are named."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def begin(self, network, task, generator):
        self.fails = task.round in self.rounds

    def loss(self, network, inputs, targets):
        if self.fails:
            raise RuntimeError("no")
        return super().loss(network, inputs, targets)


def test_a_run_in_which_every_client_fails_ends_with_the_reason():
    reason = r"max_failed_rounds: every client failed in 3 rounds .*in round 4, 6 of 6: error \(Runtime.* no\)"
    with pytest.raises(ClientError, match=reason):
        run(rounds=9, objective=Failing([0, 2, 3, 4]), max_failed_rounds=3)  # not rounds 0, 2 and 3
    run(rounds=7, objective=Failing(range(9)), max_failed_rounds=None)
    run(rounds=4, objective=CrossEntropy(), dropout_rate=0.999, max_failed_rounds=1)  # they went away


def passes(rounds, **faults):
    """Returns how many passes each client trained, round by round; a step is one."""
    results = Results()
    settings = ClientSettings(sgd(0.1), batch_size=32, epochs=3)
    module = make_module(linear_net(), client=settings, cohort=UniformCohort(count=6), faults=FaultPolicy(**faults))
    fit(module, tiny_data(), rounds, callbacks=[results])
    return [result.num_steps for result in results.all]


def test_stragglers_train_one_to_all_passes():
    trained = passes(30, straggler_rate=0.6)
    shares = [trained.count(number) / len(trained) for number in (1, 2, 3)]
    assert shares == pytest.approx([0.2, 0.2, 0.6], abs=0.11)  # 180 draws: 3 standard deviations
    assert trained[:18] == passes(3, straggler_rate=0.6)
    assert set(passes(1)) == {3}


@pytest.mark.parametrize(("settings", "passes"), [({"epochs": 1}, "one"), ({"steps": 4}, "a number of steps")])
def test_stragglers_without_fewer_passes_are_refused(settings, passes):
    module = make_module(client=ClientSettings(sgd(0.1), **settings), faults=FaultPolicy(straggler_rate=0.5))
    with pytest.raises(
        ConfigError, match=f"faults.straggler_rate: 0.5 of the clients .* trains {passes}; set client.epochs above 1"
    ):
        fit(module, tiny_data(), 1)


class Spoiled(CrossEntropy):
    """Client 2 ends its fit with a weight that is not a number."""

    def begin(self, network, task, generator):
        self.network, self.task = network, task

    @torch.no_grad()
    def report(self):
        if self.task.client == 2:
            next(self.network.parameters()).fill_(math.nan)
        return ()


def test_weights_are_checked_as_they_are_sent():
    results, module, _, _ = run(objective=Spoiled())
    assert results.status() == {client: "non-finite" if client == 2 else "ok" for client in range(6)}
    assert all(tensor.isfinite().all() for tensor in weights(module).values())


class Hanging(CrossEntropy):
    """Client 2 waits for something outside of its batches, once."""

    def begin(self, network, task, generator):
        if task.client == 2 and task.round == 0:
            threading.Event().wait(60)


def test_a_client_that_hangs_between_its_batches_is_skipped():
    start = time.perf_counter()
    results, _, _, _ = run(rounds=2, objective=Hanging(), time_limit=1.0)
    assert time.perf_counter() - start < 30
    assert [one.status for one in results.all if one.task.client == 2] == ["timeout", "ok"]
    assert [one.status for one in results.all].count("ok") == 11
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize("says", ["loss", "report"])
def test_what_a_client_says_is_checked_like_its_weights(says):
    class Liar(CrossEntropy):
        report_types = (UnitChangesReport,)

        def begin(self, network, task, generator):
            self.lies = task.client == 1

        def loss(self, network, inputs, targets):
            loss = super().loss(network, inputs, targets)
            return loss + (loss.detach() * math.nan - loss.detach()) * 0 if self.lies and says == "loss" else loss

        def report(self):
            return (UnitChangesReport({"conv": [0.0, math.inf if self.lies and says == "report" else 1.0]}),)

    results, _, _, _ = run(objective=Liar())
    assert results.status() == {0: "ok", 1: "non-finite", 2: "ok", 3: "ok", 4: "ok", 5: "ok"}
    (lie,) = [one.reason for one in results.all if not one.ok]
    assert says in lie


def test_raise_stops_and_names_round_and_client():
    with pytest.raises(ClientError, match="round 0, client 0: RuntimeError: the disk is full"):
        run(on_client_error="raise")


def test_clients_drop_out_at_the_given_rate_and_by_address():
    first, _, _, _ = run(rounds=60, objective=CrossEntropy(), dropout_rate=0.3)
    again, _, _, _ = run(rounds=3, objective=CrossEntropy(), dropout_rate=0.3)
    assert [result.status for result in first.all[:18]] == [result.status for result in again.all]
    share = sum(result.status == "dropped" for result in first.all) / len(first.all)
    assert share == pytest.approx(0.3, abs=0.07)  # 360 draws: 2.9 standard deviations


def test_nobody_available_is_a_round_without_clients():
    from lit_fednas.federation import Availability

    class Nobody(Availability):
        def present(self, round, clients, seed):
            return np.zeros(len(clients), dtype=bool)

    module = make_module(linear_net(), cohort=UniformCohort(count=3, availability=Nobody()))
    start = weights(module)
    trainer = fit(module, tiny_data(), 2)
    assert_same(weights(module), start)
    assert trainer.current_epoch == 2


def test_a_client_that_cannot_take_a_step_is_left_out():
    results = Results()
    # one example per client, and batch norm: there is never a batch of two
    module = make_module(client=ClientSettings(sgd(0.1), batch_size=4, epochs=2))
    start = weights(module)
    fit(module, tiny_data(num_clients=120), 1, callbacks=[results])
    assert {(r.status, r.num_steps) for r in results.all} == {("empty", 0)}
    assert_same(weights(module), start)
