"""What a run writes down: round by round, models that it adds, the search and the fine-tuning after it."""

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
    FINETUNED_COLUMNS,
    SEARCH_FILES,
    FinetuneFiles,
    SearchFiles,
    TierFiles,
    TierModel,
)

__all__ = [
    "ALL_TIERS",
    "CLIENTS_FILE",
    "COST_NAMES",
    "FINETUNED_COLUMNS",
    "LEDGER_FILE",
    "ROUNDS_FILE",
    "SEARCH_FILES",
    "SEQUENCE_FILE",
    "SUITE_FILE",
    "FinetuneFiles",
    "SearchFiles",
    "TierFiles",
    "TierModel",
    "append_round",
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
