"""A run of three rounds on digits, with two searches in it; its folder and its report, read only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lit_fednas.analysis.report import write_report
from lit_fednas.cli import main
from lit_fednas.records import SearchFiles, read_rounds
from lit_fednas.records.files import SUMS_FILE
from lit_fednas.search import RandomSearch
from lit_fednas.supernets import ElasticResNet
from tests.analysis.pages import Page
from tests.analysis.searching import write_search
from tests.support import seeded

CONFIG = Path(__file__).parents[2] / "configs" / "superfed" / "digits.yaml"
TINY = {
    "trainer.max_rounds": "3",
    "trainer.check_val_every_n_rounds": "1",
    "model.supernet.init_args.stem_width": "4",
    "model.supernet.init_args.stage_widths": "[8,12,16,16]",
    "model.client.epochs": "1",
}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder, which tests only read."""
    root = tmp_path_factory.mktemp("runs")
    settings = {**TINY, "trainer.logger.init_args.save_dir": str(root)}
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    assert main(["fit", "--config", str(CONFIG), *options]) == 0
    (folder,) = (root / "digits").iterdir()
    supernet = seeded(ElasticResNet, (1, 8, 8), 10, stem_width=4, stage_widths=[8, 12, 16, 16], divisor=4)
    write_search(folder / "search", supernet)
    write_search(folder / "random", supernet, RandomSearch(sample=4), seed=1)
    for files in SearchFiles.within(folder):  # pretends that they searched the run's weights
        files.write_settings({**files.settings(), "weights": [*read_rounds(folder)][-1]["weights"]})
    return folder


@pytest.fixture(scope="session")
def finished_page(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(write_report(finished_run, tmp_path_factory.mktemp("page") / "page.html"))


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, without checksums."""
    unsealed = shutil.ignore_patterns(SUMS_FILE)
    return Path(shutil.copytree(finished_run, tmp_path / "digits" / "version_0", ignore=unsealed))
