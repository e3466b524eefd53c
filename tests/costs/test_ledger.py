"""A round's costs, counted by hand (SuperFed, App. G)."""

from __future__ import annotations

from lit_fednas.costs import Cost, RoundCost, client_cost
from lit_fednas.messages import ClientResult, ClientTask

COST = Cost(macs=100, parameters=7, bytes=28)


def result(client: int = 0, status: str = "ok", seen: int = 0) -> ClientResult:
    return ClientResult(ClientTask(0, client, "whole", 50), status, num_seen=seen)


def test_an_update_costs_its_examples_and_two_ways_and_none_only_the_way_down():
    assert client_cost(result(seen=50), COST) == RoundCost(macs=5000, bytes_down=28, bytes_up=28)
    assert client_cost(result(status="away"), COST) == RoundCost()
    for status in ("error", "non-finite", "timeout", "dropped", "empty"):
        assert client_cost(result(status=status), COST) == RoundCost(macs=0, bytes_down=28, bytes_up=0)
