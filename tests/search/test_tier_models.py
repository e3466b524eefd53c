"""Reading and writing of tiers' networks."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.evaluation import recalibrated
from lit_fednas.records import SearchFiles, TierModel
from lit_fednas.search.tier_models import load_tier_network, save_tier_model, tier_model
from lit_fednas.supernets import PlainNetwork, Supernet
from lit_fednas.testing.networks import batch
from tests.supernets.instances import SPACES, instance, kept_instance


@pytest.fixture
def files(tmp_path: Path) -> SearchFiles:
    return SearchFiles(tmp_path / "search")


def model_of(net: Supernet, arch: Any, /, **changes: Any) -> TierModel:
    return replace(tier_model(net, "small", arch, recalibrated=False), **changes)


def saved(files: SearchFiles, net: Supernet, **changes: Any) -> None:
    """Writes the smallest network as the tier ``small``."""
    arch = net.space.smallest
    save_tier_model(files, model_of(net, arch, **changes), net.subnet(arch).eval())


def weights_path(files: SearchFiles) -> Path:
    return files.tier_folder("small") / "weights.pt"


@pytest.mark.parametrize("name", SPACES)
def test_a_network_is_the_same_after_writing_and_reading(files, name):
    """The network is the smallest, recalibrated one or the largest one, in turn."""
    is_recalibrated = SPACES.index(name) % 2 == 0
    net = instance(name).train(is_recalibrated)
    arch = net.space.smallest if is_recalibrated else net.space.largest
    network = net.subnet(arch).eval()
    if is_recalibrated:
        recalibrated(network, [batch(net, 16), 2 + batch(net, 8)])
    save_tier_model(files, model_of(net, arch, recalibrated=is_recalibrated), network)
    expected = network(batch(net))
    with torch.no_grad():
        for tensor in net.shared_tensors().values():
            tensor.zero_()  # the weights are the tier's, not the supernet's
    read, loaded = load_tier_network(net, files, "small")
    assert read == arch
    assert torch.equal(loaded(batch(net)), expected)
    assert not any(module.training for module in loaded.modules())
    assert net.training == is_recalibrated  # the supernet keeps its mode
    assert all(not tensor.any() for tensor in net.shared_tensors().values())


def test_only_the_elements_of_a_view_are_written(files):
    net = PlainNetwork(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (4,), 2)
    whole = torch.arange(40000.0).reshape(100, 400)
    network = net.subnet("whole")
    network[1].weight = nn.Parameter(whole[1:3, 2:6])
    network[1].bias = nn.Parameter(whole[0, 7:9])
    save_tier_model(files, model_of(net, "whole"), network)
    assert weights_path(files).stat().st_size < 4000
    _, loaded = load_tier_network(net, files, "small")
    assert loaded[1].weight.tolist() == [[402.0, 403.0, 404.0, 405.0], [802.0, 803.0, 804.0, 805.0]]


def test_a_kill_leaves_no_architecture_with_anothers_weights(files, monkeypatch):
    net = kept_instance("elastic")
    saved(files, net)
    content = weights_path(files).read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save_tier_model(files, model_of(net, net.space.largest), net.subnet(net.space.largest))
    assert weights_path(files).read_bytes() == content  # writing is atomic
    assert files.tier_names == []
    with monkeypatch.context() as patched:
        patched.setattr(SearchFiles, "write_tier_model", killed)
        with pytest.raises(KeyboardInterrupt):
            saved(files, net)
    assert files.tier_names == []
    saved(files, net)
    assert {path.name for path in files.tier_folder("small").iterdir()} == {"architecture.json", "weights.pt"}


def refused(net: Supernet, files: SearchFiles, error: type[Exception], match: str, tier: str = "small") -> None:
    with pytest.raises(error, match=match) as raised:
        load_tier_network(net, files, tier)
    assert "\n" not in str(raised.value)


def test_an_unknown_tier_is_an_error_with_the_known_ones(files):
    net = kept_instance("elastic")
    refused(net, files, ConfigError, r"'small' has no network .* run 'lit-fednas search' first")
    saved(files, net)
    refused(net, files, ConfigError, "'tiny' has no network in .*search; give --tier small", tier="tiny")
    refused(net, files, ConfigError, "has no network", tier="../tiers/small")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"arch": "d: [7,0], e: 0.25"}, r"depth 7 is not one of \[0, 1\]; tier 'small' is of ElasticResNet"),
        ({"num_classes": 6}, "num_classes 5, but .* num_classes 6; give the config of its run"),
    ],
)
def test_another_supernet(files, changes, match):
    net = kept_instance("elastic")
    saved(files, net, **changes)
    refused(net, files, ConfigError, match)


def test_unfitting_damaged_or_missing_weights(files):
    net, path = kept_instance("elastic"), weights_path(files)
    saved(files, net)
    whole = torch.load(path, weights_only=True)
    without = {name: tensor for name, tensor in whole.items() if name != "stem.weight"}
    torch.save(without, path)
    refused(net, files, CheckpointError, r"does not fit .*Missing .*stem\.weight")
    path.write_bytes(path.read_bytes()[:-1000])
    refused(net, files, CheckpointError, r"weights\.pt cannot be read")
    path.unlink()
    refused(net, files, CheckpointError, r"weights\.pt does not exist; run the search")
