"""A run of three rounds on digits, with two searches in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lit_fednas.cli import main
from lit_fednas.supernets import ElasticResNet
from tests.analysis.searching import write_search

CONFIG = Path(__file__).parents[2] / "configs" / "superfed" / "digits.yaml"
TINY = {
    "trainer.max_rounds": "3",
    "trainer.check_val_every_n_rounds": "1",
    "model.supernet.init_args.stem_width": "4",
    "model.supernet.init_args.stage_widths": "[8,12,16,16]",
    "model.client.epochs": "1",
}


def tiny_digits_net() -> ElasticResNet:
    """The run's supernet."""
    return ElasticResNet((1, 8, 8), 10, stem_width=4, stage_widths=[8, 12, 16, 16], divisor=4)


def train(root: Path, seed: int = 0) -> Path:
    """Trains in a folder and returns the run's."""
    logger = {"trainer.logger.init_args.save_dir": str(root), "seed_everything": str(seed)}
    options = [word for name, value in {**TINY, **logger}.items() for word in (f"--{name}", value)]
    assert main(["fit", "--config", str(CONFIG), *options]) == 0
    (run,) = (root / "digits").iterdir()
    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    folder = train(tmp_path_factory.mktemp("runs"))
    write_search(folder / "search", tiny_digits_net())
    write_search(folder / "random", tiny_digits_net(), "RandomSearch", seed=1, gain=-0.03)
    return folder


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "digits" / "version_0"))
