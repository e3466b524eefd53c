import json
from pathlib import Path
from typing import Any

import pytest

from lit_fednas.benchmarks import evaluations
from lit_fednas.benchmarks.population import rows, slope
from lit_fednas.cli import main
from lit_fednas.errors import ClientError

SMALL = ["--image", "8", "--stem", "4", "--widths", "8", "16"]


def report_of(folder: Path, *args: str) -> dict[str, Any]:
    """Runs a sub-command; returns its report, after a look at what all of them promise."""
    plot = folder / "plot.png"
    files = ["--json", str(folder / "report.json"), "--plot", str(plot)]
    assert main(["benchmark", "scale", *args, "--threads", "1", *files]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["command"] == args[0]
    assert {"torch", "device", "cores", "threads", "load_average"} <= report.keys()
    assert plot.stat().st_size > 0
    return report


@pytest.mark.slow
def test_memory(tmp_path: Path, in_this_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--rounds", "4", "--cohorts", "2", "3", "--examples", "4", "--settled", "1", *SMALL]
    runs = report_of(tmp_path, "memory", *args)["runs"]
    assert [(run["network"], run["who"], run["cohort"]) for run in runs] == [
        (network, who, cohort)
        for cohort in (2, 3)
        for network, who in (("cnn", "library"), ("cnn", "plain"), ("elastic", "library"))
    ]
    for run in runs:
        assert len(run["mib"]) == 4
        assert {"start_mib", "peak_mib", "end_mib", "growth_kib_per_round", "imports_mib"} <= run.keys()
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines[1:]) == len(lines[1])  # no cell is wider than its column


@pytest.mark.parametrize("tiers", [(), ("--tiers",)])
def test_population(tmp_path: Path, in_this_process: None, tiers: tuple[str, ...]) -> None:
    args = ["--clients", "20", "80", "--cohort", "3", "--rounds", "4", "--warmup", "1", "--repeats", "2", *tiers]
    report = report_of(tmp_path, "population", *args)
    assert [(clients, len(runs)) for clients, runs in report["runs"]] == [(20, 2), (80, 2)]
    for _, runs in report["runs"]:
        for run in runs:
            assert len(run["round_seconds"]) == 4
            assert run["setup_seconds"] > 0
            assert run["checkpoint_bytes"] > 1000 < run["record_bytes"]
    assert rows(report)[-1]["clients"] == "slope"


def test_slopes_by_hand() -> None:
    found = [{"clients": clients, "x": 0.5 * clients**0.7, "y": 3.0} for clients in (1e3, 1e4, 1e6)]
    assert (slope(found, "x"), slope(found, "y")) == pytest.approx((0.7, 0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["memory", "--rounds", "3"], "rounds: 3 is too few to see a growth; give at least 7"),
        (["memory", "--ruonds", "3"], "unrecognized arguments: --ruonds 3 (lit-fednas benchmark scale --help"),
        (["memories"], "invalid choice: 'memories'"),
    ],
)
def test_wrong_words_are_one_clear_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["benchmark", "scale", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lit-fednas: ")
    assert message in line


@pytest.mark.slow  # three processes that import torch
def test_memory_of_processes_of_their_own(tmp_path: Path) -> None:
    args = ["--rounds", "3", "--cohorts", "2", "--examples", "4", "--settled", "1", *SMALL]
    runs = report_of(tmp_path, "memory", *args)["runs"]
    for run in runs:
        assert 0 <= run["start_mib"] <= run["end_mib"] <= run["peak_mib"] + 1
        assert run["imports_mib"] > 50
    assert runs[0]["peak_ratio"] == pytest.approx(runs[0]["peak_mib"] / runs[1]["peak_mib"])


def test_subnets(tmp_path: Path) -> None:
    args = ["--fits", "2", "--warmup", "1", "--steps", "2", "--batch-size", "4", *SMALL]
    report = report_of(tmp_path, "subnets", *args)
    assert [row["name"] for row in report["subnets"]] == ["smallest", "middle", "largest"]
    assert 0 <= report["greatest_difference"] <= 1e-6
    macs = [row["macs"] for row in report["subnets"]]
    assert macs == sorted(set(macs))
    for row in report["subnets"]:
        assert {"arch", "parameters", "ns_per_mac", "macs_to_first", "time_to_first"} <= row.keys()
        assert {who: len(ms) for who, ms in row["ms_per_step"].items()} == {"library": 2, "plain": 2}
        assert len(row["ratios"]) == 2


def test_layout(tmp_path: Path) -> None:
    args = ["--fits", "2", "--warmup", "1", "--steps", "1", "--batch-size", "4", "--passes", "2", *SMALL]
    args += ["--networks", "cnn", "elastic", "--variants", "bf16", "channels last"]
    report = report_of(tmp_path, "layout", *args)
    assert [(row["network"], row["variant"]) for row in report["layouts"]] == [
        (network, variant) for network in ("cnn", "elastic") for variant in ("float32", "bf16", "channels last")
    ]
    for base, bf16, last in (report["layouts"][:3], report["layouts"][3:]):
        assert base["speed_up"] == 1
        assert bf16["mean_loss"] == pytest.approx(base["mean_loss"], rel=0.05)
        assert last["mean_loss"] == pytest.approx(base["mean_loss"], rel=1e-3)
    assert [row["name"] for row in report["evaluation"]] == ["smallest", "middle", "largest"]
    assert all(len(row["ratios"]) == 2 for row in report["evaluation"])


def test_levers(tmp_path: Path) -> None:
    args = ["--fits", "2", "--warmup", "1", "--tasks", "cnn-32", "tiny-50"]
    args += ["--levers", "fused optimizer", "channels last", "bf16", "stacked", "--tolerance", "1e-5"]
    runs = report_of(tmp_path, "levers", *args)["runs"]
    common = ["library", "fused optimizer", "channels last", "bf16"]
    assert [(row["task"], row["lever"]) for row in runs] == [
        *(("cnn-32", lever) for lever in common),
        *(("tiny-50", lever) for lever in (*common, "stacked")),
    ]
    for row in runs:
        assert len(row["ratios"]) == 2
        assert (row["greatest_difference"] > 1e-5) == (row["lever"] == "bf16")
    assert runs[0]["greatest_difference"] == 0


def test_what_cannot_be_done_here_is_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from lit_fednas.benchmarks.library import Fits

    train = Fits.train

    def refuse(self: Fits, *args: Any) -> None:
        if self.client.get("compile"):
            raise ClientError("no compiler")
        train(self, *args)

    monkeypatch.setattr(Fits, "train", refuse)
    args = ["--fits", "1", "--steps", "1", "--batch-size", "4", "--passes", "1", "--networks", "elastic", *SMALL]
    report = report_of(tmp_path, "layout", *args, "--variants", "compiled")
    assert report["layouts"][-1] == {"network": "elastic", "variant": "compiled", "left_out": "no compiler"}
    assert "left out" in capsys.readouterr().out


def test_ranks_of_one(tmp_path: Path, in_this_process: None) -> None:
    args = ["--grid", "1x1", "1x2", "--rounds", "2", "--warmup", "1", "--repetitions", "2", *SMALL]
    args += ["--clients", "4", "--cohort", "2", "--examples", "8"]
    ways = report_of(tmp_path, "ranks", *args)["ways"]
    assert [(way["ranks"], way["threads"]) for way in ways] == [(1, 1), (1, 2)]
    assert ways[0]["speed_up"] == 1
    for way in ways:
        assert len(way["seconds"]) == 4
        assert len(way["by_run"]) == 2
        assert way["busiest_to_mean"] == 1


@pytest.mark.slow  # three processes that import torch
def test_ranks_of_two(tmp_path: Path) -> None:
    args = ["--grid", "1x1", "2x1", "--rounds", "2", "--warmup", "1", "--repetitions", "1", *SMALL]
    args += ["--clients", "6", "--cohort", "4", "--examples", "16"]
    _, two = report_of(tmp_path, "ranks", *args)["ways"]
    assert [len(rank) for rank in two["cpu_by_rank"][0]] == [2, 2]
    assert 1 <= two["busiest_to_mean"] <= 2


def test_together(tmp_path: Path) -> None:
    args = ["--together", "1", "3", "--rounds", "2", "--warmup", "1", "--clients", "6", "--cohort", "4"]
    args += ["--examples", "6", "--batch-size", "4", "--image", "8"]
    runs = report_of(tmp_path, "together", *args)["runs"]
    expected = [(network, together) for network in ("cnn", "tiny") for together in (1, 3)]
    assert [(run["network"], run["together"]) for run in runs] == expected
    for run in runs:
        assert 0 <= run["greatest_difference"] <= 1e-4
        assert len(run["ratios"]) == len(run["library"]["seconds"]) == 2
        assert run["clients_per_second"]["library"] > 0
    assert runs[0]["speed_up"] == runs[2]["speed_up"] == 1


def test_evaluations(tmp_path: Path, in_this_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["evaluations", "--archs", "3", "--warmup", "1", "--examples", "80", "--batch-size", "40", *SMALL]
    report = report_of(tmp_path, *args, "--generation", "20", "--processes", "1", "--repetitions", "1")
    counts = {way: len(seconds) for way, seconds in report["seconds"].items()}
    assert counts == {"in place": 3, "extracted": 3, "built and loaded": 3}
    assert "1.000 to 1.000" in capsys.readouterr().out
    assert report["generations"]["architectures"] == 20
    assert (
        report["generations"]["share_of_examples"]["before"] == 1 >= report["generations"]["share_of_examples"]["after"]
    )
    assert {len(seconds) for seconds in report["generations"]["seconds"].values()} == {1}


def test_generations_that_differ_are_refused() -> None:
    row = {"arch": "a", "macs": 2, "accuracy": 0.5, "examples": 100, "seconds": 1.0}
    same = {way: [dict(row), {**row, "arch": "b", "macs": 3, "accuracy": 0.7}] for way in evaluations.GENERATIONS}
    evaluations.check_generations(same, 100)
    for way, changed in (
        ("processes", {"accuracy": 0.6}),
        ("channels last", {"accuracy": 0.6}),
        ("races", {"examples": 64}),
        ("after", {"accuracy": 0.9, "macs": 1, "arch": "c"}),
    ):
        with pytest.raises(AssertionError, match=way):
            evaluations.check_generations({**same, way: [same[way][0], {**same[way][1], **changed}]}, 100)
