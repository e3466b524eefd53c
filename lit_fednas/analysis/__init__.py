"""Tables and figures of finished runs; reads what ``lit_fednas.records`` says a run writes."""

from lit_fednas.analysis.clients import client_boxes, fairness_table
from lit_fednas.analysis.figures import fronts_figure, pareto_figure, progress_figure
from lit_fednas.analysis.runs import Run, SearchResult, newest_run, read_run, read_search
from lit_fednas.analysis.sweeps import read_sweep, sweep_figure

__all__ = [
    "Run",
    "SearchResult",
    "client_boxes",
    "fairness_table",
    "fronts_figure",
    "newest_run",
    "pareto_figure",
    "progress_figure",
    "read_run",
    "read_search",
    "read_sweep",
    "sweep_figure",
]
