"""Searches of a supernet: evaluations, files, resuming and errors."""

import json
import math
import re

import pandas as pd
import pytest
import torch
from jsonargparse import ArgumentParser

from lit_fednas.assignment import FromFile, Listed
from lit_fednas.data import Classification, NextToken
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.evaluation import recalibrated, recalibration_batches
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import SUMS_FILE, FolderLock
from lit_fednas.search import (
    NSGA2,
    CostProxy,
    Evaluator,
    Evolution,
    Exhaustive,
    FederatedEvaluation,
    ProxySearch,
    RandomSearch,
    Search,
    SearchSettings,
    TierSearch,
)
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.testing.networks import batch
from lit_fednas.tiers import ArchitectureCosts, Budgets, CumulativeCostTiers, TierSource
from tests.search.small import TIERS, outcome, search, stopped_after, trained_run
from tests.supernets.instances import INSTANCES, SPACES
from tests.support import accuracy_and_loss, fit, make_module, make_trainer, tiny_data, tiny_supernet


@pytest.fixture(scope="module")
def trained():
    return trained_run()


@pytest.fixture(scope="module")
def straight(trained, tmp_path_factory):
    """An uninterrupted search. Read only."""
    return search(trained, tmp_path_factory.mktemp("straight"))


def test_a_search_writes_all_its_files(trained, straight):
    assert {path.name for path in straight.folder.iterdir()} == {
        *("settings.json", "evaluations.csv", "history.csv", "front.csv", "tiers.csv", "tiers", SUMS_FILE)
    }
    for folder in (straight.folder, *straight.folder.glob("tiers/*")):
        sealed = {line.split("  ")[1] for line in (folder / SUMS_FILE).read_text().splitlines()}
        assert sealed == {path.name for path in folder.iterdir() if path.suffix in (".csv", ".json")}
    assert [row["tier"] for row in straight.rows("tiers")] == ["small", "large"] == straight.tier_names[::-1]
    settings = json.loads((straight.folder / "settings.json").read_text())
    assert settings["complete"]
    assert settings["tiers"][0] == {"name": "small", "at_most": {"macs": 70000.0}, "above": {}}
    for tier, count in (("small", 10), ("large", 16)):  # only 10 architectures fit the small tier
        generations = [row for row in straight.rows("history") if row["tier"] == tier]
        assert generations[-1]["evaluations"] == count
        volumes = [row["hypervolume"] for row in generations]
        assert volumes == sorted(volumes)  # the hypervolume never falls


def test_architectures_of_earlier_tiers_count_if_they_fit(trained, tmp_path):
    """With one evaluation, the large tier is at least as good as the small tier, because all of its networks fit."""
    evaluations = {"small": 6, "large": 1}
    files = search(trained, tmp_path, evaluations=evaluations)
    small, large = (
        [row["best_accuracy"] for row in files.rows("history") if row["tier"] == tier] for tier in ("small", "large")
    )
    assert large == [max(row["accuracy"] for row in files.rows("evaluations"))]
    assert large[-1] >= small[-1] > files.rows("evaluations")[-1]["accuracy"]
    assert {row["tier"]: row["evaluations"] for row in files.rows("history")} == evaluations  # the last of each


@pytest.mark.parametrize("method", [RandomSearch(), NSGA2(population=8, sample=4), Evolution(population=8)], ids=repr)
def test_the_first_architectures_of_a_search(trained, tmp_path, monkeypatch, method):
    """A search begins with the smallest, the largest, the evaluated subnets, and the clients' pool."""
    module, _ = trained
    space = module.supernet.space
    cost = module.supernet.cost
    middle = next(arch for arch in space.each() if cost(arch).macs > 70_000 and cost(arch).parameters <= 4_000)
    monkeypatch.setattr(module, "subnets", {"largest": space.largest, "middle": middle})
    pooled = next(arch for arch in space.each() if arch not in (space.smallest, space.largest, middle))
    monkeypatch.setattr(module.assignment, "pool", Listed([str(pooled)]))
    starts = [str(space.smallest), str(space.largest), str(middle), str(pooled)]
    whole = Budgets({"all": {"macs": float(cost(space.largest).macs)}})
    once = search(trained, tmp_path / "once", method=method, evaluations=4, tiers=whole)
    assert [row["arch"] for row in once.rows("evaluations")] == starts


def test_a_search_begins_with_eight_of_a_large_pool_and_without_a_missing_one(trained, tmp_path, monkeypatch, caplog):
    module, _ = trained
    space, macs = module.supernet.space, module.supernet.macs
    whole = {"all": {"macs": float(macs(space.largest))}}
    monkeypatch.setattr(module.assignment, "pool", Listed([str(arch) for arch in space.each()]))  # 36
    rows = search(trained, tmp_path / "large", evaluations=8, tiers=Budgets(whole)).rows("evaluations")
    ratio = (macs(space.largest) / macs(space.smallest)) ** (1 / 7)
    steps = [macs(space.smallest) * ratio**step for step in range(8)]
    nearest = {min(abs(macs(arch) - cost) for arch in space.each()) for cost in steps}
    assert {min(abs(row["macs"] - cost) for row in rows) for cost in steps} == nearest
    monkeypatch.setattr(module.assignment, "pool", FromFile(tmp_path / "gone.csv"))
    assert len(search(trained, tmp_path / "none", evaluations=3).rows("evaluations")) >= 3
    assert "starts without the pool" in caplog.text


def test_the_exhaustive_best_is_that_of_brute_force(trained, tmp_path):
    """The expected values are computed on every extracted subnet, without the search's code."""
    module, data = trained
    supernet = module.supernet
    exhaustive = search(trained, tmp_path, method=Exhaustive(), evaluations=1000)
    rows = exhaustive.rows("evaluations")
    assert len(rows) == len({row["arch"] for row in rows}) <= supernet.space.size == 36
    assert len({row["accuracy"] for row in rows}) > 8
    ((inputs, targets),) = list(data.val_dataloader())
    statistics = recalibration_batches(data.clients, 20, module.client.batch_size, module.seed)
    truth = {}
    for row in rows:
        arch = supernet.space.parse(row["arch"])
        network = recalibrated(supernet.subnet(arch), statistics)  # the network's norms have no running statistics
        accuracy, loss = accuracy_and_loss(network, inputs, targets)
        assert row["accuracy"] == pytest.approx(accuracy, abs=1e-7)
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        assert (row["parameters"], row["macs"]) == (parameters, supernet.cost(arch).macs)
        truth[row["arch"]] = (accuracy, row["macs"], parameters)
    for tier, macs, max_parameters in (("small", 70_000, 10**9), ("large", 120_000, 4_000)):
        (row,) = [row for row in exhaustive.rows("tiers") if row["tier"] == tier]
        fitting = [value for value in truth.values() if value[1] <= macs and value[2] <= max_parameters]
        assert row["val_accuracy"] == pytest.approx(max(accuracy for accuracy, _, _ in fitting), abs=1e-7)
        assert row["macs"] == min(cost for accuracy, cost, _ in fitting if accuracy == row["val_accuracy"])
        assert row["evaluations"] == len(fitting)
        network = recalibrated(supernet.subnet(supernet.space.parse(row["arch"])), statistics)
        tested, _ = accuracy_and_loss(network, *map(torch.cat, zip(*data.test_dataloader(), strict=True)))
        assert row["test_accuracy"] == pytest.approx(tested, abs=1e-7)
        assert tested > 0.4  # chance is a quarter


def test_ties_and_differences_within_noise_are_reported(trained, tmp_path, capsys, caplog):
    """A search reports ties, and larger networks with a gain within the noise of two binomials."""
    ((_, targets),) = list(trained[1].val_dataloader())
    with caplog.at_level("INFO"):
        files = search(trained, tmp_path, method=Exhaustive(), evaluations=1000)
    rows = files.rows("evaluations")
    for tier, macs, max_parameters in (("small", 70_000, 10**9), ("large", 120_000, 4_000)):
        fitting = [row["accuracy"] for row in rows if row["macs"] <= macs and row["parameters"] <= max_parameters]
        best = max(fitting)
        line = f"{tier}: {fitting.count(best)} candidates tie at accuracy {100 * best:.1f}%; the cheapest is taken"
        assert (line in caplog.messages) == (fitting.count(best) > 1)
    assert any("candidates tie" in line for line in caplog.messages)
    small, large = files.rows("tiers")
    spread = math.sqrt(sum(row["val_accuracy"] * (1 - row["val_accuracy"]) for row in (small, large)) / len(targets))
    assert large["val_accuracy"] - small["val_accuracy"] <= 1.96 * spread
    within = f"within ±{196 * spread:.1f} points on {len(targets)} validation examples"
    remark = f"Larger networks are not better here ({within}); train `{small['arch']}` alone, or give smaller tiers."
    assert capsys.readouterr().out.splitlines()[-1] == remark


def test_a_resumed_search_equals_an_uninterrupted_one(trained, straight, tmp_path):
    with stopped_after(15):
        search(trained, tmp_path)
    stopped = SearchFiles(tmp_path / "search")
    assert len(stopped.rows("evaluations")) == 15
    assert not stopped.settings()["complete"]
    with open(stopped.folder / "evaluations.csv", "a") as file:
        file.write("99,d: [0,")  # a kill can cut a line short
    assert len(straight.rows("evaluations")) > 15
    assert outcome(search(trained, tmp_path)) == outcome(straight)


def test_only_the_same_search_continues_in_a_folder(trained, straight, tmp_path):
    shorter = search(trained, tmp_path, evaluations=8)
    (shorter.folder / SUMS_FILE).unlink()  # earlier versions had no checksums
    table = pd.read_csv(shorter.folder / "evaluations.csv").assign(examples="")  # earlier versions had this column
    table.to_csv(shorter.folder / "evaluations.csv", index=False)
    longer = search(trained, tmp_path)
    assert longer.rows("history") == straight.rows("history")
    assert longer.rows("tiers") == straight.rows("tiers")
    with pytest.raises(ConfigError, match=r"a search with other method .*, such as --search.name \S+-2$"):
        search(trained, tmp_path, method=RandomSearch())
    with pytest.raises(ConfigError, match="other weights"):
        search((make_module(tiny_supernet(seed=1)), trained[1]), tmp_path)


def test_two_processes_do_not_search_in_one_folder(trained, straight, tmp_path):
    """The second is refused before it writes; a search with another name runs at the same time."""
    lock = FolderLock(tmp_path / "search")
    with pytest.raises(ConfigError, match=f"search.name: another process writes into {tmp_path / 'search'}; wait"):
        search(trained, tmp_path)
    assert not [*(tmp_path / "search").iterdir()]
    assert outcome(search(trained, tmp_path, name="other")) == outcome(straight)
    lock.release()
    assert outcome(search(trained, tmp_path)) == outcome(straight)
    with pytest.raises(ConfigError, match=r"search\.evaluations"):
        search(trained, tmp_path, name="refused", evaluations={"nobody": 3})
    assert not (tmp_path / "refused").exists()


def test_test_data_are_not_touched_before_the_search_is_over(trained, tmp_path, monkeypatch):
    _, data = trained
    opened: list[int] = []
    plain = type(data).server_batches

    def watched(self, split):
        if split == "test":
            opened.append(len(SearchFiles(tmp_path / "search").rows("evaluations")))
        return plain(self, split)

    monkeypatch.setattr(type(data), "server_batches", watched)
    files = search(trained, tmp_path)
    assert opened == [len(files.rows("evaluations"))]
    assert len(files.rows("history")) > 2


def test_the_error_without_tiers_has_a_valid_example(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"search\.tiers: null .* model\.tiers is null too; set one") as raised:
        search(trained, tmp_path, tiers=None)
    assert not list(tmp_path.rglob("*.csv"))
    proposed = re.search(r"--search\.tiers '(.*)'$", str(raised.value))
    parser = ArgumentParser()
    parser.add_argument("--tiers", type=TierSource)
    tiers = parser.instantiate(parser.parse_args(["--tiers", proposed[1]])).tiers
    assert search(trained, tmp_path, tiers=tiers, evaluations=4).tier_names == ["large", "small"]


def test_a_checkpoint_is_searched(tmp_path):
    module, data = make_module(tiny_supernet(seed=1)), tiny_data()
    fit(module, data, 1, default_root_dir=tmp_path).save_checkpoint(tmp_path / "a.ckpt")
    settings = SearchSettings(TIERS, Exhaustive(), evaluations=20)
    expected = search((module, data), tmp_path / "there", method=Exhaustive(), evaluations=20)
    blank = Search(make_trainer(), make_module(tiny_supernet(seed=7)), tiny_data(), tmp_path / "blank")
    assert blank.run(str(tmp_path / "a.ckpt"), settings).rows("tiers") == expected.rows("tiers")
    other = make_module(tiny_supernet(stage_widths=[8], depths=[0], ratios=[0.5]))
    with pytest.raises(CheckpointError, match="differs in"):
        Search(make_trainer(), other, data, tmp_path / "other").run(str(tmp_path / "a.ckpt"), settings)


@pytest.mark.parametrize("name", SPACES)
def test_every_kind_of_supernet_can_be_searched(tmp_path, name):
    supernet = INSTANCES[name]()
    inputs = batch(supernet, 6)
    shape = supernet(inputs).shape[:-1]  # batch, and positions for tokens
    targets = torch.randint(supernet.num_classes, shape, generator=torch.Generator().manual_seed(0))
    task = (NextToken if len(shape) > 1 else Classification)(supernet.num_classes)
    settings = SearchSettings(tiers=CumulativeCostTiers(count=3, samples=8), method=NSGA2(4, 2), evaluations=6)
    files = SearchFiles(tmp_path)
    run = TierSearch(settings, Evaluator(supernet, [(inputs, targets)], task=task), files, 0)
    run.run()
    rows = run.write_tiers(run.evaluator)
    assert rows
    for row in rows:
        assert row["val_accuracy"] == row["test_accuracy"]  # the same data
        arch, network = load_tier_network(supernet, files, row["tier"])
        torch.testing.assert_close(network(inputs), supernet.eval()(inputs, arch))
    assert {row["arch"] for row in files.rows("evaluations")} >= {row["arch"] for row in rows}


def test_a_search_reads_only_its_share_of_the_validation_data(trained, tmp_path):
    module, data = trained
    ((inputs, targets),) = list(data.val_dataloader())
    seen = math.ceil(0.3 * len(targets))
    files = search(trained, tmp_path, method=Exhaustive(), evaluations=12, val_share=0.3)
    assert files.settings()["num_examples"] == seen < len(targets)
    assert len(targets[:seen].unique()) > 1
    statistics = recalibration_batches(data.clients, 20, module.client.batch_size, module.seed)
    for row in files.rows("evaluations"):
        network = recalibrated(module.supernet.subnet(module.supernet.space.parse(row["arch"])), statistics)
        accuracy, loss = accuracy_and_loss(network, inputs[:seen], targets[:seen])
        assert row["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
    for other, more in (("federated", {"federated": FederatedEvaluation()}), ("evaluations 0", {"evaluations": 0})):
        with pytest.raises(ConfigError, match=f"search.val_share: 0.3 has no effect with search.{other}"):
            SearchSettings(val_share=0.3, **more)


def test_a_plan_needs_neither_evaluations_nor_validation_data(trained, tmp_path):
    """A plan has the best architecture of every tier by the proxy, for a pool, and writes no networks."""
    module, _ = trained
    net, blind = module.supernet, tiny_data(server_val=0)
    method = ProxySearch(CostProxy("parameters"), population=16, generations=20)
    files = search((module, blind), tmp_path, method=method, evaluations=0)
    rows = files.rows("tiers")
    for row, tier in zip(rows, TIERS.budgets, strict=True):
        limits = TIERS.budgets[tier]
        costs = [net.cost(arch) for arch in net.space.each()]
        fitting = [cost for cost in costs if all(getattr(cost, name) <= limit for name, limit in limits.items())]
        assert (row["tier"], row["evaluations"]) == (tier, 0)
        assert row["parameters"] == max(cost.parameters for cost in fitting)
    assert not files.rows("evaluations")
    assert not files.tier_names
    assert files.settings()["complete"]
    pool = FromFile(files.folder / "tiers.csv").architectures(ArchitectureCosts(net), "macs")
    assert [str(arch) for arch in pool] == [row["arch"] for row in rows]
    with pytest.raises(ConfigError, match=r"search.evaluations: 0 is too few for NSGA2"):
        search(trained, tmp_path / "other", evaluations=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cost": "flops"}, "search.cost: 'flops'"),
        ({"val_share": 0.0}, "search.val_share: 0.0 must be above 0"),
        *(({"name": name}, "search.name: .* cannot name a folder") for name in ("../x", '"x"', ".x", "x ", "a\nb", "")),
        ({"cost": "latency_ms"}, "search.latency: null, but latency_ms is needed"),
        ({"evaluations": {"small": 4}}, "search.evaluations: has the tiers small, not small, large; give"),
        ({"tiers": Budgets({"tiny": {"macs": 10.0}})}, "search.tiers.tiny: no architecture was found"),
    ],
)
def test_invalid_settings_are_refused_before_evaluation(trained, tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        search(trained, tmp_path, **settings)
    assert not list(tmp_path.rglob("evaluations.csv"))
