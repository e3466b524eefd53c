"""Tables (pandas), figures (matplotlib) and HTML pages of finished runs and comparisons.

``lit-fednas report RUN`` shows a run on one HTML page; ``lit-fednas compare`` compares methods. Both read the
records of runs (``lit_fednas.records``).
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
