"""A round's costs, counted by hand (SuperFed, App. G)."""

from __future__ import annotations

from lit_fednas.costs import Cost, RoundCost, client_cost, independent_cost
from lit_fednas.messages import ClientResult, ClientTask

COST = Cost(macs=100, parameters=7, bytes=28)


def result(client: int = 0, status: str = "ok", seen: int = 0) -> ClientResult:
    return ClientResult(ClientTask(0, client, "whole", 50), status, num_seen=seen)


def test_an_update_costs_its_examples_and_two_ways_and_none_only_the_way_down():
    assert client_cost(result(seen=50), COST) == RoundCost(macs=5000, bytes_down=28, bytes_up=28)
    assert client_cost(result(status="away"), COST) == RoundCost()
    for status in ("error", "non-finite", "timeout", "dropped", "empty"):
        assert client_cost(result(status=status), COST) == RoundCost(macs=0, bytes_down=28, bytes_up=0)


def test_independent_training_is_twice_the_cohort_times_the_size_and_loses_the_same_clients():
    alone = independent_cost([result(client, seen=20) for client in range(4)], COST)
    assert (alone.bytes, alone.macs) == (2 * 4 * 28, 4 * 20 * 100)
    failed = independent_cost([result(0, seen=20), result(1, "dropped"), result(2, "error")], COST)
    assert failed == RoundCost(macs=2000, bytes_down=3 * 28, bytes_up=28)
    assert independent_cost([], COST) == RoundCost()
