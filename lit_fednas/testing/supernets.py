"""What every supernet promises."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from lit_fednas.rng import isolated
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.networks import batch
from lit_fednas.testing.spaces import RANDOM_ARCHS, SpaceContract, all_or_some, some_archs


class SupernetContract(SpaceContract):
    """The contract of supernets, and that of their spaces; ``instances`` make supernets.

    Example:
        >>> from lit_fednas.supernets import SmallCNN
        >>> class TestSmallCNN(SupernetContract):
        ...     instances = {"grey": lambda: SmallCNN((1, 8, 8), 5)}
    """

    @functools.cached_property
    def kept(self) -> Supernet:
        """The supernet, which all checks share."""
        return networks.built(*self.case)

    @functools.cached_property
    def weights(self) -> dict[str, Tensor]:
        """The state with which it was built."""
        return copy.deepcopy(self.kept.state_dict())

    @property
    @override
    def space(self) -> SearchSpace[Any]:
        return self.kept.space

    def fresh(self) -> Supernet:
        """Returns the supernet as it was built, in training mode."""
        self.kept.load_state_dict(self.weights)
        self.kept.zero_grad()
        return self.kept.train()

    def positions(self, arch: object) -> dict[str, Tensor]:
        """Returns, for each tensor of the subnet, the flat positions of its elements in the shared tensor."""
        shared = self.kept.shared_tensors()
        return {
            name: region.of(torch.arange(shared[region.name].numel()).view(shared[region.name].shape)).flatten()
            for name, region in self.kept.regions(arch).items()
        }

    def check_index_covers_the_subnet_and_shapes_match(self) -> None:
        """Each tensor of a subnet has a region of the shared weights of its shape and type, and no element twice."""
        kept = self.kept
        shared = kept.shared_tensors()
        assert set(shared) == set(tensors(kept))
        for arch in some_archs(kept.space, 6):
            own = tensors(kept.subnet(arch))
            index = kept.index(arch)
            assert set(index) == set(kept.regions(arch)) == set(own)
            for name, region in index.items():
                assert region.of(shared[region.name]).shape == own[name].shape, name
                assert shared[region.name].dtype == own[name].dtype, name
            for name, places in self.positions(arch).items():
                assert len(places.unique()) == len(places), f"{name} has an element twice"

    def check_superset_holds_all_weights(self) -> None:
        """The space's superset holds every parameter."""
        net = self.fresh()
        held = {region.name for region in net.index(net.space.superset).values()}
        parameters = dict(net.named_parameters())
        assert set(parameters) <= held
        whole = sum(parameter.numel() for parameter in parameters.values())
        assert net.cost(net.space.superset).parameters == whole

    def check_subnet_alone_equals_in_place(self) -> None:
        """An extracted subnet computes what the supernet computes in place, in training and in evaluation."""
        net, x = self.kept, batch(self.kept)
        for training, arch in itertools.product((False, True), some_archs(net.space, 6)):
            self.fresh().train(training)
            subnet = net.subnet(arch)
            assert all(module.training == training for module in subnet.modules())
            with isolated(0, "dropout"):
                alone = subnet(x)
            with isolated(0, "dropout"):
                in_place = net(x, arch)
            assert (in_place.shape[0], in_place.shape[-1]) == (len(x), net.num_classes)
            torch.testing.assert_close(in_place, alone, rtol=1e-4, atol=1e-5)
            if arch == net.space.largest:
                self.fresh().train(training)
                with isolated(0, "dropout"):
                    torch.testing.assert_close(net(x), alone, rtol=1e-4, atol=1e-5)

    def check_running_in_place_moves_the_buffers_in_place(self) -> None:
        """Training in place updates the shared buffers as training the subnet updates its own."""
        net = self.fresh()
        for arch in some_archs(net.space, 1):
            subnet = net.subnet(arch)
            with isolated(0, "dropout"):
                subnet(batch(net))
            with isolated(0, "dropout"):
                net(batch(net), arch)
            views = net.views(arch)
            for name, buffer in subnet.named_buffers():
                torch.testing.assert_close(views[name], buffer, msg=f"{name} of {arch}")

    def check_gradients_in_place_are_those_of_the_subnet(self) -> None:
        """Gradients in place are those of the subnet, at the subnet's regions."""
        for arch in some_archs(self.space, 1):
            net = self.fresh()
            subnet = net.subnet(arch)
            with isolated(0, "dropout"):
                subnet(batch(net)).square().sum().backward()
            with isolated(0, "dropout"):
                net(batch(net), arch).square().sum().backward()
            places, regions, shared = self.positions(arch), net.regions(arch), dict(net.named_parameters())
            expected = {name: torch.zeros(p.numel()) for name, p in shared.items()}
            for name, parameter in subnet.named_parameters():
                assert parameter.requires_grad == shared[regions[name].name].requires_grad, name
                if parameter.grad is not None:
                    expected[regions[name].name][places[name]] = parameter.grad.flatten()
            for name, parameter in shared.items():
                got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.testing.assert_close(got.flatten(), expected[name], rtol=1e-3, atol=1e-4, msg=f"{name} {arch}")
            assert any(grad.abs().sum() > 0 for grad in expected.values())

    @torch.no_grad()
    def check_views_alias_and_nothing_else_changes(self) -> None:
        """Views write into their regions of the shared weights and nowhere else."""
        net = self.fresh()
        for arch in some_archs(net.space, 1):
            before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
            written = {name: torch.zeros(tensor.numel(), dtype=torch.bool) for name, tensor in before.items()}
            index, places, shared = net.regions(arch), self.positions(arch), net.shared_tensors()
            for name, view in net.views(arch).items():
                if index[name].is_view:
                    view.add_(1)
                    written[index[name].name][places[name]] = True
                    assert view.untyped_storage().data_ptr() == shared[index[name].name].untyped_storage().data_ptr()
                else:
                    view.add_(1)  # a copy, as said in ``Region.of``
            for name, tensor in net.shared_tensors().items():
                expected = before[name].flatten() + written[name].to(tensor.dtype)
                torch.testing.assert_close(tensor.flatten(), expected, rtol=0, atol=0)

    @torch.no_grad()
    def check_adding_to_regions_changes_just_them(self) -> None:
        """Adding to regions changes their elements and no others."""
        net = self.fresh()
        for arch in some_archs(net.space, 1):
            own, places = tensors(net.subnet(arch)), self.positions(arch)
            totals = {name: torch.ones(t.shape, dtype=torch.float64) for name, t in net.shared_tensors().items()}
            expected = {name: total.flatten().clone() for name, total in totals.items()}
            for name, region in net.regions(arch).items():
                value = own[name].double()
                region.add_to(totals[region.name], value, 0.5)
                region.add_to(totals[region.name], 2.0, 3.0)
                expected[region.name][places[name]] += 0.5 * value.flatten() + 6.0
            for name, total in totals.items():
                torch.testing.assert_close(total.flatten(), expected[name])

    @torch.no_grad()
    def check_subnet_is_a_copy_and_load_into_refreshes_it(self) -> None:
        """A subnet owns its weights; ``load_into`` copies the shared ones into the same tensors."""
        net = self.fresh()
        for arch in some_archs(net.space, 1):
            subnet = net.subnet(arch)
            before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
            storages = {tensor.untyped_storage().data_ptr() for tensor in before.values()}
            for tensor in tensors(subnet).values():
                assert tensor.untyped_storage().data_ptr() not in storages
                tensor.add_(1)
            for name, tensor in net.shared_tensors().items():
                torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
            own = {name: tensor.data_ptr() for name, tensor in tensors(subnet).items()}
            net.load_into(subnet, arch)
            places, regions, shared = self.positions(arch), net.regions(arch), net.shared_tensors()
            for name, tensor in tensors(subnet).items():
                whole = shared[regions[name].name]
                torch.testing.assert_close(tensor.flatten(), whole.flatten()[places[name]], rtol=0, atol=0)
                assert tensor.data_ptr() == own[name]

    def check_cost_is_that_of_the_extracted_subnet(self) -> None:
        """MACs are half of what PyTorch's counter counts; parameters and bytes are those of the subnet."""
        kept = self.kept
        net = kept.eval()
        for arch in some_archs(net.space, 6):
            subnet, cost = net.subnet(arch), net.cost(arch)
            counted = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)  # not their fused forms
            with FlopCounterMode(display=False) as counter, torch.no_grad(), counted[0], counted[1]:
                subnet(batch(net, 3))
            assert counter.get_total_flops() == 2 * 3 * cost.macs
            assert cost.parameters == sum(parameter.numel() for parameter in subnet.parameters())
            assert cost.bytes == sum(t.numel() * t.element_size() for t in tensors(subnet).values())

    def check_the_bounds_bound_the_cost(self) -> None:
        """No architecture costs less than ``space.smallest`` or more than ``space.largest``."""
        kept = self.kept
        least, most = kept.cost(kept.space.smallest), kept.cost(kept.space.largest)
        for arch in some_archs(kept.space, RANDOM_ARCHS):
            cost = kept.cost(arch)
            assert least.macs <= cost.macs <= most.macs
            assert least.parameters <= cost.parameters <= most.parameters
            assert least.bytes <= cost.bytes <= most.bytes

    @torch.no_grad()
    def check_more_architectures_than_are_remembered(self) -> None:
        """What is remembered of architectures is bounded, and forgetting changes nothing."""
        net, archs = self.fresh().eval(), some_archs(self.space, 1)
        expected = [(net.cost(arch), net(batch(net), arch)) for arch in archs]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lit_fednas.supernets.base._SKELETONS_KEPT", 2)
            net._skeletons.clear()
            for arch, (cost, output) in zip([*archs, archs[0]], [*expected, expected[0]], strict=True):
                assert net.cost(arch) == cost
                torch.testing.assert_close(net(batch(net), arch), output)
                assert len(net._skeletons) <= 2

    def check_different_architectures_are_different_networks(self) -> None:
        """No two architectures hold the same elements of the shared weights: so the space's size counts networks."""
        archs = all_or_some(self.space)
        found = {
            tuple((name, at.numpy().tobytes()) for name, at in sorted(self.positions(arch).items())) for arch in archs
        }
        assert len(found) == len(archs)

    @torch.no_grad()
    def check_copies_are_whole_and_apart(self) -> None:
        """Copies, also pickled ones, compute the same and share no weights."""
        net = self.fresh().eval()
        net._skeletons.clear()  # of which there are too many to copy by now
        x, archs = batch(net), some_archs(net.space, 1)
        before = [net(x, arch) for arch in archs]  # so that there is something remembered to copy
        twin, pickled = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
        assert twin.fingerprint == pickled.fingerprint == net.fingerprint
        for arch, expected in zip(archs, before, strict=True):
            torch.testing.assert_close(twin(x, arch), expected)
            torch.testing.assert_close(pickled(x, arch), expected)
        for parameter in twin.parameters():
            parameter.mul_(-0.5).add_(0.1)
        for arch, expected in zip(archs, before, strict=True):
            torch.testing.assert_close(net(x, arch), expected)
            torch.testing.assert_close(twin(x, arch), twin.subnet(arch)(x), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(twin(x, arch), expected)

    def check_state_dict_is_the_shared_tensors(self) -> None:
        """The state dict is the shared tensors, parameters first."""
        kept = self.kept
        state, shared = kept.state_dict(), kept.shared_tensors()
        assert set(shared) <= set(state)  # a tensor that two modules share has two names there
        assert {tensor.data_ptr() for tensor in state.values()} == {tensor.data_ptr() for tensor in shared.values()}
        parameters = [name for name, _ in kept.named_parameters()]
        assert list(kept.shared_tensors())[: len(parameters)] == parameters

    def check_fingerprints_are_plain_and_tell_instances_apart(self) -> None:
        """A fingerprint can be written as JSON, and no two instances have the same."""
        kept = self.kept
        assert json.loads(json.dumps(kept.fingerprint)) == kept.fingerprint
        everyone = [networks.kept(*one.values[0]).fingerprint for one in self.parameters()]
        assert everyone.count(kept.fingerprint) == 1

    def check_nothing_moves_in_evaluation(self) -> None:
        """Evaluating and counting change no weights."""
        kept = self.kept
        net = kept.eval()
        before = copy.deepcopy(net.state_dict())
        net(batch(net), net.space.largest)
        net.cost(net.space.smallest)
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, before[name])

    def check_the_skeleton_holds_no_memory(self) -> None:
        """A skeleton's tensors are on the meta device."""
        kept = self.kept
        assert {tensor.device.type for tensor in tensors(kept.skeleton(kept.space.largest)).values()} == {"meta"}


def tensors(network: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a network."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}
