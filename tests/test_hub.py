"""A supernet's folder to the Hugging Face hub and back: its library is a stand-in whose repositories are folders."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_fednas.cli import main

FILES = {"README.md", "config.yaml", "supernet.json", "weights.ckpt"}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the repositories are; the working directory has a supernet's folder with a search in it."""
    hub = tmp_path / "hub"

    class HfApi:
        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
            (hub / repo_id).mkdir(parents=True, exist_ok=exist_ok)

        def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str]) -> None:
            for name in allow_patterns:
                shutil.copy(folder_path / name, hub / repo_id)

    def snapshot_download(repo_id: str, *, revision: str | None, local_dir: Path, allow_patterns: list[str]) -> None:
        shutil.copytree(hub / repo_id, local_dir)

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    )
    (tmp_path / "mine/search").mkdir(parents=True)
    for name in (*FILES, "search/settings.json"):
        (tmp_path / "mine" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return hub


def test_a_supernet_comes_back_as_it_was(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hub", "push", "mine", "me/digits", "--private"]) == 0
    assert main(["hub", "pull", "me/digits"]) == 0
    assert {path.name: path.read_text() for path in Path("digits").iterdir()} == {name: name for name in FILES}
    assert "search --config digits/config.yaml --config TIERS.yaml --ckpt_path digits" in capsys.readouterr().out


def test_what_cannot_work_is_one_line(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hub / "me/empty").mkdir(parents=True)
    for words, message in {
        "push hub me/digits": "folder: hub has no weights.ckpt; write it with lit-fednas export --supernet",
        "pull me/nowhere": "repo: me/nowhere: the hub's library says: [Errno 2] No such file or directory",
        "pull me/mine": "output: mine is there already; give a new folder",
        "pull me/empty": "repo: me/empty has no weights.ckpt",
    }.items():
        assert main(["hub", *words.split()]) == 2
        assert capsys.readouterr().err.startswith(f"lit-fednas: {message}")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["hub", "push", "mine", "me/digits"]) == 2
    assert "pip install 'lit-fednas[hub]'" in capsys.readouterr().err
