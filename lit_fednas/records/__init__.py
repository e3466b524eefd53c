"""The files of a run: what writes them and what reads them use the same code.

A run is a folder, ``runs/<name>/version_<n>``, with its rounds, costs, models, and what its searches and fine-tunings
found. The guide *What a run writes* says what each file, key and column is.
"""

from lit_fednas.records.run import (
    CLIENTS_FILE,
    LEDGER_FILE,
    OF_CLASSES,
    ROUNDS_FILE,
    SEQUENCE_FILE,
    SUITE_FILE,
    Directions,
    append_round,
    directions_of,
    forget_from,
    note_after_training,
    read_rounds,
    read_sequence,
    read_suite,
    step_words,
    write_client_scores,
    write_ledger,
    write_sequence,
    write_suite,
)
from lit_fednas.records.tiers import ALL_TIERS, COST_NAMES, FinetuneFiles, SearchFiles, TierFiles, TierModel

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
