"""What a run writes down: round by round, models that it adds, the search after it, the fine-tuning, clients."""

from lit_fednas.records.clients import CLIENT_SCORE_COLUMNS, CLIENTS_FILE, write_client_scores
from lit_fednas.records.finetune import FinetuneFiles
from lit_fednas.records.ledger import note_after_training, write_ledger
from lit_fednas.records.rounds import ROUNDS_FILE, append_round, forget_from, read_rounds
from lit_fednas.records.search import COST_NAMES, SEARCH_FILES, SearchFiles, TierModel
from lit_fednas.records.sequence import SEQUENCE_FILE, read_sequence, write_sequence
from lit_fednas.records.suite import SUITE_FILE, read_suite, step_words, write_suite

__all__ = [
    "CLIENTS_FILE",
    "CLIENT_SCORE_COLUMNS",
    "COST_NAMES",
    "ROUNDS_FILE",
    "SEARCH_FILES",
    "SEQUENCE_FILE",
    "SUITE_FILE",
    "FinetuneFiles",
    "SearchFiles",
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
