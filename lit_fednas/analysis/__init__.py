"""Tables and figures of finished runs; reads what ``lit_fednas.records`` says a run writes.

:func:`read_run` gives a run's files as pandas tables (:class:`Run`), :func:`read_search` those of a search
(:class:`SearchResult`); figures are matplotlib's and can be saved or shown in a notebook.

```python
from lit_fednas.analysis import newest_run, pareto_figure, read_run

run = read_run(newest_run("runs"))
run.rounds.plot("round", "val/mean/accuracy")
pareto_figure(run.search())
```

``lit-fednas report RUN`` puts a whole run on one HTML page that needs no network. ``notebooks/supernet_tour.ipynb``
looks at a supernet and ``notebooks/pareto_fronts.ipynb`` at one search or several (``pip install
'lit-fednas[notebooks]'``; the variable ``LIT_FEDNAS_RUN`` names the run's folder).
"""

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
