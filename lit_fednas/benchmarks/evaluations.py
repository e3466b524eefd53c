"""Evaluations per second of the search, against building each subnet and loading its weights.

The search runs a subnet in place: its network is built without memory, once, and its weights are views into the
shared ones. What a program without that does: build the network of the architecture with its constructor, load a
state_dict of its part of the weights, evaluate it. The supernet's own extraction is in between.
All ways evaluate the same random architectures on the same data, in turns, and must find the same accuracies.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure

from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.measuring import quartiles
from lit_fednas.benchmarks.subnets import elastic_options
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.search import Evaluator
from lit_fednas.supernets import ElasticResNet

WAYS = ("in place", "extracted", "built and loaded")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    elastic_options(parser)
    parser.add_argument("--examples", type=int, default=512, help="validation examples (512)")
    parser.add_argument("--batch-size", type=int, default=512, help="examples per batch (512)")
    parser.add_argument("--archs", type=int, default=30, help="architectures that count (30)")
    parser.add_argument("--warmup", type=int, default=3, help="architectures before them that do not (3)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    shape = (3, options.image, options.image)
    net = ElasticResNet(shape, 10, options.stem, options.widths, divisor=2).to(options.device).eval()
    draws = generator(options.seed, "benchmark-data")
    inputs = torch.randn(options.examples, *shape, generator=draws).to(options.device)
    targets = torch.randint(10, (options.examples,), generator=draws).to(options.device)
    batches = list(zip(inputs.split(options.batch_size), targets.split(options.batch_size), strict=True))
    evaluate = Evaluator(net, batches)

    def extracted(arch: Any) -> Any:
        return evaluate.metrics(net.subnet(arch).eval())

    def built(arch: Any) -> Any:
        weights = {name: view.clone() for name, view in net.views(arch).items()}
        network = net.build(arch).to(options.device)
        network.load_state_dict(weights)
        return evaluate.metrics(network.eval())

    ways: dict[str, Callable[[Any], Any]] = dict(zip(WAYS, (evaluate, extracted, built), strict=True))
    rng = numpy_generator(options.seed, "benchmark-archs")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(options.warmup + options.archs):
        arch = net.space.sample(rng)
        found = []
        for place in range(len(ways)):  # whoever is first varies, for what the first one warms up
            way = WAYS[(place + number) % len(ways)]
            net._skeletons.clear()  # every architecture is new to every way
            started = perf_counter()
            found.append(ways[way](arch))
            seconds[way].append(perf_counter() - started)
        if any(one != found[0] for one in found):
            raise AssertionError(f"the ways disagree on {arch}: {found}")
    return {
        "examples": options.examples,
        "batch_size": options.batch_size,
        "image": options.image,
        "stem": options.stem,
        "widths": options.widths,
        "seconds": {way: values[options.warmup :] for way, values in seconds.items()},
    }


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    first = report["seconds"][WAYS[0]]
    found = []
    for way, seconds in report["seconds"].items():
        ratios = [second / one for second, one in zip(seconds, first, strict=True)]
        lower, upper = quartiles(ratios) if len(ratios) > 1 else (ratios[0], ratios[0])
        found.append(
            {
                "way": way,
                "evaluations/s": f"{1 / median(seconds):.1f}",
                "ms": f"{1000 * median(seconds):.1f}",
                "x in place": f"{median(ratios):.3f}",
                "quartiles": f"{lower:.3f} to {upper:.3f}",
            }
        )
    return found


def draw(report: dict[str, Any]) -> Figure:
    """Milliseconds per evaluation, each way."""
    figure, (axes,) = showing.figure(5.6, 3.2)
    milliseconds = [[1000 * second for second in report["seconds"][way]] for way in WAYS]
    axes.boxplot(milliseconds, orientation="horizontal", widths=0.5, showfliers=False)
    axes.set_yticks(range(1, len(WAYS) + 1), WAYS)
    size = f"{report['examples']} examples of {report['image']}x{report['image']} pixels"
    showing.frame(axes, "ms per evaluated architecture", "", f"elastic ResNet, {size}")
    return figure
