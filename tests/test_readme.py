"""The README's commands, options, files and names exist and work."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lit_fednas.cli import main
from lit_fednas.config_files import find

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
FIRST, SEARCH, STUDY = (block for language, block in BLOCKS if language == "yaml")


def commands() -> list[list[str]]:
    lines = "".join(block for language, block in BLOCKS if language in ("", "bash")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("lit-fednas ")]


def test_the_yaml_that_is_shown_is_the_quickstarts():
    assert yaml.safe_load(FIRST) == yaml.safe_load(find("recommended/digit_pairs.yaml").read_text())
    assert yaml.safe_load(SEARCH) == yaml.safe_load(find("search/digit_pairs.yaml").read_text())


def test_commands_that_are_shown_exist():
    for words in commands():
        for word in words:
            if word.endswith(".yaml") and "/" in word:
                assert find(word).exists(), word


@pytest.mark.parametrize("name", sorted({words[0] for words in commands() if not {"X.yaml", "hub"} & {*words}}))
def test_options_that_are_shown_exist(name: str, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    output = capsys.readouterr().out
    uses = [words for words in commands() if words[0] == name and "X.yaml" not in words]
    assert [word for words in uses for word in words if word.startswith("--") and word not in output] == []


@pytest.mark.slow
def test_the_script_that_is_shown_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = (block for language, block in BLOCKS if language == "python")
    for text, shorter in {
        "copies=30": "copies=2",
        "max_rounds=400": "max_rounds=3",
        "tiers=tiers": "tiers=tiers, evaluations=2",
    }.items():
        assert text in script
        script = script.replace(text, shorter)
    exec(compile(script, "README.md", "exec"), {})
    assert Path("runs/run/version_0/search/tiers/phone/network.onnx").exists()


@pytest.mark.slow
def test_the_study_that_is_shown_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(STUDY)
    content["options"] |= {"trainer.max_rounds": 1, "trainer.check_val_every_n_rounds": 1}
    content["arms"]["SuperFed"]["then"][0]["search"]["evaluations"] = 3
    Path("study.yaml").write_text(yaml.safe_dump({**content, "compare": {}}, sort_keys=False))
    assert main(["study", "study.yaml", "--seeds", "0", "--jobs", "2"]) == 0
    table = pd.read_csv(Path("runs", content["name"], "compare.csv"))
    assert set(table["method"]) == set(content["arms"])
    assert set(table["tier"]) == set(content["tiers"])
    large = table[table["tier"] == "large"].set_index("method")
    assert large["test"].notna().all()  # searched or tested
    for method in content["arms"]:
        ledger = json.loads(Path("runs", content["name"], method, "seed0", "ledger.json").read_text())
        assert large["spent_macs"][method] == ledger["total"]["macs"]


def test_files_and_links_exist():
    paths = [*re.findall(r"`((?:scripts|configs|tests|lit_fednas|notebooks)/[\w./]+)`", README)]
    for name in [*paths, *re.findall(r"\]\(((?!http)[^)]+)\)", README)]:
        assert (ROOT / name).exists(), name


def test_classes_and_folders_that_are_named_exist():
    packages = ("supernets", "assignment", "objectives", "aggregation", "data", "federation", "search", "lightning")
    names = {name for package in packages[:-1] for name in import_module(f"lit_fednas.{package}").__all__}
    tables = [line for line in README.splitlines() if line.startswith("| ")]
    parts = [name for line in tables for name in re.findall(r"`([A-Z]\w+)`", line)]
    assert len(parts) > 12
    assert set(parts) <= names
    for path in re.findall(r"`lit_fednas\.([\w.]+)`", README):
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(f"lit_fednas.{module}".rstrip(".")), name) or import_module(f"lit_fednas.{path}")
    for folder in re.findall(r"\| `(\w+)/` \|", README):
        assert (ROOT / "configs" / folder).is_dir(), folder
