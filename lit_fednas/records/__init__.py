"""The files of a run: what writes them and what reads them use the same code.

A run is a folder, ``runs/<name>/version_<n>``, with its rounds, costs, models, and what its searches and fine-tunings
found. The guide *What a run writes* says what each file, key and column is.
"""

from lit_fednas.records.run import read_rounds
from lit_fednas.records.tiers import ALL_TIERS, COST_NAMES, FinetuneFiles, SearchFiles, TierFiles, TierModel

__all__ = ["ALL_TIERS", "COST_NAMES", "FinetuneFiles", "SearchFiles", "TierFiles", "TierModel", "read_rounds"]
