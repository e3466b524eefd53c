"""Levels of capability, against figures worked out by hand and a supernet that grows."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import SUITE_FILE
from lit_fednas.supernets import GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import plan
from lit_fednas.tiers import ArchitectureCosts, Capacities, ClientTiers, Tier, TiersOfRun
from tests.support import linear_net, tiny_supernet


def levels(source, net):
    return source.tiers(net.space, ArchitectureCosts(net), np.random.default_rng(0))


def test_as_the_paper_has_it():
    """The smallest architecture just fits the first level; the last level affords 29 times more."""
    net = tiny_supernet()
    tiers = levels(Capacities(), net)
    limits = np.array([tier.at_most["macs"] for tier in tiers])
    assert len(tiers) == 8
    assert limits[0] == net.macs(net.space.smallest)
    assert limits[-1] == 29 * limits[0]
    assert limits[1:] / limits[:-1] == pytest.approx(29 ** (1 / 7))


def test_a_supernet_that_grows():
    """Limits are equal before and after growth, so a resumed run has the same tiers."""
    suite = ModelSuite((1, 8, 8), 4, GrowableCNN([4, 8]))
    tiers = ClientTiers(Capacities(ratio=4, levels=3))
    initial = tiers.population(suite, 20, seed=3)
    model = suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
    assert suite.macs(model) > suite.macs(Model(0))
    grown = tiers.population(suite, 20, seed=3)
    assert (grown.tiers, grown.places.tolist()) == (initial.tiers, initial.places.tolist())
    assert initial.tiers[0].at_most["macs"] == suite.macs(Model(0))
    assert ArchitectureCosts(suite).excess(model, initial.tiers[0]) > 0
    assert ArchitectureCosts(suite).excess(Model(0), initial.tiers[0]) == 0


def test_other_methods_have_the_devices_of_a_run(tmp_path):
    """The cost of their own network does not matter."""
    tiers = [Tier("phones", {"macs": 5.0}, {"macs": 1.0}, ("conv1",)), Tier("all", {})]
    model = {"number": 0, "parent": None, "round": None, "steps": [], "macs": 5, "parameters": 2, "bytes": 8}
    replace_json(tmp_path / SUITE_FILE, {"models": [model], "tiers": [asdict(tier) for tier in tiers]})
    assert levels(TiersOfRun(str(tmp_path)), linear_net()) == tiers
    replace_json(tmp_path / SUITE_FILE, {"models": [model]})
    with pytest.raises(ConfigError, match=r"tiers.source.run: .* has no tiers in its suite.json; name another run"):
        levels(TiersOfRun(str(tmp_path)), linear_net())
    with pytest.raises(ConfigError, match=r"tiers.source.run: no/where holds no suite.json"):
        levels(TiersOfRun("no/where"), linear_net())
