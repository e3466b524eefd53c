"""What the README shows works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lit_fednas.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
CONFIGS = Path(__file__).parents[1] / "configs"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_first_yaml_runs_and_is_the_quickstarts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = blocks("yaml")[0]
    Path("first.yaml").write_text(first)
    short = ["--trainer.max_rounds", "1", "--trainer.accelerator", "cpu"]
    assert main(["fit", "--config", "first.yaml", *short]) == 0

    (shown_search,) = [block for block in blocks("yaml") if block.startswith("search:")]
    Path("search.yaml").write_text(shown_search)
    few = ["--search.evaluations", "3", "--trainer.accelerator", "cpu"]
    assert main(["search", "--config", "first.yaml", "--config", "search.yaml", *few]) == 0
    assert len(list(Path("runs").glob("*/version_0/search/tiers/*/weights.pt"))) == 2

    shown = yaml.safe_load(first)
    real = yaml.safe_load((CONFIGS / "superfed" / "digits.yaml").read_text())
    assert contains(real, shown)


def test_the_tiers_that_are_shown_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (shown,) = [block for block in blocks("yaml") if "allocation:" in block]
    Path("tiers.yaml").write_text(shown)
    digits = CONFIGS / "fedoras" / "digits.yaml"
    small = {"width": 16, "stage_layers": [1, 1], "strides": [2, 2]}
    Path("small.yaml").write_text(yaml.safe_dump({"model": {"supernet": {"init_args": small}}}))
    args = [part for path in (digits, "tiers.yaml", "small.yaml") for part in ("--config", str(path))]
    assert main(["fit", *args, "--trainer.max_rounds", "1", "--model.client.epochs", "1"]) == 0
    written = yaml.safe_load(next(Path("runs").glob("*/*/config.yaml")).read_text())
    assert written["model"]["tiers"]["unsupported"] == {"tier1": ["mb3_e2"]}


def contains(whole, part) -> bool:
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return whole == part


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    names: dict = {}
    exec(code.replace("max_rounds=20", "max_rounds=1, accelerator='cpu', logger=False"), names)
    assert names["subnet"].state_dict()


def test_files_that_are_named_exist():
    for name in re.findall(r"`((?:scripts|configs|tests|lit_fednas)/[\w./]+)`", README):
        assert (Path(__file__).parents[1] / name).exists(), name


def test_classes_that_are_named_exist():
    import lit_fednas.aggregation
    import lit_fednas.assignment
    import lit_fednas.costs
    import lit_fednas.data
    import lit_fednas.search
    import lit_fednas.supernets
    import lit_fednas.tiers

    modules = (
        lit_fednas.aggregation,
        lit_fednas.assignment,
        lit_fednas.costs,
        lit_fednas.data,
        lit_fednas.search,
        lit_fednas.supernets,
        lit_fednas.tiers,
    )
    known = {name for module in modules for name in module.__all__}
    for path in re.findall(r"class_path: ([\w.]+)", README):
        if path.startswith("lit_fednas"):
            module, name = path.rsplit(".", 1)
            assert hasattr(__import__(module, fromlist=[name]), name), path
    for name in ("LazyImageFolder", "ByColumn", "ArraySource", "SmallCNN", "ResNet18", "TrackingSandwich"):
        assert name in known
    for name in ("NSGA2", "RandomSearch", "Evolution", "Exhaustive", "Budgets", "CumulatedShares", "DeviceTiers"):
        assert name in known
    for name in ("MeasuredLatency", "LatencyTable"):
        assert name in known
