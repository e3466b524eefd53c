"""FedorAS' OPA: the average of each operator over the clients that trained it (Eq. 5)."""

from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.messages import ClientUpdate, OperatorStatistics
from lit_fednas.ranges import PositiveInt, checked


@checked("aggregation")
class OperatorAverage(OverlapAverage):
    """Mean of an operator over the clients that trained it, weighted by the examples that went through it (Eq. 5).

    Buffers have the weight of their operator; fixed layers are weighted by all examples (section 3.1). Clients send
    the number of examples (:class:`~lit_fednas.objectives.PathSampling`). An operator that few clients trained keeps
    its weights, so that the server's weights disclose no single update; this is no differential privacy.

    Args:
        min_clients: Operators that fewer clients trained keep their weights (the paper: 2).
        trim: The share of values that a mean leaves out at either end (:class:`OverlapAverage`).

    Raises:
        ConfigError: A setting is out of range, or the objective does not return the number of examples.
    """

    needs = (OperatorStatistics,)

    def __init__(self, min_clients: PositiveInt = 2, trim: Trim = 0.0) -> None:
        super().__init__(trim=trim)
        self.min_clients = min_clients

    @override
    def weight(self, update: ClientUpdate, name: str) -> float:
        statistics = update.result.find(OperatorStatistics)
        assert statistics is not None
        examples = statistics.through(name)
        return float(update.result.num_seen if examples is None else examples)
