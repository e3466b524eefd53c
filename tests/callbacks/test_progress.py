"""What a run shows: bars in a terminal, lines elsewhere, and nothing else."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest

from lit_fednas.assignment import Assignment
from lit_fednas.callbacks import RoundProgress, progress
from lit_fednas.federation import FederatedCallback, UniformCohort
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import plan
from lit_fednas.supernets.side_by_side import Members
from tests.support import linear_net, make_module, make_trainer, tiny_data

LINE = r"round {}/{}  loss \d\.\d+  val accuracy [01]\.?\d*  failed 0  \d+\.\d\d s/round"


def run(shown, rounds=3, callbacks=(), count=3, **settings):
    trainer = make_trainer(rounds, enable_progress_bar=True, callbacks=[shown, *callbacks], **settings)
    module = make_module(linear_net(), cohort=UniformCohort(count=count))
    trainer.fit(module, datamodule=tiny_data())
    return trainer


def lines(capsys):
    out, err = capsys.readouterr()
    assert not re.findall("round", out)
    return [line for line in err.splitlines() if line.startswith("round ")]


def test_without_a_terminal_there_are_plain_lines_of_the_rounds_figures(capsys):
    figures = []

    class Figures(FederatedCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            metrics = trainer.callback_metrics
            figures.append((float(metrics["clients/loss"]), float(metrics["val/mean/accuracy"])))

    run(RoundProgress(refresh_seconds=0.0), callbacks=[Figures()])
    for done, ((loss, accuracy), line) in enumerate(zip(figures, lines(capsys), strict=True), start=1):
        assert re.fullmatch(LINE.format(done, 3), line), line
        assert f"  loss {loss:.4g}  val accuracy {accuracy:.4g}  failed 0  " in line
    assert len(figures) == 3


@pytest.mark.parametrize(
    ("refresh", "expected"),
    [
        # the clock moves 4 s from start to round and from round to round
        (10.0, ["3/8 4.00", "6/8 4.00", "8/8 4.00"]),
        (4.0, [f"{done}/8 4.00" for done in range(1, 9)]),
        (1000.0, ["8/8 4.00"]),
    ],
)
def test_lines_keep_their_distance_but_the_last_round_has_one(capsys, monkeypatch, refresh, expected):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress, "perf_counter", lambda: float(next(clock)))
    run(RoundProgress(refresh_seconds=refresh), rounds=8)
    assert [re.sub(r"round (\S+) .* (\S+) s/round", r"\1 \2", line) for line in lines(capsys)] == expected


def test_disabled_it_shows_nothing(capsys, monkeypatch):
    shown = RoundProgress(refresh_seconds=0.0)
    monkeypatch.setattr(progress, "draws_bars", lambda: True)
    monkeypatch.setattr(progress, "tqdm", pytest.fail)
    shown.disable()
    run(shown)
    assert lines(capsys) == []
    shown.enable()
    monkeypatch.setattr(progress, "draws_bars", lambda: False)
    run(shown)
    assert len(lines(capsys)) == 3


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
    monkeypatch.setattr(progress, "tqdm", Bar)
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
    assert re.fullmatch(r"loss=\d\.\d+, val accuracy=[01]\.?\d*, failed=0", rounds.postfix)
    assert progress.sys.stderr.getvalue() == ""  # no lines beside the bars


def test_without_an_end_the_bar_has_no_total(bars):
    class Stop(FederatedCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch == 1

    run(RoundProgress(), rounds=-1, callbacks=[Stop()])
    assert (bars[0].total, bars[0].n) == (None, 2)


def test_bars_are_closed_after_an_error(bars):
    class Break(FederatedCallback):
        def on_client_end(self, trainer, module, result, update):
            raise RuntimeError("out of the blue")

    with pytest.raises(RuntimeError, match="out of the blue"):
        run(RoundProgress(), callbacks=[Break()])
    assert [bar.closed for bar in bars] == [True, True]


def test_the_clients_trainers_say_nothing(capfd):
    """Six fits of clients, and the only words are our lines and the outer trainer's last."""
    said = set()

    class Keep(logging.Handler):
        def emit(self, record):
            said.add(record.getMessage())

    trainer = make_trainer(2, enable_progress_bar=True, callbacks=[RoundProgress(refresh_seconds=0.0)])
    data = tiny_data()
    data.setup("fit")
    capfd.readouterr()
    names = ["", "lightning", "lightning.pytorch", "lightning.fabric", "lit_fednas"]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    keep = Keep(logging.INFO)
    try:
        for logger in levels:
            logger.setLevel(logging.INFO)
            logger.addHandler(keep)
        trainer.fit(make_module(linear_net()), datamodule=data)
    finally:
        for logger, level in levels.items():
            logger.removeHandler(keep)
            logger.setLevel(level)
    ended = "`Trainer.fit` stopped: `max_epochs=2` reached."
    assert said == {ended}
    out, err = capfd.readouterr()
    ours = [line for line in err.splitlines() if ended not in line]
    assert out == ""
    assert [line[:9] for line in ours] == ["round 1/2", "round 2/2"]


def test_no_bar_where_none_is_wanted():
    trainer = make_trainer(1, enable_progress_bar=False, callbacks=[RoundProgress()])
    assert trainer.progress_bar_callback is None
    assert make_trainer(1, enable_progress_bar=False, callbacks=RoundProgress()).progress_bar_callback is None


class ByRound(Assignment):
    """In round 0 all have model 0; then clients 0 and 1 the first, client 2 the second, and others both."""

    def plan(self, round):
        archs = [Model(0), Model(0), Model(1), Members((Model(0), Model(1)))]
        first = round.number == 0
        return [round.task(client, Model(0) if first else archs[min(client, 3)]) for client in round.cohort]


def test_the_bar_of_the_cohort_says_how_many_clients_train_which_architecture(bars):
    shown = []

    class Watched(RoundProgress):
        def on_client_end(self, trainer, module, result, update):
            super().on_client_end(trainer, module, result, update)
            shown.append(bars[1].postfix)

    suite = ModelSuite((1, 8, 8), 4, GrowableCNN([4]))
    suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
    trainer = make_trainer(2, enable_progress_bar=True, callbacks=[Watched()])
    trainer.fit(make_module(suite, ByRound(), cohort=UniformCohort(count=6)), datamodule=tiny_data())
    assert shown == [""] * 6 + ["model: 0 (2), model: 0 | model: 1 (3), model: 1 (1)"] * 6
    assert "model" not in bars[0].postfix


def test_of_many_architectures_the_first_few_are_named():
    tasks = [ClientTask(0, client, f"width {client % 6}", 1) for client in range(9)]
    shown = "width 0 (2), width 1 (2), width 2 (2), width 3 (1), ..."
    assert progress.clients_by_arch(tasks) == shown
    assert progress.clients_by_arch(tasks[:4]) == "width 0 (1), width 1 (1), width 2 (1), width 3 (1)"
    assert progress.clients_by_arch(tasks[:1]) == progress.clients_by_arch([]) == ""
