"""Tables (pandas) and figures (matplotlib) of finished runs; reads what ``lit_fednas.records`` says a run writes.

``lit-fednas report RUN`` puts a whole run on one HTML page, ``lit-fednas compare`` puts methods beside each other.
"""

from lit_fednas.analysis.charts import fronts_figure, pareto_figure, progress_figure
from lit_fednas.analysis.clients import fairness_table
from lit_fednas.analysis.runs import Run, SearchResult, newest_run, read_run, read_search

__all__ = [
    "Run",
    "SearchResult",
    "fairness_table",
    "fronts_figure",
    "newest_run",
    "pareto_figure",
    "progress_figure",
    "read_run",
    "read_search",
]
