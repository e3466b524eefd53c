"""Invalid fine-tunings: an error of one line, before training and writing."""

from typing import Any

import pytest

from lit_fednas.data import ArraySource, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import OnlyClients, UniformCohort
from lit_fednas.finetune import FinetuneSettings
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import FolderLock
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from tests.finetune.small import (
    MEMBERS,
    BySizes,
    Ranges,
    Trained,
    by_tier,
    module_of,
    path_cnn,
)
from tests.support import refusals, tiny_examples


def tiers_of(members: dict[str, Any], **macs: float) -> ClientTiers:
    source = Budgets({name: {"macs": limit} for name, limit in macs.items()}) if macs else Ranges()
    return ClientTiers(source, ListedTiers(members))


def with_tiers(run: Trained, tiers: ClientTiers | None) -> Trained:
    return run._replace(module=module_of(run.module.supernet, tiers=tiers))


def refused(run: Trained, words: str, **settings) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        run.finetune(**settings)
    assert "\n" not in str(caught.value)
    assert not (run.folder / "finetune").exists()


NOBODY = tiers_of({"small": [0, 1, 2], "middle": [3, 4, 5], "large": []})
ANY = tiers_of({"any": range(6)}, any=1e9)

UNABLE = r"^finetune: no client of tier large or above .*; change model.tiers or finetune.tier_aware$"
UNLIKE = r"^finetune.in_groups: small-0 and middle-0 have different eligible clients \(6 and 4\), .*to false$"
AWAY = UniformCohort(count=3, availability=OnlyClients([]))


@pytest.mark.parametrize(
    ("tiers", "settings", "words"),
    [
        (..., {"search": "other"}, "^finetune.search: .*other holds no finished search; run 'lit-fednas search' first"),
        (..., {"macs": "equal"}, "finetune.macs: 'equal' needs rounds.jsonl, and .* has no such file; give a number"),
        (..., {"macs": "split", "architectures": 2}, "finetune.macs: 'split' .*; leave finetune.architectures out"),
        (..., {"macs": 1e9, "cohort": AWAY}, r"finetune.macs: 1e\+09 .* no client is available to train small-0; set"),
        (..., {"in_groups": True}, UNLIKE),
        (..., {"tiers": ["tiny"]}, "^finetune.tiers: no tier is named 'tiny'; choose from small, middle, large$"),
        (NOBODY, {}, UNABLE),
        (ANY, {}, r"^model.tiers: no tier 'small'; there are: any$"),
        (None, {"architectures": 2}, "^finetune.architectures: needs the clients' tiers; set model.tiers$"),
    ],
)
def test_settings_that_conflict_with_the_run(trained, tiers, settings, words):
    refused(trained if tiers is ... else with_tiers(trained, tiers), words, **settings)


def test_a_search_of_other_weights_or_without_an_end(trained):
    other = trained._replace(module=module_of(path_cnn(seed=1)))
    words = r"^finetune.search: .*belongs to other weights than the checkpoint's; .*then add --finetune.search search-2"
    refused(other, words)
    assert by_tier(other.finetune(initial="random", rounds=1, name="random", tiers=["large"]))  # needs no weights
    files = SearchFiles(trained.folder / "search")
    files.write_settings({**files.settings(), "complete": False})
    refused(trained, "holds no finished search")


def test_two_processes_do_not_fine_tune_in_one_folder(trained):
    lock = FolderLock(trained.folder / "locked")
    refused(trained, "^finetune.name: another process writes into .*locked; wait for it", name="locked", rounds=1)
    lock.release()
    assert by_tier(trained.finetune(name="locked", rounds=1, tiers=["large"]))


def test_the_searchs_tiers_allow_more_than_the_clients_of_the_same_names(trained):
    """The large network has more than 50,000 MACs; only client 3 has such a limit."""
    budgets = {"small": 30_000, "middle": 10.0, "large": 1e6}
    files = with_tiers(trained, tiers_of(MEMBERS, **budgets)).finetune(name="other", rounds=1)
    eligible = {"small": "3", "middle": "1", "large": "1"}
    assert {name: row["eligible"] for name, row in by_tier(files).items()} == eligible


test_invalid_or_conflicting_settings = refusals(
    ({"rounds": 0}, "finetune.rounds: 0 must be at least 1"),
    ({"name": "mine", "search": "mine"}, "finetune.name: 'mine' is the search's folder"),
    ({"models": "model: 1"}, "finetune.models: 'model: 1' is one name; give a list, as ['model: 1']"),
    ({"models": ["model: 1"], "architectures": 2}, "finetune.architectures: 2 and finetune.models exclude each other"),
    call=lambda settings: FinetuneSettings(**settings),
)


def test_without_validation_data_one_network_per_tier_is_trained(trained):
    source = ArraySource(tiny_examples(), test=tiny_examples(40, 2))
    data = FederatedDataModule(source, BySizes(), num_clients=6, server_val=0, client_test=0.2)
    run = trained._replace(data=data)
    words = r"^data.server_val: 0 leaves no examples to choose the best of finetune.architectures 2; give the server"
    refused(run, words, architectures=2)
    files = run.finetune(rounds=1)
    empty = ("val_accuracy_before", "val_loss_before", "val_accuracy", "val_loss")
    for tier, row in by_tier(files).items():
        assert [row[name] for name in empty] == [""] * 4
        assert row["test_accuracy"]
        assert files.tier_model(tier).metrics == {}
