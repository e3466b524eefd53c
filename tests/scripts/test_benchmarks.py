import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import search, start
from benchmarks.command import main
from benchmarks.population import rows
from benchmarks.settings import BENCHMARKS


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs child calls in this process, which is faster but makes memory figures meaningless."""

    def call(function: str, arguments: dict[str, Any], ranks: int = 1, threads: int = 1) -> Any:
        assert ranks == 1
        module, name = function.split(":")
        return getattr(import_module(module), name)(**arguments)

    for module in ("rounds", "population"):
        monkeypatch.setattr(f"benchmarks.{module}.call_in_child", call)


SMALL = ["--image", "8", "--stem", "4", "--widths", "8", "16"]


def report_of(folder: Path, words: str, *more: str) -> dict[str, Any]:
    """Runs a sub-command, checks the common keys of its report and returns it."""
    options = ["--threads", "1", "--json", str(folder / "report.json")]
    assert main([*words.split(), *more, *options]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["command"] == words.split()[0]
    assert {"torch", "device", "cores", "threads", "load_average"} <= report.keys()
    return report


ROUND = "round --clients 4 --cohort 2 --examples 5 --rounds 2 --warmup 1 --tasks cnn-32"


def test_library_and_loop_reach_the_same_weights_and_are_timed(tmp_path: Path, in_this_process: None) -> None:
    (row,) = report_of(tmp_path, ROUND)["tasks"]
    assert (row["task"], row["library_first"]) == ("cnn-32", [False, True])  # the first round does not count
    assert len(row["ratios"]) == len(row["library"]["seconds"]) == len(row["plain"]["seconds"]) == 2
    lower, upper = row["ratio_quartiles"]
    assert 0 < lower <= upper
    assert 0 <= row["greatest_difference"] <= 1e-6
    assert row["peak_mib"].keys() == {"library", "plain"}


def test_other_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(self: Any, number: int, client: int) -> torch.Tensor:
        torch._foreach_zero_([param.data for param in self.params])
        return torch.tensor(2.3)

    monkeypatch.setattr("benchmarks.plain.PlainLoop.train_client", lazy)
    with pytest.raises(AssertionError, match="cnn: the weights differ"):
        report_of(tmp_path, ROUND, "--no-memory")


@pytest.mark.parametrize(
    ("words", "part", "count"),
    [
        (["memory --rounds 3 --cohorts 2 3 --examples 4 --settled 1", *SMALL], "runs", 6),  # 3 runs of 2 cohorts
        (["subnets --fits 2 --warmup 1 --steps 2 --batch-size 4", *SMALL], "subnets", 3),
        ([f"{ROUND.replace('cnn-32', 'tiny-50')} --together 1 3 --batch-size 4 --no-memory"], "tasks", 2),
    ],
    ids=["memory", "subnets", "together"],
)
def test_requested_measurements_are_made(
    tmp_path: Path, in_this_process: None, words: list[str], part: str, count: int
) -> None:
    """The command itself compares library and loop."""
    assert len(report_of(tmp_path, *words)[part]) == count


def test_population(tmp_path: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = 2.0**20  # fixed: this process may have its peak behind it, and a slope needs growth
    monkeypatch.setattr("benchmarks.population.peak_memory", lambda device: peak)
    words = "population --clients 20 80 --cohort 3 --rounds 2 --warmup 1 --repeats 2 --tiers"
    report = report_of(tmp_path, words)
    assert [(clients, len(runs)) for clients, runs in report["runs"]] == [(20, 2), (80, 2)]
    for run in [run for _, runs in report["runs"] for run in runs]:
        assert len(run["round_seconds"]) == 2
        assert run["setup_seconds"] > 0
        assert 0 < run["peak_mib"] < peak
        assert run["checkpoint_bytes"] > 1000 < run["record_bytes"]
    assert rows(report)[-1]["clients"] == "slope"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["memory", "--rounds", "3"], "rounds: 3 is too few to measure a growth; set at least 5"),
        (["round", "--tasks", "cnn8"], "argument --tasks: invalid choice: 'cnn8'"),
    ],
)
def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmark: ")
    assert message in line


def test_how_evenly_ranks_share_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The busiest of two ranks uses three quarters and two thirds of the CPU time of two rounds."""
    alone = {"seconds": [0.5, 0.25], "cpu_by_rank": [[1.0, 4.0], [3.0, 2.0]], "first_loss": 2.3}
    halves = {**alone, "seconds": [0.25, 0.125]}
    results = iter([alone, halves])
    monkeypatch.setattr("benchmarks.ranks.call_in_child", lambda *args: next(results))
    single, double = report_of(tmp_path, "ranks --grid 1x2 2x1 --rounds 2 --repetitions 1")["ways"]
    assert single["busiest_to_mean"] == double["busiest_to_mean"] == pytest.approx((1.5 + 4 / 3) / 2)
    assert (single["speed_up"], double["speed_up"]) == (1, 2)
    assert double["rounds_per_second"] == pytest.approx(1 / 0.1875)


def test_a_start_is_timed_until_its_first_words_and_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python command uses CPU time, waits, and exits with a known status."""
    spent = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    output = spent + "print('loading', flush=True); time.sleep(0.2); print('reading'); time.sleep(0.3); print('0%|')"
    monkeypatch.setattr("benchmarks.start.WAYS", {start.IMPORT: (["-c", spent], 0), "shown": (["-c", output], 0)})
    ways = report_of(tmp_path, "start --repeats 2")["ways"]
    for run in ways["shown"]:
        assert run["cpu"] >= 0.2
        assert 0.2 <= run["first_words"] <= run["wall"] - 0.3
        assert run["first_bar"] >= 0.2
    assert {run["first_words"] for run in ways[start.IMPORT]} == {None}
    monkeypatch.setattr("benchmarks.start.WAYS", {"wrong": (["-c", "raise SystemExit('told')"], 0)})
    with pytest.raises(AssertionError, match="told"):
        report_of(tmp_path, "start")


@pytest.mark.slow  # a training
def test_searches_are_raced_and_rankings_timed(tmp_path: Path) -> None:
    report = report_of(tmp_path, "search --rounds 1 --archs 1 --evaluations 24 --repetitions 1")
    assert {len(seconds) for seconds in report["rates"].values()} == {1}
    assert [[len(run) for run in runs] for runs in report["searches"].values()] == [[24]] * len(search.METHODS)


def test_when_a_search_has_the_front_by_hand() -> None:
    """Above 0.5, the front of 1 and 2 MACs of 4 has (0.5 * 1 + 1 * 2) / 4; only the second search reaches it."""
    points = [4.0, 0.5, 0.1], [1.0, 0.5, 0.2], [1.0, 0.75, 0.3], [2.0, 1.0, 0.7]
    ends = search.reached({"one": [[points[1], points[2]]], "other": [list(points)]})
    assert ends == {"one": [None], "other": [(4, 0.7)]}
    assert search.reached({"one": [[points[1]]]}) == {"one": [(1, 0.2)]}


def test_all_are_run_and_leave_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.command.subprocess.run", lambda words, check: Path(words[-1]).write_text(words[2]))
    assert main(["all", "--json", str(tmp_path / "new")]) == 0
    assert {path.stem: path.read_text() for path in (tmp_path / "new").iterdir()} == {name: name for name in BENCHMARKS}
