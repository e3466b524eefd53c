"""After training: the best network for every device tier."""

from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.evolution import Evolution
from lit_fednas.search.exhaustive import Exhaustive
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.federated import ClientDraw, FederatedEvaluation, FederatedEvaluator, union_bytes
from lit_fednas.search.method import Proposals, Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.search.random_search import RandomSearch
from lit_fednas.search.run import TierSearch
from lit_fednas.search.settings import SearchSettings
from lit_fednas.search.trainer import SearchTrainer

__all__ = [
    "NSGA2",
    "ClientDraw",
    "Evaluator",
    "Evolution",
    "Exhaustive",
    "Feasible",
    "FederatedEvaluation",
    "FederatedEvaluator",
    "Proposals",
    "RandomSearch",
    "Score",
    "SearchMethod",
    "SearchSettings",
    "SearchTrainer",
    "TierSearch",
    "union_bytes",
]
