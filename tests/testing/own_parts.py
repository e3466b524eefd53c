"""Parts of an author outside the package, as the README describes them, in one file."""

from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.aggregation import Aggregation
from lit_fednas.assignment import Assignment
from lit_fednas.data import DataSource, Examples, Partitioner
from lit_fednas.federation import FederatedCallback
from lit_fednas.objectives import Objective
from lit_fednas.search import SearchMethod
from lit_fednas.supernets import Ladder, NestedSupernet, SearchSpace


class HiddenUnits(NestedSupernet):
    """One hidden layer of several sizes."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, units: list[int]):
        super().__init__(input_shape, num_classes)
        self.space = Ladder(units)  # the architectures, from the cheapest to the most expensive
        self.network = self.build(self.space.largest)  # the shared weights

    def build(self, arch):
        hidden = nn.Linear(prod(self.input_shape), arch)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(arch, self.num_classes))


class Layers(SearchSpace[tuple[int, ...]]):
    """A width for each of some layers."""

    def __init__(self, widths: list[int], layers: int):
        self.widths = list(widths)
        self.choices = (self.widths,) * layers  # the values of each gene

    @property
    def smallest(self):
        return (min(self.widths),) * len(self.choices)

    @property
    def largest(self):
        return (max(self.widths),) * len(self.choices)


class TakeTurns(Assignment):
    """Clients train the smallest and the largest architecture in turns."""

    def plan(self, round):
        ends = [round.space.smallest, round.space.largest]
        return [round.task(client, ends[(client + round.number) % 2]) for client in round.cohort]


class LargestWins(Aggregation):
    """Averages the clients that trained the largest architecture; without them, nothing changes."""

    def start(self, tasks, values=None):
        shared = self._supernet.shared_tensors()
        self.totals = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in shared.items()}
        self.count = torch.zeros((), dtype=torch.float64)

    def add(self, update):
        arch = self._supernet.space.largest
        if update.task.arch == arch:
            self.count += 1
            for name, region in self._supernet.regions(arch).items():
                self.totals[region.name] += update.weights[name]

    def sums(self):
        return [*self.totals.values(), self.count]

    def finish(self):
        shared = self._supernet.shared_tensors()
        old = {name: tensor.detach().clone() for name, tensor in shared.items()}
        covered = {region.name for region in self._supernet.regions(self._supernet.space.largest).values()}
        return {name: self.totals[name] / self.count if self.count and name in covered else old[name] for name in old}


class Focal(Objective):
    """Cross-entropy with a focus on hard examples."""

    def loss(self, network, inputs, targets):
        log = functional.log_softmax(network(inputs), 1).gather(1, targets[:, None])
        return -((1 - log.exp()) ** 2 * log).mean()


class Halving(Partitioner):
    """A client has twice as many examples as the next, if there are enough."""

    def split(self, targets, num_clients, rng, columns):
        shares = 0.5 ** np.arange(num_clients)
        sizes = np.maximum(1, (shares / shares.sum() * len(targets)).astype(int))
        sizes[0] += len(targets) - sizes.sum()
        return rng.permutation(np.repeat(np.arange(num_clients), sizes))


class Columns(DataSource):
    """Rows of a text file: numbers, then a class."""

    def __init__(self, path: str, num_classes: int):
        self.path = path
        self.num_classes = num_classes

    @property
    def input_shape(self):
        return (self.load("train").inputs.shape[1],)

    def load(self, split):
        if split != "train":
            return None
        rows = np.loadtxt(self.path, dtype=np.float32, ndmin=2)
        return Examples(torch.from_numpy(rows[:, :-1]).contiguous(), torch.from_numpy(rows[:, -1].astype(np.int64)))


class Afresh(SearchMethod):
    """Draws architectures, ten at a time, that were not drawn before."""

    def search(self, feasible, rng):
        earlier = set()
        while archs := feasible.distinct(earlier, 10, rng):
            yield archs


class Damping(FederatedCallback):
    """The server's steps become shorter with every round."""

    rounds = 0

    def on_results(self, trainer, module, round):
        shared, share = module.supernet.shared_tensors(), 1 / (1 + self.rounds)
        round.mix(
            lambda averages: {
                name: shared[name].lerp(new.to(shared[name].dtype), share) for name, new in averages.items()
            }
        )

    def on_server_step(self, trainer, module, round):
        self.rounds += 1

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state):
        self.rounds = state["rounds"]
