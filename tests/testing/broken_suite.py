"""The same parts, each broken in one way, and the promise that it breaks, in its class's docstring."""

# ruff: noqa: RUF012

import numpy as np
import own_suite
import torch
from own_parts import Afresh, Columns, Focal, Halving, HiddenUnits, LargestWins, Layers, TakeTurns

from lit_fednas.data import Examples
from lit_fednas.supernets import Region


class TwoRowsTwice(HiddenUnits):
    def index(self, arch):
        rows = torch.arange(arch).clamp(max=2)
        return dict(super().index(arch)) | {"1.bias": Region("network.1.bias", (rows,))}


class Uneven(Layers):
    def sample(self, rng):
        return min(super().sample(rng), super().sample(rng))


class Counting(TakeTurns):
    planned = 0

    def plan(self, round):
        self.planned += 1
        return super().plan(round)

    def state_dict(self):
        return {"planned": self.planned}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.planned = state["planned"]


class Deaf(LargestWins):
    def finish(self, rejected=()):
        return {name: tensor.detach().clone() for name, tensor in self._supernet.shared_tensors().items()}


class Hoarding(LargestWins):
    kept = ()

    def add(self, update):
        super().add(update)
        self.kept = [*self.kept, update]


class Jittery(Focal):
    def loss(self, network, inputs, targets):
        return super().loss(network, inputs, targets) * (1 + np.random.rand())  # noqa: NPY002


class Remembering(Focal):
    seen = 0

    def loss(self, network, inputs, targets):
        self.seen += 1
        return super().loss(network, inputs, targets) * (1 + self.seen / 100)


class Losing(Halving):
    def split(self, targets, num_clients, rng, columns):
        owners = super().split(targets, num_clients, rng, columns)
        owners[np.flatnonzero(owners == 0)[0]] = -1
        return owners


class Careless(Halving):
    def split(self, targets, num_clients, rng, columns):
        return super().split(targets, num_clients, np.random, columns)


class Shuffled(Columns):
    def load(self, split):
        examples = super().load(split)
        if examples is None:
            return None
        order = torch.from_numpy(np.random.permutation(len(examples)))  # noqa: NPY002
        return Examples(examples.inputs[order], examples.targets[order])


class WrongShape(Columns):
    input_shape = (3,)


class Repeating(Afresh):
    def search(self, feasible, rng):
        while True:
            yield [feasible.sample(rng)]


def columns_of(kind):
    return {kind.__name__: lambda folder: kind(own_suite.columns(folder).path, num_classes=2)}


class TestTwoRowsTwice(own_suite.SupernetContract):
    """test_index_covers_the_subnet_and_shapes_match"""

    instances = {"it": lambda: TwoRowsTwice((1, 8, 8), 10, units=[4, 8, 16])}


class TestUneven(own_suite.SpaceContract):
    """test_samples_are_uniform_and_independent_over_genes"""

    instances = {"it": lambda: Uneven([4, 8, 16], layers=2)}


class TestCounting(own_suite.TestTakeTurns):
    """test_a_plan_changes_no_state"""

    instances = {"it": Counting}


class TestDeaf(own_suite.AggregationContract):
    """test_updates_that_agree_are_the_result"""

    instances = {"it": Deaf}


class TestHoarding(own_suite.AggregationContract):
    """test_updates_are_neither_changed_nor_kept"""

    instances = {"it": Hoarding}


class TestJittery(own_suite.ObjectiveContract):
    """test_a_fit_is_a_function_of_its_generator"""

    instances = {"it": Jittery}


class TestRemembering(own_suite.ObjectiveContract):
    """test_a_fit_leaves_nothing_for_the_next"""

    instances = {"it": Remembering}


class TestLosing(own_suite.PartitionerContract):
    """test_each_example_goes_to_one_client"""

    instances = {"it": Losing}


class TestCareless(own_suite.PartitionerContract):
    """test_is_a_function_of_the_seed"""

    instances = {"it": Careless}


class TestShuffled(own_suite.DataSourceContract):
    """test_every_process_loads_the_same"""

    instances = columns_of(Shuffled)


class TestWrongShape(own_suite.DataSourceContract):
    """test_batches_are_of_the_stated_shape"""

    instances = columns_of(WrongShape)


class TestRepeating(own_suite.SearchMethodContract):
    """test_all_proposals_fit_and_are_distinct"""

    instances = {"it": Repeating}
