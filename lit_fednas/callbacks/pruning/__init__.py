"""FedNAS's loop over budgets: the callback, its schedules, the groups of clients and the iteration that is running."""

from lit_fednas.callbacks.pruning.groups import balanced_groups
from lit_fednas.callbacks.pruning.iteration import CandidateTrials, Trial
from lit_fednas.callbacks.pruning.prune_by_budgets import PruneByBudgets

__all__ = ["CandidateTrials", "PruneByBudgets", "Trial", "balanced_groups"]
