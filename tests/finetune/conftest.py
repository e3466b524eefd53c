"""A supernet of 81 paths, trained for two rounds and searched for three tiers; every test has a copy."""

import shutil
from pathlib import Path

import pytest

from tests.finetune.small import Trained, searched


@pytest.fixture(scope="session")
def searched_once(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A trained and searched run. Read only."""
    return searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def trained(searched_once: Trained, tmp_path: Path) -> Trained:
    """A copy of the searched run's folder; module and data are shared."""
    folder = Path(shutil.copytree(searched_once.folder, tmp_path / "run"))
    return searched_once._replace(folder=folder)


@pytest.fixture(scope="session")
def tuned_once(searched_once: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The searched run with an uninterrupted fine-tuning of two rounds per tier. Read only."""
    folder = Path(shutil.copytree(searched_once.folder, tmp_path_factory.mktemp("tuned") / "run"))
    run = searched_once._replace(folder=folder)
    run.finetune()
    return run
