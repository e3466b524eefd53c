"""A search over a supernet: what it evaluates, what it writes, and that it can be stopped anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch.nn import functional

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.data import Classification, NextToken
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedTrainer
from lit_fednas.federation.evaluation import recalibrated
from lit_fednas.records import SearchFiles
from lit_fednas.search import (
    NSGA2,
    Evaluator,
    Evolution,
    Exhaustive,
    RandomSearch,
    Search,
    SearchMethod,
    SearchSettings,
    tier_search,
)
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.search.tier_search import TierSearch
from lit_fednas.supernets import ElasticResNet
from lit_fednas.testing.networks import batch
from lit_fednas.tiers import ArchitectureCosts, Budgets, CumulativeCostTiers, TierSource
from tests.supernets.instances import INSTANCES, SPACES
from tests.support import fit, linear_net, make_module, sgd, tiny_data, tiny_supernet

TIERS = Budgets({"small": {"macs": 70_000.0}, "large": {"macs": 120_000.0, "parameters": 4_000.0}})


class Stop(Exception):
    pass


def trainer() -> FederatedTrainer:
    return FederatedTrainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


@pytest.fixture(scope="module")
def trained():
    """A supernet after four rounds, whose subnets are right in 52 to 100 % of the cases."""
    client = ClientSettings(sgd(0.2), batch_size=8)
    evaluation = EvaluationSettings(["smallest", "largest"])
    module, data = make_module(assignment=RandomArchitectures(), client=client, evaluation=evaluation), tiny_data()
    fit(module, data, 4, check_val_every_n_rounds=4)
    return module, data


def search(trained: Any, folder: Path, **settings: Any) -> SearchFiles:
    module, data = trained
    settings = {"tiers": TIERS, "method": NSGA2(population=8, sample=4), "evaluations": 16, **settings}
    return Search(trainer(), module, data, folder).run(None, SearchSettings(**settings))


def without_seconds(files: SearchFiles) -> dict[str, Any]:
    tables = {name: files.rows(name) for name in ("evaluations", "history", "front", "tiers")}
    for table in tables.values():
        for row in table:
            row.pop("seconds", None)
    networks = {tier: torch.load(files.tier_folder(tier) / "weights.pt") for tier in files.tier_names}
    return {
        **tables,
        "settings": files.settings(),
        "models": [files.tier_model(tier) for tier in files.tier_names],
        "weights": {tier: {key: value.tolist() for key, value in found.items()} for tier, found in networks.items()},
    }


def test_a_search_writes_all_its_files(trained, tmp_path, capsys):
    files = search(trained, tmp_path)
    assert {path.name for path in files.folder.iterdir()} == {
        *("settings.json", "evaluations.csv", "history.csv", "front.csv", "tiers.csv", "tiers")
    }
    assert files.settings()["complete"]
    assert [row["tier"] for row in files.rows("tiers")] == ["small", "large"] == files.tier_names[::-1]
    shown = capsys.readouterr().out
    assert "small" in shown
    assert "test accuracy" in shown


@pytest.mark.parametrize("method", [RandomSearch(), NSGA2(population=8, sample=4), Evolution(population=8)], ids=repr)
def test_a_search_begins_with_what_is_known_without_it(trained, tmp_path, monkeypatch, method):
    """The smallest, the largest and the evaluated subnets, of those that fit the tier."""
    module, _ = trained
    space = module.supernet.space
    cost = module.supernet.cost
    middle = next(arch for arch in space.each() if cost(arch).macs > 70_000 and cost(arch).parameters <= 4_000)
    monkeypatch.setattr(module, "subnets", {"largest": space.largest, "middle": middle})
    starts = [str(space.smallest), str(space.largest), str(middle)]
    once = search(trained, tmp_path / "once", method=method, evaluations=3, per_tier=False)
    assert [row["arch"] for row in once.rows("evaluations")] == starts

    files = search(trained, tmp_path / "tiers", method=method, evaluations=8)
    accuracies = {row["arch"]: row["accuracy"] for row in files.rows("evaluations")}
    best = {row["tier"]: row["val_accuracy"] for row in files.rows("tiers")}
    assert best["small"] >= accuracies[str(space.smallest)]
    assert best["large"] >= max(accuracies[str(arch)] for arch in (space.smallest, middle))


def test_accuracies_are_those_of_validate_and_test(trained, tmp_path):
    module, data = trained
    files = search(trained, tmp_path, method=Exhaustive())
    validated = trainer().validate(module, datamodule=data)[0]
    rows = {row["arch"]: row for row in files.rows("evaluations")}
    space = module.supernet.space
    smallest = rows[str(space.smallest)]
    assert smallest["accuracy"] == pytest.approx(validated["val/smallest/accuracy"], abs=1e-7)
    assert smallest["loss"] == pytest.approx(validated["val/smallest/loss"], rel=1e-6)

    (best, *_) = files.rows("tiers")
    network = module.supernet.subnet(space.parse(best["arch"])).eval()
    right = seen = 0
    with torch.no_grad():
        for inputs, targets in data.test_dataloader():
            right += int((network(inputs).argmax(1) == targets).sum())
            seen += len(targets)
    assert best["test_accuracy"] == pytest.approx(right / seen, abs=1e-7)
    assert best["test_accuracy"] > 0.4  # a quarter is chance


def test_the_exhaustive_best_is_that_of_brute_force(trained, tmp_path):
    """Every architecture extracted, evaluated and counted on its own, without the search's code."""
    module, data = trained
    supernet = module.supernet
    files = search(trained, tmp_path, method=Exhaustive(), evaluations=1000)
    rows = files.rows("evaluations")
    assert len(rows) == len({row["arch"] for row in rows}) <= supernet.space.size == 36
    assert len({row["accuracy"] for row in rows}) > 8
    ((inputs, targets),) = list(data.val_dataloader())
    truth = {}
    for row in rows:
        arch = supernet.space.parse(row["arch"])
        network = supernet.subnet(arch).eval()
        with torch.no_grad():
            accuracy = float((network(inputs).argmax(1) == targets).float().mean())
        assert row["accuracy"] == pytest.approx(accuracy, abs=1e-7)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        assert (row["parameters"], row["macs"]) == (parameters, supernet.cost(arch).macs)
        truth[row["arch"]] = (accuracy, row["macs"], parameters)
    for tier, macs, most in (("small", 70_000, 10**9), ("large", 120_000, 4_000)):
        (row,) = [row for row in files.rows("tiers") if row["tier"] == tier]
        fitting = [value for value in truth.values() if value[1] <= macs and value[2] <= most]
        assert row["val_accuracy"] == pytest.approx(max(accuracy for accuracy, _, _ in fitting), abs=1e-7)
        assert row["macs"] == min(cost for accuracy, cost, _ in fitting if accuracy == row["val_accuracy"])
        assert row["evaluations"] == len(fitting)


def test_budgets_are_kept_and_evaluations_are_counted_per_tier(trained, tmp_path):
    files = search(trained, tmp_path, tiers=Budgets({"a": {"macs": 100_000.0}, "b": {"macs": 1e9}}), evaluations=9)
    last = {row["tier"]: row for row in files.rows("history")}
    assert {tier: row["evaluations"] for tier, row in last.items()} == {"a": 9, "b": 9}
    rows = files.rows("evaluations")
    assert 9 <= len(rows) <= 18  # an architecture of both tiers is evaluated once
    assert sum(row["macs"] <= 100_000 for row in rows) >= 9
    for row in files.rows("tiers"):
        assert row["macs"] <= {"a": 100_000, "b": 1e9}[row["tier"]]
    volumes = [row["hypervolume"] for row in files.rows("history") if row["tier"] == "a"]
    assert volumes == sorted(volumes)  # nothing that was found is lost


@pytest.fixture(scope="module")
def straight(trained, tmp_path_factory):
    """A search that ran straight through. Read only."""
    files = search(trained, tmp_path_factory.mktemp("straight"))
    assert len(files.rows("evaluations")) > 15
    return files


@pytest.mark.parametrize("stop_at", [1, 8, 15])
def test_stopped_and_resumed_equals_straight(trained, straight, tmp_path, monkeypatch, stop_at):
    plain = TierSearch.__init__

    def stopping(self, settings, evaluator, files, seed, checkpoint="", tiers=(), watch=None, *further):
        def stop(progress):
            if len(self.evaluations) == stop_at:
                raise Stop

        plain(self, settings, evaluator, files, seed, checkpoint, tiers, stop, *further)

    with monkeypatch.context() as patch:
        patch.setattr(TierSearch, "__init__", stopping)
        with pytest.raises(Stop):
            search(trained, tmp_path / "stopped")
    stopped = SearchFiles(tmp_path / "stopped" / "search")
    assert len(stopped.rows("evaluations")) == stop_at
    assert not stopped.settings()["complete"]
    with open(stopped.folder / "evaluations.csv", "a") as file:
        file.write("99,d: [0,")  # as a kill in mid-line leaves it

    resumed = search(trained, tmp_path / "stopped")
    assert without_seconds(resumed) == without_seconds(straight)


def test_going_on_evaluates_nothing_twice(trained, tmp_path, monkeypatch):
    search(trained, tmp_path)
    seen = []
    plain = TierSearch.run

    def counted(self):
        plain(self)
        seen.append(self.evaluations.fresh)

    monkeypatch.setattr(TierSearch, "run", counted)
    search(trained, tmp_path)
    assert seen == [0]
    longer = search(trained, tmp_path, evaluations=24)
    assert seen[1] > 0
    fresh = search(trained, tmp_path / "fresh", evaluations=24)
    assert longer.rows("history") == fresh.rows("history")
    assert longer.rows("tiers") == fresh.rows("tiers")


def test_another_search_in_the_same_folder_is_refused(trained, tmp_path):
    search(trained, tmp_path)
    with pytest.raises(ConfigError, match=r"holds a search with other method .*give search.name another name"):
        search(trained, tmp_path, method=RandomSearch())
    search(trained, tmp_path, method=RandomSearch(), name="random")
    other = make_module(tiny_supernet(seed=1)), trained[1]
    with pytest.raises(ConfigError, match="other weights"):
        search(other, tmp_path)


def test_a_search_ends_with_the_generation_that_reaches_its_target(tmp_path):
    first = make_module(evaluation=EvaluationSettings(["smallest", "largest"])), tiny_data()  # its subnets differ
    settings = {"method": Evolution(population=4), "evaluations": 12}
    whole = search(first, tmp_path / "whole", **settings)
    rows = {tier: [row for row in whole.rows("history") if row["tier"] == tier] for tier in ("small", "large")}
    target = rows["small"][1]["best_accuracy"]
    assert rows["small"][0]["best_accuracy"] < target < rows["small"][-1]["best_accuracy"]
    files = search(first, tmp_path / "target", target=target, **settings)
    expected = []
    for of_tier in rows.values():
        reached = [number for number, row in enumerate(of_tier) if row["best_accuracy"] >= target]
        expected += of_tier[: reached[0] + 1] if reached else of_tier
    assert len(expected) < len(whole.rows("history"))
    assert files.rows("history") == expected
    assert search(first, tmp_path / "target", **settings).rows("history") == whole.rows("history")  # goes on


def test_test_data_are_not_touched_before_the_search_is_over(trained, tmp_path, monkeypatch):
    _, data = trained
    opened: list[int] = []
    plain = type(data).test_dataloader

    def watched(self):
        opened.append(len(SearchFiles(tmp_path / "search").rows("evaluations")))
        return plain(self)

    monkeypatch.setattr(type(data), "test_dataloader", watched)
    files = search(trained, tmp_path)
    assert opened == [len(files.rows("evaluations"))]
    assert len(files.rows("history")) > 2


def test_norms_are_recalibrated_on_a_copy(tmp_path):
    evaluation = EvaluationSettings(["largest"], recalibrate_batches=3)
    module, data = make_module(evaluation=evaluation), tiny_data()
    fit(module, data, 1)
    before = {name: tensor.clone() for name, tensor in module.supernet.shared_tensors().items()}
    files = search((module, data), tmp_path, method=RandomSearch(), evaluations=3)
    row = files.rows("evaluations")[0]
    module.evaluation = evaluation
    batches = module.recalibration_batches(data.clients)
    assert len(batches) == 3
    network = recalibrated(module.supernet.subnet(module.supernet.space.parse(row["arch"])), batches)
    ((inputs, targets),) = list(data.val_dataloader())
    with torch.no_grad():
        assert row["accuracy"] == pytest.approx(float((network(inputs).argmax(1) == targets).float().mean()))
        loss = functional.cross_entropy(network(inputs), targets)
        assert row["loss"] == pytest.approx(float(loss), rel=1e-5)
        as_it_is = module.supernet.eval()(inputs, module.supernet.space.parse(row["arch"]))
        assert abs(float(functional.cross_entropy(as_it_is, targets)) - float(loss)) > 1e-3
    for name, tensor in module.supernet.shared_tensors().items():
        assert torch.equal(tensor, before[name])
    model = files.tier_model("small")
    assert model.recalibrated
    kept = torch.load(files.tier_folder("small") / "weights.pt")
    expected = recalibrated(module.supernet.subnet(module.supernet.space.parse(model.arch)), batches).state_dict()
    assert kept.keys() == expected.keys()
    assert any("running_mean" in name for name in kept)
    assert all(torch.equal(kept[name], expected[name]) for name in kept)


def test_a_share_of_the_validation_data(trained, tmp_path):
    files = search(trained, tmp_path, validation_share=0.5, method=Exhaustive())
    assert files.settings()["num_examples"] == 20
    half = {row["arch"]: row["accuracy"] * 20 for row in files.rows("evaluations")}
    assert all(right == pytest.approx(round(right)) for right in half.values())
    with pytest.raises(ConfigError, match=r"validation_share: 0.001 of 40 examples"):
        search(trained, tmp_path / "none", validation_share=0.001)


def test_one_search_for_all_tiers(trained, tmp_path):
    files = search(trained, tmp_path, per_tier=False, evaluations=30)
    assert {row["tier"] for row in files.rows("history")} == {"*"}
    assert len(files.rows("evaluations")) == 30
    assert [row["tier"] for row in files.rows("tiers")] == ["small", "large"]


class ConstantEvaluator(Evaluator):
    def __call__(self, arch):
        return {"accuracy": 0.5, "loss": 1.0}


def test_of_equally_good_architectures_the_cheapest_is_taken(tmp_path):
    supernet = tiny_supernet()
    evaluator = ConstantEvaluator(supernet, [(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))])
    tiers = Budgets({"all": {"macs": 1e9}})

    class Downwards(SearchMethod):
        def search(self, feasible, rng):
            yield sorted(feasible.distinct(set(), 30, rng), key=lambda arch: -feasible.costs.cost(arch, "macs"))

    settings = SearchSettings(tiers, Downwards(), evaluations=30)
    search_of_ties = TierSearch(settings, evaluator, SearchFiles(tmp_path), 0)
    search_of_ties.run()
    best = search_of_ties.evaluations[search_of_ties.best(search_of_ties.tiers[0])]
    rows = search_of_ties.files.rows("evaluations")
    assert best["macs"] == min(row["macs"] for row in rows) < rows[0]["macs"]
    assert [row["arch"] for row in search_of_ties.files.rows("front") if row["tier"] == "all"] == [best["arch"]]


def test_the_loss_can_be_what_is_best(trained, tmp_path):
    files = search(trained, tmp_path, metric="loss", method=Exhaustive())
    rows = files.rows("evaluations")
    (small, _) = files.rows("tiers")
    assert small["val_loss"] == min(row["loss"] for row in rows if row["macs"] <= 70_000)


def test_a_network_that_is_no_supernet_has_one_tier(tmp_path):
    module, data = make_module(linear_net()), tiny_data()
    fit(module, data, 1)
    files = Search(trainer(), module, data, tmp_path).run(None, SearchSettings(CumulativeCostTiers()))
    assert [(row["tier"], row["arch"]) for row in files.rows("tiers")] == [("tier1", "whole")]


def test_a_search_asks_for_tiers_that_its_networks_meet(trained, tmp_path):
    """What the error proposes is a setting that works; the smallest and the largest network fit one tier each."""
    module, data = trained
    with pytest.raises(ConfigError, match=r"search\.tiers: null .* model\.tiers is null too; set one") as told:
        Search(trainer(), module, data, tmp_path).run(None, SearchSettings())
    assert not list(tmp_path.rglob("*.csv"))
    proposed = re.search(r"--search\.tiers '(.*)'$", str(told.value))
    parser = ArgumentParser()
    parser.add_argument("--tiers", type=TierSource)
    tiers = parser.instantiate(parser.parse_args(["--tiers", proposed[1]])).tiers
    space = module.supernet.space
    least, most = module.supernet.macs(space.smallest), module.supernet.macs(space.largest)
    small, large = (tiers.budgets[name]["macs"] for name in ("small", "large"))
    assert least < (least + most) / 2 <= small < 1.01 * (least + most) / 2
    assert most <= large < 1.01 * most
    files = Search(trainer(), module, data, tmp_path).run(None, SearchSettings(tiers, Exhaustive()))
    assert [row["tier"] for row in files.rows("tiers")] == ["small", "large"]


def test_the_example_of_tiers_for_a_single_network():
    costs = ArchitectureCosts(linear_net())  # of 64 inputs and 4 outputs: 256 MACs
    assert tier_search._example_tiers(costs) == (
        "{class_path: lit_fednas.tiers.Budgets, init_args: {budgets: {all: {macs: 256}}}}"
    )
    assert [tier_search._rounded_up(number) for number in (7, 999, 1000.5, 123_456)] == [7, 999, 1010, 124_000]


def test_a_checkpoint_is_searched(trained, tmp_path):
    module, data = trained
    trained_in = fit(module, data, 1, default_root_dir=tmp_path)
    trained_in.save_checkpoint(tmp_path / "a.ckpt")
    settings = SearchSettings(tiers=TIERS, method=Exhaustive())
    blank = make_module(tiny_supernet(seed=7))
    one = Search(trainer(), blank, tiny_data(), tmp_path / "one").run(str(tmp_path / "a.ckpt"), settings)
    two = Search(trainer(), module, data, tmp_path / "two").run(None, settings)
    assert one.rows("tiers") == two.rows("tiers")
    other = make_module(ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[8], depths=[0], ratios=[0.5]))
    with pytest.raises(CheckpointError, match="differs in"):
        Search(trainer(), other, data, tmp_path / "three").run(str(tmp_path / "a.ckpt"), settings)


@pytest.mark.parametrize("name", SPACES)
def test_every_supernet_can_be_searched(tmp_path, name):
    supernet = INSTANCES[name]()
    draws = torch.Generator().manual_seed(0)
    inputs = batch(supernet, 6)
    shape = supernet(inputs).shape[:-1]  # of classes, or of tokens at every position
    targets = torch.randint(supernet.num_classes, shape, generator=draws)
    task = (NextToken if len(shape) > 1 else Classification)(supernet.num_classes)
    settings = SearchSettings(tiers=CumulativeCostTiers(samples=8), method=NSGA2(4, 2), evaluations=6)
    files = SearchFiles(tmp_path)
    search = TierSearch(settings, Evaluator(supernet, [(inputs, targets)], task=task), files, 0)
    search.run()
    rows = search.write_tiers(search.evaluator)
    assert rows
    for row in rows:
        assert row["val_accuracy"] == row["test_accuracy"]  # the same data
        arch, network = load_tier_network(supernet, files, row["tier"])
        torch.testing.assert_close(network(inputs), supernet.eval()(inputs, arch))
    assert {row["arch"] for row in files.rows("evaluations")} >= {row["arch"] for row in rows}


def test_settings_are_written_for_a_reader(trained, tmp_path):
    files = search(trained, tmp_path)
    settings = json.loads((files.folder / "settings.json").read_text())
    method = {"class": "NSGA2", "population": 8, "sample": 4, "crossover_rate": 0.9, "mutation_rate": None}
    assert settings["method"] == method
    assert settings["tiers"][0] == {"name": "small", "at_most": {"macs": 70000.0}, "above": {}}
    largest = trained[0].supernet.cost(trained[0].supernet.space.largest).macs
    assert settings["reference"] == {"small": 70000.0, "large": 120000.0, "*": largest}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"evaluations": 0}, "search.evaluations: 0"),
        ({"cost": "flops"}, "search.cost: 'flops'"),
        ({"name": "../x"}, "search.name"),
        ({"cost": "latency_ms"}, "search.latency: is null"),
        ({"tiers": Budgets({"tiny": {"macs": 10.0}})}, "search.tiers.tiny: no architecture was found"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_evaluated(trained, tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        search(trained, tmp_path, **settings)
    assert not list(tmp_path.rglob("evaluations.csv"))
