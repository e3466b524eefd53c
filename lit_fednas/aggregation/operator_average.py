"""Averages by operators' reports (FedorAS' OPA, Eq. 5)."""

from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.messages import ClientUpdate, OperatorReport
from lit_fednas.ranges import PositiveInt, checked


@checked("aggregation")
class OperatorAverage(OverlapAverage):
    """Mean of an operator over the clients that trained it, weighted by the examples that went through it (Eq. 5).

    Buffers are averaged as the weights of their operator, fixed layers by all examples (section 3.1). The examples come
    from the clients' reports (:class:`~lit_fednas.objectives.PathSampling`). An operator that few clients trained keeps
    its weights, so that no single update can be read off the server's; this is no differential privacy.

    Args:
        min_clients: Operators trained by fewer clients than this keep their weights (the paper: 2).
        trim: As for :class:`OverlapAverage`.

    Raises:
        ConfigError: A setting is out of range, or the objective does not report the examples.
    """

    needs = (OperatorReport,)

    def __init__(self, min_clients: PositiveInt = 2, trim: Trim = 0.0) -> None:
        super().__init__(trim=trim)
        self.min_clients = min_clients

    @override
    def weight(self, update: ClientUpdate, name: str) -> float:
        report = update.result.report(OperatorReport)
        assert report is not None
        through = report.through(name)
        return float(update.result.num_seen if through is None else through)
