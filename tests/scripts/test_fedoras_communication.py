"""Tables 17 and 18 by hand, and our own rows from a small network."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.costs import Cost
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import Tier
from tests.scripts.conftest import load


@pytest.fixture(scope="module")
def script():
    return load("fedoras_communication")


def test_bytes_by_hand(script):
    sent = Cost(macs=5, parameters=10, bytes=44)
    assert script.communication(3, 2, sent) == 3 * 2 * 44 * 2
    assert script.communication(3, 5, sent, answers=2) == 3 * 44 * (5 + 2)  # five down, two up


def test_the_papers_rows_come_out(script):
    """Within what rounding the sizes leaves; but ZeroFL's 11.7 for ResNet18's 11.17 million."""
    for row in (*script.TABLE_17, *script.TABLE_18):
        sent = script.communication(row.rounds, row.clients, Cost(0, 0, round(4e6 * row.size)), row.answers)
        digits = len(f"{row.size}".split(".")[1])
        if row.method == "ZeroFL":
            assert sent / script.PAPER_GB == pytest.approx(457.03, abs=0.01)
        elif row.size not in (0.1, 0.2):
            assert sent / script.PAPER_GB == pytest.approx(row.paper, rel=0.6 * 10**-digits / row.size)
    sent = script.communication(500, 10, Cost(0, 0, 46_000_000))
    assert round(sent / script.PAPER_GB, 2) == 449.22


def test_subspaces_and_paths_of_a_small_network(script):
    net = PathCNN((3, 8, 8), 4, width=4, stage_layers=[2], strides=[2], operators=["sep_e1", "mb3_e2", "id"])
    whole = net.cost(net.space.superset)
    assert {cost.parameters for cost in script.drawn(net, 1.0, 5, seed=0)} == {whole.parameters}
    halves = script.drawn(net, 0.5, 50, seed=0)
    assert max(cost.parameters for cost in halves) <= whole.parameters / 2
    assert len({cost.parameters for cost in halves}) > 1
    small, large = (net.operations(net.space.parse(text)) for text in ("sep_e1 id", "mb3_e2 mb3_e2"))
    tiers = [Tier("a", {"operations": small}), Tier("b", {"operations": large})]
    lines = [line.replace(",", "").split() for line in script.paths(net, tiers, 4000, seed=0).splitlines()[1:]]
    sizes = net.path_costs("parameters")
    fitting = [net.space.parse(text) for text in ("id id", "sep_e1 id", "id sep_e1")]
    uniform = np.mean([sizes.of(arch) for arch in fitting]) / 1e6
    greedy = (sizes.of(fitting[0]) / 4 + sizes.of(fitting[1]) * 3 / 4) / 1e6  # id first, then either; or sep_e1
    assert float(lines[0][2]) == pytest.approx(greedy, abs=1e-3)
    assert float(lines[0][3]) == pytest.approx(uniform, abs=1e-3)
    assert int(lines[0][4]) + int(lines[1][4]) == 4000
    assert int(lines[0][4]) == pytest.approx(4000 * 3 / 9, abs=150)


@pytest.mark.slow
def test_command(script, capsys):
    script.main(["--subspaces", "3", "--paths", "60", "--samples", "300"])
    text = capsys.readouterr().out
    assert "449.22  449.22  +0.0 %" in text
    assert "20.80 million parameters" in text
