"""Contracts of search spaces and supernets."""

import copy
import itertools
import json
import math
import pickle
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from lit_fednas.rng import isolated, numpy_generator
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.supernets.families import tensors_of as tensors
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, assert_alike
from lit_fednas.testing.networks import batch

RANDOM_ARCHS = 20


def some_archs(space: SearchSpace[Any], count: int) -> list[Any]:
    """Returns the smallest, the largest and at most ``count`` random architectures."""
    rng = numpy_generator(0, "archs")
    return list(dict.fromkeys([space.smallest, space.largest, *(space.sample(rng) for _ in range(count))]))


def all_of_small(space: SearchSpace[Any]) -> set[Any]:
    """Returns all architectures of a small space, decoded from all gene vectors; an empty set for a large space."""
    return set(space.each()) if math.prod(space.cardinalities) <= 100 else set()


class SpaceContract(Contract):
    """The contract of search spaces; ``instances`` make spaces.

    Example:
        >>> from lit_fednas.supernets import Ladder
        >>> class TestSizes(SpaceContract):
        ...     instances = {"three": lambda: Ladder([4, 8, 16])}
    """

    @property
    def space(self) -> SearchSpace[Any]:
        """The space."""
        return self.case.make()

    def check_architectures_are_small_hashable_values(self) -> None:
        """Architectures are small, hash by value and can be pickled."""
        for arch in some_archs(self.space, RANDOM_ARCHS):
            assert hash(arch) == hash(copy.deepcopy(arch))
            assert pickle.loads(pickle.dumps(arch)) == arch
            assert len(pickle.dumps(arch)) < 2000

    def check_genes_and_text_go_round(self) -> None:
        """An architecture is restored from its genes and from its text."""
        space = self.space
        for arch in some_archs(space, 50):
            genes = space.encode(arch)
            assert all(0 <= gene < n for gene, n in zip(genes, space.cardinalities, strict=True))
            assert space.decode(genes) == space.parse(str(arch)) == space.parse(arch) == space.named(str(arch)) == arch
        assert space.named("smallest") == space.smallest
        assert space.named("largest") == space.largest

    def check_the_size_counts_architectures(self) -> None:
        """A small space has as many architectures as its ``size``; all gene vectors are decoded."""
        space = self.space
        if archs := all_of_small(space):
            assert len(archs) == space.size
            assert {space.smallest, space.largest} <= archs
        assert len(some_archs(space, 30)) <= space.size


class SupernetContract(SpaceContract):
    """The contract of supernets and of their spaces; ``instances`` make supernets.

    Example:
        >>> from lit_fednas.supernets import SmallCNN
        >>> class TestSmallCNN(SupernetContract):
        ...     instances = {"grey": lambda: SmallCNN((1, 8, 8), 5)}
    """

    @cached_property
    def net(self) -> Supernet:
        """The supernet that all checks share."""
        return networks.build_net(*self.case)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The initial state of the supernet."""
        return copy.deepcopy(self.net.state_dict())

    @property
    @override
    def space(self) -> SearchSpace[Any]:
        return self.net.space

    def fresh(self) -> Supernet:
        """Returns the supernet with its initial state, in training mode."""
        self.net.load_state_dict(self.weights)
        self.net.zero_grad()
        return self.net.train()

    def positions(self, arch: object) -> dict[str, Tensor]:
        """Returns the flat positions in the shared tensor of the elements of each subnet tensor."""
        shared = self.net.shared_tensors()
        return {
            name: region.of(torch.arange(shared[region.name].numel()).view(shared[region.name].shape)).flatten()
            for name, region in self.net.regions(arch).items()
        }

    def check_index_covers_the_subnet_and_shapes_match(self) -> None:
        """Each tensor of a subnet has a region of the same shape and type, and no element twice."""
        net, shared = self.net, self.net.shared_tensors()
        assert set(shared) == set(tensors(net))
        for arch in some_archs(net.space, 6):
            subnet, index = tensors(net.subnet(arch)), net.index(arch)
            assert set(index) == set(net.regions(arch)) == set(subnet)
            for name, region in index.items():
                assert region.of(shared[region.name]).shape == subnet[name].shape, name
                assert shared[region.name].dtype == subnet[name].dtype, name
            for name, positions in self.positions(arch).items():
                assert len(positions.unique()) == len(positions), f"{name} has an element twice"

    def check_superset_holds_all_weights(self) -> None:
        """The space's superset holds every parameter."""
        net, parameters = self.net, dict(self.net.named_parameters())
        assert set(parameters) <= {region.name for region in net.index(net.space.superset).values()}
        assert net.cost(net.space.superset).parameters == sum(parameter.numel() for parameter in parameters.values())

    def check_subnet_alone_equals_in_place(self) -> None:
        """An extracted subnet has the outputs of the supernet in place, in training and in evaluation."""
        net, x = self.net, batch(self.net)
        for training, arch in itertools.product((False, True), some_archs(net.space, 6)):
            self.fresh().train(training)
            subnet = net.subnet(arch)
            assert all(module.training == training for module in subnet.modules())
            alone, in_place = _run(subnet, x), _run(net, x, arch)
            assert (in_place.shape[0], in_place.shape[-1]) == (len(x), net.num_classes)
            torch.testing.assert_close(in_place, alone, rtol=1e-4, atol=1e-5)
            if arch == net.space.largest:
                torch.testing.assert_close(_run(self.fresh().train(training), x), alone, rtol=1e-4, atol=1e-5)

    def check_training_in_place_equals_training_the_subnet(self) -> None:
        """Gradients in place equal the subnet's in its regions and are 0 elsewhere; buffers are updated equally."""
        for arch in some_archs(self.space, 1):
            net = self.fresh()
            subnet = net.subnet(arch)
            _run(subnet, batch(net)).square().sum().backward()
            _run(net, batch(net), arch).square().sum().backward()
            positions, regions, shared = self.positions(arch), net.regions(arch), dict(net.named_parameters())
            expected = {name: torch.zeros(p.numel()) for name, p in shared.items()}
            for name, parameter in subnet.named_parameters():
                assert parameter.requires_grad == shared[regions[name].name].requires_grad, name
                if parameter.grad is not None:
                    expected[regions[name].name][positions[name]] = parameter.grad.flatten()
            for name, parameter in shared.items():
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.testing.assert_close(grad.flatten(), expected[name], rtol=1e-3, atol=1e-4, msg=f"{name} {arch}")
            assert any(grad.abs().sum() > 0 for grad in expected.values())
            views = net.views(arch)
            for name, buffer in subnet.named_buffers():
                torch.testing.assert_close(views[name], buffer, msg=f"{name} of {arch}")

    @torch.no_grad()
    def check_views_alias_and_nothing_else_changes(self) -> None:
        """Views write into their regions of the shared weights, and nowhere else."""
        net = self.fresh()
        for arch in some_archs(net.space, 1):
            shared = net.shared_tensors()
            expected = {name: tensor.flatten().clone() for name, tensor in shared.items()}
            index, positions = net.regions(arch), self.positions(arch)
            masks = {name: torch.zeros(tensor.numel(), dtype=torch.bool) for name, tensor in shared.items()}
            for name, view in net.views(arch).items():
                view.add_(1)
                if index[name].is_view:  # otherwise a copy, see ``Region.of``
                    masks[index[name].name][positions[name]] = True
                    assert view.untyped_storage().data_ptr() == shared[index[name].name].untyped_storage().data_ptr()
            for name, tensor in shared.items():
                assert torch.equal(tensor.flatten(), expected[name] + masks[name].to(tensor.dtype)), name

    def check_cost_is_that_of_the_extracted_subnet(self) -> None:
        """MACs are half of PyTorch's FLOPs; parameters and bytes are those of the subnet."""
        net = self.net.eval()
        for arch in some_archs(net.space, 6):
            subnet, cost = net.subnet(arch), net.cost(arch)
            plain = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)  # not the fused kernels
            with FlopCounterMode(display=False) as counter, torch.no_grad(), plain[0], plain[1]:
                subnet(batch(net, 3))
            assert counter.get_total_flops() == 2 * 3 * cost.macs
            assert cost.parameters == sum(parameter.numel() for parameter in subnet.parameters())
            assert cost.bytes == sum(t.numel() * t.element_size() for t in tensors(subnet).values())

    def check_the_bounds_bound_the_cost(self) -> None:
        """No architecture costs less than ``space.smallest`` or more than ``space.largest``."""
        archs = self.space.smallest, *some_archs(self.space, RANDOM_ARCHS), self.space.largest
        for name in ("macs", "parameters", "bytes"):
            lowest, *costs, highest = (getattr(self.net.cost(arch), name) for arch in archs)
            assert lowest <= min(costs) <= max(costs) <= highest, name

    def check_different_architectures_are_different_networks(self) -> None:
        """No two architectures have the same elements of the shared weights, so the space's size counts networks."""
        archs = all_of_small(self.space) or some_archs(self.space, 30)
        positions = (sorted(self.positions(arch).items()) for arch in archs)
        elements = {tuple((name, tensor.numpy().tobytes()) for name, tensor in items) for items in positions}
        assert len(elements) == len(archs)

    @torch.no_grad()
    def check_copies_are_whole_and_apart(self) -> None:
        """Copies and pickled copies have equal outputs and share no weights."""
        net = self.fresh().eval()
        net._skeletons.clear()  # too many to copy
        x, archs = batch(net), some_archs(net.space, 1)
        outputs = [net(x, arch) for arch in archs]  # this fills the caches, which are then copied
        twin, pickled = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
        assert twin.fingerprint == pickled.fingerprint == net.fingerprint
        for arch, expected in zip(archs, outputs, strict=True):
            torch.testing.assert_close(twin(x, arch), expected)
            torch.testing.assert_close(pickled(x, arch), expected)
        for parameter in twin.parameters():
            parameter.mul_(-0.5).add_(0.1)
        for arch, expected in zip(archs, outputs, strict=True):
            torch.testing.assert_close(net(x, arch), expected)
            torch.testing.assert_close(twin(x, arch), twin.subnet(arch)(x), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(twin(x, arch), expected)

    def check_fingerprints_are_plain_and_tell_instances_apart(self) -> None:
        """A fingerprint can be written as JSON, and differs between instances."""
        fingerprint = self.net.fingerprint
        assert json.loads(json.dumps(fingerprint)) == fingerprint
        assert [networks.cached_net(*p.values[0]).fingerprint for p in self.parameters()].count(fingerprint) == 1

    def check_nothing_moves_in_evaluation(self) -> None:
        """Evaluating the network and counting its costs change no weights."""
        net = self.net.eval()
        initial = copy.deepcopy(net.state_dict())
        net(batch(net), net.space.largest)
        net.cost(net.space.smallest)
        assert_alike(net.state_dict(), initial)


def _run(network: nn.Module, *arguments: Any) -> Tensor:
    """Returns a network's outputs, with the same dropout in every call."""
    with isolated(0, "dropout"):
        return network(*arguments)
