"""Tests the progress of a run: bars in a terminal, lines elsewhere, and no other output."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest

from lit_fednas import formatting
from lit_fednas.assignment import TrackingSandwich
from lit_fednas.callbacks import RoundProgress, progress
from lit_fednas.federation import UniformCohort
from lit_fednas.formatting import short
from tests.support import Noted, linear_net, make_module, make_trainer, tiny_data, tiny_supernet

LINE = r"round {}/{}  loss \d\.\d+  val accuracy \d+\.\d%  failed 0  \d+\.\d\d s/round"


def run(progress_bar, rounds=3, callbacks=(), count=3, module=None, **settings):
    trainer = make_trainer(rounds, enable_progress_bar=True, callbacks=[progress_bar, *callbacks], **settings)
    module = module or make_module(linear_net(), cohort=UniformCohort(count=count))
    trainer.fit(module, datamodule=tiny_data())
    return trainer


def lines(capsys):
    out, err = capsys.readouterr()
    assert not re.findall("round", out)
    return [line for line in err.splitlines() if line.startswith("round ")]


def test_without_a_terminal_each_round_has_a_plain_line(capsys):
    run(RoundProgress(refresh_seconds=0.0), rounds=2)
    first, second = lines(capsys)
    assert re.fullmatch(LINE.format(1, 2), first), first
    assert re.fullmatch(LINE.format(2, 2), second), second


def test_a_line_shows_only_values_of_its_round(capsys):
    """Rounds 2, 4 and 5 are validated; round 3 does not repeat the value of round 2."""
    run(RoundProgress(refresh_seconds=0.0), rounds=5, check_val_every_n_rounds=2)
    assert ["val accuracy" in line for line in lines(capsys)] == [False, True, False, True, True]


def test_lines_have_a_minimum_distance_except_the_last(capsys, monkeypatch):
    """Each round takes 4 s."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(formatting, "perf_counter", lambda: float(next(clock)))
    run(RoundProgress(refresh_seconds=10.0), rounds=8)
    rounds_and_seconds = [re.sub(r"round (\S+) .* (\S+) s/round", r"\1 \2", line) for line in lines(capsys)]
    assert rounds_and_seconds == ["3/8 4.00", "6/8 4.00", "8/8 4.00"]


def test_bars_are_for_terminals_and_kernels(monkeypatch):
    # The stderr of capsys is not a terminal, and importing ipykernel does not make a notebook.
    shell = SimpleNamespace()
    for module in ("ipykernel", "IPython"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(get_ipython=lambda: shell))
    assert not progress.draws_bars()
    shell.kernel = object()
    assert progress.draws_bars()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not progress.draws_bars()
    monkeypatch.setattr("sys.stderr", Terminal())
    assert progress.draws_bars()


def test_a_terminal_shows_slow_steps(capsys, monkeypatch):
    tiny_data().setup()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    data = tiny_data()
    data.setup()
    data.setup()  # does nothing
    assert terminal.getvalue() == f"reading {type(data.source).__name__} ...\n"
    monkeypatch.setenv("LOCAL_RANK", "1")
    tiny_data().setup()
    assert terminal.getvalue().count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Bar(progress.tqdm):
    """A bar that records its instances."""

    instances: list[Bar]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.instances.append(self)
        self.totals = [self.total]
        self.closed = False

    def reset(self, total=None):
        super().reset(total)
        self.totals.append(total)

    def close(self):
        self.closed = True
        super().close()


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr(progress, "tqdm", Bar)
    monkeypatch.setattr(formatting, "draws_bars", lambda: True)
    monkeypatch.setattr(progress, "draws_bars", lambda: True)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO()))
    Bar.instances = []
    return Bar.instances


def test_in_a_terminal_there_are_two_bars(bars):
    run(RoundProgress(), rounds=3, count=5)
    rounds, clients = bars
    assert (rounds.desc, rounds.totals, rounds.n) == ("rounds", [3], 3)
    assert (clients.desc, clients.totals, clients.n) == ("clients", [None, 5, 5, 5], 5)
    assert rounds.closed
    assert clients.closed
    assert re.fullmatch(r"loss=\d\.\d+, val accuracy=\d+\.\d%, failed=0", rounds.postfix)
    assert progress.sys.stderr.getvalue() == ""  # no lines beside the bars


def test_the_clients_bar_shows_the_costs_of_a_round_s_networks(bars):
    """A sandwich of two clients has the smallest and the largest network."""
    supernet = tiny_supernet()
    run(RoundProgress(), 1, module=make_module(supernet, TrackingSandwich(), cohort=UniformCohort(count=2)))
    smallest, largest = (short(supernet.cost(arch).macs) for arch in (supernet.space.smallest, supernet.space.largest))
    assert bars[1].postfix == f"2 networks, {smallest} to {largest} MACs"


def test_bars_are_closed_after_an_error(bars):
    broken = Noted("on_client_end", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(RoundProgress(), callbacks=[broken])
    assert [bar.closed for bar in bars] == [True, True]


def test_the_clients_trainers_print_nothing(capfd, monkeypatch):
    """The only messages of a run with six clients' fits are our lines and the outer trainer's last."""
    messages = set()

    class Keep(logging.Handler):
        def emit(self, record):
            messages.add(record.getMessage())

    trainer = make_trainer(2, enable_progress_bar=True, callbacks=[RoundProgress(refresh_seconds=0.0)])
    data = tiny_data()
    data.setup("fit")
    capfd.readouterr()
    for name in ("", "lightning", "lightning.pytorch", "lightning.fabric", "lit_fednas"):
        monkeypatch.setattr(logger := logging.getLogger(name), "level", logging.INFO)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, Keep(logging.INFO)])
    trainer.fit(make_module(linear_net()), datamodule=data)
    last_message = "`Trainer.fit` stopped: `max_epochs=2` reached."
    assert messages == {last_message}
    out, err = capfd.readouterr()
    ours = [line for line in err.splitlines() if last_message not in line]
    assert out == ""
    assert [line.partition("  ")[0] for line in ours] == ["training starts at round 1/2", "round 1/2", "round 2/2"]
