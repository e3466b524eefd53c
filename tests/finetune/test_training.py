"""Who trains which network from which weights, and that it is federated averaging."""

import itertools
import math

import numpy as np
import pytest
import torch

from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.federation.cohort import OnlyClients, RandomAvailability, SizeWeightedCohort
from lit_fednas.objectives import CrossEntropy
from lit_fednas.records import FinetuneFiles, SearchFiles, append_round
from lit_fednas.supernets import PlainNetwork
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from lit_fednas.transport import Float16, Int8, Transport
from tests.finetune.small import (
    CLIENT,
    COUNT,
    ELIGIBLE,
    ROUNDS,
    Trained,
    accuracy_and_loss,
    by_tier,
    cohorts,
    last_weights,
    only_batch,
    rounds,
    rows,
    small_data,
    tier_weights,
)
from tests.support import assert_same, fit, make_module, sgd, tiny_supernet

#: Trains without changing a parameter, and the mean over one client does not round: shows the first weights.
STILL = ClientSettings(sgd(0.0), batch_size=8)
ALONE = UniformCohort(count=1)


def searched_archs(made: Trained) -> dict[str, str]:
    return {row["tier"]: row["arch"] for row in SearchFiles(made.folder / "search").rows("tiers")}


def test_all_clients_of_a_tier_and_above_get_their_turn(trained):
    """A cohort's share is of all clients: half of six are three, also where only four may be asked."""
    files = trained.finetune(rounds=5, client=STILL, cohort=UniformCohort(ratio=0.5))
    for tier, eligible in ELIGIBLE.items():
        asked = cohorts(trained.path(tier))
        assert {client for cohort in asked for client in cohort} == set(eligible)
        assert [len(set(cohort)) for cohort in asked] == [min(3, len(eligible))] * 5
        assert by_tier(files)[tier]["eligible"] == str(len(eligible))
    assert files.settings()["eligible"] == {"small": 6, "middle": 4, "large": 1}


def test_among_keeps_the_rule_and_leaves_the_sampler_as_it_was():
    away = RandomAvailability(0.4)
    sampler = SizeWeightedCohort(count=4, availability=away)
    some = sampler.among([1, 3, 5, 7, 9])
    assert isinstance(some, SizeWeightedCohort)
    assert sampler.availability is away
    fewer = 0
    for round in range(30):
        there = set(away.available(round, 10, seed=2)) & {1, 3, 5, 7, 9}
        drawn = some.draw(round, [5] * 10, seed=2)
        assert set(drawn) <= there
        assert len(drawn) == min(4, len(there))
        fewer += len(there) < 5
    assert fewer > 10
    assert some.among([1, 2, 3]).draw(0, [5] * 10, 0) == sorted({1, 3} & set(away.available(0, 10, 0)))
    assert OnlyClients([]).available(0, 4, 0) == []


def test_scores_before_are_the_supernets(tuned_once):
    inputs, targets = only_batch(tuned_once.data.val_dataloader())
    supernet = tuned_once.module.supernet.eval()
    found = by_tier(tuned_once.files)
    searched = SearchFiles(tuned_once.folder / "search").settings()
    assert supernet.digest() == searched["weights"]  # fine-tuning leaves them as they were
    for row in found.values():
        arch = supernet.space.parse(row["arch"])
        accuracy, loss = accuracy_and_loss(lambda x, arch=arch: supernet(x, arch), inputs, targets)
        assert float(row["val_accuracy_before"]) == pytest.approx(accuracy, abs=1e-6)
        assert float(row["val_loss_before"]) == pytest.approx(loss, rel=1e-5)
        assert row["val_loss"] != row["val_loss_before"]


def first_weights(made: Trained, **settings) -> dict[str, dict[str, torch.Tensor]]:
    """Each tier's, by a training that does not change them; norms begin with ones and zeros."""
    files = made.finetune(initial="random", client=STILL, cohort=ALONE, rounds=1, **settings)
    found = tier_weights(files)
    return {tier: {name: tensor for name, tensor in found[tier].items() if tensor.ndim > 1} for tier in found}


def test_random_first_weights_belong_to_seed_and_tier_alone(trained):
    """Not to other tiers, the architecture, or what was drawn before; all tiers have one architecture here."""
    search = SearchFiles(trained.folder / "search")
    table = search.rows("tiers")
    search.write("tiers", [{**row, "arch": table[0]["arch"]} for row in table])
    made = first_weights(trained)
    supernet = trained.module.supernet
    views = supernet.views(supernet.space.parse(table[0]["arch"]))
    search.write("tiers", [{**row, "arch": table[0]["arch"]} for row in table if row["tier"] == "large"])
    torch.manual_seed(99)
    alone = first_weights(trained, name="alone", tier_aware=False)
    assert list(alone) == ["large"]
    assert_same(alone["large"], made["large"])
    other = first_weights(trained, name="other", seed=5)
    for name, tensor in made["small"].items():
        weights = [views[name], tensor, made["large"][name], other["large"][name]]
        assert not any(torch.equal(*pair) for pair in itertools.combinations(weights, 2))


def test_random_first_weights_are_drawn_as_the_supernets_were(tmp_path):
    """He initialisation, whose variance is 2 / fan-out; torch's own for convolutions is 1 / (3 fan-in)."""
    tiers = ClientTiers(Budgets({"all": {"macs": 1e9}}), ListedTiers({"all": range(6)}))
    supernet = tiny_supernet(stem_width=16, stage_widths=[32, 64])
    made = Trained(make_module(supernet, tiers=tiers), small_data(), tmp_path)
    found = first_weights(made, architectures=1)["all"]
    large = [tensor for tensor in found.values() if tensor.ndim == 4 and tensor.numel() > 1000]
    assert len(large) >= 3
    for tensor in large:
        out, _, height, width = tensor.shape
        assert float(tensor.std()) == pytest.approx(math.sqrt(2 / (out * height * width)), rel=0.15)


@pytest.mark.parametrize("tier", ELIGIBLE)
def test_it_is_federated_averaging_on_the_eligible_clients(tuned_once, tier):
    supernet = tuned_once.module.supernet
    arch = supernet.space.parse(searched_archs(tuned_once)[tier])
    network = PlainNetwork(supernet.subnet(arch), (1, 8, 8), 4)
    cohort = UniformCohort(count=COUNT, availability=OnlyClients(ELIGIBLE[tier]))
    fit(make_module(network, client=CLIENT, cohort=cohort, objective=CrossEntropy(), seed=0), tuned_once.data, ROUNDS)
    expected = dict(network.network.state_dict())
    assert_same(expected, last_weights(tuned_once.path(tier)))
    assert_same(expected, tier_weights(tuned_once.files)[tier])


def test_settings_of_its_own_replace_those_of_the_training(trained):
    class Halved(CrossEntropy):
        def loss(self, network, inputs, targets):
            return super().loss(network, inputs, targets) / 2

    plain = ClientSettings(sgd(0.1), batch_size=8)
    trained.finetune(client=plain, name="plain", rounds=1)
    trained.finetune(client=ClientSettings(sgd(0.2), batch_size=8), objective=Halved(), name="halved", rounds=1)
    one, other = (last_weights(trained.path("small", name=name)) for name in ("plain", "halved"))
    assert_same(one, other, rtol=1e-5, atol=1e-6)
    trained.finetune(client=plain, seed=3, name="seeded", rounds=1)
    assert cohorts(trained.path("small", name="seeded")) != cohorts(trained.path("small", name="plain"))


def test_weights_travel_as_in_the_training(trained, monkeypatch):
    monkeypatch.setattr(trained.module, "transport", Transport(Float16(), Int8()))
    files = trained.finetune(name="packed", rounds=1)
    for tier, row in by_tier(files, "candidates").items():
        network = trained.module.supernet.subnet(trained.module.supernet.space.parse(row["arch"]))
        tensors = network.state_dict().values()
        floats = [tensor.numel() for tensor in tensors if tensor.is_floating_point()]
        counters = 8 * (len(tensors) - len(floats))
        asked = min(COUNT, len(ELIGIBLE[tier]))
        sent = asked * (2 * sum(floats) + counters), asked * (sum(floats) + 4 * len(floats) + counters)
        assert (int(row["bytes_down"]), int(row["bytes_up"])) == sent


def test_costs_are_those_of_the_rounds(tuned_once):
    files = tuned_once.files
    supernet, clients = tuned_once.module.supernet, tuned_once.data.clients
    for tier, row in by_tier(files, "candidates").items():
        arch = supernet.space.parse(row["arch"])
        network = supernet.subnet(arch)
        bytes_of_network = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
        asked = [client for record in rounds(tuned_once.path(tier)) for client in record["clients"]]
        for cost in ("macs", "bytes_down", "bytes_up"):
            assert int(row[cost]) == sum(client[cost] for client in asked)
        sent = ROUNDS * min(COUNT, len(ELIGIBLE[tier])) * bytes_of_network
        assert (int(row["bytes_down"]), int(row["bytes_up"])) == (sent, sent)
        examples = sum(CLIENT.epochs * clients.size(client["client"]) for client in asked)
        assert int(row["macs"]) == examples * supernet.macs(arch)
        best = by_tier(files)[tier]
        assert {name: best[name] for name in row} == row
        assert int(best["bytes"]) == bytes_of_network
        assert int(best["parameters"]) == sum(parameter.numel() for parameter in network.parameters())
        assert int(best["macs_per_example"]) == supernet.macs(arch)


def test_networks_are_trained_for_as_much_computation(trained):
    """Rounds of a small network are cheaper, and there are more of them."""
    budget = 1.5e7
    shares = [0.5 * budget, 1.5 * budget, 0.0, budget]  # of two rounds: all three networks' budgets
    for number in (0, 1):
        spent = [{"macs": share} for share in shares[2 * number : 2 * number + 2]]
        append_round(trained.folder, {"round": number, "metrics": {}, "clients": spent})
    found = by_tier(trained.finetune(initial="random", macs="equal", client=STILL))
    for tier, row in found.items():
        clients = cohorts(trained.path(tier))
        assert len(clients) == int(row["rounds"])
        sizes = trained.data.clients.sizes
        per_example = trained.module.supernet.macs(trained.module.supernet.space.parse(row["arch"]))
        assert int(row["macs"]) == per_example * sum(sizes[client] for cohort in clients for client in cohort)
        a_round = min(COUNT, len(ELIGIBLE[tier])) * per_example * np.mean([sizes[client] for client in ELIGIBLE[tier]])
        assert float(row["rounds"]) == pytest.approx(budget / a_round, rel=0.1, abs=0.5)
        assert int(row["macs"]) == pytest.approx(budget, rel=0.15)
    assert len({row["rounds"] for row in found.values()}) > 1
    assert trained.files.settings()["macs"] == budget
    trained.finetune(initial="random", macs="equal", client=STILL, tiers=["large"], name="one")
    settings = FinetuneFiles(trained.folder / "one").settings()
    assert (settings["macs"], list(settings["candidates"])) == (3 * budget, ["large-0"])


def test_files_and_columns(tuned_once):
    folder = tuned_once.files.folder
    names = {"settings.json", "candidates.csv", "tiers.csv", "clients.csv", "tiers", "runs"}
    assert {path.name for path in folder.iterdir()} == names
    assert {path.name for path in (folder / "runs").iterdir()} == {"small-0", "middle-0", "large-0"}
    own = ["tier", "number", "arch", "eligible", "rounds", "val_accuracy_before", "val_loss_before"]
    own += ["val_accuracy", "val_loss", "macs", "bytes_down", "bytes_up"]
    own += ["test_accuracy", "test_loss", "macs_per_example", "parameters", "bytes"]
    (first, *_), (best, *_) = rows(folder / "candidates.csv"), rows(folder / "tiers.csv")
    assert list(first) == list(best) == own
    settings = tuned_once.files.settings()
    assert settings["complete"]
    assert settings["candidates"] == {f"{tier}-0": arch for tier, arch in searched_archs(tuned_once).items()}


def test_the_server_validates_as_often_as_asked_or_at_the_end(trained, tuned_once):
    trained.finetune(rounds=3, check_val_every_n_rounds=2, client=STILL)
    validated = ["val/network/accuracy" in record["metrics"] for record in rounds(trained.path("large"))]
    assert validated == [False, True, False]
    *_, last = rounds(tuned_once.path("large"))
    logged = {name for name in last["metrics"] if name.startswith("val/")}
    assert logged == {"val/network/accuracy", "val/network/loss", "val/mean/accuracy"}
    accuracy = float(by_tier(tuned_once.files)["large"]["val_accuracy"])
    assert last["metrics"]["val/network/accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_what_is_trained_gets_better(trained, capsys):
    """From scratch, where there is something to learn: a quarter is chance. Other seeds end below 0.4."""
    client = ClientSettings(sgd(0.03, momentum=0.9), batch_size=8, epochs=4)
    files = trained.finetune(initial="random", rounds=4, client=client, tier_aware=False)
    found = by_tier(files)
    drawn = [UniformCohort(count=COUNT).draw(round, trained.data.clients.sizes, 0) for round in range(4)]
    for tier, row in found.items():
        assert cohorts(trained.path(tier)) == drawn  # all clients train all networks
        assert row["eligible"] == "6"
    assert all(float(row["val_loss"]) < float(row["val_loss_before"]) for row in found.values())
    assert max(float(row["test_accuracy"]) for row in found.values()) > 0.6
    shown = capsys.readouterr().out
    for tier, row in found.items():
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{tier} ")]
        assert f"{float(row['test_accuracy']):.4f}" in line
        assert row["arch"] in line
