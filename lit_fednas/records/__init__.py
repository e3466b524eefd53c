"""What a run writes down: round by round, models that it adds, the search and the fine-tuning after it."""

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
