"""``suite.json`` in a run's folder: the models of a run that grows them (FedTrans, section 4.1).

``models``, in the order in which they were added:

* ``number``: from 0;
* ``parent``: the number of the model that it was derived from (null for the first);
* ``round``: the round, from 0, after whose server step it was added (null for the first);
* ``cells``: its cells and their units, as text;
* ``macs`` (of one example's forward pass), ``parameters``, ``bytes`` (sent one way);
* ``steps``: how it was derived: ``{"widen": cell, "sizes": {group: units}}`` or
  ``{"deepen": cell, "names": [new cells]}``;
* ``degree_of_convergence``: of the run when it was added (null for the first);
* ``activeness``: of its parent's cells then, by name (empty for the first).

``complete``: whether no larger model will be added, as none fits the strongest device, or there are as many as
asked.

The file is written when training begins and again with every new model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.errors import DataError
from lit_fednas.records.files import plain_numbers, replace_text

SUITE_FILE = "suite.json"


def write_suite(folder: Path, models: Sequence[Mapping[str, Any]], complete: bool) -> None:
    """Writes all models so far, in place of those that were written before."""
    suite = {"models": [dict(model) for model in models], "complete": complete}
    text = json.dumps(plain_numbers(suite), indent=1)
    replace_text(folder / SUITE_FILE, text + "\n")


def read_suite(folder: Path) -> dict[str, Any] | None:
    """Reads a run's models; ``None`` if the run has written none.

    Raises:
        DataError: The file is broken.
    """
    path = folder / SUITE_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error}); train the run again") from None
    if not isinstance(found, dict) or not found.get("models"):
        raise DataError(f"{path}: holds no models; train the run again")
    return found


def step_words(steps: Iterable[Mapping[str, Any]]) -> str:
    """What was done to a model, in a few words.

    Example:
        >>> step_words([{"widen": "conv1", "sizes": {}}, {"deepen": "conv2", "names": []}, {"widen": "conv3"}])
        'widen conv1, conv3; deepen conv2'
    """
    cells: dict[str, list[str]] = {}
    for step in steps:
        for kind in ("widen", "deepen"):
            if kind in step:
                cells.setdefault(kind, []).append(step[kind])
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in cells.items())
