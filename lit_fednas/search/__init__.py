"""After training: the best network for every device tier."""

from lit_fednas.search.command import Search
from lit_fednas.search.derive import DeriveGenotype
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.evolution import Evolution
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.federated import ClientDraw, FederatedEvaluation, FederatedEvaluator, union_bytes
from lit_fednas.search.method import Exhaustive, Proposals, RandomSearch, Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.search.tier_search import SearchSettings, TierSearch

__all__ = [
    "NSGA2",
    "ClientDraw",
    "DeriveGenotype",
    "Evaluator",
    "Evolution",
    "Exhaustive",
    "Feasible",
    "FederatedEvaluation",
    "FederatedEvaluator",
    "Proposals",
    "RandomSearch",
    "Score",
    "Search",
    "SearchMethod",
    "SearchSettings",
    "TierSearch",
    "union_bytes",
]
