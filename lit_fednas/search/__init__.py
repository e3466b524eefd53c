"""Search after training: the best network for every device tier.

A search evaluates subnets of the trained supernet in place, on the server's validation data; test data are used only
for the results. To add a method, write a frozen dataclass that subclasses :class:`SearchMethod`, with one generator,
``search``, which yields architectures and receives their scores. The guide *Search* describes the settings.
"""

from lit_fednas.search.command import Search
from lit_fednas.search.derive_genotype import DeriveGenotype
from lit_fednas.search.evaluator import ClientDraw, Evaluator, FederatedEvaluation, FederatedEvaluator, union_bytes
from lit_fednas.search.evolution import Evolution
from lit_fednas.search.exhaustive import Exhaustive
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.search.predictor_search import PredictorSearch
from lit_fednas.search.proxies import BatchLoss, CostProxy, Fitness, Proxy
from lit_fednas.search.proxy_path import ProxyPath
from lit_fednas.search.proxy_search import ProxySearch
from lit_fednas.search.random_search import RandomSearch
from lit_fednas.search.tier_search import SearchSettings, TierSearch

__all__ = [
    "NSGA2",
    "BatchLoss",
    "ClientDraw",
    "CostProxy",
    "DeriveGenotype",
    "Evaluator",
    "Evolution",
    "Exhaustive",
    "Feasible",
    "FederatedEvaluation",
    "FederatedEvaluator",
    "Fitness",
    "PredictorSearch",
    "Proposals",
    "Proxy",
    "ProxyPath",
    "ProxySearch",
    "RandomSearch",
    "Score",
    "Search",
    "SearchMethod",
    "SearchSettings",
    "TierSearch",
    "union_bytes",
]
