import json
import logging
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark_round"
TINY = ["--clients", "4", "--cohort", "2", "--examples", "5", "--rounds", "2", "--warmup", "1"]


@pytest.fixture(autouse=True)
def lightnings_log_level() -> Iterator[None]:
    """The script silences Lightning for its process, which here is that of other tests, too."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = spec_from_loader("benchmark_round", SourceFileLoader("benchmark_round", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["benchmark_round"] = module
    spec.loader.exec_module(module)
    return module


def test_both_come_to_the_same_weights_and_are_timed(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    benchmark.main([*TINY, "--tasks", "cnn-32", "--no-memory", "--json", str(report)])
    (row,) = json.loads(report.read_text())["tasks"]
    assert row["task"] == "cnn-32"
    assert 0 <= row["greatest_difference"] <= 1e-6
    assert len(row["library"]["seconds"]) == len(row["plain"]["seconds"]) == 2
    assert min(row["library"]["seconds"] + row["plain"]["seconds"]) > 0
    assert row["ratio"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu")
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize("who", ["library", "plain"])
def test_one_by_itself_reports_its_memory(benchmark: ModuleType, tmp_path: Path, who: str) -> None:
    report = tmp_path / "report.json"
    benchmark.main([*TINY, "--tasks", "cnn-32", "--only", who, "--json", str(report)])
    (row,) = json.loads(report.read_text())["tasks"]
    assert row["only"] == who
    assert len(row[who]["seconds"]) == 2
    assert row["peak_mib"] >= 0


def test_other_work_is_noticed(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        benchmark.PlainLoop, "train_client", lambda self, *_: [p.data.zero_() for p in self.params] and 0.0
    )
    with pytest.raises(AssertionError, match="cnn-32: the weights differ"):
        benchmark.main([*TINY, "--tasks", "cnn-32", "--no-memory"])
