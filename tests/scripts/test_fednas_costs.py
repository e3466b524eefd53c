"""What FedNAS' schedule costs, against counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.scripts.conftest import load

FAMILY = {"class_path": "lit_fednas.supernets.SlicedCNN", "init_args": {"hidden": [10, 20], "norm": None}}
SETTINGS = {"budget": 0.5, "first": 0.5, "decay": 1.0, "rounds": {1: 2, 2: 4}, "drop": 0.5, "groups": 5}


@pytest.fixture(scope="module")
def script():
    return load("fednas_costs")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    model = {"supernet": {"init_args": {"family": FAMILY}}}
    path.write_text(yaml.safe_dump({"model": model, "prune_by_budgets": SETTINGS}))
    return path


def count(first: int, second: int) -> tuple[int, int]:
    """MACs and bytes of two 3x3 convolutions with biases, on 8x8 and 4x4 pixels, and of five classes."""
    macs = 27 * first * 64 + 9 * first * second * 16 + 5 * second
    return macs, 4 * (28 * first + (9 * first + 1) * second + 5 * (second + 1))


def test_costs_of_one_iteration_by_hand(script, config, capsys) -> None:
    """Two candidates at half of the MACs; one is dropped after the first of two rounds, or of four."""
    half = count(10, 20)[0] / 2
    cuts = [
        next(sizes for sizes in ((left, 20) for left in range(9, 0, -1)) if count(*sizes)[0] <= half),
        next(sizes for sizes in ((10, left) for left in range(19, 0, -1)) if count(*sizes)[0] <= half),
    ]
    shown = {"one": [], "other": []}
    args = [str(config), "--shape", "3", "8", "8", "--classes", "5", "--shares", "0.5"]
    for seed in range(6):
        assert script.main([*args, "--seed", str(seed)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line]
        cells = {name: line.removeprefix(name).split() for line in lines for name in script.VARIANTS if name in line}
        found = {name: float(row[1]) for name, row in cells.items()}
        both = sum(count(*sizes)[1] for sizes in cuts)
        winner = found["FedNAS"] * 1e6 * 5 / 2
        (won,) = (place for place, sizes in enumerate(cuts) if winner == pytest.approx(count(*sizes)[1], rel=1e-3))
        shown["one" if won else "other"].append(seed)
        expected = {
            "FedNAS": 2 * count(*cuts[won])[1] / 5,
            "no dynamic rounds": 4 * count(*cuts[won])[1] / 5,
            "no dropping": 2 * both / 5,
            "no groups": 2 * count(*cuts[won])[1],
            "all off": 4 * both,
        }
        assert found == pytest.approx({name: up / 1e6 for name, up in expected.items()}, rel=1e-3)
        ratio = expected["all off"] / expected["FedNAS"]
        assert cells["all off"][2] == (f"×{ratio:.1f}" if ratio < 9.95 else f"×{ratio:.0f}")
        lost = count(*cuts[1 - won])[0]
        macs = [2 * count(*cuts[won])[0] + lost, 4 * (count(*cuts[0])[0] + count(*cuts[1])[0]) * 5]
        assert cells["all off"][-1] == f"×{macs[1] / macs[0]:.0f}"
    assert all(shown.values()), "both candidates win with some seed"


def test_what_cannot_be_is_one_line(script, config, capsys) -> None:
    args = [str(config), "--shape", "3", "8", "8", "--classes", "5"]
    for more, told in ((["--shares", "0.001"], "is the least that can be reached"), (["--groups", "0"], "groups: 0")):
        assert script.main([*args, *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fednas_costs: ")
        assert told in error
        assert error.count("\n") == 1
