"""The files of a run's folder, ``runs/<name>/version_<n>``; the guide *What a run writes* describes each of them."""

from lit_fednas.records.run import read_rounds
from lit_fednas.records.tiers import ALL_TIERS, COST_NAMES, FinetuneFiles, SearchFiles, TierFiles, TierModel

__all__ = ["ALL_TIERS", "COST_NAMES", "FinetuneFiles", "SearchFiles", "TierFiles", "TierModel", "read_rounds"]
