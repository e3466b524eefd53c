"""Search methods compared from their files."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from lit_fednas.records import SearchFiles
from lit_fednas.search import Evaluator, RandomSearch, SearchSettings, TierSearch
from lit_fednas.search.evolution import Evolution
from lit_fednas.tiers import Budgets
from tests.support import tiny_supernet

main = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare_searches"))["main"]


@pytest.fixture
def searches(tmp_path):
    """Two methods, two seeds each, on a supernet that nobody trained."""
    supernet = tiny_supernet()
    draws = torch.Generator().manual_seed(0)
    data = [(torch.randn(40, 1, 8, 8, generator=draws), torch.randint(4, (40,), generator=draws))]
    for method in (RandomSearch(4), Evolution(4)):
        for seed in (0, 1):
            settings = SearchSettings(Budgets({"small": {"macs": 9e4}}), method, evaluations=8)
            files = SearchFiles(tmp_path / f"{type(method).__name__}{seed}")
            search = TierSearch(settings, Evaluator(supernet, data), files, seed)
            search.run()
            search.write_tiers(search.evaluator)
    return tmp_path


def test_means_and_ranges_are_those_of_the_files(searches, capsys):
    folders = sorted(searches.iterdir())
    assert main([str(folder) for folder in folders] + ["--plot", str(searches / "plot.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [["Evolution", "2", "8"], ["RandomSearch", "2", "8"]]
    volumes = [SearchFiles(folder).rows("history")[-1]["hypervolume"] for folder in folders[:2]]
    expected = f"{sum(volumes) / 2:.4f} ({min(volumes):.4f} to {max(volumes):.4f})"
    assert expected in lines[1]
    tested = [100 * SearchFiles(folder).rows("tiers")[0]["test_accuracy"] for folder in folders[:2]]
    assert lines[1].endswith(f"{sum(tested) / 2:.2f} ({min(tested):.2f} to {max(tested):.2f})")
    assert (searches / "plot-small.png").stat().st_size > 0


def test_unlike_searches_are_refused(searches, capsys):
    files = SearchFiles(searches / "Evolution1")
    files.write_settings({**files.settings(), "evaluations": 9})
    assert main([str(searches / "Evolution0"), str(searches / "Evolution1")]) == 2
    assert "its evaluations differ" in capsys.readouterr().err
    assert main([str(searches)]) == 2
