"""What cannot work is told in one line, before anything is trained or written."""

from __future__ import annotations

import re

import pytest

from lit_fednas.data import ArraySource, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.finetune import FinetuneSettings
from lit_fednas.records import SearchFiles
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from tests.finetune.small import (
    MEMBERS,
    BySizes,
    Ranges,
    Trained,
    accuracy_and_loss,
    by_tier,
    module_of,
    only_batch,
    path_cnn,
)
from tests.support import tiny_examples


def refused(made: Trained, words: str, **settings) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        made.finetune(**settings)
    assert "\n" not in str(caught.value)
    assert not (made.folder / "finetune").exists()


def test_no_search(trained, tmp_path):
    told = r"^finetune.search: .*search holds no finished search; run 'lit-fednas search' first, or set finetune"
    refused(trained._replace(folder=tmp_path / "empty"), told)
    refused(trained, told.replace("search holds", "other holds"), search="other")


def test_a_share_of_a_training_that_left_no_records(trained):
    refused(trained, "finetune.macs: 'equal' divides .* has no record of any; give a number", macs="equal")


def test_a_search_that_has_not_ended(trained):
    """Also one whose tables an earlier, shorter search has left."""
    files = SearchFiles(trained.folder / "search")
    files.write_settings({**files.settings(), "complete": False})
    refused(trained, "holds no finished search")


def test_a_search_of_other_weights(trained):
    other = module_of(path_cnn(seed=1))
    told = r"^finetune.search: .*was of other weights than the checkpoint's; run the search again, or give"
    refused(trained._replace(module=other), told)
    assert by_tier(trained._replace(module=other).finetune(initial="random", rounds=1))  # which does not need them


@pytest.mark.parametrize("architectures", [0, 1])
def test_nobody_is_eligible(trained, architectures):
    members = {"small": [0, 1, 2], "middle": [3, 4, 5], "large": []}
    module = module_of(trained.module.supernet, tiers=ClientTiers(Ranges(), ListedTiers(members)))
    made = trained._replace(module=module)
    told = r"^finetune: no client of tier large or above .*; change model.tiers, or set finetune.tier_aware to false$"
    refused(made, told, architectures=architectures)
    assert by_tier(made.finetune(tier_aware=False, rounds=1)).keys() == MEMBERS.keys()


def test_the_searchs_tiers_allow_more_than_the_clients_of_the_same_names(trained):
    """The large network has more than 50,000 MACs; only client 3 may have so many, and then none."""
    budgets = {"small": {"macs": 30_000}, "middle": {"macs": 10.0}, "large": {"macs": 1e6}}
    made = trained._replace(
        module=module_of(trained.module.supernet, tiers=ClientTiers(Budgets(budgets), ListedTiers(MEMBERS)))
    )
    eligible = {name: row["eligible"] for name, row in by_tier(made.finetune(name="other", rounds=1)).items()}
    assert eligible == {"small": "3", "middle": "1", "large": "1"}
    budgets["large"]["macs"] = 50_000
    made = trained._replace(
        module=module_of(trained.module.supernet, tiers=ClientTiers(Budgets(budgets), ListedTiers(MEMBERS)))
    )
    refused(made, "^finetune: no client of tier large or above can run ", name="another")


def test_the_searchs_tiers_are_not_the_clients(trained):
    tiers = ClientTiers(Budgets({"any": {"macs": 1e9}}), ListedTiers({"any": range(6)}))
    made = trained._replace(module=module_of(trained.module.supernet, tiers=tiers))
    refused(made, r"^model.tiers: has no tier 'small'; there are: any$")


def test_no_tiers_of_clients(trained):
    made = trained._replace(module=module_of(trained.module.supernet, tiers=None))
    refused(made, "^model.tiers: has no tier 'small'; there are: none; set model.tiers$")
    refused(made, "^finetune.architectures: are drawn for the clients' tiers; set model.tiers$", architectures=2)


def test_a_tier_that_nothing_fits(trained):
    tiers = ClientTiers(Budgets({"tiny": {"macs": 10.0}}), ListedTiers({"tiny": range(6)}))
    made = trained._replace(module=module_of(trained.module.supernet, tiers=tiers))
    refused(made, "tiny: no architecture was found with macs at most 10", architectures=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rounds": 0}, "finetune.rounds: 0 must be at least 1"),
        ({"check_val_every_n_rounds": 0}, "finetune.check_val_every_n_rounds: 0 must be at least 1"),
        ({"architectures": -1}, "finetune.architectures: -1 must be at least 0"),
        ({"name": ""}, "finetune.name: '' cannot name a folder"),
        ({"name": "a/b"}, "finetune.name: 'a/b' cannot name a folder"),
        ({"name": ".."}, "finetune.name: '..' cannot name a folder"),
        ({"name": "search"}, "finetune.name: 'search' is the search's folder; give another"),
        ({"name": "mine", "search": "mine"}, "finetune.name: 'mine' is the search's folder"),
    ],
)
def test_settings_out_of_range(given, told):
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        FinetuneSettings(**given)
    assert "\n" not in str(caught.value)


@pytest.fixture
def unvalidated(trained):
    """The same run where the server holds nothing to validate on."""
    source = ArraySource(tiny_examples(), test=tiny_examples(40, 2))
    data = FederatedDataModule(source, BySizes(), num_clients=6, server_val=0, client_test=0.2)
    return trained._replace(data=data)


def test_without_validation_data_there_is_nothing_to_choose_by(unvalidated):
    told = r"^data.server_val: 0 leaves nothing to choose the best of finetune.architectures 2 by; give the server"
    refused(unvalidated, told, architectures=2)


@pytest.mark.parametrize("settings", [{}, {"architectures": 1}])
def test_without_validation_data_one_network_per_tier_is_trained(unvalidated, settings, capsys):
    files = unvalidated.finetune(rounds=1, **settings)
    empty = ("val_accuracy_before", "val_loss_before", "val_accuracy", "val_loss")
    inputs, targets = only_batch(unvalidated.data.test_dataloader())
    for tier, row in by_tier(files).items():
        assert [row[name] for name in empty] == [""] * 4
        _, network = load_tier_network(unvalidated.module.supernet, files, tier)
        accuracy, loss = accuracy_and_loss(network, inputs, targets)
        assert float(row["test_accuracy"]) == pytest.approx(accuracy, abs=1e-6)
        assert float(row["test_loss"]) == pytest.approx(loss, rel=1e-5)
        assert files.tier_model(tier).metrics == {}
    assert "val before" in capsys.readouterr().out


def test_without_test_data(trained):
    source = ArraySource(tiny_examples(), val=tiny_examples(40, 1))
    data = FederatedDataModule(source, BySizes(), num_clients=6)
    files = trained._replace(data=data).finetune(rounds=1)
    for row in by_tier(files).values():
        assert row["val_accuracy"]
        assert (row["test_accuracy"], row["test_loss"]) == ("", "")
    assert not (files.folder / "clients.csv").exists()
