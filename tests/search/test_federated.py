"""Searches with scores by clients: drawn clients, scores, costs, and resuming."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.data import Dirichlet
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, EvaluationSettings, UniformCohort
from lit_fednas.records import SearchFiles
from lit_fednas.rng import numpy_generator
from lit_fednas.search import (
    NSGA2,
    ClientDraw,
    Evaluator,
    FederatedEvaluation,
    FederatedEvaluator,
    RandomSearch,
    union_bytes,
)
from lit_fednas.supernets import BatchNorm
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers, Population, Tier
from tests.search import small
from tests.supernets.instances import SPACES, kept_instance
from tests.support import fit, make_module, sgd, tiny_data, tiny_supernet

#: The clients' tiers: two clients are in the small one, four in the large one.
LIMITS = {"small": {"macs": 70_000.0}, "large": {"macs": 120_000.0}}
TIERS = tuple(Tier(name, limits) for name, limits in LIMITS.items())
MEMBERS = {"small": [0, 3], "large": [1, 2, 4, 5]}


def federated_data(**settings: Any) -> Any:
    """Six clients with different numbers of validation examples; the server has no examples."""
    data = tiny_data(**{"client_val": 0.25, "partitioner": Dirichlet(1.0, min_size=8), **settings})
    data.source.val = None
    data.server_val = settings.get("server_val", 0)
    data.setup("fit")
    return data


def trained_module(**changes: Any) -> Any:
    tiers = ClientTiers(Budgets(LIMITS), ListedTiers(MEMBERS), enforced=False)
    settings = {"tiers": tiers, "cohort": UniformCohort(count=2), "client": ClientSettings(sgd(0.2), batch_size=8)}
    return make_module(tiny_supernet(norm=BatchNorm()), RandomArchitectures(), **{**settings, **changes})


@pytest.fixture(scope="module")
def trained():
    module, data = trained_module(), federated_data()
    fit(module, data, 3, check_val_every_n_rounds=100, limit_val_batches=0)
    return module, data


def search(trained: Any, folder: Path, **settings: Any) -> SearchFiles:
    defaults = {"tiers": None, "method": NSGA2(6, 4), "evaluations": 14, "federated": FederatedEvaluation(2)}
    return small.search(trained, folder, **{**defaults, **settings})


def evaluator(trained: Any, rounds: int = 2, **settings: Any) -> FederatedEvaluator:
    module, data = trained
    module.supernet.eval()
    population = Population(6, TIERS, (0, 1, 1, 0, 1, 1))
    draw = ClientDraw(data.clients, population, 2, FederatedEvaluation(rounds), 0)
    return FederatedEvaluator(module.supernet, draw, **settings)


def examples_of(data: Any, clients: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all validation examples of some clients, read by rows."""
    rows = torch.cat([data.clients.rows(client, "val") for client in clients])
    return next(iter(data.clients.reader.read(rows, 1000)))


@pytest.mark.parametrize("batch_size", [3, 512])
def test_all_clients_together_give_the_central_scores(trained, batch_size):
    module, data = trained
    central = Evaluator(module.supernet, [examples_of(data, list(range(6)))])
    clients = evaluator(trained, rounds=3, batch_size=batch_size)
    assert clients.num_examples == central.num_examples > 20
    rng = np.random.default_rng(0)
    archs = [module.supernet.space.sample(rng) for _ in range(8)]
    scorer = clients.scorer("small", 0, archs)
    for arch in archs:
        expected, metrics = central(arch), scorer(arch)
        assert metrics["accuracy"] == expected["accuracy"]
        assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert clients(arch) == metrics
    assert len({central(arch)["loss"] for arch in archs}) > 3


def test_a_single_example_is_not_normalised_by_itself():
    """Networks with statistics of the batch cannot run a single example, in a small client or in a last batch."""
    data = federated_data(client_val=0.12, partitioner=Dirichlet(0.3, min_size=5))
    sizes = [data.clients.size(client, "val") for client in range(6)]
    assert 1 in sizes
    assert max(sizes) > 3
    supernet = tiny_supernet(norm=BatchNorm(affine=False, running_statistics=False), stage_widths=[4] * 4, depths=[0])
    supernet.eval()
    draw = ClientDraw(data.clients, Population(6), 6, FederatedEvaluation(1), 0)
    FederatedEvaluator(supernet, draw, batch_size=max(sizes) - 1)(supernet.space.largest)
    assert draw.eligible("any") == [client for client in range(6) if sizes[client] > 1]


def draw_of(sizes: list[int], rounds: int = 1, cohort: int = 2, seed: int = 0) -> ClientDraw:
    """Returns a draw of clients; every second client is in the large tier."""
    clients: Any = SimpleNamespace(num_clients=len(sizes), split_sizes={"val": np.array(sizes)}.__getitem__)
    tier_indices = tuple(client % 2 for client in range(len(sizes)))
    return ClientDraw(clients, Population(len(sizes), TIERS, tier_indices), cohort, FederatedEvaluation(rounds), seed)


def test_only_eligible_clients_with_examples_are_drawn():
    draw = draw_of([1, 1, 0, 1, 1, 0, 1, 1], rounds=100)
    assert set(draw.asked("large", 0)) == {1, 3, 7}
    assert set(draw.asked("small", 0)) == set(draw.asked("*", 0)) == {0, 1, 3, 4, 6, 7}
    with pytest.raises(ConfigError, match=r"data.client_val: leaves none of the 2 clients that can run 'large'"):
        draw_of([1, 0, 1, 0]).eligible("large")


@pytest.mark.parametrize(("rounds", "count"), [(1, 3), (9, 10)])
def test_clients_are_distinct_within_a_generation_and_reshuffled_between(rounds, count):
    draw = draw_of([1] * 20, rounds, cohort=3)
    generations = [draw.asked("large", generation) for generation in range(30)]
    for drawn_clients in generations:
        assert len(drawn_clients) == len(set(drawn_clients)) == count
    assert len({tuple(drawn_clients) for drawn_clients in generations}) == 30
    assert set().union(*generations) == set(range(1, 20, 2))
    expected = numpy_generator(5, "federated-search-large", 7).permutation(range(1, 20, 2)).tolist()
    draw = draw_of([1] * 20, rounds, cohort=3, seed=5)
    assert draw.asked("large", 7) == draw.asked("large", 7) == expected[:count]  # more rounds only add clients


@pytest.mark.parametrize("name", SPACES)
def test_union_of_any_supernet_by_brute_force(name):
    """Counts the elements of shared tensors that some architecture contains, by numbering them."""
    supernet = kept_instance(name)
    shared = supernet.shared_tensors()
    rng = np.random.default_rng(0)
    for count in (1, 3, 6):
        archs = [supernet.space.sample(rng) for _ in range(count)]
        seen: dict[str, set[int]] = {}
        for arch in archs:
            for region in supernet.index(arch).values():
                tensor = shared[region.name]
                numbers = torch.arange(tensor.numel()).reshape(tensor.shape)
                seen.setdefault(region.name, set()).update(region.of(numbers).flatten().tolist())
        expected = sum(len(numbers) * shared[key].element_size() for key, numbers in seen.items())
        assert union_bytes(supernet, archs) == expected
    first = archs[0]
    assert union_bytes(supernet, [first]) == union_bytes(supernet, [first, first]) == supernet.cost(first).bytes
    assert union_bytes(supernet, []) == 0


def test_costs_by_hand(trained, tmp_path):
    """The expected costs use the table's architectures and the data's clients and sizes."""
    module, data = trained
    spent = dict.fromkeys(("macs", "bytes_down", "bytes_up"), 1)
    old_ledger = {"rounds": 3, "total": spent, "independent": {}, "after_training": {"other": spent}}
    old_ledger |= dict.fromkeys(("times_less_computation", "times_less_communication"))
    (tmp_path / "ledger.json").write_text(json.dumps(old_ledger))
    files = search(trained, tmp_path, name="mine", method=RandomSearch(4), evaluations=10)
    rows = files.rows("federated")
    keys = [(row["tier"], row["generation"]) for row in rows]
    assert keys == [(tier, number) for tier in ("small", "large") for number in range(3)]
    evaluated = files.rows("evaluations")
    draw = evaluator(trained).draw
    first = 0
    for row in rows:
        count = row["architectures"]
        archs = [module.supernet.space.parse(evaluation["arch"]) for evaluation in evaluated[first : first + count]]
        first += count
        clients = draw.asked(row["tier"], row["generation"])
        assert (row["clients"], row["evaluation_rounds"]) == ((4, 2) if count else (0, 0))
        assert row["supernet_bytes"] == union_bytes(module.supernet, archs)
        assert row["bytes_down"] == 4 * row["supernet_bytes"]
        assert row["bytes_up"] == 4 * count * 8
        examples = sum(data.clients.size(client, "val") for client in clients)
        assert row["macs"] == examples * sum(module.supernet.cost(arch).macs for arch in archs)
    assert first == len(evaluated)
    total = {name: sum(row[name] for row in rows) for name in ("macs", "bytes_down", "bytes_up")}
    assert files.settings()["communication"] == total

    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger["after_training"].pop("mine") == total
    assert ledger == old_ledger


def test_a_resumed_search_equals_an_uninterrupted_one(trained, tmp_path, monkeypatch):
    straight = small.outcome(search(trained, tmp_path / "straight"))
    assert len(straight["evaluations"]) > 17
    with small.stopped_after(13):
        search(trained, tmp_path)
    assert len(SearchFiles(tmp_path / "search").rows("evaluations")) == 13
    assert small.outcome(search(trained, tmp_path)) == straight
    monkeypatch.setattr(FederatedEvaluator, "answers", None)
    assert small.outcome(search(trained, tmp_path)) == straight  # without new answers
    with pytest.raises(ConfigError, match=r"holds a search with other .*federated"):
        search(trained, tmp_path, federated=FederatedEvaluation(3))


def test_a_client_searches_for_its_own_tier_on_its_own_examples(trained, tmp_path):
    module, data = trained
    files = search(trained, tmp_path, federated=None, client=1)
    inputs, targets = examples_of(data, [1])
    rows = files.rows("evaluations")
    assert len(rows) == 14
    for row in rows:
        arch = module.supernet.space.parse(row["arch"])
        with torch.no_grad():
            right = module.supernet.subnet(arch).eval()(inputs).argmax(1) == targets
        assert row["accuracy"] == pytest.approx(right.float().mean().item(), abs=1e-6)
        assert row["macs"] <= 120_000
    assert [row["tier"] for row in files.rows("tiers")] == ["large"]
    assert "communication" not in files.settings()
    with pytest.raises(ConfigError, match=r"search\.name: .* other client"):
        search(trained, tmp_path, federated=None, client=4)


def test_a_clients_search_has_its_own_limits_and_reads_only_its_data(tmp_path, monkeypatch):
    """The norms' statistics, too, are those of the client's training examples."""
    module, data = trained_module(evaluation=EvaluationSettings(recalibrate_batches=3)), federated_data()
    fit(module, data, 1, check_val_every_n_rounds=100, limit_val_batches=0)
    reader, read = data.clients.reader, []
    original = type(reader).read

    def watched(self: Any, rows: torch.Tensor, *rest: Any) -> Any:
        if self is reader:
            read.extend(rows.tolist())
        return original(self, rows, *rest)

    monkeypatch.setattr(type(reader), "read", watched)
    tiers = Budgets({"busy": {"macs": 80_000.0}, "idle": {"macs": 120_000.0}})
    files = search((module, data), tmp_path, federated=None, client=2, tiers=tiers)
    assert sorted(files.tier_names) == ["busy", "idle"]
    rows_of_splits = [set(data.clients.rows(2, split).tolist()) for split in ("train", "val")]
    assert set(read) <= rows_of_splits[0] | rows_of_splits[1]
    assert set(read) & rows_of_splits[0]
    assert rows_of_splits[1] <= set(read)


TINY = Budgets({"tiny": {"macs": 70_000.0}})
OTHER = r"search.tiers: 'small' is also a tier of the clients, with other limits \(macs at most .*; here .* 7\)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tiers": TINY}, r"search.tiers: 'tiny' is not a tier of the clients \(small, large\)"),
        ({"tiers": Budgets({"small": {"macs": 7.0}})}, OTHER),
        ({"client_val": 0.0}, r"data.client_val: 0 leaves clients no examples .* raise it"),
        ({"client": 6, "federated": None}, r"search\.client: 6 is not one of the 6 clients"),
        ({"client": 0}, r"search\.client: 0 has no effect with search\.federated"),
    ],
)
def test_invalid_searches_are_refused_before_writing(trained, tmp_path, settings, words):
    module, data = trained
    if "client_val" in settings:
        settings = dict(settings)
        data = federated_data(client_val=settings.pop("client_val"))
    with pytest.raises(ConfigError, match=words):
        search((module, data), tmp_path, **settings)
    assert not list(tmp_path.iterdir())
