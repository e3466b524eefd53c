"""What a run writes down: round by round, models that it adds, the search and the fine-tuning after it.

A run is a folder, ``runs/<name>/version_<n>``. One process at a time trains in it, and no run is written over.

| file | content |
|---|---|
| ``config.yaml`` | all settings of the training; ``lit-fednas fit --config`` starts a new run of it |
| ``rounds.jsonl`` | per round: metrics; per client: architecture, status, examples, steps, loss, MACs, bytes |
| ``metrics.csv`` | the metrics alone |
| ``ledger.json`` | MACs and bytes: per client, in total, and for training the evaluated subnets one by one |
| ``subnets-val.csv``, ``subnets-test.csv`` | the evaluated subnets with costs and metrics |
| ``partition.csv``, ``partition.png`` | how the data were dealt out |
| ``inputs.json`` | the inputs' shape, type and range, the mean and deviation that normalise them, the class names |
| ``targets.csv`` | with ``rounds_to_target``: when metrics reached their targets, and what that had cost |
| ``clients.csv`` | with ``deployed_accuracy``: every client's accuracy with the model that it would use |
| ``suite.json`` | of models that grow: each one's structure, costs, parent, and why it was added |
| ``sequence.json`` | of models that shrink: the candidates of each iteration, who tried them, and what that cost |
| ``search/`` | what ``lit-fednas search`` found |
| ``finetune/`` | what ``lit-fednas finetune`` trained |
| ``report.html`` | all of it on one page (``lit-fednas report``), which needs no network |
| ``checkpoints/last.ckpt`` | the last finished round; with ``--checkpoint.monitor val/mean/accuracy`` the best, too |

Metrics say what was evaluated on what: ``val/<subnet>/accuracy`` is the global weights on the server's validation set,
without local training; ``clients/loss`` is the mean loss *during* local training.

``search/`` holds ``evaluations.csv`` (every architecture with metrics and costs), ``front.csv``, ``history.csv``,
``tiers.csv`` (the best of each tier, validation and test), ``settings.json``, ``pareto.png`` and, for each tier,
``weights.pt`` (a ``state_dict``) with ``architecture.json``. ``finetune/`` holds ``tiers.csv``, ``candidates.csv``,
each training as a run of its own, and the tiers' networks. Where clients have test data, both have ``clients.csv``.

The docstrings of the modules ``lit_fednas.records.run``, ``lit_fednas.records.tiers`` and ``lit_fednas.records.models``
say what each key and column is. ``lit_fednas.analysis`` reads these files into tables and figures.
"""

from lit_fednas.records.measures import OF_CLASSES, Directions, directions_of
from lit_fednas.records.models import (
    SEQUENCE_FILE,
    SUITE_FILE,
    read_sequence,
    read_suite,
    step_words,
    write_sequence,
    write_suite,
)
from lit_fednas.records.run import (
    CLIENTS_FILE,
    LEDGER_FILE,
    ROUNDS_FILE,
    append_round,
    forget_from,
    note_after_training,
    read_rounds,
    write_client_scores,
    write_ledger,
)
from lit_fednas.records.tiers import (
    ALL_TIERS,
    COST_NAMES,
    FinetuneFiles,
    SearchFiles,
    TierFiles,
    TierModel,
)

__all__ = [
    "ALL_TIERS",
    "CLIENTS_FILE",
    "COST_NAMES",
    "LEDGER_FILE",
    "OF_CLASSES",
    "ROUNDS_FILE",
    "SEQUENCE_FILE",
    "SUITE_FILE",
    "Directions",
    "FinetuneFiles",
    "SearchFiles",
    "TierFiles",
    "TierModel",
    "append_round",
    "directions_of",
    "forget_from",
    "note_after_training",
    "read_rounds",
    "read_sequence",
    "read_suite",
    "step_words",
    "write_client_scores",
    "write_ledger",
    "write_sequence",
    "write_suite",
]
