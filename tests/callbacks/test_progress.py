"""What a run shows: bars in a terminal, lines elsewhere, and nothing else."""

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


def run(shown, rounds=3, callbacks=(), count=3, module=None, **settings):
    trainer = make_trainer(rounds, enable_progress_bar=True, callbacks=[shown, *callbacks], **settings)
    module = module or make_module(linear_net(), cohort=UniformCohort(count=count))
    trainer.fit(module, datamodule=tiny_data())
    return trainer


def lines(capsys):
    out, err = capsys.readouterr()
    assert not re.findall("round", out)
    return [line for line in err.splitlines() if line.startswith("round ")]


def test_without_a_terminal_there_is_a_plain_line_of_each_round(capsys):
    run(RoundProgress(refresh_seconds=0.0), rounds=2)
    first, second = lines(capsys)
    assert re.fullmatch(LINE.format(1, 2), first), first
    assert re.fullmatch(LINE.format(2, 2), second), second


def test_a_line_shows_a_value_only_in_the_round_that_it_belongs_to(capsys):
    """Validated are every second of five rounds, and the last; the value of the second is not repeated in the third."""
    run(RoundProgress(refresh_seconds=0.0), rounds=5, check_val_every_n_rounds=2)
    assert ["val accuracy" in line for line in lines(capsys)] == [False, True, False, True, True]


def test_lines_keep_their_distance_but_the_last_round_has_one(capsys, monkeypatch):
    """The clock moves 4 s from start to round and from round to round."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(formatting, "perf_counter", lambda: float(next(clock)))
    run(RoundProgress(refresh_seconds=10.0), rounds=8)
    shown = [re.sub(r"round (\S+) .* (\S+) s/round", r"\1 \2", line) for line in lines(capsys)]
    assert shown == ["3/8 4.00", "6/8 4.00", "8/8 4.00"]


def test_bars_are_for_terminals_and_kernels(monkeypatch):
    # capsys' stderr is not a terminal; an imported ipykernel does not make this a notebook
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


def test_a_person_at_a_terminal_knows_what_takes_a_while(capsys, monkeypatch):
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
    """A bar that remembers itself."""

    made: list[Bar]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made.append(self)
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
    Bar.made = []
    return Bar.made


def test_in_a_terminal_there_are_two_bars(bars):
    run(RoundProgress(), rounds=3, count=5)
    rounds, clients = bars
    assert (rounds.desc, rounds.totals, rounds.n) == ("rounds", [3], 3)
    assert (clients.desc, clients.totals, clients.n) == ("clients", [None, 5, 5, 5], 5)
    assert rounds.closed
    assert clients.closed
    assert re.fullmatch(r"loss=\d\.\d+, val accuracy=\d+\.\d%, failed=0", rounds.postfix)
    assert progress.sys.stderr.getvalue() == ""  # no lines beside the bars


def test_the_clients_bar_says_what_the_networks_of_a_round_cost(bars):
    """A sandwich of two is the least and the greatest network; it fits beside a bar of 110 columns."""
    supernet = tiny_supernet()
    run(RoundProgress(), 1, module=make_module(supernet, TrackingSandwich(), cohort=UniformCohort(count=2)))
    least, greatest = (short(supernet.cost(arch).macs) for arch in (supernet.space.smallest, supernet.space.largest))
    assert bars[1].postfix == f"2 networks, {least} to {greatest} MACs"


def test_bars_are_closed_after_an_error(bars):
    broken = Noted("on_client_end", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(RoundProgress(), callbacks=[broken])
    assert [bar.closed for bar in bars] == [True, True]


def test_the_clients_trainers_say_nothing(capfd, monkeypatch):
    """Six fits of clients, and the only words are our lines and the outer trainer's last."""
    said = set()

    class Keep(logging.Handler):
        def emit(self, record):
            said.add(record.getMessage())

    trainer = make_trainer(2, enable_progress_bar=True, callbacks=[RoundProgress(refresh_seconds=0.0)])
    data = tiny_data()
    data.setup("fit")
    capfd.readouterr()
    for name in ("", "lightning", "lightning.pytorch", "lightning.fabric", "lit_fednas"):
        monkeypatch.setattr(logger := logging.getLogger(name), "level", logging.INFO)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, Keep(logging.INFO)])
    trainer.fit(make_module(linear_net()), datamodule=data)
    ended = "`Trainer.fit` stopped: `max_epochs=2` reached."
    assert said == {ended}
    out, err = capfd.readouterr()
    ours = [line for line in err.splitlines() if ended not in line]
    assert out == ""
    assert [line.partition("  ")[0] for line in ours] == ["training starts at round 1/2", "round 1/2", "round 2/2"]
