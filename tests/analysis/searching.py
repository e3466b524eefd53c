"""A search of random weights, without training."""

from __future__ import annotations

from pathlib import Path

import torch

from lit_fednas.records import SearchFiles
from lit_fednas.rng import generator
from lit_fednas.search import NSGA2, Evaluator, SearchMethod, SearchSettings, TierSearch
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Budgets


def write_search(
    folder: Path, supernet: Supernet, method: SearchMethod = NSGA2(population=4, sample=4), seed: int = 0
) -> SearchFiles:
    """Searches the networks of two tiers on random examples, in three generations; returns its files."""
    largest_macs = supernet.macs(supernet.space.largest)
    tiers = Budgets({"small": {"macs": largest_macs / 2}, "large": {"macs": float(largest_macs)}})
    draws = generator(seed, "examples")
    inputs = torch.randn(64, *supernet.input_shape, generator=draws)
    evaluator = Evaluator(supernet, [(inputs, torch.randint(supernet.num_classes, (64,), generator=draws))])
    search = TierSearch(SearchSettings(tiers, method, evaluations=12), evaluator, SearchFiles(folder), seed)
    search.run()
    search.write_tiers(evaluator)
    search.files.finish(search.written)
    return search.files
