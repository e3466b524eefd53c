"""Fine-tuning of named models, one after another or in groups of clients (FedNAS, section 4.4)."""

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import UniformCohort
from lit_fednas.finetune.candidates import group_clients, named_architectures, unlimited_tiers
from lit_fednas.supernets import SlicedCNN, WidthSupernet
from tests.finetune.small import (
    COUNT,
    ELIGIBLE,
    ROUNDS,
    Trained,
    by_tier,
    cohorts,
    path_cnn,
    rows,
)
from tests.supernets.instances import SPACES, kept_instance
from tests.supernets.sequences import pruned_sequence
from tests.support import refusals

ALL = [0, 1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def paths(searched_once) -> list[str]:
    """Returns three of the 81 paths as text: the smallest, one between, the largest."""
    space = searched_once.module.supernet.space
    return [str(space.smallest), str(space.decode((4, 2))), str(space.largest)]


@pytest.fixture
def bare(searched_once, tmp_path) -> Trained:
    """The trained supernet in a folder without a search."""
    return searched_once._replace(folder=tmp_path)


def slug(text: str) -> str:
    return text.replace(" ", "-")


def test_named_models_are_trained_without_a_search_by_all_clients(bare, paths):
    """``tier_aware`` has no effect: clients of the tiers below train, too."""
    files = bare.finetune(models=["largest", paths[1]], tier_aware=True)
    tiers = by_tier(files)
    assert {tier: row["arch"] for tier, row in tiers.items()} == {slug(paths[2]): paths[2], slug(paths[1]): paths[1]}
    assert files.settings()["eligible"] == dict.fromkeys(tiers, 6)
    assert not (files.folder / "clients.csv").exists()
    assert [row["arch"] for row in rows(files.folder / "models.csv")] == [paths[2], paths[1]]
    expected = [UniformCohort(count=COUNT).draw(round, bare.data.clients.sizes, 0) for round in range(ROUNDS)]
    assert cohorts(bare.path(slug(paths[1]))) == expected
    with pytest.raises(ConfigError, match=r"^finetune.name: .*a fine-tuning with other models, "):
        bare.finetune(models=paths[1:])


@pytest.mark.parametrize("name", SPACES)
def test_models_of_every_supernet_can_be_named(name):
    net = kept_instance(name)
    archs = list(dict.fromkeys([net.space.smallest, net.space.largest]))
    assert named_architectures(net, [str(arch) for arch in archs]) == archs
    assert named_architectures(net, ["smallest", "largest"][-len(archs) :]) == archs
    tiers = unlimited_tiers(archs)
    assert len({tier.name for tier in tiers}) == len(archs)
    assert all(re.fullmatch(r"[A-Za-z0-9_][\w.-]*", tier.name) and not tier.at_most for tier in tiers)


def test_the_largest_of_at_most_a_share_of_the_macs():
    """A share may be any number; a model with exactly this share is included."""
    net = WidthSupernet((3, 8, 8), 5, SlicedCNN((8, 16)), widths=[1, 0.75, 0.5, 0.25])
    macs = [net.macs(arch) for arch in net.space.each()]
    shares = [count / macs[-1] for count in macs]
    shares_below = [float(np.nextafter(share, 0)) for share in shares[1:]]
    for share in ["1", "0.999", ".5", "2e-1", *map(repr, shares), *map(repr, shares_below)]:
        (arch,) = named_architectures(net, [f"{share} of macs"])
        expected = [count for count, exact in zip(macs, shares, strict=True) if exact <= float(share)]
        assert net.macs(arch) == max(expected), share


def test_models_of_a_sequence():
    net = pruned_sequence(hidden=(8, 16), steps=3)
    largest, second = (net.macs(net.space.parse(text)) for text in ("model: 0", "model: 1"))
    share = second / largest
    for texts, expected in (
        (["1 of macs"], ["model: 0"]),
        ([f"{share + 0.01} of macs", "0"], ["model: 1", "model: 0"]),
        ([f"{share - 0.01} of macs"], ["model: 2"]),
        (["all"], ["model: 0", "model: 1", "model: 2", "model: 3"]),
    ):
        assert [str(arch) for arch in named_architectures(net, texts)] == expected
    tiers = unlimited_tiers(named_architectures(net, ["model: 3", "2"]))
    assert [tier.name for tier in tiers] == ["model-3", "model-2"]


SEQUENCE = pruned_sequence(steps=1, candidates=True)


test_missing_models = refusals(
    (SEQUENCE, ["0", "model: 9"], "finetune.models: 'model: 9' is not a model of PrunedSequence (architecture model: "),
    (SEQUENCE, ["0.01 of macs"], "finetune.models: no model has at most 0.01 of macs; the smallest has 0."),
    (SEQUENCE, ["all", "1"], "finetune.models: names model: 1 twice, as 'all' and '1'"),
    (path_cnn(), ["0.5 of macs"], "'0.5 of macs' needs a row of models, and PathCNN has no row"),
    call=named_architectures,
)


def label_counts(client: int, num_classes: int, splits: list[str]) -> np.ndarray:
    """Clients 0 and 3 have examples of one class, 1 and 2 of the other, 4 and 5 have no examples.

    Client 0 has more examples for validation, which do not count.
    """
    train = ([9, 0], [0, 9], [0, 9], [9, 0], [0, 0], [0, 0])
    others = [50 * (client == 0), 0] if "val" in splits or "test" in splits else [0, 0]
    return np.array(train[client]) * ("train" in splits) + others


def test_groups_are_alike_in_examples_and_classes():
    data: Any = SimpleNamespace(strata=("one", "other"), clients=SimpleNamespace(label_counts=label_counts))
    groups = group_clients({"a": ALL, "b": ALL}, data)
    assert sorted(groups["a"] + groups["b"]) == ALL
    for group in groups.values():
        assert Counter(client in (0, 3) for client in group if client < 4) == {True: 1, False: 1}
    odd_groups = group_clients({"a": [1, 3, 5], "b": [1, 3, 5]}, data)
    assert sorted(odd_groups["a"] + odd_groups["b"]) == [1, 3, 5]  # clients' numbers, not their positions in the list
    with pytest.raises(ConfigError, match=r"^finetune.in_groups: 4 eligible clients hold examples, too few for 5"):
        group_clients(dict.fromkeys("abcde", ALL), data)


def test_the_networks_of_tiers_have_groups_of_their_own(trained):
    settings = {"in_groups": True, "tier_aware": False, "rounds": 1, "cohort": UniformCohort(count=6)}
    files = trained.finetune(**settings)
    groups = {f"{tier}-0": cohorts(trained.path(tier))[0] for tier in ELIGIBLE}
    assert sorted(client for group in groups.values() for client in group) == ALL
    assert files.settings()["eligible"] == {name: len(group) for name, group in groups.items()}


def test_each_model_has_a_group_of_clients(bare, paths):
    files = bare.finetune(models=paths, in_groups=True, cohort=UniformCohort(count=1), rounds=3)
    groups = {slug(text): {client for (client,) in cohorts(bare.path(slug(text)))} for text in paths}
    assert sum(map(len, groups.values())) == len(set().union(*groups.values())) > 3  # no client trains two models
    eligible = files.settings()["eligible"]
    assert sum(eligible.values()) == len(ALL)
    for tier, clients in groups.items():
        assert int(by_tier(files)[tier]["eligible"]) == eligible[f"{tier}-0"] >= len(clients) > 0
