"""The models that a run has added to its supernet: ``suite.json`` and ``sequence.json`` in its folder.

``suite.json`` is of a run that grows models (FedTrans, section 4.1). ``models``, in the order in which they were added:

* ``number``: from 0;
* ``parent``: the number of the model that it was derived from (null for the first);
* ``round``: the round, from 0, after whose server step it was added (null for the first);
* ``cells``: its cells and their units, as text;
* ``macs`` (of one example's forward pass), ``parameters``, ``bytes`` (sent one way);
* ``steps``: how it was derived: ``{"widen": cell, "sizes": {group: units}}`` or
  ``{"deepen": cell, "names": [new cells]}``;
* ``degree_of_convergence``: of the run when it was added (null for the first);
* ``activeness``: of its parent's cells then, by name (empty for the first).

``complete``: whether no larger model will be added: none fits the strongest device, or there are enough. ``family`` is
the initial model as a configuration has it (``class_path`` and ``init_args``; null if it is no dataclass), and
``tiers`` what the run's devices afford, as the arguments of their :class:`~lit_fednas.tiers.Tier`: other methods are
given the same.

``sequence.json`` is of a run that prunes a network step by step (FedNAS, section 4):

* ``resource``: the cost that the budgets limit (FedNAS's ``Res``), such as ``macs``;
* ``initial``: of it, what the initial model takes;
* ``budget``: the last iteration's budget, in the same unit;
* ``clients``: the number of clients of the population, whether or not they were asked;
* ``units``: the units that may lose filters, each with its groups of units in the family (``{unit: [groups]}``);
* ``complete``: whether no iteration is to follow;
* ``models``: those selected so far, the initial one first;
* ``under_way``: an iteration that has begun and has no winner yet, or null.

Each of ``models``:

* ``number``: 0 for the initial one;
* ``first_round``, ``round``: the first and the last round, from 0, of its iteration; after the server step of the
  last one it was selected (null for the initial one);
* ``unit``: the unit that lost filters (null for the initial one);
* ``budget``: of its iteration (FedNAS's R_t; null for the initial one);
* ``resource``: what the model takes of it;
* ``macs`` (of one example's forward pass), ``parameters``, ``bytes`` (sent one way);
* ``sizes``: the number of units that are left, by group of the family;
* ``accuracy``: on the clients' validation data in its last test, weighted by examples; null if not tested;
* ``rounds``: how many rounds the iteration took;
* ``groups``: of clients, in order: ``clients``, ``examples``, ``distance`` (of its classes from all);
* ``candidates``: in the order in which they were made:

  * ``unit``, ``removed`` (filters by group of the family), ``resource`` and ``macs`` of the candidate;
  * ``group``: the group of clients, by its position in ``groups``, that trained it (with ``schedule: round``, last);
  * ``accuracies``: one of each round in which it was tested; null where no client tested it;
  * ``degradations``: likewise, what it was ranked by (FedNAS, Algorithm 1: accuracy lost per resource saved);
  * ``dropped``: the round of the iteration, from 1, in which it was dropped; null where it never was;

* ``costs``: of the iteration's rounds, of all clients together: ``macs`` of forward passes (training and testing),
  ``bytes_down``, ``bytes_up``. The initial model's are of its training in this run and of its tests.

``under_way`` has what is known of such an entry before there is a winner. The costs are those of the short-term
fine-tuning (section 5.3: "excluding the cost for long-term fine-tune at the last step and the potential federated
learning for the initial model"): the second is apart, as model 0's, and the first has separate records.

Both files are written when training begins and with every new model, the second with every round as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.records.files import read_json, replace_json

SUITE_FILE = "suite.json"
SEQUENCE_FILE = "sequence.json"

_NEEDED = {SUITE_FILE: (), SEQUENCE_FILE: ("resource", "initial", "clients", "units")}


def write_suite(
    folder: Path,
    models: Sequence[Mapping[str, Any]],
    complete: bool,
    family: Mapping[str, Any] | None = None,
    tiers: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes all models so far of a run that grows them, and what it began with."""
    content = {"models": models, "complete": complete, "family": family, "tiers": tiers}
    replace_json(folder / SUITE_FILE, content)


def read_suite(folder: Path) -> dict[str, Any] | None:
    """Reads the models of a run that grows them; ``None`` if the run has written none."""
    return _read(folder, SUITE_FILE)


def suite_of(run: str, field: str) -> dict[str, Any]:
    """Reads the models that a run has grown."""
    suite = read_suite(Path(run))
    if suite is None:
        raise ConfigError(f"{field}: {run} holds no {SUITE_FILE}; name a run that grew its models")
    return suite


def write_sequence(folder: Path, sequence: Mapping[str, Any]) -> None:
    """Writes all models so far of a run that prunes."""
    replace_json(folder / SEQUENCE_FILE, sequence)


def read_sequence(folder: Path) -> dict[str, Any] | None:
    """Reads the models of a run that prunes; ``None`` if the run has written none."""
    return _read(folder, SEQUENCE_FILE)


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns the content of one of the files, if it exists; raises ``DataError`` if it is broken."""
    path = folder / name
    if not path.exists():
        return None
    content = read_json(path)
    if not content.get("models"):
        raise DataError(f"{path}: holds no models; train the run again")
    missing = [key for key in _NEEDED[name] if key not in content]
    if missing:
        raise DataError(f"{path}: holds no {', '.join(missing)}; train the run again")
    return content


def step_words(steps: Iterable[Mapping[str, Any]]) -> str:
    """Returns how a model was derived, in a few words.

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
