"""Scripts' tables of costs, against counts by hand and by enumeration."""

import csv
import re
import sys
from collections import Counter
from itertools import product

import numpy as np
import pytest
import yaml
from torch import nn

from lit_fednas.costs import Cost
from lit_fednas.supernets import PathCosts
from lit_fednas.supernets.paths.supernet import PathSpace
from tests.scripts.conftest import load

FAMILY = {"class_path": "lit_fednas.supernets.SlicedCNN", "init_args": {"hidden": [10, 20], "norm": None}}
SETTINGS = {"budget": 0.5, "first": 0.5, "decay": 1.0, "rounds": {1: 2, 2: 4}, "drop": 0.5, "groups": 5}
OPERATORS = ["a", "b", "id"]
LAYERS = [[7, 3, 0], [5, 4, 0], [7, 3, 0]]


def count(first: int, second: int) -> tuple[int, int]:
    """Returns MACs and bytes of two 3x3 convolutions with biases, on 8x8 and 4x4 pixels, and of five classes."""
    macs = 27 * first * 64 + 9 * first * second * 16 + 5 * second
    return macs, 4 * (28 * first + (9 * first + 1) * second + 5 * (second + 1))


def test_fednas_costs_of_one_iteration_by_hand(tmp_path, capsys) -> None:
    """One of two candidates at half of the MACs is dropped after the first of two rounds, or of four."""
    fednas = load("fednas_costs")
    model = {"supernet": {"init_args": {"family": FAMILY}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": model, "prune_by_budgets": SETTINGS}))
    args = [str(tmp_path / "config.yaml"), "--shape", "3", "8", "8", "--classes", "5"]
    half = count(10, 20)[0] / 2
    pairs = ([(units, 20) for units in range(9, 0, -1)], [(10, units) for units in range(19, 0, -1)])
    cuts = [next(sizes for sizes in candidates if count(*sizes)[0] <= half) for candidates in pairs]
    winners = set()
    for seed in range(6):
        assert fednas.main([*args, "--shares", "0.5", "--seed", str(seed)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line]
        cells = {name: line.removeprefix(name).split() for line in lines for name in fednas.VARIANTS if name in line}
        uplinks = {name: float(row[1]) for name, row in cells.items()}
        winner = uplinks["FedNAS"] * 1e6 * 5 / 2
        (won,) = (index for index, sizes in enumerate(cuts) if winner == pytest.approx(count(*sizes)[1], rel=1e-3))
        winners.add(won)
        (macs, sent), total = count(*cuts[won]), sum(count(*sizes)[1] for sizes in cuts)
        expected = {"FedNAS": 2 * sent / 5, "no dynamic rounds": 4 * sent / 5, "no dropping": 2 * total / 5}
        expected |= {"no groups": 2 * sent, "all off": 4 * total}
        assert uplinks == pytest.approx({name: up / 1e6 for name, up in expected.items()}, rel=1e-3)
        lost = count(*cuts[1 - won])[0]
        _, *factors = (cell for cell in cells["all off"] if cell.startswith("×"))
        whole = 4 * (macs + lost) * 5
        # in full, and without the dropped candidate's round
        assert factors == [f"×{whole / (2 * macs + lost):.0f}", f"×{whole / (2 * macs):.0f}"]
    assert winners == {0, 1}
    assert fednas.main([*args, "--shares", "0.001"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fednas_costs: ")
    assert "cannot be reached; set at least" in line


def test_fedoras_communication_by_hand():
    """The paper's rows agree up to rounding, except ZeroFL's 11.7 for ResNet18's 11.17 million."""
    communication = load("fedoras_communication")
    sent = Cost(macs=5, parameters=10, bytes=44)
    assert communication.communication(3, 2, sent) == 3 * 2 * 44 * 2
    assert communication.communication(3, 5, sent, answers=2) == 3 * 44 * (5 + 2)  # five down, two up
    for row in (*communication.TABLE_17, *communication.TABLE_18):
        sent = communication.communication(row.rounds, row.clients, Cost(0, 0, round(4e6 * row.size)), row.answers)
        digits = len(f"{row.size}".split(".")[1])
        if row.method == "ZeroFL":
            assert sent / communication.PAPER_GB == pytest.approx(457.03, abs=0.01)
        elif row.size not in (0.1, 0.2):
            assert sent / communication.PAPER_GB == pytest.approx(row.paper, rel=0.6 * 10**-digits / row.size)


def test_memory_of_a_training_step_by_hand():
    """Log-probabilities, their gradient and the logits' coexist: three floats per class and image."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000))
    per_image, _ = load("fedoras_memory").line(network, 64, 128)
    assert per_image == pytest.approx(3 * 4 * 1000, rel=0.01)


@pytest.mark.parametrize("layers", [LAYERS, [[7, 3, 0]] * 6], ids=["unequal", "equal"])
def test_fedoras_paths_are_counted_as_by_enumeration(layers):
    """Many paths of equal layers have the same cost."""
    paths = load("fedoras_paths")
    costs = PathCosts(PathSpace([OPERATORS] * len(layers), layers), layers, fixed=10)
    all_paths = list(product(range(3), repeat=len(layers)))
    for budget in (10, 13, 14, 17, 30, 100):
        fitting = [path for path in all_paths if 10 + sum(map(list.__getitem__, layers, path)) <= budget]
        number, shares = paths.uniform(costs, OPERATORS).within(budget)
        assert number == len(fitting)
        counts = np.bincount([operator for path in fitting for operator in path], minlength=3)
        assert shares == pytest.approx(counts / len(fitting) / len(layers))


def test_fedoras_rejection_is_uniform_and_takes_the_expected_draws():
    paths = load("fedoras_paths")
    costs = PathCosts(PathSpace([OPERATORS] * 3, LAYERS), LAYERS, fixed=10)
    rng = np.random.default_rng(0)
    sampler = paths.RejectionSampler(costs, 14)
    samples = [sampler.sample(rng, 10**6) for _ in range(3000)]
    counts = Counter(tuple(path) for path, _ in samples)
    assert set(counts) == {("id", "id", "id"), ("b", "id", "id"), ("id", "b", "id"), ("id", "id", "b")}  # 4 of 27 paths
    assert all(abs(count - 750) < 5 * 24 for count in counts.values())  # a count's deviation is 24
    assert np.mean([draws for _, draws in samples]) == pytest.approx(27 / 4, abs=5 * 6.2 / 3000**0.5)
    assert sampler.sample(rng, 0) == (None, 0)
    # rejection gives up at a budget that only one path fits
    measured = paths.measure(costs, OPERATORS, paths.uniform(costs, OPERATORS), 10, 20, 30, np.random.default_rng(0))
    assert measured.expected_draws == 27
    assert 0 < measured.draws <= 30
    assert measured.greedy.tolist() == measured.all_fitting.tolist() == [0, 0, 1]


@pytest.mark.slow
def test_scripts_reproduce_their_papers_figures(tmp_path, monkeypatch, capsys):
    load("fedoras_communication").main(["--subspaces", "3", "--paths", "60", "--samples", "300"])
    text = capsys.readouterr().out
    assert "449.22  449.22  +0.0 %" in text
    load("fedoras_memory").main(["--paths", "3", "--samples", "300"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    for _, _, _, _, peak, paper, *_ in rows:  # App. E.6 and Table 12
        assert float(peak.replace(",", "")) == pytest.approx(float(paper.replace(",", "")), rel=0.03)
    words = f"--samples 300 --paths 40 --most 400 --csv {tmp_path / 'a.csv'}"
    load("fedoras_paths").main(words.split())
    assert "1,853,020,188,851,841 paths" in capsys.readouterr().out  # 9^16
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    tight = [f"{times} x smallest" for times in ("1.05", "1.2", "2", "4")]
    assert [row["budget"] for row in rows[::9]] == [*tight, "T1", "T2", "T3", "T4"]
    for name in ("greedy", "uniform"):
        assert sum(float(row[name]) for row in rows) == pytest.approx(8, abs=1e-4)
    assert [float(row["uniform"]) for row in rows[-9:]] == pytest.approx([1 / 9] * 9, abs=1e-6)  # T4 holds all

    def output(name: str, words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words.split()])
        load(name).main()
        return capsys.readouterr().out

    assert re.search(r"CIFAR-100 +T4 +716.0 +716.0 +[+-]0.00 %", output("fedoras_tiers", "--samples 2000"))
    assert len(re.findall(r"one by one: +\d+\.\d\d (computation|times)", output("superfed_costs", "--rounds 3"))) == 10
    output("privacy_noise", f"--csv {tmp_path / 'noise.csv'}")
    rows = list(csv.DictReader((tmp_path / "noise.csv").open()))
    assert [(row["method"], row["round"]) for row in rows[::6]] == [("FedAvg", "1"), ("SuperFed", "1"), ("MaxNet", "1")]
    assert all(0 < float(row["smallest_network"]) <= float(row["whole_network"]) for row in rows)
