"""Evaluations per second of the search, against building each subnet and loading its weights.

The search runs a subnet in place: its network is built without memory, once, and its weights are views into the
shared ones. What a program without that does: build the network of the architecture with its constructor, load a
state_dict of its part of the weights, evaluate it. The supernet's own extraction is in between.
All ways evaluate the same random architectures on the same data, in turns, and must find the same accuracies.

Then whole generations, rows and costs included: one process that evaluates in full (before), and with channels last,
races, several processes, and all three (after), in turns as well. The labels are what the largest architecture answers,
so that accuracies differ. Several processes must find what one does, and all ways the same front; channels last may
differ by one example in a thousand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import distributed

from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.child import call_in_child, joined
from lit_fednas.benchmarks.measuring import quartiles
from lit_fednas.benchmarks.subnets import elastic_options
from lit_fednas.federation import EvaluationSettings
from lit_fednas.federation.ranks import Ranks
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.search import Evaluator, Feasible, Racing
from lit_fednas.search.evaluations import Evaluations, Processes, Scorer
from lit_fednas.search.pareto import pareto_front
from lit_fednas.search.racing import Race
from lit_fednas.supernets import BatchNorm, ElasticResNet
from lit_fednas.tiers import ArchitectureCosts, Tier

WAYS = ("in place", "extracted", "built and loaded")
#: Ways to evaluate a generation: whether with channels last, with races, and in several processes.
GENERATIONS = {
    "before": (False, False, False),
    "channels last": (True, False, False),
    "races": (False, True, False),
    "processes": (False, False, True),
    "after": (True, True, True),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    elastic_options(parser)
    parser.add_argument("--examples", type=int, default=512, help="validation examples (512)")
    parser.add_argument("--batch-size", type=int, default=512, help="examples per batch (512)")
    parser.add_argument("--archs", type=int, default=30, help="architectures that count (30)")
    parser.add_argument("--warmup", type=int, default=3, help="architectures before them that do not (3)")
    parser.add_argument("--generation", type=int, default=64, help="architectures of a generation; 0 for none (64)")
    parser.add_argument("--repetitions", type=int, default=2, help="generations of each way (2)")
    parser.add_argument("--processes", type=int, default=2, help="that share a generation (2)")


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
        "generations": measured_generations(options) if options.generation else None,
    }


def measured_generations(options: argparse.Namespace) -> dict[str, Any]:
    """Measures generations before and after, in processes of their own."""
    names = "examples", "batch_size", "image", "stem", "widths", "device", "seed", "generation", "repetitions"
    arguments = {"settings": {name: getattr(options, name) for name in names}}
    function = "lit_fednas.benchmarks.evaluations:generations"
    return dict(call_in_child(function, arguments, options.processes, options.threads or 1))


def generations(settings: dict[str, Any]) -> dict[str, Any]:
    """Times generations in each way, in as many processes as were started."""
    options = argparse.Namespace(**settings)
    shape = (3, options.image, options.image)
    with joined(options.device), torch.random.fork_rng():
        torch.manual_seed(options.seed)  # every process has the same weights
        norm = BatchNorm()  # with running statistics: examples do not depend on each other
        net = ElasticResNet(shape, 10, options.stem, options.widths, divisor=2, norm=norm).to(options.device).eval()
        inputs = torch.randn(options.examples, *shape, generator=generator(options.seed, "benchmark-data"))
        parts = inputs.to(options.device).split(options.batch_size)
        with torch.no_grad():
            batches = [(part, net(part, net.space.largest).argmax(1)) for part in parts]
        several = distributed.is_initialized()
        ranks = Ranks(distributed.get_rank(), distributed.get_world_size()) if several else Ranks()
        rng = numpy_generator(options.seed, "benchmark-generation")
        feasible = Feasible(net.space, ArchitectureCosts(net), Tier(ALL_TIERS, {}), rng)
        archs = feasible.distinct(set(), options.generation, rng)
        evaluators = {last: Evaluator(net, batches, EvaluationSettings(channels_last=last)) for last in (False, True)}
        seconds: dict[str, list[float]] = {way: [] for way in GENERATIONS}
        rows: dict[str, list[dict[str, Any]]] = {}
        for repetition in range(options.repetitions):
            for way in list(GENERATIONS)[:: -1 if repetition % 2 else 1]:
                last, races, shared = GENERATIONS[way]
                race = Race(evaluators[last], Racing(), "accuracy", options.seed) if races else None
                net._skeletons.clear()
                processes = Processes(ranks if shared else Ranks())
                scorer = Scorer(evaluators[last], ArchitectureCosts(net), race, processes)
                if ranks.rank:
                    if shared:
                        scorer.serve()
                    continue
                with TemporaryDirectory() as folder:
                    began = perf_counter()
                    evaluations = Evaluations(scorer, SearchFiles(folder), "accuracy", "macs", [Tier(ALL_TIERS, {})])
                    rows[way] = list(evaluations.of(ALL_TIERS, 0, archs, len(archs) * evaluations.price))
                    seconds[way].append(perf_counter() - began)
                processes.close()
    if ranks.rank:
        return {}
    check_generations(rows, options.examples)
    shares = {way: sum(row.get("examples") or options.examples for row in found) for way, found in rows.items()}
    return {
        "architectures": len(archs),
        "processes": ranks.size,
        "seconds": seconds,
        "share_of_examples": {way: share / len(archs) / options.examples for way, share in shares.items()},
        "front": sorted(front_of(rows["before"], options.examples)),
    }


def front_of(rows: list[dict[str, Any]], examples: int) -> list[str]:
    """Returns the architectures on the front of those that were evaluated in full."""
    full = [row for row in rows if row.get("examples") in (None, examples)]
    front = pareto_front([row["macs"] for row in full], [row["accuracy"] for row in full])
    return [full[place]["arch"] for place in front]


def check_generations(rows: dict[str, list[dict[str, Any]]], examples: int) -> None:
    """Refuses ways that did not do the same work.

    Raises:
        AssertionError: They have found different things.
    """
    found = {way: [{**row, "seconds": None} for row in own] for way, own in rows.items()}
    assert found["before"] == found["processes"], "several processes found other rows than one"
    pairs = zip(found["before"], found["channels last"], strict=True)
    furthest = max(abs(one["accuracy"] - other["accuracy"]) for one, other in pairs)
    assert furthest <= 1e-3 + 1 / examples, f"channels last: accuracies differ by {furthest}"
    for plain, raced in (("before", "races"), ("channels last", "after")):
        one, other = front_of(rows[plain], examples), front_of(rows[raced], examples)
        assert one == other, f"{raced}: the front is {other}, not {one}"


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
                "x first": f"{median(ratios):.3f}",
                "quartiles": f"{lower:.3f} to {upper:.3f}",
            }
        )
    return found + (_generation_rows(report["generations"]) if report["generations"] else [])


def _generation_rows(generations: dict[str, Any]) -> list[dict[str, str]]:
    before = generations["seconds"]["before"]
    found = []
    for way, seconds in generations["seconds"].items():
        ratios = [second / one for second, one in zip(seconds, before, strict=True)]
        lower, upper = quartiles(ratios)
        found.append(
            {
                "way": f"generation, {way}",
                "evaluations/s": f"{generations['architectures'] / median(seconds):.1f}",
                "ms": f"{1000 * median(seconds) / generations['architectures']:.1f}",
                "x first": f"{median(ratios):.3f}",
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
