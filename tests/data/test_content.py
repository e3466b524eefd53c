"""Fingerprints of a run's data, by which a run is not continued with other data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.data import IID, ArraySource, Examples, FederatedDataModule, ImageFolder
from lit_fednas.data.examples import content_of
from lit_fednas.errors import CheckpointError
from lit_fednas.testing.networks import tiny_examples
from tests.data.files import images
from tests.support import fit, linear_net, make_module, make_trainer


def grouped(count: int = 120) -> Examples:
    examples = tiny_examples(count)
    return Examples(examples.inputs, examples.targets, {"site": np.array([f"s{n % 5}" for n in range(count)], object)})


def flipped(examples: Examples) -> None:
    examples.targets[40:80] = (examples.targets[40:80] + 1) % 4


def renamed(examples: Examples) -> None:
    examples.columns["site"][3] = "elsewhere"


def brightened(examples: Examples) -> None:
    examples.inputs[7, 0, 0, 0] += 1


@pytest.mark.parametrize(
    ("change", "other"),
    [(None, set()), (flipped, {"targets"}), (renamed, {"groupings"}), (brightened, {"inputs"})],
)
def test_a_change_of_each_part_is_seen(change: Callable[[Examples], None] | None, other: set[str]) -> None:
    original, examples = content_of(grouped()), grouped()
    if change is not None:
        change(examples)
    changed = content_of(examples)
    assert {name for name in original if original[name] != changed[name]} == other
    assert content_of(grouped(119))["examples"] == 119


@pytest.mark.parametrize("command", ["fit", "validate", "load"])
def test_a_run_is_not_continued_with_other_data_unless_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    def data(train: Examples) -> FederatedDataModule:
        return FederatedDataModule(ArraySource(train, val=tiny_examples(40, 1)), IID(), 4)

    fit(
        make_module(linear_net()),
        data(grouped()),
        1,
        callbacks=[RoundCheckpoint(dirpath=str(tmp_path))],
        enable_checkpointing=True,
    )
    last, other = str(tmp_path / "last.ckpt"), grouped()
    flipped(other)

    def continued(datamodule: FederatedDataModule) -> Any:
        return getattr(make_trainer(2), command)(make_module(linear_net()), datamodule=datamodule, ckpt_path=last)

    continued(data(grouped()))
    message = (
        r"^data\.source: train has other targets than in the checkpoint's run \(120 examples then, 120 now\); restore"
    )
    with pytest.raises(CheckpointError, match=message):
        continued(data(other))
    allowed = data(other)
    allowed.may_change = True
    with caplog.at_level(logging.WARNING):
        continued(allowed)
    assert "train has other targets" in caplog.text


def test_files_that_are_decoded_on_access_are_known_by_names_and_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path, "train/a/0.png", "train/a/1.png", "train/b/0.png")

    def content() -> dict[str, Any]:
        lazy = ImageFolder(tmp_path, image_size=8).dataset("train")
        assert lazy is not None
        monkeypatch.setattr(type(lazy), "image", lambda *row: pytest.fail("a file is decoded"))
        return content_of(lazy)

    original = content()
    assert content() == original
    os.utime(tmp_path / "train/b/0.png", ns=(0, 0))
    assert {name for name, value in content().items() if value != original[name]} == {"inputs"}


def test_few_examples_of_other_data_sets_are_read() -> None:
    class Remote:
        targets, columns = torch.zeros(1000, dtype=torch.int64), {}
        read_rows: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            self.read_rows.append(index)
            return torch.full((2,), index), self.targets[index]

    content_of(Remote())
    assert Remote.read_rows == [0, 333, 666, 999]
