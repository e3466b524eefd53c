"""The bytes of secure aggregation, message by message (Bonawitz et al., 2017; Bell et al., 2020)."""

from __future__ import annotations

import json

import pytest

from lit_fednas.callbacks import CostLedger
from lit_fednas.costs import RoundCost, SecureAggregation
from lit_fednas.messages import DROPPED, ClientResult, ClientTask
from tests.support import fit, linear_net, make_module, tiny_data


def result(client, arch="one", status="ok"):
    return ClientResult(ClientTask(0, client, arch, 10), status)


def messages(count, neighbours, answers, numbers):
    """Up and down of a round, a message at a time: each client's neighbours are the next ones of a ring."""
    up = down = 0
    for client in range(count):
        up += 2 * 32
        for _ in range(neighbours):
            down += 2 * 32  # the other's public keys
            up += 2 * 32  # a share of the seed and of the key for it, encrypted
            down += 2 * 32  # and its own
        if client < answers:
            up += 4 * numbers + 32 * (neighbours + 1)  # one share for each, and for itself
    return RoundCost(0, down, up)


@pytest.mark.parametrize(("neighbours", "others", "answers"), [(None, 6, 7), (3, 3, 4), (50, 6, 4), (None, 6, 0)])
def test_message_by_message(neighbours, others, answers):
    results = [result(client, status="ok" if client < answers else DROPPED) for client in range(7)]
    assert SecureAggregation(neighbours).cost(results, 99, 500, 0) == messages(7, others, answers, 100)


def test_the_paper_s_formula():
    """2n keys and 5n - 4 shares of 256 bits per client, beside its numbers."""
    for count in (2, 10, 100):
        cost = SecureAggregation().cost([result(client) for client in range(count)], 0, 0, 0)
        assert 8 * cost.bytes == count * (256 * (7 * count - 4) + 32)


def test_different_architectures_take_the_whole_supernet_twice():
    alike = SecureAggregation().cost([result(0), result(1)], 99, 500, 70)
    different = SecureAggregation().cost([result(0), result(1, "two")], 99, 500, 70)
    assert different.bytes_up - alike.bytes_up == 2 * 4 * (2 * 500 - 100)
    assert different.bytes_down == alike.bytes_down


def test_a_client_with_several_tasks_sends_their_sum():
    one = SecureAggregation().cost([result(0, "one"), result(1, "two")], 99, 500, 0)
    more = [result(0, "one"), result(0, "two"), result(1, "two", "error"), result(1, "one")]
    assert SecureAggregation().cost(more, 99, 500, 0) == one


def ledger_of(folder, module, **settings):
    ledger = CostLedger(["largest"], **settings)
    fit(module, tiny_data(), 2, callbacks=[ledger], default_root_dir=str(folder))
    return json.loads((folder / "ledger.json").read_text()), ledger


def test_the_ledger_has_it_apart(tmp_path):
    """Everything else is as without it; with one architecture 260 weights and the sum of examples."""
    plain, _ = ledger_of(tmp_path, make_module(linear_net()))
    written, ledger = ledger_of(tmp_path, make_module(linear_net()), secure_aggregation=SecureAggregation(2))
    each = messages(3, 2, 3, 261)
    assert written.pop("secure_aggregation") == {
        "neighbours": 2,
        "bytes_down": 2 * each.bytes_down + 2 * 3 * 1040,
        "bytes_up": 2 * each.bytes_up,
        "times_bytes_up": each.bytes_up / (3 * 1040),
    }
    assert written == plain
    other = CostLedger(secure_aggregation=SecureAggregation(2))
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert other.summary() == ledger.summary()
