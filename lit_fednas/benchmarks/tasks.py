"""What is trained in a benchmark: networks and data, equal however often they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from lit_fednas.data import Examples
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import ElasticResNet, PlainNetwork, ResNet18, SmallCNN, Supernet

CLASSES = 10


@dataclass(frozen=True)
class Setting:
    """A task at the sizes asked for.

    Attributes:
        network: One of ``NETWORKS``.
        examples: Examples per client; where sizes differ, the most that one has.
        clients: Clients in the population.
        cohort: Clients per round.
        batch_size: Examples per step.
        lr: The clients' learning rate.
        seed: Of weights, data, cohorts and batches.
        device: ``cpu`` or ``cuda``.
        ranks: Processes that share a cohort.
        threads: Torch's threads in each process; left to the library, and to torch, if not given.
        image: Pixels along an image's side.
        unequal: The largest client over the smallest.
        stem: Channels of the elastic network's first convolution.
        widths: Channels of the elastic network's stages.
    """

    network: str = "cnn"
    examples: int = 32
    clients: int = 100
    cohort: int = 10
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    device: str = "cpu"
    ranks: int = 1
    threads: int | None = None
    image: int = 32
    unequal: float = 1.0
    stem: int = 16
    widths: Sequence[int] = (16, 32, 64, 128)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, self.image, self.image)

    @cached_property
    def sizes(self) -> list[int]:
        """Examples of each client, drawn between the smallest and the largest (uniformly in the logarithm)."""
        draws = numpy_generator(self.seed, "benchmark-sizes").random(self.clients)
        return [max(1, round(self.examples / self.unequal**draw)) for draw in draws]

    @cached_property
    def starts(self) -> list[int]:
        """Each client's first row in the data."""
        return [sum(self.sizes[:client]) for client in range(self.clients)]

    def supernet(self) -> Supernet:
        """The network with its initial weights."""
        torch.manual_seed(self.seed)
        return NETWORKS[self.network](self).to(self.device)

    def data(self) -> Examples:
        """Random images and classes, all clients' one after the other."""
        draws = generator(self.seed, "benchmark-data")
        count = sum(self.sizes)
        images = torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=draws)
        return Examples(images, torch.randint(0, CLASSES, (count,), generator=draws)).to(self.device)


def tiny(setting: Setting) -> PlainNetwork:
    """A network so small that starting an operation takes longer than the operation; without dropout."""
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(8 * 16, CLASSES),
    )
    return PlainNetwork(network, setting.shape, CLASSES)


def elastic(setting: Setting) -> ElasticResNet:
    """SuperFed's network at the widths asked for."""
    return ElasticResNet(setting.shape, CLASSES, setting.stem, tuple(setting.widths))


NETWORKS: dict[str, Callable[[Setting], Supernet]] = {
    "cnn": lambda setting: SmallCNN(setting.shape, CLASSES),
    "resnet18": lambda setting: ResNet18(setting.shape, CLASSES),
    "elastic": elastic,
    "tiny": tiny,
}
