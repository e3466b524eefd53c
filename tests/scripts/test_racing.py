"""The study of races, on a run of one round."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fednas.cli import main as command

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
NORM = '{"class_path": "lit_fednas.supernets.GroupNorm", "init_args": {"group_size": 2}}'


def changed(checkpoint, folder):
    """A checkpoint of which one tensor of the weights differs."""
    state = torch.load(checkpoint, weights_only=False)
    next(tensor for tensor in state["state_dict"].values() if tensor.is_floating_point()).add_(1)
    torch.save(state, folder / "other.ckpt")
    return folder / "other.ckpt"


@pytest.mark.slow
def test_tables_follow_from_the_answers(tmp_path, monkeypatch, capsys):
    """The fronts are those of all pairs of architectures, by accuracies that are the answers' means."""
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "--config", "superfed/digits.yaml", "--trainer.max_rounds", "1"]
    assert command([*fit, "--model.supernet.init_args.norm", NORM]) == 0
    run = tmp_path / "runs/digits/version_0"
    other = changed(run / "checkpoints/last.ckpt", tmp_path)
    words = [str(run), "--config", str(CONFIGS / "search/digits.yaml"), "--archs", "25", "--seeds", "3"]
    script = runpy.run_path(str(ROOT / "scripts" / "racing"))
    assert script["main"](words) == 0, capsys.readouterr().err
    right = np.load(run / "racing/answers.npy")
    assert set(np.unique(right)) == {0, 1}
    races, fronts = (pd.read_csv(run / f"racing/{name}.csv") for name in ("racing", "fronts"))
    assert len(races) == 3
    assert set(races["architectures"]) == {len(right)} == {25}
    assert set(races["examples"]) == {right.shape[1]}
    assert races["share_of_examples"].between(64 / right.shape[1], 1).all()
    assert set(races["on_fronts"]) == {len(fronts)}
    assert races["dropped_of_fronts"].sum() == (fronts["races"] - fronts["found"]).sum()
    accuracies = right.mean(1)
    for _, front in fronts.groupby("tier"):
        points = front[["macs", "accuracy"]].to_numpy()
        assert np.isclose(points[:, 1:], accuracies).any(axis=1).all()
        better = (points[:, None, 0] <= points[:, 0]) & (points[:, None, 1] >= points[:, 1])
        assert better.sum() == len(points)  # each is as good as itself alone
    assert fronts["accuracy"].max() == pytest.approx(accuracies.max())  # the last tier has no limits
    before = (run / "racing/answers.npy").stat().st_mtime_ns
    assert script["main"](words) == 0
    assert (run / "racing/answers.npy").stat().st_mtime_ns == before  # kept
    capsys.readouterr()
    for others, what in ((["--archs", "7"], "archs"), (["--archs", "25", "--checkpoint", str(other)], "weights")):
        assert script["main"]([*words[:3], *others]) == 2
        assert f"answers.npy: has answers of other {what}; remove it" in capsys.readouterr().err
