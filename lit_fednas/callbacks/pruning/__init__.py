"""FedNAS' loop over budgets: the callback, the groups of clients and the current iteration."""

from lit_fednas.callbacks.pruning.groups import balanced_groups
from lit_fednas.callbacks.pruning.iteration import CandidateTrials, Trial
from lit_fednas.callbacks.pruning.prune_by_budgets import PruneByBudgets

__all__ = ["CandidateTrials", "PruneByBudgets", "Trial", "balanced_groups"]
