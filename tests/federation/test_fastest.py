"""The choice of ``client.fast`` with a simulated clock, and its use in a run."""

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
    """A clock that advances with each training step; changed settings multiply the time of a step."""

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
    monkeypatch.setattr(fastest, "_TURNS", (2, 2))  # all turns take equal times
    monkeypatch.setattr(fastest, "LocalRunner", clock.runner())
    return clock


@pytest.fixture
def data():
    module = tiny_data()
    module.setup("fit")
    return module.clients


@pytest.fixture(autouse=True)
def threads_restored():
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


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
def test_the_fastest_wins_if_it_saves_a_tenth(monkeypatch, data, factors, settings, ratios):
    timed(monkeypatch, **factors)
    choice = choose(make_module(), data)
    assert choice["settings"] == settings
    assert choice["threads"] is None  # there was only one number of threads
    assert list(choice["ratios"]) == ["channels_last, 1 thread", "clients_per_fit 4, 1 thread"]
    assert list(choice["ratios"].values()) == pytest.approx(ratios, abs=1e-3)


@pytest.mark.parametrize(("factor", "threads"), [(0.5, 2), (0.95, 1)])
def test_threads_are_chosen_for_the_best_layout(monkeypatch, data, factor, threads):
    """Both factors count: ratios are relative to the time without both changes."""
    timed(monkeypatch, channels_last=0.6, threads=factor)
    count = [1]  # real threads would wait for each other beside other tests
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[-1])
    monkeypatch.setattr(torch, "set_num_threads", count.append)
    choice = choose(make_module(), data, threads=(1, 2))
    assert (choice["settings"], choice["threads"]) == ({"channels_last": True}, threads)
    assert choice["ratios"]["channels_last, 2 threads"] == pytest.approx(0.6 * factor, abs=1e-3)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("step", "settings", "ratios"),
    [(0.03, {"clients_per_fit": 4}, [0.5, 0.4]), (0.2, {"channels_last": True}, [0.5])],
)
def test_long_fits_are_timed_by_some_of_their_steps(monkeypatch, data, step, settings, ratios):
    """Clients are still stacked: as many as take one step within a turn."""
    clock = timed(monkeypatch, step, channels_last=0.5, clients_per_fit=0.4)
    choice = choose(make_module(client=ClientSettings(sgd(1e-3), batch_size=8, epochs=100)), data)
    assert choice["settings"] == settings
    assert list(choice["ratios"].values()) == pytest.approx(ratios, abs=1e-3)
    assert clock.now < step * 3 * 100  # less than one client takes, with three steps an epoch


@pytest.mark.parametrize("fit", [2, 6])
def test_one_delayed_fit_does_not_prevent_stacking(monkeypatch, data, fit):
    """Delays the first timed fit, of one step, or a fit that measures the time of a turn."""
    timed(monkeypatch, waits={fit: 0.5}, clients_per_fit=0.4)
    assert choose(make_module(), data)["settings"] == {"clients_per_fit": 4}


@pytest.mark.parametrize("max_seconds", [1.5, 3.0])
def test_the_choice_takes_a_limited_share_and_limited_seconds(monkeypatch, data, max_seconds):
    """A step takes 10 ms. Without time for two turns of two contenders the settings stay."""
    monkeypatch.setattr(fastest, "MAX_SECONDS", max_seconds)
    round = 0.01 * sum(int(size) for size in data.sizes[:4]) / 8
    for rounds in (1, 10, 100 * max_seconds / round, math.inf):
        clock = timed(monkeypatch, channels_last=0.5)
        monkeypatch.setattr(fastest, "_TURNS", (2, 1000))
        choice = choose(make_module(), data, rounds=rounds)
        assert choice["settings"] == ({"channels_last": True} if rounds > 10 else {})
        if rounds > 10:
            assert max_seconds - 0.5 < clock.now <= max_seconds
        else:
            assert choice["ratios"] == {}
            assert clock.now == pytest.approx(3 * 0.01)


def failing(calls):
    """Returns a layout that fails after a number of calls, during the timing."""
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
def test_failing_or_different_contenders_are_left_out(monkeypatch, data, layout):
    """The run's policy to stop at failures does not apply to contenders."""
    timed(monkeypatch, channels_last=0.1)
    monkeypatch.setattr(client, "with_channels_last", layout)
    choice = choose(make_module(faults=FaultPolicy(on_client_error="raise")), data)
    assert choice["settings"] == {}
    assert list(choice["ratios"]) == ["clients_per_fit 4, 1 thread"]


def test_compilation_is_tried_if_a_tenth_of_the_remaining_time_pays_for_it(monkeypatch, data):
    """A step takes 10 ms, a round has four clients, and the network has one architecture."""
    monkeypatch.setattr(client, "compile_network", lambda network, batch: None)
    break_even = fastest.COMPILATION / (0.1 * 0.01 * sum(int(size) for size in data.sizes[:4]) / 8)  # batches of 8
    # a run without an end may stop at any time
    for rounds, is_compiled in ((break_even - 1, False), (break_even + 1, True), (math.inf, False)):
        clock = timed(monkeypatch, compile=0.5)
        choice = choose(make_module(linear_net()), data, rounds=rounds)
        assert choice["settings"] == ({"compile": True} if is_compiled else {})
        assert any("compile" in used for used in clock.trained) == is_compiled


def test_measuring_leaves_no_trace(monkeypatch, data):
    timed(monkeypatch, channels_last=0.5)
    module = make_module(client=ClientSettings(sgd(0.1), batch_size=8, steps=3, validate=None, fast="auto"))
    start, settings, state = weights(module), dict(vars(module.client)), torch.get_rng_state()
    choose(module, data)
    assert_same(weights(module), start)
    assert vars(module.client) == settings
    assert torch.equal(torch.get_rng_state(), state)


# ---- in a run -----------------------------------------------------------------------------------------


def run(folder, rounds, ckpt_path=None, **settings):
    """Returns a run's module and trainer; the run saves records, and a checkpoint of each round."""
    module = make_module(client=ClientSettings(sgd(0.1), batch_size=8, **settings))
    return module, run_in(folder, module, RunRecorder(), RoundCheckpoint(), rounds=rounds, ckpt_path=ckpt_path)


def test_a_run_trains_with_the_choice_and_keeps_it(monkeypatch, tmp_path):
    """Weights equal those of a run with the same explicit settings, also after a resume, which measures nothing."""
    explicit, _ = run(tmp_path / "told", 3, channels_last=True)
    plain, _ = run(tmp_path / "plain", 3)
    measured = []
    monkeypatch.setattr(loop, "fastest", lambda *parts: measured.append(parts) or CHOICE)
    straight, _ = run(tmp_path / "straight", 3, fast="auto")
    run(tmp_path / "parts", 2, fast="auto")
    resumed, trainer = run(tmp_path / "parts", 3, tmp_path / "parts" / LAST, fast="auto")
    assert_same(weights(straight), weights(explicit))
    assert_same(weights(resumed), weights(explicit))
    with pytest.raises(AssertionError):
        assert_same(weights(plain), weights(explicit))  # otherwise equal weights would prove nothing
    assert_same(weights(plain), weights(explicit), rtol=0, atol=1e-3)
    assert len(measured) == 2
    *_, threads, rounds = measured[0]
    assert (threads[0], rounds) == (torch.get_num_threads(), 3)
    assert trainer.fit_loop.fastest == {"round": 0, **CHOICE}
    records = list(read_rounds(tmp_path / "parts/run/only"))
    assert [record.get("fastest") for record in records] == [{"round": 0, **CHOICE}, None, None]
