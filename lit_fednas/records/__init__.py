"""The files of a run's folder, ``runs/<name>/version_<n>``: rounds, costs, models, searches and fine-tunings.

Writers and readers share this code. The guide *What a run writes* describes each file, key and column.
"""

from lit_fednas.records.run import read_rounds
from lit_fednas.records.tiers import ALL_TIERS, COST_NAMES, FinetuneFiles, SearchFiles, TierFiles, TierModel

__all__ = ["ALL_TIERS", "COST_NAMES", "FinetuneFiles", "SearchFiles", "TierFiles", "TierModel", "read_rounds"]
