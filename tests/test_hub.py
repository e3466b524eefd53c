"""A supernet's folder to the Hugging Face hub and back: its library is a stand-in whose repositories are folders."""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_fednas.cli import main

FILES = {"README.md", "config.yaml", "supernet.json", "weights.ckpt"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the repositories are; the working directory has a supernet's folder with a search in it."""
    hub = tmp_path / "hub"

    def copy(source: Path, target: Path, patterns: list[str]) -> None:
        for file in (path for path in source.rglob("*") if path.is_file()):
            if any(fnmatch(str(file.relative_to(source)), pattern) for pattern in patterns):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / file.name)

    class HfApi:
        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
            (hub / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            (hub / repo_id / ".private").write_text(str(private))

        def upload_folder(self, *, repo_id: str, folder_path: Any, allow_patterns: list[str]) -> None:
            copy(Path(folder_path), hub / repo_id, allow_patterns)

    def snapshot_download(repo_id: str, *, revision: Any, local_dir: Any, allow_patterns: list[str]) -> None:
        if not (hub / repo_id).exists():
            raise OSError(f"404: {repo_id} is\n not there")
        copy(hub / repo_id, Path(local_dir), allow_patterns)

    module = SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    (tmp_path / "mine/search").mkdir(parents=True)
    for name in (*FILES, "search/settings.json"):
        (tmp_path / "mine" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return hub


def test_a_supernet_comes_back_as_it_was(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hub", "push", "mine", "me/digits", "--private"]) == 0
    assert {path.name for path in (hub / "me/digits").iterdir()} == {*FILES, ".private"}  # the search stays here
    assert (hub / "me/digits/.private").read_text() == "True"
    assert main(["hub", "pull", "me/digits"]) == main(["hub", "pull", "me/digits", "--output", "other"]) == 0
    for folder in ("digits", "other"):
        assert {path.name: path.read_text() for path in Path(folder).iterdir()} == {name: name for name in FILES}
    assert "search --config digits/config.yaml --config TIERS.yaml --ckpt_path digits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("push hub me/digits", "folder: hub has no weights.ckpt; write it with lit-fednas export --supernet"),
        ("pull me/nowhere", "repo: me/nowhere: the hub's library says: 404: me/nowhere is not there; "),
        ("pull me/mine", "output: mine is there already; give a new folder"),
        ("pull me/empty", "repo: me/empty has no weights.ckpt"),
    ],
)
def test_what_cannot_work_is_one_line(hub: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (hub / "me/empty").mkdir(parents=True)
    assert main(["hub", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"lit-fednas: {message}")


def test_without_the_library(hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["hub", "push", "mine", "me/digits"]) == 2
    assert "pip install 'lit-fednas[hub]'" in capsys.readouterr().err
