"""Writing, reading and dropping the records of rounds, models, subnets and searches."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest

from lit_fednas.errors import DataError
from lit_fednas.loggers import RunLogger
from lit_fednas.records import SearchFiles, read_rounds
from lit_fednas.records.files import read_json, read_table, replace_json, replace_table, seal
from lit_fednas.records.run import (
    ROUNDS_FILE,
    SEQUENCE_FILE,
    SUITE_FILE,
    append_round,
    forget_from,
    read_models,
    rounds_of,
    write_subnets,
)
from lit_fednas.records.tiers import flat_front


def write(folder, count=3):
    for round in range(count):
        append_round(folder, {"round": round, "metrics": {"loss": 1 / (1 + round)}, "clients": []})


def test_records_come_back_as_they_were_written(tmp_path):
    """Records may have more keys; numbers that JSON lacks become null."""
    folder = tmp_path / "new" / "run"
    assert list(read_rounds(folder)) == []
    forget_from(folder, 0)
    assert not folder.exists()
    records = [{"round": round, "metrics": {"loss": 1.0}, "clients": [], "weather": "fine"} for round in range(3)]
    for record in records:
        append_round(folder, record)
    assert list(read_rounds(folder)) == records
    append_round(folder, {"round": 3, "metrics": {"a": math.nan, "b": 2.5}, "clients": [{"loss": -math.inf}]})
    last = (folder / ROUNDS_FILE).read_text().splitlines()[3]
    assert last == '{"round":3,"metrics":{"a":null,"b":2.5},"clients":[{"loss":null}]}'


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_truncated_last_line_is_left_out(tmp_path, cut):
    """It is removed before the next line is written."""
    write(tmp_path)
    path = tmp_path / ROUNDS_FILE
    path.write_text(path.read_text()[:-cut])
    assert [record["round"] for record in read_rounds(tmp_path)] == [0, 1]
    forget_from(tmp_path, 2)
    append_round(tmp_path, {"round": 2, "metrics": {}, "clients": []})
    assert [record["round"] for record in read_rounds(tmp_path)] == [0, 1, 2]


def test_a_changed_record_is_named(tmp_path):
    """A changed digit or a lost line is found; changes by this package are no damage."""
    write(tmp_path)
    columns, rows = ["client", "size"], [{"client": 0, "size": 15}, {"client": 1, "size": 16}]
    replace_table(tmp_path / "partition.csv", columns, rows[:1])
    replace_json(tmp_path / "ledger.json", {"rounds": 15})
    other_sums = "# lines of another tool\n" + "0" * 64 + " *mine.csv\n\n"
    (tmp_path / "SHA256SUMS").write_text(other_sums)
    names = ("partition.csv", "ledger.json", ROUNDS_FILE, "missing.csv")
    seal(tmp_path, *names)
    append_round(tmp_path, {"round": 3, "metrics": {"loss": 0.15}, "clients": []})
    replace_table(tmp_path / "partition.csv", columns, rows)
    seal(tmp_path, *names)
    read = {
        "partition.csv": read_table,
        "ledger.json": read_json,
        ROUNDS_FILE: lambda path: [*read_rounds(path.parent)],
    }
    text = (tmp_path / "SHA256SUMS").read_text()
    assert text.startswith(other_sums)
    sums = dict(reversed(line.split("  ")) for line in text.removeprefix(other_sums).splitlines())
    assert sums == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in read}
    for name, reader in read.items():
        path = tmp_path / name
        original = path.read_text()
        reader(path)
        path.write_text(original.replace("15", "14"))
        with pytest.raises(DataError, match=rf"{name}: has another checksum; .* its line in SHA256SUMS"):
            reader(path)
    (tmp_path / "partition.csv").write_text("client,size\n0,15\n")
    with pytest.raises(DataError, match="has another checksum"):
        read_table(tmp_path / "partition.csv")
    (tmp_path / "SHA256SUMS").unlink()
    assert [row["size"] for row in read_table(tmp_path / "partition.csv")] == ["15"]


@pytest.mark.parametrize(
    ("name", "append"),
    [
        (ROUNDS_FILE, lambda folder: append_round(folder, {"round": 0})),
        ("latencies.csv", lambda folder: SearchFiles(folder).append("latencies", [{"arch": "a", "latency_ms": 1.0}])),
        ("metrics.csv", lambda folder: RunLogger(str(folder), "", "").log_metrics({"loss": 1.0}, 0)),
    ],
)
def test_an_error_of_a_full_disk_names_the_growing_file(tmp_path, name, append):
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        append(tmp_path)
    assert caught.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("round", range(4))
def test_forgetting_drops_a_round_and_all_later_ones(tmp_path, round):
    write(tmp_path)
    lines = (tmp_path / ROUNDS_FILE).read_text().splitlines()
    forget_from(tmp_path, round)
    assert [record["round"] for record in read_rounds(tmp_path)] == [*range(round)]
    assert [path.name for path in tmp_path.iterdir()] == [ROUNDS_FILE][:round]
    if round:
        assert (tmp_path / ROUNDS_FILE).read_text().splitlines() == lines[:round]


def test_records_that_do_not_reach_the_checkpoint_are_not_continued(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match="has 3 rounds, and the checkpoint 4; restore it"):
        forget_from(tmp_path, 4)


def test_a_result_belongs_to_the_round_of_its_weights():
    """Rounds of version 0.2 name no weights; a result of such a run belongs to the last of these rounds."""
    rounds = [{"round": number, "weights": digest} for number, digest in enumerate("abb")]
    unnamed = [{"round": number} for number in range(2)]
    assert [rounds_of(rounds, digest) for digest in ("a", "b", "x", None)] == [1, 3, None, 3]
    assert [rounds_of(unnamed, digest) for digest in ("a", None)] == [2, 2]
    assert [rounds_of([*unnamed, {"round": 2, "weights": "c"}], digest) for digest in ("a", "c", None)] == [2, 3, 3]


def test_subnets_of_other_names_stay_while_the_run_has_their_weights(tmp_path):
    """They stay in the folder of an exported supernet, too, which has no rounds."""
    columns = ("subnet", "arch", "weights")

    def write_and_read(*rows):
        write_subnets(tmp_path, "val", [dict(zip(columns, row, strict=True)) for row in rows])
        return [tuple(row.values()) for row in read_table(tmp_path / "subnets-val.csv")]

    first = ("small", "a", "x"), ("large", "b", "x")
    assert write_and_read(*first) == [*first]
    assert write_and_read(("large", "c", "x")) == [("large", "c", "x"), ("small", "a", "x")]
    append_round(tmp_path, {"round": 0, "weights": "x", "metrics": {}, "clients": []})
    append_round(tmp_path, {"round": 1, "weights": "y", "metrics": {}, "clients": []})
    assert write_and_read(("large", "b", "y")) == [("large", "b", "y"), ("small", "a", "x")]
    forget_from(tmp_path, 0)
    append_round(tmp_path, {"round": 0, "weights": "z", "metrics": {}, "clients": []})
    assert write_and_read(("large", "b", "z")) == [("large", "b", "z")]


COSTS = {"macs": 4, "parameters": 3, "bytes": 12}
SPENT = {"macs": 0, "bytes_down": 0, "bytes_up": 0}
GROWN = {"number": 0, "parent": None, "round": None, "steps": [], **COSTS}
PRUNED = {"number": 0, "unit": None, "resource": 4.0, "budget": None, "accuracy": None, "rounds": 0, **COSTS}
PRUNED |= {"round": None, "first_round": None, "sizes": {}, "costs": SPENT, "groups": [], "candidates": []}
SUITE = {"models": [GROWN], "complete": False, "family": None, "tiers": [{"name": "phones"}]}
SEQUENCE = {"resource": "macs", "initial": 100, "units": {"conv1": ["a"]}, "clients": 4, "models": [PRUNED]}
#: The content of each file of models.
WHOLE: dict[str, dict[str, Any]] = {SUITE_FILE: SUITE, SEQUENCE_FILE: SEQUENCE}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_of_models_is_read_as_written_and_replaced_as_a_whole(tmp_path, name):
    """Numbers that JSON lacks become null."""
    content, folder = WHOLE[name], tmp_path / "new" / "run"
    assert read_models(folder, name) is None
    replace_json(folder / name, content)
    assert read_models(folder, name) == content
    (model,) = content["models"]
    numbers = {"round": 7, "accuracy": math.nan, "activeness": {"conv1": -math.inf}, "accuracies": (0.5, math.nan)}
    replace_json(folder / name, {**content, "models": [{**model, **numbers}]})
    nulls = {"round": 7, "accuracy": None, "activeness": {"conv1": None}, "accuracies": [0.5, None]}
    assert read_models(folder, name) == {**content, "models": [{**model, **nulls}]}
    json.loads((folder / name).read_text(), parse_constant=pytest.fail)
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (SUITE_FILE, '{"models": [{"num', "is damaged .* restore it"),
        (SUITE_FILE, '{"models": []}', "holds no models; train the run again"),
        (SEQUENCE_FILE, '{"models": [{}], "units": {}, "clients": 3}', "is damaged .*lacks resource"),
    ],
)
def test_a_broken_file_of_models_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: .*{words}"):
        read_models(tmp_path, name)


SEARCH = {"metric": "accuracy", "metrics": {"accuracy": True, "loss": False}, "cost": "macs", "num_examples": 600}


def tiers_of(metric: str, *values: float) -> list[dict[str, Any]]:
    """The smallest tier comes last."""
    rows = [{"arch": f"a{n}", "macs": n, f"val_{metric}": value} for n, value in enumerate(values)]
    return rows[::-1]


@pytest.mark.parametrize(
    ("settings", "values", "within"),
    [
        # by hand: 1.96 times the root of (0.88 * 0.12 + 0.89 * 0.11) / 600, which is 0.0361
        ({}, (0.88, 0.885, 0.89), " (within ±3.6 points on 600 validation examples)"),
        ({"num_examples": 12_000}, (0.88, 0.88, 0.89), None),  # 0.81 points
        ({"num_examples": 6000}, (0.88, 0.89, 0.89), " (within ±1.1 points on 6,000 validation examples)"),
        ({"num_examples": 12_000}, (0.88, 0.89, 0.84), None),  # the middle one is better
        ({}, (0.9, 0.5), " (within ±4.7 points on 600 validation examples)"),
        ({"metric": "loss"}, (0.5, 0.5, 0.6), ""),
        ({"metric": "loss"}, (0.5, 0.499), None),
        # the noise of tokens does not follow from 600 windows
        ({"metrics": {"perplexity": False, "accuracy": True}}, (0.5, 0.501), None),
        ({"metrics": {"perplexity": False, "accuracy": True}}, (0.5, 0.5), ""),
        ({"federated": {"rounds": 4}}, (0.5, 0.5), None),
        ({"num_examples": None}, (0.5, 0.5), None),  # settings of an earlier version
        ({}, (0.5,), None),
        ({}, (math.nan, math.nan), None),  # a plan evaluates nothing
    ],
)
def test_a_front_is_flat_within_the_noise_of_its_examples(settings, values, within):
    search = {**SEARCH, **settings}
    expected = f"Larger networks are not better here{within}; train `a0` alone, or give smaller tiers."
    assert flat_front(search, tiers_of(search["metric"], *values)) == ("" if within is None else expected)


def test_equal_networks_are_called_flat_as_often_as_the_95_percent_interval_predicts():
    """A gain above the interval has a chance of 2.5 %, for two accuracies of 80 % on 500 examples."""
    shares = np.random.default_rng(0).binomial(500, 0.8, (8000, 2)) / 500
    flat = [bool(flat_front({**SEARCH, "num_examples": 500}, tiers_of("accuracy", *pair))) for pair in shares]
    assert np.mean(flat) == pytest.approx(0.975, abs=0.007)  # four standard errors
