"""The contract of every supernet, for all instances in ``instances.py``."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import lit_fednas.supernets
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import ElasticMLP, ElasticResNet, ElasticTCN, ElasticTransformer, Supernet
from lit_fednas.supernets.cells.space import GenotypeSpace
from lit_fednas.testing import SpaceContract, SupernetContract
from lit_fednas.testing.networks import batch
from tests.supernets.instances import INSTANCES, VARIANTS, kept_instance
from tests.support import without_instance


class TestSupernets(SupernetContract):
    instances = {  # noqa: RUF012
        name: pytest.param(make, marks=pytest.mark.slow) if name in VARIANTS else make
        for name, make in sorted(INSTANCES.items())
    }


class TestGenotypes(SpaceContract):
    instances = {"two-nodes": lambda: GenotypeSpace(2)}  # noqa: RUF012


def test_every_supernet_has_an_instance() -> None:
    missing = without_instance(Supernet, lit_fednas.supernets, [partial(kept_instance, name) for name in INSTANCES])
    assert not missing, f"add instances of {missing} to tests/supernets/instances.py"


@torch.no_grad()
def test_what_is_remembered_of_architectures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting has no effect, and a subnet owns its weights."""
    net = kept_instance("elastic-batchnorm").eval()
    archs = list({net.space.sample(np.random.default_rng(seed)): None for seed in range(6)})
    expected = [net(batch(net), arch) for arch in archs]
    monkeypatch.setattr("lit_fednas.supernets.base._CACHED_SKELETONS", 2)
    net._skeletons.clear()
    for arch, output in zip([*archs, archs[0]], [*expected, expected[0]], strict=True):
        for tensor in net.subnet(arch).state_dict().values():
            tensor.zero_()
        torch.testing.assert_close(net(batch(net), arch), output)
        assert len(net._skeletons) <= 2


def entries(net: Supernet, arch: Any) -> dict[str, torch.Tensor]:
    """Returns a mask per shared tensor of the entries that the architecture uses."""
    masks = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in net.shared_tensors().items()}
    for region in net.regions(arch).values():
        masks[region.name][... if region.index is None else region.index] = True
    return masks


@pytest.mark.parametrize("kind", [ElasticMLP, ElasticResNet, ElasticTCN, ElasticTransformer])
def test_what_an_architecture_contains_runs_inside_it(kind: type[Supernet]) -> None:
    names = sorted(name for name in INSTANCES if type(kept_instance(name)) is kind)
    net, space = kept_instance(names[0]), kept_instance(names[0]).space
    archs = [space.smallest, space.largest, *(space.sample(np.random.default_rng(seed)) for seed in range(6))]
    for outer in archs:
        client, uses = net.subnet(outer).eval(), entries(net, outer)
        for inner in archs:
            within = all(bool((uses[name] | ~mask).all()) for name, mask in entries(net, inner).items())
            if within:
                torch.testing.assert_close(net.run_inside(client, inner, batch(net)), net.eval()(batch(net), inner))
            else:
                with pytest.raises(ConfigError, match="run an architecture that the network contains"):
                    net.run_inside(client, inner, batch(net))
