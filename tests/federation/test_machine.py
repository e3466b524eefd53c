"""The number of threads depends on the network's size."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.federation import process
from lit_fednas.federation.process import SMALL_OPERATION, suggested_threads
from lit_fednas.supernets import SmallCNN
from tests.support import fit, linear_net, make_module, tiny_data


def test_threads_by_work_per_operation():
    """The linear network needs 64 x 4 multiply-accumulates per example, in one layer."""
    min_batch = -(-int(SMALL_OPERATION) // 256)
    assert suggested_threads(linear_net(), min_batch - 1, 8) == 1
    assert suggested_threads(linear_net(), min_batch, 8) == 8
    assert suggested_threads(SmallCNN((3, 32, 32), 10), 32, 4) == 4


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(process, "_OMP_NUM_THREADS", False)
    count = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(count)


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
