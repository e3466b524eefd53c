"""Architectures per second of what ranks them, and after how many evaluations and seconds searches have a front.

SuperFed's supernet of distorted digits is trained first (``superfed/distorted_digits.yaml``). Architectures are ranked
by their accuracy on 900 validation images (and norms on 5 batches), by their loss on 64 of these, by DeepFedNAS'
fitness, and by the predictor, which was fitted to others, with costs where these are needed.

Then the methods search with several seeds, from their first proposal, fits of the predictor and all else included. A
front is reached when its hypervolume (MACs, and accuracy above the smallest network's) is 85 % of that of all that was
found by any of them.
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
TOGETHER, FIRST = 16, 20  # architectures that are ranked at a time, and those that a predictor knows
REACHED, VAL_SHARE = 0.85, 0.25


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.archs, options.evaluations, options.repetitions) < 1:
        raise ConfigError("search: needs --archs, --evaluations and --repetitions of at least 1")
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
    """Returns what evaluates the architectures of a supernet, once that is trained."""
    words = ["--config", "superfed/distorted_digits.yaml", "--trainer.logger.init_args.save_dir", str(folder)]
    options = {"--trainer.max_rounds": rounds, "--seed_everything": seed, "--model.evaluation.recalibrate_batches": 5}
    assert main(["fit", *words, *(str(word) for pair in options.items() for word in pair)]) == 0
    run = folder / "distorted-digits" / "version_0"
    made = Loaded(run)
    settings = replace(made.options["search"], val_share=VAL_SHARE)
    return Search(made.trainer, made.model, made.datamodule, run)._evaluator(settings)


def feasible(evaluate: Evaluator, seed: int) -> Feasible:
    """Returns all architectures, with costs that are not known yet."""
    space, costs = evaluate.supernet.space, ArchitectureCosts(evaluate.supernet)
    starts = space.smallest, space.largest
    return Feasible(space, costs, Tier(ALL_TIERS, {}), _rng(seed), starts, evaluate.batch())


def rates(evaluate: Evaluator, known: Sequence[Any], archs: Sequence[Any]) -> dict[str, list[float]]:
    """Returns the seconds that each way takes to rank so many architectures at a time."""

    def score(arch: Any, among: Feasible) -> Score:
        return Score(arch, 1 - evaluate(arch)["accuracy"], among.costs.cost(arch, "macs"))

    fitted = [score(arch, feasible(evaluate, 0)) for arch in known]
    ways: dict[str, Callable[[Any, Feasible, Any], Any]] = {
        "evaluated": lambda some, among, predict: [score(arch, among) for arch in some],
        "loss on a batch": lambda some, among, predict: [loss.score(arch, among.costs, among.batch) for arch in some],
        "fitness": lambda some, among, predict: [fitness.score(arch, among.costs) for arch in some],
        "predictor": lambda some, among, predict: predict(some),
    }
    loss, fitness, ready = BatchLoss(), Fitness(), list[Any]()

    def prepare() -> None:  # no cost is known, and no network is made
        among = feasible(evaluate, 0)
        ready[:] = [among, _fit_predictor(fitted, among)]
        evaluate.supernet._skeletons.clear()

    def work(way: str, unit: int) -> None:
        ways[way](archs[TOGETHER * unit : TOGETHER * (unit + 1)], *ready)

    workers = {way: partial(work, way) for way in ways}
    return in_turns(workers, len(archs) // TOGETHER, "cpu", prepare=prepare)


def searched(method: SearchMethod, evaluate: Evaluator, seed: int, most: int) -> list[tuple[float, float, float]]:
    """Returns MACs, accuracy, and the seconds until it was known, of each architecture that a search evaluates."""
    evaluate.supernet._skeletons.clear()
    began = perf_counter()
    among = feasible(evaluate, seed)
    proposals = method.search(among, _rng(seed))
    known: dict[Any, tuple[float, float, float]] = {}
    proposed = next(proposals)
    while len(known) < most:
        for arch in proposed:
            if arch not in known:
                accuracy = evaluate(arch)["accuracy"]
                known[arch] = among.costs.cost(arch, "macs"), accuracy, perf_counter() - began
        proposed = proposals.send([Score(arch, 1 - known[arch][1], known[arch][0]) for arch in proposed])
    return list(known.values())[:most]


def reached(searches: dict[str, list[list[Any]]]) -> dict[str, list[tuple[int, float] | None]]:
    """Returns after how many evaluations and seconds each search had the front, or that it had not."""
    everything = [one for runs in searches.values() for run in runs for one in run]
    most = max(macs for macs, _, _ in everything)
    least, best = min(everything)[1], max(accuracy for _, accuracy, _ in everything)

    def volume(found: Sequence[Any]) -> float:
        scores = [max(0.0, accuracy - least) / (best - least or 1) for _, accuracy, _ in found]
        return hypervolume([macs for macs, _, _ in found], scores, most)

    wanted = REACHED * volume(everything)

    def first(run: list[Any]) -> tuple[int, float] | None:
        there = (count for count in range(1, len(run) + 1) if volume(run[:count]) >= wanted)
        count = next(there, None)
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
        there = [end for end in ends if end is not None]
        spans = [
            f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})" for values in zip(*there, strict=True)
        ]
        cells.append((f"search: {name}", "", "", "", f"{len(there)} of {len(ends)}", *(spans or ["-", "-"])))
    return [dict(zip(columns, row, strict=True)) for row in cells]
