"""A supernet's folder to the Hugging Face hub and back, with folders in place of repositories."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_fednas.cli import main
from lit_fednas.records.files import read_table

FILES = {"README.md", "config.yaml", "supernet.json", "weights.ckpt"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Returns the repositories' folder; the working directory has a supernet's folder with a search in it."""
    hub = tmp_path / "hub"
    api = SimpleNamespace(
        create_repo=lambda repo_id, private, exist_ok: (hub / repo_id).mkdir(parents=True, exist_ok=exist_ok),
        upload_folder=lambda repo_id, folder_path, allow_patterns: [
            shutil.copy(folder_path / name, hub / repo_id) for name in allow_patterns
        ],
    )
    download = lambda repo_id, revision, local_dir, allow_patterns: shutil.copytree(hub / repo_id, local_dir)  # noqa: E731
    library = SimpleNamespace(HfApi=lambda: api, snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    (tmp_path / "mine/search").mkdir(parents=True)
    for name in (*FILES, "search/settings.json"):
        (tmp_path / "mine" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return hub


def test_a_supernet_comes_back_as_it_was(hub, capsys):
    assert main(["hub", "push", "mine", "me/digits", "--private"]) == main(["hub", "pull", "me/digits"]) == 0
    assert {path.name: path.read_text() for path in Path("digits").iterdir()} == {name: name for name in FILES}
    assert (
        "search --config digits/config.yaml --search.tiers EvenBudgets --search.tiers.count 3 --ckpt_path digits"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_the_packages_supernet_is_as_accurate_as_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["hub", "pull", "digit-pairs"]) == 0
    _, _, words = capsys.readouterr().out.partition("next: lit-fednas ")
    card = json.loads(Path("digit-pairs/supernet.json").read_text())
    assert main([*words.split(), "--search.evaluations=4", "--search.method.init_args.population=4"]) == 0
    rows = read_table(Path("digit-pairs/search/evaluations.csv"), ["arch", "accuracy"])
    front = {row["arch"]: row["accuracy"] for row in card["front"]}
    assert (rows := [row for row in rows if row["arch"] in front])
    assert [float(row["accuracy"]) for row in rows] == pytest.approx([front[row["arch"]] for row in rows], abs=2e-3)


def test_faults_are_errors_of_one_line(hub, monkeypatch, capsys):
    (hub / "me/empty").mkdir(parents=True)
    for words, message in {
        "push hub me/digits": "folder: hub has no weights.ckpt; write it with lit-fednas export --supernet",
        "pull me/nowhere": "repo: me/nowhere: the hub's library says: [Errno 2] No such file or directory",
        "pull me/mine": "output: mine exists already; give a new folder",
        "pull mnist": "repo: mnist is not in the package, which has digit-pairs; give OWNER/NAME",
        "pull me/empty": "repo: me/empty has no weights.ckpt",
        "push mine me/digits": "hub: needs the package huggingface_hub; pip install 'lit-fednas[hub]'",
    }.items():
        if words.startswith("push mine"):
            monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        assert main(["hub", *words.split()]) == 2
        assert capsys.readouterr().err.startswith(f"lit-fednas: {message}")
