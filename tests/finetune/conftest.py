"""A supernet of 81 paths after two rounds and a search for three tiers, made once; every test has a copy."""

import shutil
from pathlib import Path

import pytest

from tests.finetune.small import Trained, searched


@pytest.fixture(scope="session")
def searched_once(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Read only."""
    return searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def trained(searched_once: Trained, tmp_path: Path) -> Trained:
    """The run's folder with its search is a test's own; module and data are left as they are."""
    folder = Path(shutil.copytree(searched_once.folder, tmp_path / "run"))
    return searched_once._replace(folder=folder)


@pytest.fixture(scope="session")
def tuned_once(searched_once: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same with a fine-tuning of two rounds per tier that ran straight through. Read only."""
    folder = Path(shutil.copytree(searched_once.folder, tmp_path_factory.mktemp("tuned") / "run"))
    made = searched_once._replace(folder=folder)
    made.finetune()
    return made
