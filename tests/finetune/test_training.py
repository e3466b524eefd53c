"""Fine-tuning is federated averaging: its clients, initial weights, costs and results."""

import itertools

import numpy as np
import pytest
import torch

from lit_fednas.federation import ClientSettings, EvaluationSettings, OnlyClients, RandomAvailability, UniformCohort
from lit_fednas.objectives import CrossEntropy
from lit_fednas.records import FinetuneFiles, SearchFiles, read_rounds
from lit_fednas.records.run import append_round
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.supernets import PlainNetwork
from tests.analysis import made_runs
from tests.finetune.small import (
    CLIENT,
    COUNT,
    ELIGIBLE,
    ROUNDS,
    Trained,
    by_tier,
    cohorts,
    last_weights,
    module_of,
    only_batch,
    small_data,
    tier_weights,
)
from tests.support import accuracy_and_loss, assert_same, fit, make_module, sgd

#: A training with a learning rate of 0; with cohorts of one client the mean is exact, so that first weights stay.
STILL = ClientSettings(sgd(0.0), batch_size=8)
ALONE = UniformCohort(count=1)


def test_all_clients_of_a_tier_and_above_are_drawn(trained):
    """A cohort's share is of all clients: half of six is three, even if only four are eligible."""
    files = trained.finetune(rounds=5, client=STILL, cohort=UniformCohort(ratio=0.5))
    for tier, eligible in ELIGIBLE.items():
        rounds = cohorts(trained.path(tier))
        assert {client for cohort in rounds for client in cohort} == set(eligible)
        assert [len(set(cohort)) for cohort in rounds] == [min(3, len(eligible))] * 5
        assert by_tier(files)[tier]["eligible"] == str(len(eligible))
    assert files.settings()["eligible"] == {"small": 6, "middle": 4, "large": 1}
    evaluation = EvaluationSettings(["largest"], recalibrate_batches=2)
    untiered = trained._replace(module=module_of(trained.module.supernet, tiers=None, evaluation=evaluation))
    files = untiered.finetune(rounds=1, client=STILL, cohort=ALONE, name="untiered")
    assert all(files.tier_model(tier).recalibrated for tier in ELIGIBLE)
    assert files.settings()["eligible"] == dict.fromkeys(["small", "middle", "large"], 6)


def test_among_keeps_the_rule_and_does_not_change_the_sampler():
    away = RandomAvailability(0.4)
    sampler = UniformCohort(count=4, availability=away)
    subset = sampler.among([1, 3, 5, 7, 9])
    assert isinstance(subset, UniformCohort)
    assert sampler.availability is away
    num_small = 0
    for round in range(30):
        available = set(away.available(round, 10, seed=2)) & {1, 3, 5, 7, 9}
        cohort = subset.draw(round, [5] * 10, seed=2)
        assert set(cohort) <= available
        assert len(cohort) == min(4, len(available))
        num_small += len(available) < 5
    assert num_small > 10


def first_weights(run: Trained, **settings) -> dict[str, dict[str, torch.Tensor]]:
    """Returns each tier's first weights, without those of norms, which are ones and zeros."""
    files = run.finetune(initial="random", client=STILL, cohort=ALONE, rounds=1, **settings)
    weights = tier_weights(files)
    return {tier: {name: tensor for name, tensor in weights[tier].items() if tensor.ndim > 1} for tier in weights}


def test_random_first_weights_belong_to_seed_and_tier_alone(trained):
    """They do not depend on other tiers, the architecture, or global generators."""
    search = SearchFiles(trained.folder / "search")
    table = search.rows("tiers")
    search.write("tiers", [{**row, "arch": table[0]["arch"]} for row in table])
    first = first_weights(trained)
    supernet = trained.module.supernet
    views = supernet.views(supernet.space.parse(table[0]["arch"]))
    search.write("tiers", [{**row, "arch": table[0]["arch"]} for row in table if row["tier"] == "large"])
    torch.manual_seed(99)
    alone = first_weights(trained, name="alone", tier_aware=False)
    assert list(alone) == ["large"]
    assert_same(alone["large"], first["large"])
    other = first_weights(trained, name="other", seed=5)
    for name, tensor in first["small"].items():
        weights = [views[name], tensor, first["large"][name], other["large"][name]]
        assert not any(torch.equal(*pair) for pair in itertools.combinations(weights, 2))


@pytest.mark.parametrize("tier", ELIGIBLE)
def test_it_is_federated_averaging_on_the_eligible_clients(tuned_once, tier):
    supernet = tuned_once.module.supernet
    rows = SearchFiles(tuned_once.folder / "search").rows("tiers")
    arch = supernet.space.parse(next(row["arch"] for row in rows if row["tier"] == tier))
    network = PlainNetwork(supernet.subnet(arch), (1, 8, 8), 4)
    cohort = UniformCohort(count=COUNT, availability=OnlyClients(ELIGIBLE[tier]))
    fit(make_module(network, client=CLIENT, cohort=cohort, objective=CrossEntropy(), seed=0), tuned_once.data, ROUNDS)
    expected = dict(network.network.state_dict())
    assert_same(expected, last_weights(tuned_once.path(tier)))
    assert_same(expected, tier_weights(tuned_once.files)[tier])


def test_all_its_tables_have_checksums(tuned_once):
    folder = tuned_once.files.folder
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in sums} == {path.name for path in folder.glob("*.*") if path.suffix != ".png"}


def test_costs_are_those_of_the_rounds(tuned_once):
    files = tuned_once.files
    supernet, clients = tuned_once.module.supernet, tuned_once.data.clients
    for tier, row in by_tier(files, "candidates").items():
        arch = supernet.space.parse(row["arch"])
        network = supernet.subnet(arch)
        bytes_of_network = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
        records = [client for record in read_rounds(tuned_once.path(tier)) for client in record["clients"]]
        for cost in ("macs", "bytes_down", "bytes_up"):
            assert int(row[cost]) == sum(client[cost] for client in records)
        sent = ROUNDS * min(COUNT, len(ELIGIBLE[tier])) * bytes_of_network
        assert (int(row["bytes_down"]), int(row["bytes_up"])) == (sent, sent)
        examples = sum(CLIENT.epochs * clients.size(client["client"]) for client in records)
        assert int(row["macs"]) == examples * supernet.macs(arch)
        best = by_tier(files)[tier]
        assert int(best["bytes"]) == bytes_of_network
        assert int(best["parameters"]) == sum(parameter.numel() for parameter in network.parameters())
        assert int(best["macs_per_example"]) == supernet.macs(arch)


def test_networks_are_trained_for_as_much_computation(trained):
    """A smaller network has cheaper and therefore more rounds."""
    budget = 15_000_000
    # the sum of both rounds' MACs is divided between three networks
    shares = [budget // 2, 3 * budget // 2, 0, budget]
    for number in (0, 1):
        parts = enumerate(shares[2 * number : 2 * number + 2])
        spent = [{**made_runs.CLIENT, "client": index, "macs": share} for index, share in parts]
        append_round(trained.folder, {"round": number, "metrics": {}, "clients": spent})
    tiers = by_tier(trained.finetune(initial="random", macs="equal", client=STILL))
    for tier, row in tiers.items():
        clients = cohorts(trained.path(tier))
        assert len(clients) == int(row["rounds"])
        sizes = trained.data.clients.sizes
        per_example = trained.module.supernet.macs(trained.module.supernet.space.parse(row["arch"]))
        assert int(row["macs"]) == per_example * sum(sizes[client] for cohort in clients for client in cohort)
        a_round = min(COUNT, len(ELIGIBLE[tier])) * per_example * np.mean([sizes[client] for client in ELIGIBLE[tier]])
        assert float(row["rounds"]) == pytest.approx(budget / a_round, rel=0.1, abs=0.5)
        assert int(row["macs"]) == pytest.approx(budget, rel=0.15)
    assert len({row["rounds"] for row in tiers.values()}) > 1
    trained.finetune(initial="random", macs="equal", client=STILL, tiers=["large"], name="one")
    settings = FinetuneFiles(trained.folder / "one").settings()
    assert (settings["macs"], list(settings["candidates"])) == (3 * budget, ["large-0"])


def test_each_tier_has_the_computation_that_the_run_spent_on_its_networks(trained):
    """The smallest network fits all tiers, and its computation belongs to the smallest tier."""
    rows = SearchFiles(trained.folder / "search").rows("tiers")
    archs = {row["tier"]: row["arch"] for row in rows}
    spent = {"small": 8_000_000, "middle": 12_000_000, "large": 20_000_000}
    clients = [{**made_runs.CLIENT, "arch": archs[tier], "macs": macs} for tier, macs in spent.items()]
    smallest = {**made_runs.CLIENT, "arch": str(trained.module.supernet.space.smallest), "macs": 4_000_000}
    append_round(trained.folder, {"round": 0, "metrics": {}, "clients": [*clients, smallest]})
    files = trained.finetune(initial="random", macs="split", client=STILL)
    macs_of_tiers = {tier: int(row["macs"]) for tier, row in by_tier(files).items()}
    assert macs_of_tiers == pytest.approx({**spent, "small": 12_000_000}, rel=0.15)
    assert files.settings()["macs"] == {"small-0": 12_000_000, "middle-0": 12_000_000, "large-0": 20_000_000}


def test_tiers_with_one_network_train_it_once_with_the_sum_of_their_budgets(trained):
    """Tiers with other clients train it separately."""
    files = SearchFiles(trained.folder / "search")
    small, middle, large = files.rows("tiers")
    files.write("tiers", [small, middle, {**large, "arch": small["arch"]}])
    budget = 10_000_000
    settings = {"initial": "random", "macs": budget, "client": STILL}
    tiers = by_tier(trained.finetune(**settings, tier_aware=False))
    assert list(tiers) == ["small", "middle", "large"]
    assert int(tiers["small"]["macs"]) == pytest.approx(2 * budget, rel=0.15)
    assert int(tiers["middle"]["macs"]) == pytest.approx(budget, rel=0.15)
    costs = ("rounds", "macs", "bytes_down", "bytes_up")
    assert [tiers["large"][name] for name in costs] == ["0"] * 4
    assert {**tiers["large"], **dict.fromkeys((*costs, "tier"))} == {
        **tiers["small"],
        **dict.fromkeys((*costs, "tier")),
    }
    assert not trained.path("large").exists()
    supernet = trained.module.supernet
    (_, first), (_, last) = (load_tier_network(supernet, trained.files, tier) for tier in ("small", "large"))
    assert_same(dict(first.state_dict()), dict(last.state_dict()))
    apart = by_tier(trained.finetune(**settings, name="apart"))  # the large tier has one client, the small one six
    assert int(apart["large"]["macs"]) == pytest.approx(budget, rel=0.15)


def test_client_tests_count_as_computation(trained):
    """Clients train on two fifths of their examples and test on two fifths."""
    client = ClientSettings(sgd(0.0), batch_size=8, validate="trained")
    run = trained._replace(data=small_data(client_val=0.4))
    (row,) = by_tier(run.finetune(macs=40_000_000, client=client, tiers=["small"])).values()
    assert int(row["macs"]) == pytest.approx(40_000_000, rel=0.15)


def test_a_tiers_files_have_the_trained_network(tuned_once):
    files = tuned_once.files
    data = tuned_once.data
    batches = {"val": only_batch(data.val_dataloader()), "test": only_batch(data.test_dataloader())}
    for tier, row in by_tier(files).items():
        arch, network = load_tier_network(tuned_once.module.supernet, files, tier)
        assert str(arch) == row["arch"]
        assert_same(dict(network.state_dict()), last_weights(tuned_once.path(tier)))
        for split, examples in batches.items():
            scores = float(row[f"{split}_accuracy"]), float(row[f"{split}_loss"])
            assert scores == pytest.approx(accuracy_and_loss(network, *examples), rel=1e-5)
        model = files.tier_model(tier)
        assert (model.finetuned, model.recalibrated) == (True, False)
        assert model.metrics == {name: float(row[name]) for name in ("val_accuracy", "val_loss")}
        assert model.costs["macs"] == float(row["macs_per_example"])
        assert list(tuned_once.module.supernet.space.decode(model.encoding).layers) == list(arch.layers)
