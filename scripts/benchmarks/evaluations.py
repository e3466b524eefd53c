"""Evaluations per second of the search, compared with building each subnet and loading its weights.

The search runs a subnet in place: its network is built once, without memory, and its weights are views into the
shared ones. A plain program builds the network of each architecture, loads a state_dict of its weights and
evaluates it. The supernet's extraction lies in between. All three evaluate the same random architectures on the
same data, in turns, and must return the same accuracies.

Then whole generations are timed, with rows and costs: one process that evaluates in full (before), with channels
last, with several processes, and with both (after), in turns. The labels are the largest architecture's answers, so
accuracies differ. Several processes must return the same rows as one. With channels last, accuracies may differ by
one example in a thousand.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed

from benchmarks.child import call_in_child, joined
from benchmarks.measuring import compared, in_turns
from lit_fednas.federation import EvaluationSettings
from lit_fednas.federation.ranks import Ranks
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.search import Evaluator, Feasible
from lit_fednas.search.evaluations import Evaluations, Scorer
from lit_fednas.search.tier_search import pareto_front
from lit_fednas.supernets import BatchNorm, ElasticResNet
from lit_fednas.tiers import ArchitectureCosts, Tier

WAYS = ("in place", "extracted", "built and loaded")
#: Ways to evaluate a generation, as (channels last, several processes).
GENERATIONS = {
    "before": (False, False),
    "channels last": (True, False),
    "processes": (False, True),
    "after": (True, True),
}


def network_of(options: argparse.Namespace, **more: Any) -> tuple[ElasticResNet, tuple[Tensor, ...]]:
    shape = (3, options.image, options.image)
    torch.manual_seed(options.seed)  # every process has the same weights
    net = ElasticResNet(shape, 10, options.stem, options.widths, divisor=2, **more).to(options.device).eval()
    inputs = torch.randn(options.examples, *shape, generator=generator(options.seed, "benchmark-data"))
    return net, inputs.to(options.device).split(options.batch_size)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    net, inputs = network_of(options)
    draws = generator(options.seed, "benchmark-targets")
    batches = [(part, torch.randint(10, (len(part),), generator=draws).to(options.device)) for part in inputs]
    evaluate = Evaluator(net, batches)

    def built(arch: Any) -> Any:
        weights = {name: view.clone() for name, view in net.views(arch).items()}
        network = net.build(arch).to(options.device)
        network.load_state_dict(weights)
        return evaluate.metrics(network.eval())

    ways = dict(zip(WAYS, (evaluate, lambda arch: evaluate.metrics(net.subnet(arch).eval()), built), strict=True))
    rng = numpy_generator(options.seed, "benchmark-archs")
    archs = [net.space.sample(rng) for _ in range(options.warmup + options.archs)]
    metrics: dict[str, Any] = {}

    def work(way: str, unit: int) -> None:
        metrics[way] = ways[way](archs[unit])

    def compare(unit: int) -> None:
        assert all(value == metrics[WAYS[0]] for value in metrics.values()), f"the ways disagree: {metrics}"

    workers = {way: partial(work, way) for way in WAYS}
    prepare = net._skeletons.clear  # every architecture is new to every way
    seconds = in_turns(workers, options.archs, options.device, compare, warmup=options.warmup, prepare=prepare)
    report = {"seconds": seconds, "generations": None}
    if options.generation:
        arguments = {"settings": {name: value for name, value in vars(options).items() if name != "json"}}
        function = "benchmarks.evaluations:generations"
        report["generations"] = call_in_child(function, arguments, options.processes, options.threads or 1)
    return report


def generations(settings: dict[str, Any]) -> dict[str, Any]:
    """Times generations in each way; runs in every process of the launch."""
    options = argparse.Namespace(**settings)
    with joined(options.device):
        net, inputs = network_of(options, norm=BatchNorm())  # running statistics: examples stay independent
        with torch.no_grad():
            batches = [(part, net(part, net.space.largest).argmax(1)) for part in inputs]
        several = distributed.is_initialized()
        ranks = Ranks(distributed.get_rank(), distributed.get_world_size()) if several else Ranks()
        rng = numpy_generator(options.seed, "benchmark-generation")
        feasible = Feasible(net.space, ArchitectureCosts(net), Tier(ALL_TIERS, {}), rng)
        archs = feasible.distinct(set(), options.generation, rng)
        evaluators = {last: Evaluator(net, batches, EvaluationSettings(channels_last=last)) for last in (False, True)}
        rows: dict[str, list[dict[str, Any]]] = {}

        def work(way: str, unit: int) -> None:
            channels_last, shared = GENERATIONS[way]
            scorer = Scorer(evaluators[channels_last], ArchitectureCosts(net), ranks if shared else Ranks())
            if ranks.rank:
                if shared:
                    scorer.serve()
                return
            with TemporaryDirectory() as folder:
                rows[way] = list(Evaluations(scorer, SearchFiles(folder)).evaluate(ALL_TIERS, 0, archs))
            scorer.close()

        workers = {way: partial(work, way) for way in GENERATIONS}
        seconds = in_turns(workers, options.repetitions, options.device, prepare=net._skeletons.clear)
    if ranks.rank:
        return {}
    check_generations(rows, options.examples)
    front = pareto_front(*([row[name] for row in rows["before"]] for name in ("macs", "accuracy")))
    return {
        "architectures": len(archs),
        "processes": ranks.size,
        "seconds": seconds,
        "front": sorted(rows["before"][index]["arch"] for index in front),
    }


def check_generations(rows: dict[str, list[dict[str, Any]]], examples: int) -> None:
    untimed = {way: [{**row, "seconds": None} for row in way_rows] for way, way_rows in rows.items()}
    for single, several in (("before", "processes"), ("channels last", "after")):
        assert untimed[single] == untimed[several], f"{several}: the rows differ from those of one process"
    pairs = zip(untimed["before"], untimed["channels last"], strict=True)
    difference = max(abs(contiguous["accuracy"] - last["accuracy"]) for contiguous, last in pairs)
    assert difference <= 1e-3 + 1 / examples, f"channels last: accuracies differ by {difference}"


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    table_rows = _rows(report["seconds"], "", 1)
    if generations := report["generations"]:
        table_rows += _rows(generations["seconds"], "generation, ", generations["architectures"])
    return table_rows


def _rows(seconds: dict[str, list[float]], prefix: str, archs: int) -> list[dict[str, str]]:
    first = next(iter(seconds.values()))
    comparisons = {way: compared(values, first) for way, values in seconds.items()}
    return [
        {
            "way": f"{prefix}{way}",
            "evaluations/s": f"{archs / median(values):.1f}",
            "ms": f"{1000 * median(values) / archs:.1f}",
            "x first": f"{comparisons[way]['ratio']:.3f}",
            "quartiles": " to ".join(f"{value:.3f}" for value in comparisons[way]["ratio_quartiles"]),
        }
        for way, values in seconds.items()
    ]
