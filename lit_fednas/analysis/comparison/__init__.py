"""Methods beside each other: the command ``lit-fednas compare``.

Of every method, the best network within each device tier's budgets is taken, whatever the method makes networks by:
subnets of a supernet, exits, models that grew, models that were pruned. Validation data choose it and test data rate
it; beside it stands what its training had cost.
"""

from lit_fednas.analysis.comparison.figures import comparison_figure
from lit_fednas.analysis.comparison.results import Methods, Result, methods_of, read_methods
from lit_fednas.analysis.comparison.run_networks import history, networks
from lit_fednas.analysis.comparison.tables import client_table, comparison_table, target_table
from lit_fednas.analysis.comparison.text import client_rows, comparison_rows, target_rows
from lit_fednas.analysis.comparison.tiers import read_tiers, tiers_of

__all__ = [
    "Methods",
    "Result",
    "client_rows",
    "client_table",
    "comparison_figure",
    "comparison_rows",
    "comparison_table",
    "history",
    "methods_of",
    "networks",
    "read_methods",
    "read_tiers",
    "target_rows",
    "target_table",
    "tiers_of",
]
