"""The same parts, each with a fault, and the promise that the fault breaks."""

from collections import Counter

import numpy as np
import own_suite
import torch
from own_parts import Afresh, Columns, Damping, Focal, Halving, HiddenUnits, LargestWins, Layers, TakeTurns

from lit_fednas.data import Examples
from lit_fednas.supernets import Region
from lit_fednas.testing import SearchMethodContract


class TwoRowsTwice(HiddenUnits):
    def index(self, arch):
        rows = torch.arange(arch).clamp(max=2)
        return dict(super().index(arch)) | {"1.bias": Region("network.1.bias", (rows,))}


class Backwards(Layers):
    def decode(self, genes):
        return super().decode(genes[::-1])


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


class Giving(TakeTurns):
    def plan(self, round):
        round.values.give(len(round.cohort))
        return super().plan(round)


class Hoarding(LargestWins):
    updates = ()

    def add(self, update):
        super().add(update)
        self.updates = [*self.updates, update]


class Jittery(Focal):
    def loss(self, network, inputs, targets):
        return super().loss(network, inputs, targets) * (1 + np.random.rand())  # noqa: NPY002


class Anchored(Focal):
    """Pulls towards weights that a device does not have."""

    def loss(self, network, inputs, targets):
        server = self._supernet.shared_tensors()["network.classifier.bias"].detach()
        return super().loss(network, inputs, targets) + (network.classifier.bias - server).square().sum()


class Remembering(Focal):
    """Keeps a client's state for its next fit in an attribute that is not saved."""

    def __init__(self):
        self.fits = Counter()

    def begin(self, network, task, rng):
        super().begin(network, task, rng)
        self.client = task.client
        self.fits[task.client] += 1

    def loss(self, network, inputs, targets):
        return super().loss(network, inputs, targets) + self.fits[self.client]


class Losing(Halving):
    def split(self, targets, num_clients, rng, columns):
        owners = super().split(targets, num_clients, rng, columns)
        owners[np.flatnonzero(owners == 0)[0]] = -1
        return owners


class Shuffled(Columns):
    def load(self, split):
        examples = super().load(split)
        if examples is None:
            return None
        order = torch.from_numpy(np.random.permutation(len(examples)))  # noqa: NPY002
        return Examples(examples.inputs[order], examples.targets[order])


class Repeating(Afresh):
    def search(self, feasible, rng):
        while True:
            yield [feasible.sample(rng)]


class Forgetful(Damping):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Hasty(Damping):
    def on_results(self, trainer, module, round):
        super().on_results(trainer, module, round)
        super().on_server_step(trainer, module, round)

    def on_server_step(self, trainer, module, round):
        pass


class Arrays(Damping):
    def state_dict(self):
        return {"rounds": np.zeros(self.rounds)}


def broken(contract, kind, promise, make=None):
    """A suite of a broken part, with the promise that it breaks as its docstring."""
    return type(f"Test{kind.__name__}", (contract,), {"__doc__": promise, "instances": {"it": make or kind}})


TestTwoRowsTwice = broken(
    own_suite.SupernetContract,
    TwoRowsTwice,
    "index_covers_the_subnet_and_shapes_match",
    lambda: TwoRowsTwice((1, 8, 8), 10, units=[4, 8, 16]),
)
TestBackwards = broken(
    own_suite.SpaceContract, Backwards, "genes_and_text_go_round", lambda: Backwards([4, 8, 16], layers=2)
)
TestCounting = broken(own_suite.TestTakeTurns, Counting, "a_plan_changes_no_state")
TestGiving = broken(own_suite.TestTakeTurns, Giving, "a_plan_changes_no_state")
TestHoarding = broken(own_suite.AggregationContract, Hoarding, "updates_are_neither_changed_nor_kept")
TestJittery = broken(own_suite.ObjectiveContract, Jittery, "a_fit_is_a_function_of_its_generator")
TestAnchored = broken(own_suite.ObjectiveContract, Anchored, "a_fit_reads_nothing_of_the_server")
TestRemembering = broken(own_suite.ObjectiveContract, Remembering, "a_fit_leaves_nothing_for_the_next")
TestLosing = broken(own_suite.PartitionerContract, Losing, "each_example_goes_to_one_client")
TestShuffled = broken(
    own_suite.DataSourceContract,
    Shuffled,
    "every_process_loads_the_same",
    lambda folder: Shuffled(own_suite.columns(folder).path, num_classes=2),
)
TestRepeating = broken(SearchMethodContract, Repeating, "all_proposals_fit_and_are_distinct")
TestForgetful = broken(own_suite.CallbackContract, Forgetful, "a_stopped_run_goes_on_exactly")
TestHasty = broken(own_suite.CallbackContract, Hasty, "the_state_changes_after_the_servers_step_alone")
TestArrays = broken(own_suite.CallbackContract, Arrays, "the_state_can_be_loaded")
