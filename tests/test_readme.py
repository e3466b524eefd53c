"""What the README shows works."""

from __future__ import annotations

import csv
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from lit_fednas.cli import main
from tests.supernets import test_supernet_contract as contract

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
    (code,) = [block for block in blocks("python") if "trainer.fit" in block]
    names: dict = {}
    exec(code.replace("max_rounds=20", "max_rounds=1, accelerator='cpu', logger=False"), names)
    assert names["subnet"].state_dict()


def test_the_supernet_that_is_shown_keeps_the_contract_and_trains(tmp_path, monkeypatch):
    """As the text says: the class in a file of its own, then the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (code,) = [block for block in blocks("python") if "NestedSupernet" in block]
    Path("my_package.py").write_text(code)
    command = re.search(r"python -m lit_fednas (fit .*?HiddenUnits.*?)\n```", README, re.DOTALL)[1]
    args = shlex.split(command.replace("\\\n", " ").replace("configs/", f"{CONFIGS}/"))
    assert main([*args, "--trainer.max_rounds", "1", "--trainer.check_val_every_n_rounds", "1"]) == 0
    rows = list(csv.DictReader(next(Path("runs").glob("*/*/subnets-val.csv")).open()))
    assert [(row["arch"], row["macs"]) for row in rows] == [("8", "592"), ("16", "1184"), ("32", "2368")]

    net = import_module("my_package").HiddenUnits((3, 2, 2), 4, [2, 3, 6])
    contract.test_index_covers_the_subnet_and_shapes_match(net)
    contract.test_superset_holds_all_weights(net)
    contract.test_subnet_alone_equals_in_place(net, training=True)
    contract.test_gradients_in_place_are_those_of_the_subnet(net)
    contract.test_cost_is_that_of_the_extracted_subnet(net)
    contract.test_genes_and_text_go_round(net)
    contract.test_size_counts_distinct_networks(net)


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
    for name in ("NSGA2", "RandomSearch", "Evolution", "Exhaustive", "Budgets", "CumulativeCostTiers"):
        assert name in known
    for name in ("MeasuredLatency", "LatencyTable"):
        assert name in known
