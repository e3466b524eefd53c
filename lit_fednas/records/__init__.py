"""What a run writes down: round by round, and the search after training."""

from lit_fednas.records.rounds import ROUNDS_FILE, append_round, forget_from, read_rounds
from lit_fednas.records.search import COST_NAMES, SEARCH_FILES, SearchFiles, TierModel

__all__ = [
    "COST_NAMES",
    "ROUNDS_FILE",
    "SEARCH_FILES",
    "SearchFiles",
    "TierModel",
    "append_round",
    "forget_from",
    "read_rounds",
]
