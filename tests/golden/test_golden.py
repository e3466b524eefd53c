"""Every published method's short run gives the recorded results (``python -m tests.golden.record``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.golden.runs import GOLDEN, RUNS, figures, run
from tests.support import one_of_many

RECORDED = json.loads(GOLDEN.read_text())


#: How far losses (relatively) and accuracies may be off. Processors and versions of torch sum floats in another
#: order: most runs stay within 0.004 and 0.01; where norms are by the batch, training amplifies the last bit.
TOLERANCES = {"superfed": (0.15, 0.2), "fedoras": (0.03, 0.12)}
OTHERS = (0.015, 0.03)
#: Rounds after which a choice (which units change the least, which candidate is the best) may hang on the last bit.
CHOOSING = {"fluid": 2, "fednas": 2}


def close(run: str, name: str, value: float) -> object:
    loss, accuracy = TOLERANCES.get(run, OTHERS)
    return pytest.approx(value, abs=accuracy) if "accuracy" in name else pytest.approx(value, rel=loss)


@pytest.mark.parametrize("name", one_of_many(RUNS, "fedhen", "heterofl"))
def test_run_comes_out_as_recorded(name, tmp_path):
    found, recorded = figures(run(name, tmp_path)), RECORDED[name]
    chosen = CHOOSING.get(name, len(recorded["rounds"]))
    assert found["total"] == (pytest.approx(recorded["total"], rel=0.15) if name == "fednas" else recorded["total"])
    rounds = len(recorded["rounds"]) if name != "fednas" else chosen  # later it has other networks
    assert len(found["rounds"]) == len(recorded["rounds"]) or name == "fednas"
    for number, (now, then) in enumerate(zip(found["rounds"][:rounds], recorded["rounds"][:rounds], strict=True)):
        if number < chosen:
            assert now["clients"] == then["clients"], f"round {number}: who trained what, and at what cost"
        assert now["metrics"] == {key: close(name, key, value) for key, value in then["metrics"].items()}, number
    for kind in () if name == "fednas" else ("search", "finetune"):
        for now, then in zip(found.get(kind, []), recorded.get(kind, []), strict=True):
            assert {key: float(value) for key, value in now.items()} == {
                key: close(name, key, float(value)) for key, value in then.items()
            }


def test_every_run_is_recorded():
    assert set(RECORDED) == set(RUNS)


@pytest.mark.slow
@pytest.mark.skipif(not which("c++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["superfed", "fedoras", "fedtrans", "fednas"])
def test_another_device_gives_every_bit_of_it(name, tmp_path):
    words = [sys.executable, "-m", "tests.golden.second_device", str(tmp_path), name]
    settings = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "OMP_NUM_THREADS": "1"}}  # backward's, too
    done = subprocess.run(words, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
