"""Networks and data of the benchmarks, equal in every process."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import nn

from lit_fednas.data import Examples
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import ElasticResNet, PlainNetwork, ResNet18, SmallCNN, Supernet

CLASSES = 10


@dataclass(frozen=True)
class Setting:
    """A task of a run; ``network`` is a key of ``NETWORKS``."""

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

    @classmethod
    def of(cls, options: Namespace, **more: Any) -> Setting:
        """Returns the task of a command's options, with replaced values."""
        values = {field.name: getattr(options, field.name, None) for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if value is not None} | more)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, self.image, self.image)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of examples of each client, drawn log-uniformly between the smallest and the largest."""
        draws = numpy_generator(self.seed, "benchmark-sizes").random(self.clients)
        return [max(1, round(self.examples / self.unequal**draw)) for draw in draws]

    @cached_property
    def starts(self) -> list[int]:
        """Index of each client's first row in the data."""
        return [sum(self.sizes[:client]) for client in range(self.clients)]

    def supernet(self) -> Supernet:
        """Returns the network with its initial weights."""
        torch.manual_seed(self.seed)
        return NETWORKS[self.network](self).to(self.device)

    def data(self) -> Examples:
        """Returns random images and classes, ordered by client."""
        draws = generator(self.seed, "benchmark-data")
        count = sum(self.sizes)
        images = torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=draws)
        return Examples(images, torch.randint(0, CLASSES, (count,), generator=draws)).to(self.device)


def architecture(net: Supernet, text: str, seed: int = 0) -> Any:
    """Returns an architecture by its text, ``middle`` (the middle of all choices) or ``random``."""
    space = net.space
    if text == "random":
        return space.sample(numpy_generator(seed, "lever"))
    return space.decode([count // 2 for count in space.cardinalities]) if text == "middle" else space.named(text)


def _tiny(setting: Setting) -> PlainNetwork:
    """Returns a network without dropout, so small that starting an operation takes longer than running it."""
    layers = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return PlainNetwork(nn.Sequential(*layers, nn.Linear(8 * 16, CLASSES)), setting.shape, CLASSES)


NETWORKS: dict[str, Callable[[Setting], Supernet]] = {
    "cnn": lambda setting: SmallCNN(setting.shape, CLASSES),
    "resnet18": lambda setting: ResNet18(setting.shape, CLASSES),
    "elastic": lambda setting: ElasticResNet(setting.shape, CLASSES, setting.stem, tuple(setting.widths)),
    "tiny": _tiny,
}
