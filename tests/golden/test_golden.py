"""Every published method's short run gives the recorded results (``python -m tests.golden.record``)."""

from __future__ import annotations

import json

import pytest

from tests.golden.runs import GOLDEN, RUNS, figures, run

RECORDED = json.loads(GOLDEN.read_text())


def close(name: str, value: float) -> object:
    """Float sums in another order move a loss in its fifth digit, and now and then one image's class."""
    return pytest.approx(value, abs=0.015) if "accuracy" in name else pytest.approx(value, rel=3e-3, abs=1e-3)


@pytest.mark.parametrize("name", RUNS)
def test_run_comes_out_as_recorded(name, tmp_path):
    found, recorded = figures(run(name, tmp_path)), RECORDED[name]
    assert found["total"] == recorded["total"]
    assert len(found["rounds"]) == len(recorded["rounds"])
    for number, (now, then) in enumerate(zip(found["rounds"], recorded["rounds"], strict=True)):
        assert now["clients"] == then["clients"], f"round {number}: who trained what, and at what cost"
        assert now["metrics"] == {key: close(key, value) for key, value in then["metrics"].items()}, number
    for kind in ("search", "finetune"):
        for now, then in zip(found.get(kind, []), recorded.get(kind, []), strict=True):
            assert {key: float(value) for key, value in now.items()} == {
                key: close("accuracy" if "accuracy" in key else key, float(value)) for key, value in then.items()
            }


def test_every_run_is_recorded():
    assert set(RECORDED) == set(RUNS)
