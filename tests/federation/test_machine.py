"""Threads by the size of the network and the ranks; freed memory that is kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedTrainer
from lit_fednas.federation.machine import SMALL_OPERATION, keep_freed_memory, suggested_threads, threads_set
from lit_fednas.supernets import PlainNetwork, SmallCNN
from tests.support import fit, linear_net, make_module, tiny_data


def test_threads_by_work_per_operation():
    """The linear net does 64 x 4 multiply-accumulates per example in its one layer."""
    enough = -(-int(SMALL_OPERATION) // 256)
    assert suggested_threads(linear_net(), enough - 1, 1, 8) == 1
    assert suggested_threads(linear_net(), enough, 1, 8) == 8
    net = SmallCNN((3, 32, 32), 10)
    assert [suggested_threads(net, 32, ranks, 8) for ranks in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


def test_a_network_that_cannot_be_counted_is_a_large_one():
    class Peek(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) if float(x.sum()) > 0 else x

    net = PlainNetwork(Peek(64, 4), (1, 8, 8), 4)
    with pytest.raises(ConfigError, match=r"reads the values of its inputs .* choose with torch.where"):
        net.cost(net.space.largest)
    assert suggested_threads(net, 1, 2, 8) == 4


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_are_set_for_the_block(three_threads, monkeypatch):
    with threads_set(None, linear_net(), 8, 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with threads_set(2, linear_net(), 8, 1):  # as asked
        assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with threads_set(None, linear_net(), 8, 2):
        assert torch.get_num_threads() == 3


def test_a_run_and_an_evaluation_compute_with_the_trainers_threads(three_threads):
    seen, module, data = [], make_module(linear_net()), tiny_data()
    module.supernet.register_forward_pre_hook(lambda *parts: seen.append(torch.get_num_threads()))
    trainer = fit(module, data, 1, threads=2)
    assert set(seen) == {2}
    for evaluate in (trainer.validate, trainer.test):
        seen.clear()
        evaluate(module, datamodule=data)
        assert set(seen) == {2}
    assert torch.get_num_threads() == 3
    with pytest.raises(ConfigError, match=r"trainer.threads: 0 must be at least 1"):
        FederatedTrainer(threads=0)


PROGRAM = """
import resource
from lit_fednas.federation.machine import keep_freed_memory
import torch
network, images = torch.nn.Conv2d(3, 32, 3), torch.rand(32, 3, 32, 32)
network = torch.nn.Sequential(network, torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU())
def faults():
    for step in range(13):
        if step == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        network(images).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_memory(), faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's options")
def test_freed_memory_is_not_asked_for_again(monkeypatch):
    """A network's activations, of several MiB each, come and go; without the option each step gets new pages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC", "GLIBC"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=clean, capture_output=True, text=True, check=True)
    lost, told, kept = done.stdout.split()
    assert told == "True"
    assert int(kept) * 3 <= int(lost)  # none may be lost, where what lies above on the heap keeps it from shrinking
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_freed_memory()  # whoever has set it keeps it
