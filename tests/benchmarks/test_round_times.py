import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.command import main

TINY = ["--clients", "4", "--cohort", "2", "--examples", "5", "--rounds", "2", "--warmup", "1"]
TINY += ["--tasks", "cnn-32"]


def report_of(folder: Path, *args: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the command; returns the whole report, and its one task's."""
    main(["round", *TINY, "--json", str(folder / "report.json"), *args])
    report = json.loads((folder / "report.json").read_text())
    (row,) = report["tasks"]
    assert row["task"] == "cnn-32"
    return report, row


def test_both_come_to_the_same_weights_and_are_timed(tmp_path: Path, in_this_process: None) -> None:
    report, row = report_of(tmp_path)
    assert row["library_first"] == [False, True]  # the first round does not count
    assert len(row["ratios"]) == 2
    lower, upper = row["ratio_quartiles"]
    assert 0 < lower <= upper
    assert min(row["library"]["seconds"] + row["plain"]["seconds"] + row["library"]["cpu_seconds"]) > 0
    assert 0 <= row["greatest_difference"] <= 1e-6
    assert len(row["library"]["seconds"]) == len(row["plain"]["seconds"]) == 2
    assert report["torch_threads"] == torch.get_num_threads()
    assert row["threads_used"] >= 1
    assert row["peak_mib"].keys() == {"library", "plain"}


def test_other_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(self: Any, number: int, client: int) -> torch.Tensor:
        torch._foreach_zero_([param.data for param in self.params])
        return torch.tensor(2.3)

    monkeypatch.setattr("benchmarks.plain.PlainLoop.train_client", lazy)
    with pytest.raises(AssertionError, match="cnn: the weights differ"):
        report_of(tmp_path, "--no-memory")
