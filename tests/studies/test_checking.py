"""A study sets up all its commands before training."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lit_fednas.errors import ConfigError
from lit_fednas.studies.checking import check

FIT = ["lit-fednas", "fit", "--config", "superfed/digits.yaml", "--data.num_clients=5"]
SEARCH = ["lit-fednas", "search", *FIT[2:], "--config", "search/digits.yaml"]
TABLE = "a,site,label\n" + "".join(f"{n / 7},s{n % 2},c{n // 2 % 2}\n" for n in range(40))


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_settings_of_commands_are_returned_and_nothing_is_written() -> None:
    later = [*FIT, "--model.tiers.source=lit_fednas.tiers.TiersOfRun", "--model.tiers.source.run=missing"]
    texts = check([(FIT, True), (["lit-fednas", "test", *FIT[2:]], True), (SEARCH, True), (later, False)])
    first, tested, searched, reading = map(yaml.safe_load, texts)
    assert {**first, "verbose": False} == tested
    assert first["trainer"]["logger"]["init_args"]["name"] == "digits"
    assert searched["search"]["method"]["class_path"].endswith("NSGA2")
    assert reading["model"]["tiers"]["source"]["init_args"]["run"] == "missing"
    assert list(Path().iterdir()) == []
    with pytest.raises(ConfigError, match="missing holds no suite"):
        check([(later, True)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*FIT, "--model.client.stepss=8"], "model.client.stepss"),
        ([*FIT, "--model.assignment=lit_fednas.assignment.ByTier"], "model.tiers: is null, and the assignment needs"),
        ([*FIT, "--seed_everything=-1"], "seed_everything: -1 must be a number from 0"),
        ([*SEARCH, "--search.client=7"], "search.client: 7 is not one of the 5 clients"),
        ([*SEARCH, *["--config", "search/digits.yaml"] * 50, "--search.client=7"], "search.client: 7 is not one of"),
        ([*SEARCH, "--search.tiers=null"], "search.tiers: null leaves no device tiers"),
        ([*SEARCH, "--data.server_val=0"], "data.server_val: 0 leaves no examples to search"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_an_error_names_the_command(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check([(words, True)])
    reason, _, command = str(raised.value).partition(" (of ")
    assert message in reason
    assert command.startswith(" ".join(words[:4]))
    assert len(command) < 130
    assert list(Path().iterdir()) == []


def test_a_space_that_changes_in_training_is_not_checked_before() -> None:
    words = ["lit-fednas", "search", "--config", "fednas/digits.yaml", "--search.method=lit_fednas.search.Exhaustive"]
    tiers = "--search.tiers={class_path: lit_fednas.tiers.Budgets, init_args: {budgets: {t: {macs: 1e5}}}}"
    check([([*words, tiers], True)])  # the initial model has 0.8 million
    with pytest.raises(ConfigError, match=r"data\.server_val: 0 leaves no examples"):
        check([([*words, tiers, "--data.server_val=0"], True)])


def test_a_missing_test_split_is_an_error() -> None:
    Path("train.csv").write_text(TABLE)
    source = "{files: {train: train.csv}, target: label, client: site}"
    words = ["--config", "tasks/table.yaml", f"--data.source.init_args={source}"]
    with pytest.raises(ConfigError, match="ArrayFiles has no test split; give one"):
        check([(["lit-fednas", "test", *words], True)])
