"""Architectures per second of four ways to rank them; evaluations and seconds of searches until they have a front.

SuperFed's supernet of distorted digits is trained first (``superfed/distorted_digits.yaml``). Architectures are ranked
by their accuracy on 900 validation images (with norms from 5 batches), by their loss on 64 of these, by DeepFedNAS'
fitness, and by a predictor that was fitted to other architectures. Costs are included where a way needs them.

Then each method searches with several seeds; its time begins before the first proposal and includes the predictor's
fits. A front is reached when its hypervolume (MACs, and accuracy above the smallest network's) is 85 % of the
hypervolume of all architectures that the methods have evaluated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.library import Loaded
from benchmarks.measuring import compared, in_turns, order
from lit_fednas.cli import main
from lit_fednas.errors import ConfigError
from lit_fednas.records import ALL_TIERS
from lit_fednas.rng import numpy_generator
from lit_fednas.search import (
    NSGA2,
    BatchLoss,
    Evaluator,
    Feasible,
    Fitness,
    PredictorSearch,
    RandomSearch,
    Score,
    Search,
    SearchMethod,
)
from lit_fednas.search.predictor_search import _fit_predictor
from lit_fednas.search.tier_search import hypervolume
from lit_fednas.tiers import ArchitectureCosts, Tier

METHODS: dict[str, SearchMethod] = {"random": RandomSearch(8), "NSGA-II": NSGA2(32, 16), "predictor": PredictorSearch()}
TOGETHER, FIRST = 16, 20  # architectures in one ranking, and architectures that the predictor is fitted to
REACHED, VAL_SHARE = 0.85, 0.25


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.archs, options.evaluations, options.repetitions) < 1:
        raise ConfigError("search: --archs, --evaluations and --repetitions must be at least 1")
    with TemporaryDirectory() as folder:
        evaluate = trained(Path(folder), options.rounds, options.seed)
    archs = feasible(evaluate, options.seed).distinct(set(), FIRST + TOGETHER * options.archs, _rng(options.seed))
    searches: dict[str, list[list[Any]]] = {name: [] for name in METHODS}
    for seed in range(options.repetitions):
        for name in order(list(METHODS), seed):
            searches[name].append(searched(METHODS[name], evaluate, seed, options.evaluations))
    return {"rates": rates(evaluate, archs[:FIRST], archs[FIRST:]), "searches": searches}


def _rng(seed: int) -> Any:
    return numpy_generator(seed, "benchmark-search")


def trained(folder: Path, rounds: int, seed: int) -> Evaluator:
    """Trains a supernet; returns the evaluator of its architectures."""
    words = ["--config", "superfed/distorted_digits.yaml", "--trainer.logger.init_args.save_dir", str(folder)]
    options = {"--trainer.max_rounds": rounds, "--seed_everything": seed, "--model.evaluation.recalibrate_batches": 5}
    assert main(["fit", *words, *(str(word) for pair in options.items() for word in pair)]) == 0
    run = folder / "distorted-digits" / "version_0"
    loaded = Loaded(run)
    settings = replace(loaded.options["search"], val_share=VAL_SHARE)
    return Search(loaded.trainer, loaded.model, loaded.datamodule, run)._evaluator(settings)


def feasible(evaluate: Evaluator, seed: int) -> Feasible:
    """Returns all architectures without any computed costs."""
    space, costs = evaluate.supernet.space, ArchitectureCosts(evaluate.supernet)
    starts = space.smallest, space.largest
    return Feasible(space, costs, Tier(ALL_TIERS, {}), _rng(seed), starts, evaluate.batch())


def rates(evaluate: Evaluator, fit_archs: Sequence[Any], archs: Sequence[Any]) -> dict[str, list[float]]:
    """Returns each way's seconds for every ranking of ``TOGETHER`` architectures."""

    def score(arch: Any, candidates: Feasible) -> Score:
        return Score(arch, 1 - evaluate(arch)["accuracy"], candidates.costs.cost(arch, "macs"))

    scores = [score(arch, feasible(evaluate, 0)) for arch in fit_archs]
    ways: dict[str, Callable[[Any, Feasible, Any], Any]] = {
        "evaluated": lambda batch, pool, predict: [score(arch, pool) for arch in batch],
        "loss on a batch": lambda batch, pool, predict: [loss.score(arch, pool.costs, pool.batch) for arch in batch],
        "fitness": lambda batch, pool, predict: [fitness.score(arch, pool.costs) for arch in batch],
        "predictor": lambda batch, pool, predict: predict(batch),
    }
    loss, fitness, arguments = BatchLoss(), Fitness(), list[Any]()

    def prepare() -> None:  # forgets all costs and networks
        pool = feasible(evaluate, 0)
        arguments[:] = [pool, _fit_predictor(scores, pool)]
        evaluate.supernet._skeletons.clear()

    def work(way: str, unit: int) -> None:
        ways[way](archs[TOGETHER * unit : TOGETHER * (unit + 1)], *arguments)

    workers = {way: partial(work, way) for way in ways}
    return in_turns(workers, len(archs) // TOGETHER, "cpu", prepare=prepare)


def searched(method: SearchMethod, evaluate: Evaluator, seed: int, count: int) -> list[tuple[float, float, float]]:
    """Returns MACs, accuracy and elapsed seconds of the first architectures that a search evaluates."""
    evaluate.supernet._skeletons.clear()
    began = perf_counter()
    pool = feasible(evaluate, seed)
    proposals = method.search(pool, _rng(seed))
    results: dict[Any, tuple[float, float, float]] = {}
    proposal = next(proposals)
    while len(results) < count:
        for arch in proposal:
            if arch not in results:
                accuracy = evaluate(arch)["accuracy"]
                results[arch] = pool.costs.cost(arch, "macs"), accuracy, perf_counter() - began
        proposal = proposals.send([Score(arch, 1 - results[arch][1], results[arch][0]) for arch in proposal])
    return list(results.values())[:count]


def reached(searches: dict[str, list[list[Any]]]) -> dict[str, list[tuple[int, float] | None]]:
    """Returns the evaluations and seconds after which each search reached the front, or None."""
    all_points = [point for runs in searches.values() for run in runs for point in run]
    max_macs = max(macs for macs, _, _ in all_points)
    baseline, best = min(all_points)[1], max(accuracy for _, accuracy, _ in all_points)

    def volume(points: Sequence[Any]) -> float:
        scores = [max(0.0, accuracy - baseline) / (best - baseline or 1) for _, accuracy, _ in points]
        return hypervolume([macs for macs, _, _ in points], scores, max_macs)

    target = REACHED * volume(all_points)

    def first(run: list[Any]) -> tuple[int, float] | None:
        count = next((count for count in range(1, len(run) + 1) if volume(run[:count]) >= target), None)
        return None if count is None else (count, run[count - 1][2])

    return {name: [first(run) for run in runs] for name, runs in searches.items()}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    columns = "way", "architectures/s", "x first", "quartiles", "front reached", "evaluations", "seconds"
    cells = []
    for way, seconds in report["rates"].items():
        figures = compared(report["rates"]["evaluated"], seconds)
        lower, upper = figures["ratio_quartiles"]
        speed = f"{TOGETHER / median(seconds):.4g}", f"{figures['ratio']:.3g}", f"{lower:.3g} to {upper:.3g}"
        cells.append((way, *speed, "", "", ""))
    for name, ends in reached(report["searches"]).items():
        successes = [end for end in ends if end is not None]
        spans = [
            f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})" for values in zip(*successes, strict=True)
        ]
        cells.append((f"search: {name}", "", "", "", f"{len(successes)} of {len(ends)}", *(spans or ["-", "-"])))
    return [dict(zip(columns, row, strict=True)) for row in cells]
