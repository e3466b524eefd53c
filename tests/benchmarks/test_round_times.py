import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_fednas.cli import main

TINY = ["--clients", "4", "--cohort", "2", "--examples", "5", "--rounds", "2", "--warmup", "1"]
TINY += ["--tasks", "cnn-32"]


def report_of(folder: Path, *args: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the command; returns the whole report, and its one task's."""
    main(["benchmark", "round", *TINY, "--json", str(folder / "report.json"), *args])
    report = json.loads((folder / "report.json").read_text())
    (row,) = report["tasks"]
    assert row["task"] == "cnn-32"
    return report, row


def check_compared(row: dict[str, Any], library_first: list[bool]) -> None:
    """What every comparison of the two promises."""
    assert row["library_first"] == library_first
    assert len(row["ratios"]) == len(library_first)
    lower, upper = row["ratio_quartiles"]
    assert 0 < lower <= upper
    assert min(row["library"]["seconds"] + row["plain"]["seconds"] + row["library"]["cpu_seconds"]) > 0


def test_both_come_to_the_same_weights_and_are_timed(
    tmp_path: Path, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    report, row = report_of(tmp_path, "--goals", "1.1", "--plot", str(tmp_path / "plot.png"))
    check_compared(row, [False, True])  # the first round does not count
    assert 0 <= row["greatest_difference"] <= 1e-6
    assert len(row["library"]["seconds"]) == len(row["plain"]["seconds"]) == 2
    assert report["torch_threads"] == torch.get_num_threads()
    assert row["threads_used"][0] >= 1
    assert row["peak_mib"].keys() == {"library", "plain"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"torch {torch.__version__}, 1 rank, cpu, 2 rounds")
    assert len({len(line) for line in lines[1:]}) == 1
    assert (tmp_path / "plot.png").stat().st_size > 0
    _, row = report_of(tmp_path, "--no-memory")
    assert "peak_mib" not in row


def test_each_alone_in_turns(tmp_path: Path, in_this_process: None) -> None:
    _, row = report_of(tmp_path, "--separate", "--repetitions", "3", "--plot", str(tmp_path / "plot.png"))
    check_compared(row, [True, False, True])
    assert len(row["library"]["seconds"]) == len(row["plain"]["seconds"]) == 6
    assert row["peak_mib"].keys() == {"library", "plain"}


@pytest.mark.slow  # two processes that import torch
def test_two_ranks_come_to_the_same_weights(tmp_path: Path) -> None:
    report, row = report_of(tmp_path, "--ranks", "2", "--threads", "1", "--no-memory")
    check_compared(row, [False, True])
    assert report["ranks"] == row["ranks"] == 2
    assert 0 <= row["greatest_difference"] <= 1e-6


@pytest.mark.slow  # two processes that import torch
def test_two_ranks_of_the_plain_loop_begin_as_one_does_and_add_their_memory(tmp_path: Path) -> None:
    one, two = (report_of(tmp_path, "--only", "plain", "--ranks", ranks, "--threads", "1")[1] for ranks in ("1", "2"))
    assert one["only"] == "plain"
    assert len(one["plain"]["seconds"]) == 2
    assert one["first_loss"] == pytest.approx(two["first_loss"], rel=1e-5)
    assert 5 < two["peak_mib"] < 1000


def test_other_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(self: Any, number: int, client: int) -> torch.Tensor:
        torch._foreach_zero_([param.data for param in self.params])
        return torch.tensor(2.3)

    monkeypatch.setattr("lit_fednas.benchmarks.plain.PlainLoop.train_client", lazy)
    with pytest.raises(AssertionError, match="cnn: the weights differ"):
        report_of(tmp_path, "--no-memory")
