"""Failures of a client affect only that client."""

from __future__ import annotations

import math
import re

import pytest
import torch

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.errors import ClientError
from lit_fednas.federation import ClientSettings, FaultPolicy, OnlyClients, UniformCohort
from lit_fednas.messages import UnitChangeStatistics
from lit_fednas.objectives import CrossEntropy
from tests.federation.runs import Results
from tests.support import assert_same, fit, linear_net, make_module, sgd, tiny_data, weights


class Troubled(CrossEntropy):
    """Client 0 raises an error, and client 1 has a NaN loss."""

    def begin(self, network, task, generator):
        self.client = task.client

    def loss(self, network, inputs, targets):
        if self.client == 0:
            raise RuntimeError("the disk is full")
        return super().loss(network, inputs, targets) * (math.nan if self.client == 1 else 1)


class Failing(CrossEntropy):
    """All clients fail in the given rounds; the first client may fail with another kind of error."""

    def __init__(self, rounds, other=RuntimeError):
        super().__init__()
        self.rounds, self.other = rounds, other

    def begin(self, network, task, generator):
        if task.round in self.rounds:
            raise (RuntimeError if task.client else self.other)(f"client {task.client} says no")


def run(rounds=1, objective=None, cohort=6, client=None, **faults):
    results = Results()
    module = make_module(
        linear_net(),
        objective=objective or Troubled(),
        cohort=UniformCohort(count=cohort),
        client=client,
        faults=FaultPolicy(**faults),
    )
    start = weights(module)
    trainer = fit(module, tiny_data(), rounds, callbacks=[results])
    return results, module, start, trainer


def test_each_failure_is_skipped_named_and_counted():
    """The other clients are averaged as if the failed ones did not take part."""
    results, module, _, trainer = run()
    assert results.status == {0: "error", 1: "non-finite", 2: "ok", 3: "ok", 4: "ok", 5: "ok"}
    for result, reason in zip(results.all, ("RuntimeError: the disk is full", "not finite"), strict=False):
        assert reason in result.reason
    assert float(trainer.callback_metrics["clients/failed"]) == 2
    assert float(trainer.callback_metrics["clients/used"]) == 4
    healthy = make_module(linear_net(), cohort=UniformCohort(count=4, availability=OnlyClients([2, 3, 4, 5])))
    fit(healthy, tiny_data(), 1)
    assert_same(weights(module), weights(healthy), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": CrossEntropy(), "dropout_rate": 0.5, "min_survivors": 6},
        {"objective": Failing([0]), "max_failed_rounds": None},
    ],
    ids=["too few survivors", "no survivors"],
)
def test_too_few_survivors_leave_the_weights(settings):
    _, module, start, trainer = run(**settings)
    assert_same(weights(module), start)
    assert trainer.global_step == trainer.current_epoch == 1


def test_equal_failures_of_all_clients_in_the_first_round_end_the_run():
    """Reasons are compared without numbers; one client, or failures of two kinds, do not end the run."""
    reason = r"^round 1: all 6 clients failed alike in the first round: error \(RuntimeError: client \d says no "
    with pytest.raises(ClientError, match=reason + r"\(test_faults.py, line \d+, in Failing.begin\)\)$"):
        run(rounds=2, objective=Failing([0]))
    run(rounds=2, objective=Failing([0]), cohort=1)
    run(rounds=2, objective=Failing([0], KeyError))
    run(rounds=3, objective=Failing([1]))


def test_failures_of_all_clients_in_consecutive_rounds_end_the_run():
    reason = r"max_failed_rounds: every client failed in 3 rounds .*in round 6, 1 of 6: error \(Runtime.* no \("
    with pytest.raises(ClientError, match=reason):
        run(rounds=9, objective=Failing([1, 3, 4, 5]), max_failed_rounds=3)  # not rounds 1, 3 and 4
    run(rounds=3, objective=CrossEntropy(), dropout_rate=0.999, max_failed_rounds=1)  # dropped clients are no failures


def test_the_end_reports_the_number_and_main_reason_of_failures(caplog):
    """Clients 0 and 1 of six fail in each of four rounds; dropped clients are not counted."""
    run(rounds=4)
    assert "8 of 24 updates failed, 4 of them: error (RuntimeError: the disk is full (" in caplog.text
    caplog.clear()
    run(rounds=2, objective=CrossEntropy(), dropout_rate=0.5)
    assert "updates failed" not in caplog.text


class Exhausted(FixedArchitecture):
    def plan(self, round):
        return super().plan(round) if round.number < 1 else next(iter(()))


class ExhaustedAverage(OverlapAverage):
    def finish(self):
        return next(iter(()))


@pytest.mark.parametrize("part", [Exhausted(), ExhaustedAverage()], ids=lambda part: type(part).__name__)
def test_a_part_that_raises_stop_iteration_ends_with_an_error(part):
    with pytest.raises(RuntimeError, match=r"^a part raised StopIteration, which ends Lightning's loops; let it"):
        fit(make_module(linear_net(), **{part.field.removeprefix("model."): part}), tiny_data(), 3)


class WrongAssignment(FixedArchitecture):
    def plan(self, round):
        return {}["seven apples"]


class WrongAverage(OverlapAverage):
    def add(self, update):
        torch.nn.Linear(8, 4)(torch.zeros(5))  # the last frames are torch's


@pytest.mark.parametrize("part", [WrongAssignment(), WrongAverage()], ids=lambda part: type(part).__name__)
def test_an_error_in_a_part_names_its_line(part):
    with pytest.raises((KeyError, RuntimeError), match=r"seven apples|cannot be multiplied") as caught:
        fit(make_module(linear_net(), **{part.field.removeprefix("model."): part}), tiny_data(), 1)
    (note,) = caught.value.__notes__
    assert re.fullmatch(rf"raised in test_faults.py, line \d+, in {type(part).__name__}\.\w+", note)


def passes(rounds, **faults):
    """Returns the number of passes of each client, round by round; a pass is one step."""
    client = ClientSettings(sgd(0.1), batch_size=32, epochs=3)
    return [result.num_steps for result in run(rounds, CrossEntropy(), client=client, **faults)[0].all]


def test_stragglers_train_one_to_all_passes():
    trained = passes(12, straggler_rate=0.6)
    shares = [trained.count(number) / len(trained) for number in (1, 2, 3)]
    assert shares == pytest.approx([0.2, 0.2, 0.6], abs=0.17)  # 72 draws: 3 standard deviations
    assert trained[:6] == passes(1, straggler_rate=0.6)
    assert set(passes(1)) == {3}


@pytest.mark.parametrize("says", ["loss", "statistics", "weights"])
def test_values_of_clients_are_validated(says):
    class Liar(CrossEntropy):
        statistics_types = (UnitChangeStatistics,)

        def begin(self, network, task, generator):
            self.network, self.lies = network, task.client == 1

        def loss(self, network, inputs, targets):
            loss = super().loss(network, inputs, targets)
            return loss + (loss.detach() * math.nan - loss.detach()) * 0 if self.lies and says == "loss" else loss

        @torch.no_grad()
        def statistics(self):
            if self.lies and says == "weights":
                next(self.network.parameters()).fill_(math.nan)
            return (UnitChangeStatistics({"conv": [0.0, math.inf if self.lies and says == "statistics" else 1.0]}),)

    results, module, _, _ = run(objective=Liar())
    assert results.status == {0: "ok", 1: "non-finite", 2: "ok", 3: "ok", 4: "ok", 5: "ok"}
    assert says in results.all[1].reason
    assert all(tensor.isfinite().all() for tensor in weights(module).values())


def test_clients_drop_out_at_the_rate_and_reproducibly():
    long, short = (run(rounds, CrossEntropy(), dropout_rate=0.3)[0].all for rounds in (20, 1))
    status = [result.status for result in long]
    assert status[:6] == [result.status for result in short]
    assert status.count("dropped") / len(status) == pytest.approx(0.3, abs=0.12)  # 120 draws: 2.9 standard deviations
