"""What ``client.fast`` chooses, where the time of every setting is known, and what a run makes of it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lit_fednas.callbacks import RoundCheckpoint, RunRecorder
from lit_fednas.federation import ClientSettings, FaultPolicy, client, fastest, loop
from lit_fednas.messages import ClientTask
from lit_fednas.records import read_rounds
from tests.federation.runs import LAST, run_in
from tests.support import assert_same, linear_net, make_module, sgd, tiny_data, weights

CHOICE = {"settings": {"channels_last": True}, "threads": 1, "chosen": "channels_last, 1 thread", "ratios": {}}


class Clock:
    """A clock that only training moves on: by some time a step, times the factor of each setting that is changed."""

    def __init__(self, step, waits=(), **factors):
        self.now, self.step, self.waits, self.factors = 0.0, step, dict(waits), factors
        self.trained = []

    def __call__(self):
        return self.now

    def runner(clock):
        class Runner(client.LocalRunner):
            def run(self, tasks):
                settings = self.settings
                used = {
                    "channels_last": settings.channels_last,
                    "clients_per_fit": settings.clients_per_fit > 1,
                    "compile": settings.compile,
                    "threads": torch.get_num_threads() > 1,
                }
                clock.trained.append({name for name, value in used.items() if value})
                clock.now += clock.waits.get(len(clock.trained), 0.0)
                factor = math.prod(clock.factors.get(name, 1.0) for name in clock.trained[-1])
                for result, update in super().run(tasks):
                    clock.now += clock.step * factor * result.num_steps
                    yield result, update

        return Runner


def timed(monkeypatch, step=0.01, waits=(), **factors):
    clock = Clock(step, waits, **factors)
    monkeypatch.setattr(fastest, "perf_counter", clock)
    monkeypatch.setattr(fastest, "_TURNS", (2, 2))  # all are alike
    monkeypatch.setattr(fastest, "LocalRunner", clock.runner())
    return clock


@pytest.fixture
def data():
    made = tiny_data()
    made.setup("fit")
    return made.clients


@pytest.fixture(autouse=True)
def threads_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def choose(module, data, tasks=4, threads=(1,), rounds=math.inf):
    arch = module.supernet.space.largest
    module.objective.setup(module.supernet, data)
    tasks = [ClientTask(0, client, arch, int(data.sizes[client])) for client in range(tasks)]
    return fastest.fastest(module, data, tasks, lambda: None, threads, rounds)


@pytest.mark.parametrize(
    ("factors", "settings", "ratios"),
    [
        ({"channels_last": 0.5, "clients_per_fit": 0.7}, {"channels_last": True}, [0.5, 0.7]),
        ({"channels_last": 0.5, "clients_per_fit": 0.4}, {"clients_per_fit": 4}, [0.5, 0.4]),
        ({"channels_last": 0.91, "clients_per_fit": 2.0}, {}, [0.91, 2.0]),
    ],
)
def test_the_fastest_is_taken_if_it_saves_a_tenth(monkeypatch, data, factors, settings, ratios):
    timed(monkeypatch, **factors)
    found = choose(make_module(), data)
    assert found["settings"] == settings
    assert found["threads"] is None  # there was one number of them
    assert list(found["ratios"]) == ["channels_last, 1 thread", "clients_per_fit 4, 1 thread"]
    assert list(found["ratios"].values()) == pytest.approx(ratios, abs=1e-3)


@pytest.mark.parametrize(("factor", "threads"), [(0.5, 2), (0.95, 1)])
def test_threads_are_chosen_for_the_best_layout(monkeypatch, data, factor, threads):
    """Both factors count: the ratios are multiples of the time without either."""
    timed(monkeypatch, channels_last=0.6, threads=factor)
    count = [1]  # real ones would wait for each other where other tests run
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[-1])
    monkeypatch.setattr(torch, "set_num_threads", count.append)
    found = choose(make_module(), data, threads=(1, 2))
    assert (found["settings"], found["threads"]) == ({"channels_last": True}, threads)
    assert found["ratios"]["channels_last, 2 threads"] == pytest.approx(0.6 * factor, abs=1e-3)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("step", "settings", "ratios"),
    [(0.03, {"clients_per_fit": 4}, [0.5, 0.4]), (0.2, {"channels_last": True}, [0.5])],
)
def test_long_fits_are_timed_by_some_of_their_steps(monkeypatch, data, step, settings, ratios):
    """Clients are stacked all the same: as many as make a step within a turn."""
    clock = timed(monkeypatch, step, channels_last=0.5, clients_per_fit=0.4)
    found = choose(make_module(client=ClientSettings(sgd(1e-3), batch_size=8, epochs=100)), data)
    assert found["settings"] == settings
    assert list(found["ratios"].values()) == pytest.approx(ratios, abs=1e-3)
    assert clock.now < step * 3 * 100  # less than one client takes, with three steps an epoch


@pytest.mark.parametrize("fit", [2, 6])
def test_a_fit_that_had_to_wait_does_not_hide_that_clients_can_be_stacked(monkeypatch, data, fit):
    """The first that is timed, of a step; and one by which the time of a turn is known."""
    timed(monkeypatch, waits={fit: 0.5}, clients_per_fit=0.4)
    assert choose(make_module(), data)["settings"] == {"clients_per_fit": 4}


@pytest.mark.parametrize("most", [1.5, 3.0])
def test_choosing_takes_a_share_of_the_run_and_some_seconds_at_most(monkeypatch, data, most):
    """A step takes 10 ms. Without time for two turns of two contenders nothing is tried, and the settings stay."""
    monkeypatch.setattr(fastest, "MOST_SECONDS", most)
    round = 0.01 * sum(int(size) for size in data.sizes[:4]) / 8
    for rounds in (1, 10, 100 * most / round, math.inf):
        clock = timed(monkeypatch, channels_last=0.5)
        monkeypatch.setattr(fastest, "_TURNS", (2, 1000))
        found = choose(make_module(), data, rounds=rounds)
        assert found["settings"] == ({"channels_last": True} if rounds > 10 else {})
        if rounds > 10:
            assert most - 0.5 < clock.now <= most
        else:
            assert found["ratios"] == {}
            assert clock.now == pytest.approx(3 * 0.01)


def failing(calls):
    """While it is timed."""
    count = itertools.count()

    def with_failure(network):
        def fail(*parts):
            if next(count) >= calls:
                raise ArithmeticError("seven apples")

        network.register_forward_pre_hook(fail)
        return network

    return with_failure


def doubled(network):
    network.register_forward_hook(lambda module, inputs, output: 2 * output)
    return network


@pytest.mark.parametrize("layout", [failing(8), doubled], ids=["fails", "is another"])
def test_what_fails_or_trains_differently_is_left_out(monkeypatch, data, layout):
    """The run's policy, which is to stop, is that of its own fits."""
    timed(monkeypatch, channels_last=0.1)
    monkeypatch.setattr(client, "with_channels_last", layout)
    found = choose(make_module(faults=FaultPolicy(on_client_error="raise")), data)
    assert found["settings"] == {}
    assert list(found["ratios"]) == ["clients_per_fit 4, 1 thread"]


def test_compilation_is_tried_if_a_tenth_of_what_lies_ahead_would_pay_for_it(monkeypatch, data):
    """A step takes 10 ms, and a round has four clients of so many steps; the network has one architecture."""
    monkeypatch.setattr(client, "compile_network", lambda network, batch: None)
    enough = fastest.COMPILATION / (0.1 * 0.01 * sum(int(size) for size in data.sizes[:4]) / 8)  # batches of 8
    for rounds, tried in ((enough - 1, False), (enough + 1, True), (math.inf, False)):  # may end at any time
        clock = timed(monkeypatch, compile=0.5)
        found = choose(make_module(linear_net()), data, rounds=rounds)
        assert found["settings"] == ({"compile": True} if tried else {})
        assert any("compile" in used for used in clock.trained) == tried


def test_measuring_leaves_no_trace(monkeypatch, data):
    timed(monkeypatch, channels_last=0.5)
    module = make_module(client=ClientSettings(sgd(0.1), batch_size=8, steps=3, validate=None, fast="auto"))
    before, settings, state = weights(module), dict(vars(module.client)), torch.get_rng_state()
    choose(module, data)
    assert_same(weights(module), before)
    assert vars(module.client) == settings
    assert torch.equal(torch.get_rng_state(), state)


# ---- in a run -----------------------------------------------------------------------------------------


def run(folder, rounds, ckpt_path=None, **settings):
    """A run's module and trainer, with a checkpoint of each round and records."""
    module = make_module(client=ClientSettings(sgd(0.1), batch_size=8, **settings))
    return module, run_in(folder, module, RunRecorder(), RoundCheckpoint(), rounds=rounds, ckpt_path=ckpt_path)


def test_a_run_trains_with_the_choice_and_keeps_it(monkeypatch, tmp_path):
    """Weights are to the bit those of a run that was told the settings, also after a stop, which measures nothing."""
    told, _ = run(tmp_path / "told", 3, channels_last=True)
    plain, _ = run(tmp_path / "plain", 3)
    measured = []
    monkeypatch.setattr(loop, "fastest", lambda *parts: measured.append(parts) or CHOICE)
    straight, _ = run(tmp_path / "straight", 3, fast="auto")
    run(tmp_path / "parts", 2, fast="auto")
    resumed, trainer = run(tmp_path / "parts", 3, tmp_path / "parts" / LAST, fast="auto")
    assert_same(weights(straight), weights(told))
    assert_same(weights(resumed), weights(told))
    with pytest.raises(AssertionError):
        assert_same(weights(plain), weights(told))  # otherwise this would not show which settings were used
    assert_same(weights(plain), weights(told), rtol=0, atol=1e-3)
    assert len(measured) == 2
    *_, threads, rounds = measured[0]
    assert (threads[0], rounds) == (torch.get_num_threads(), 3)
    assert trainer.fit_loop.fastest == {"round": 0, **CHOICE}
    records = list(read_rounds(tmp_path / "parts/run/only"))
    assert [record.get("fastest") for record in records] == [{"round": 0, **CHOICE}, None, None]
