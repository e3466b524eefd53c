"""``sequence.json`` in a run's folder: the models of a run that prunes a network step by step (FedNAS, section 4).

* ``resource``: the cost that the budgets limit (FedNAS's ``Res``), such as ``macs``;
* ``initial``: of it, what the initial model takes;
* ``budget``: the last iteration's budget, in the same unit;
* ``clients``: the number of clients of the population, whether or not they were asked;
* ``units``: the units that may lose filters, by name, each with its groups of units in the family
  (``{unit: [groups]}``);
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
* ``accuracy``: on the validation data of the clients that tested it last, fused by their numbers of examples;
  null where nobody tested it;
* ``rounds``: how many rounds the iteration took;
* ``groups``: of clients, in their order: ``clients``, ``examples``, ``distance`` (of the group's classes from
  those of all);
* ``candidates``: in the order in which they were made:

  * ``unit``, ``removed`` (filters by group of the family), ``resource`` and ``macs`` of the candidate;
  * ``group``: the group of clients, by its place in ``groups``, that trained it;
  * ``accuracies``: one of each round in which it was tested; null where no client tested it;
  * ``degradations``: likewise, what it was ranked by (FedNAS, Algorithm 1: accuracy lost per resource saved);
  * ``dropped``: the round of the iteration, from 1, in which it was dropped; null where it never was;

* ``costs``: of the iteration's rounds, of all clients together: ``macs`` of forward passes (training and testing),
  ``bytes_down``, ``bytes_up``. Those of the initial model are those of its training in this run and of its tests
  by the clients.

``under_way`` has what is known of such an entry: nothing of a winner, thus no ``unit``, ``resource``, ``macs``,
``parameters``, ``bytes``, ``sizes``, ``accuracy``. The costs are those of the short-term fine-tuning (section 5.3:
the clients' costs "excluding the cost for long-term fine-tune at the last step and the potential federated
learning for the initial model"): the second is apart, as model 0's, and the first has its own records
(:mod:`lit_fednas.records.finetune`).

The file is written when training begins, with every round of an iteration, and with every new model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_fednas.errors import DataError
from lit_fednas.records.files import plain_numbers, replace_text

SEQUENCE_FILE = "sequence.json"

_NEEDED = ("resource", "initial", "clients", "units", "models")


def write_sequence(folder: Path, sequence: Mapping[str, Any]) -> None:
    """Writes the whole sequence so far, in place of what was written before."""
    text = json.dumps(plain_numbers(dict(sequence)), indent=1)
    replace_text(folder / SEQUENCE_FILE, text + "\n")


def read_sequence(folder: Path) -> dict[str, Any] | None:
    """Reads a run's sequence; ``None`` if the run has written none.

    Raises:
        DataError: The file is broken.
    """
    path = folder / SEQUENCE_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error}); train the run again") from None
    if not isinstance(found, dict) or not found.get("models"):
        raise DataError(f"{path}: holds no models; train the run again")
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise DataError(f"{path}: holds no {', '.join(missing)}; train the run again")
    return found
