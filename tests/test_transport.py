"""Weights in fewer bits: packings by hand, updates of a run, and all counts of bytes."""

from __future__ import annotations

import math

import pytest
import torch

import lit_fednas
from lit_fednas.assignment import RandomArchitectures
from lit_fednas.callbacks import CostLedger, RunRecorder
from lit_fednas.costs import RoundCost
from lit_fednas.federation import EvaluationSettings, FaultPolicy, UniformCohort
from lit_fednas.messages import ClientTask, nbytes
from lit_fednas.records import read_rounds
from lit_fednas.rng import generator
from lit_fednas.transport import SCALES, Float16, Int8, Packing, Transport
from tests.support import Noted, assert_same, concrete_classes, fit, linear_net, make_module, tiny_data, tiny_supernet

TASK = ClientTask(round=3, client=5, arch=None, num_examples=1)
PACKINGS = [Float16(), Int8()]
BOTH = Transport(Int8(), Int8())


def tensors(seed=0):
    """Returns tensors of several shapes and magnitudes, with a counter, an empty tensor, and one of zeros."""
    draws = generator(seed, "tensors")
    return {
        "conv.weight": 0.1 * torch.randn(4, 3, 3, 3, generator=draws),
        "bias": 100 * torch.randn(7, generator=draws),
        "alpha": torch.randn((), generator=draws),
        "zero": torch.zeros(5),
        "none": torch.zeros(0, 3),
        "count": torch.tensor(12),
    }


def travelled(packing, sent, seed=0):
    return packing.unpack(packing.pack(sent, generator(seed, "draws")), sent)


def test_all_packings_are_tested():
    assert concrete_classes(Packing, lit_fednas) == {type(packing) for packing in PACKINGS}


@pytest.mark.parametrize("packing", PACKINGS, ids=repr)
def test_names_shapes_types_and_bytes(packing):
    sent = tensors()
    packed = packing.pack(sent, generator(0, "draws"))
    assert {tensor.dtype for tensor in packed.values()} <= {torch.int8, torch.float16, torch.float32, torch.int64}
    assert packing.nbytes([tensor.to("meta") for tensor in sent.values()]) == nbytes(packed.values())
    # a network may deliver tensors in any order
    got = packing.unpack(dict(sorted(packed.items(), reverse=True)), sent)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in got.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in sent.items()
    }
    assert torch.equal(got["count"], sent["count"])
    assert torch.equal(got["zero"], sent["zero"])


def test_bytes_by_hand():
    """108 + 7 + 1 + 5 floats and a counter of 8 bytes; int8 has a scale of 4 bytes for each of 4 tensors."""
    sent = tensors().values()
    assert Transport().nbytes(sent) == (4 * 121 + 8, 4 * 121 + 8)
    assert Transport(Float16(), Int8()).nbytes(sent) == (2 * 121 + 8, 121 + 4 * 4 + 8)


def test_float16_is_the_nearest():
    got = travelled(Float16(), {"a": torch.tensor([1 + 2**-11 + 2**-20, 1 + 2**-11 - 2**-20, -1e9, 65519.0, 1e-9])})
    assert got["a"].tolist() == [1 + 2**-10, 1.0, -65504.0, 65504.0, 0.0]


def test_int8_is_one_of_the_two_next_multiples_of_the_scale():
    sent = tensors()
    for seed in range(20):
        for name, got in travelled(Int8(), sent, seed).items():
            if name in ("conv.weight", "bias", "alpha"):
                scale = sent[name].abs().max() / 127
                levels = got / scale
                assert torch.allclose(levels, levels.round(), atol=1e-3)
                assert levels.round().abs().max() == 127  # the greatest magnitude itself
                assert float((got - sent[name]).abs().max()) < scale * (1 + 1e-5)


def test_int8_is_right_on_average():
    """By the central limit theorem: levels are 1 apart, so each draw's variance is f (1 - f)."""
    fractions = torch.tensor([0.0, 0.05, 0.25, 0.5, 0.9, 1.0])
    sent = {"a": torch.cat([torch.tensor([127.0]), 3 + fractions, -3 - fractions])}
    count = 4000
    mean = sum(travelled(Int8(), sent, seed)["a"].double() for seed in range(count)) / count
    deviation = (fractions * (1 - fractions) / count).sqrt().repeat(2)
    assert bool(((mean - sent["a"])[1:].abs() <= 4.5 * deviation + 1e-9).all())


@pytest.mark.parametrize("packing", PACKINGS, ids=repr)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_stay_so(packing, value):
    got = travelled(packing, {"a": torch.tensor([1.0, value, 0.0]), "b": torch.ones(2)})
    assert not math.isfinite(got["a"][1])
    assert bool(got["b"].isfinite().all())


def test_exact_tensors_are_the_very_same():
    sent, trained, exact = tensors(), tensors(1), Transport()
    assert exact.unpack_down(exact.pack_down(sent, 0, TASK), sent) is sent
    assert exact.unpack_up(exact.pack_up(trained, sent, 0, TASK), sent) is trained


@pytest.mark.parametrize("up", [None, Int8()], ids=repr)
def test_the_change_goes_up(up):
    """The server adds the change to its own weights, so losses on the way down are not in the update."""
    sent = tensors()
    transport = Transport(Int8(), up)
    received = transport.unpack_down(transport.pack_down(sent, 0, TASK), sent)
    trained = {name: x + 1e-3 if x.is_floating_point() else x + 4 for name, x in received.items()}
    got = transport.unpack_up(transport.pack_up(trained, received, 0, TASK), sent)
    assert float((received["bias"] - sent["bias"]).abs().max()) > 0.1
    for name in ("conv.weight", "alpha", "zero", "bias"):
        # relative to the change, not to the weights; adding to and subtracting from 100 loses 2**-17 each time
        assert torch.allclose(got[name] - sent[name], torch.full_like(sent[name], 1e-3), atol=5e-5)
    assert int(got["count"]) == 16


def test_draws_belong_to_seed_direction_round_and_client():
    sent = tensors()
    packed = [
        BOTH.pack_down(sent, 0, TASK),
        BOTH.pack_down(sent, 1, TASK),
        BOTH.pack_down(sent, 0, ClientTask(4, 5, None, 1)),
        BOTH.pack_down(sent, 0, ClientTask(3, 6, None, 1)),
        BOTH.pack_up(sent, {name: torch.zeros_like(tensor) for name, tensor in sent.items()}, 0, TASK),
    ]
    for number, values in enumerate(packed):
        assert torch.equal(values[SCALES], packed[0][SCALES])
        assert torch.equal(values["conv.weight"], packed[0]["conv.weight"]) == (number == 0)
    assert_same(packed[0], BOTH.pack_down(sent, 0, TASK))


def one_fit(start, **settings):
    """Returns the task of a round's only client, and the tensors of its update."""

    def task_and_weights(trainer, module, result, update):
        return result.task, {name: tensor.clone() for name, tensor in update.weights.items()}

    notes = Noted("on_client_end", task_and_weights)
    fit(make_module(start, cohort=UniformCohort(count=1), **settings), tiny_data(), 1, callbacks=[notes])
    return notes.all[0]


def test_an_update_by_hand():
    """The received and the sent tensors of a client's round, from packings and a client alone."""
    initial = {name: tensor.detach().clone() for name, tensor in linear_net().network.state_dict().items()}
    task, got = one_fit(linear_net(), transport=Transport(Float16(), Int8()))
    received = {name: tensor.half().float() for name, tensor in initial.items()}
    start = linear_net()
    start.network.load_state_dict(received)
    _, trained = one_fit(start)
    change = {name: trained[name] - received[name] for name in initial}
    draws = generator(0, "transport-up", task.round, task.client)
    arrived = Int8().unpack(Int8().pack(change, draws), change)
    assert_same(got, {name: initial[name] + arrived[name] for name in initial})


def test_costs_are_the_same_wherever_they_are_counted(tmp_path):
    """Records, ledger and its comparison, from the networks' tensors; dropped clients have not trained."""
    net, transport = tiny_supernet(), Transport(Float16(), Int8())
    module = make_module(
        net,
        RandomArchitectures(),
        transport=transport,
        faults=FaultPolicy(dropout_rate=0.3),
        cohort=UniformCohort(count=4),
        evaluation=EvaluationSettings(["largest"]),
    )
    ledger = CostLedger()
    fit(module, tiny_data(), 4, callbacks=[ledger, RunRecorder()], default_root_dir=str(tmp_path))

    def size(arch):
        sent = [tensor.numel() for tensor in net.subnet(arch).state_dict().values()]
        return 2 * sum(sent), sum(sent) + 4 * len(sent)

    macs = down = up = answers = clients = 0
    for record in read_rounds(tmp_path):
        for client in record["clients"]:
            arch, answered = net.space.parse(client["arch"]), client["status"] == "ok"
            sent, back = size(arch)
            assert (client["bytes_down"], client["bytes_up"]) == (sent, back * answered)
            assert client["macs"] == net.cost(arch).macs * 20 * answered
            macs, down, up = macs + client["macs"], down + sent, up + back * answered
            answers, clients = answers + answered, clients + 1
    assert 0 < answers < clients
    assert ledger.total == RoundCost(macs, down, up)
    sent, back = size(net.space.largest)
    alone = ledger.baseline["largest"]
    assert (alone.bytes_down, alone.bytes_up) == (clients * sent, answers * back)
    assert net.cost(net.space.largest).bytes == 2 * sent  # an architecture's own bytes are those of float32
