"""The records' file: what is written, read and dropped."""

from __future__ import annotations

import json
import math

import pytest

from lit_fednas.errors import DataError
from lit_fednas.loggers import RunLogger
from lit_fednas.records import (
    ROUNDS_FILE,
    SEQUENCE_FILE,
    SUITE_FILE,
    SearchFiles,
    append_round,
    forget_from,
    read_rounds,
    read_sequence,
    read_suite,
    step_words,
    write_sequence,
    write_suite,
)


def write(folder, count=3):
    for round in range(count):
        append_round(folder, {"round": round, "metrics": {"loss": 1 / (1 + round)}, "clients": []})


def test_records_come_back_as_they_were_written(tmp_path):
    folder = tmp_path / "new" / "run"
    write(folder)
    assert [record["round"] for record in read_rounds(folder)] == [0, 1, 2]
    assert next(read_rounds(folder)) == {"round": 0, "metrics": {"loss": 1.0}, "clients": []}
    assert (folder / ROUNDS_FILE).read_text().count("\n") == 3


def test_without_a_file_there_are_no_records(tmp_path):
    assert list(read_rounds(tmp_path)) == []
    forget_from(tmp_path, 0)
    assert not (tmp_path / ROUNDS_FILE).exists()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null(tmp_path, number):
    append_round(tmp_path, {"round": 0, "metrics": {"a": number, "b": 2.5}, "clients": [{"loss": number}]})
    text = (tmp_path / ROUNDS_FILE).read_text()
    assert text == '{"round":0,"metrics":{"a":null,"b":2.5},"clients":[{"loss":null}]}\n'
    assert json.loads(text, parse_constant=pytest.fail)["metrics"] == {"a": None, "b": 2.5}


@pytest.mark.parametrize(
    ("name", "append"),
    [
        (ROUNDS_FILE, lambda folder: append_round(folder, {"round": 0})),
        ("latencies.csv", lambda folder: SearchFiles(folder).append("latencies", [{"arch": "a", "latency_ms": 1.0}])),
        ("metrics.csv", lambda folder: RunLogger(str(folder), "", "").log_metrics({"loss": 1.0}, 0)),
    ],
)
def test_a_full_disk_is_told_of_the_file_that_grows(tmp_path, name, append):
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        append(tmp_path)
    assert caught.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path, cut):
    write(tmp_path)
    path = tmp_path / ROUNDS_FILE
    path.write_text(path.read_text()[:-cut])
    assert [record["round"] for record in read_rounds(tmp_path)] == [0, 1]


@pytest.mark.parametrize(("round", "kept"), [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_forgetting_drops_a_round_and_all_later_ones(tmp_path, round, kept):
    write(tmp_path)
    before = (tmp_path / ROUNDS_FILE).read_text().splitlines()
    forget_from(tmp_path, round)
    assert (tmp_path / ROUNDS_FILE).read_text().splitlines() == before[: len(kept)]
    assert [record["round"] for record in read_rounds(tmp_path)] == kept
    assert [path.name for path in tmp_path.iterdir()] == [ROUNDS_FILE]


def test_forgetting_removes_a_cut_line_so_that_the_next_starts_afresh(tmp_path):
    write(tmp_path)
    path = tmp_path / ROUNDS_FILE
    path.write_text(path.read_text()[:-4])
    forget_from(tmp_path, 2)
    append_round(tmp_path, {"round": 2, "metrics": {}, "clients": []})
    assert [record["round"] for record in read_rounds(tmp_path)] == [0, 1, 2]


def test_unknown_and_missing_keys_pass(tmp_path):
    (tmp_path / ROUNDS_FILE).write_text('{"round":0}\n{"round":1,"weather":"fine"}\n')
    forget_from(tmp_path, 2)
    assert list(read_rounds(tmp_path)) == [{"round": 0}, {"round": 1, "weather": "fine"}]


def test_a_suite_comes_back_and_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "new" / "run"
    assert read_suite(folder) is None
    first = {"number": 0, "parent": None, "round": None, "activeness": {}, "degree_of_convergence": None}
    write_suite(folder, [first], False)
    assert read_suite(folder) == {"models": [first], "complete": False, "family": None, "tiers": []}
    second = {"number": 1, "parent": 0, "round": 7, "activeness": {"conv1": 0.25}, "steps": [{"widen": "conv1"}]}
    began = {"family": {"class_path": "a.Family", "init_args": {}}, "tiers": [{"name": "phones"}]}
    write_suite(folder, [first, second], True, **began)
    assert read_suite(folder) == {"models": [first, second], "complete": True, **began}
    assert [path.name for path in folder.iterdir()] == [SUITE_FILE]


def test_a_suites_numbers_that_json_lacks_become_null(tmp_path):
    write_suite(tmp_path, [{"number": 0, "activeness": {"conv1": math.nan}, "degree_of_convergence": -math.inf}], True)
    text = (tmp_path / SUITE_FILE).read_text()
    (model,) = json.loads(text, parse_constant=pytest.fail)["models"]
    assert model == {"number": 0, "activeness": {"conv1": None}, "degree_of_convergence": None}


@pytest.mark.parametrize("text", ['{"models": [{"num', "[]", "{}", '{"models": []}'])
def test_a_broken_suite_is_named(tmp_path, text):
    (tmp_path / SUITE_FILE).write_text(text)
    with pytest.raises(
        DataError, match=r"suite\.json: (is damaged .* restore it|holds no models; train the run again)"
    ):
        read_suite(tmp_path)


def test_steps_in_words():
    steps = [
        {"deepen": "b", "names": ["b_m1"]},
        {"widen": "a", "sizes": {"a.out": 4}},
        {"deepen": "c", "names": []},
    ]
    assert step_words(steps) == "deepen b, c; widen a"
    assert step_words([]) == ""


SEQUENCE = {
    "resource": "macs",
    "initial": 100,
    "budget": 50.0,
    "clients": 4,
    "units": {"conv1": ["a"]},
    "complete": False,
    "models": [{"number": 0, "round": None, "accuracy": 0.5, "sizes": {"a": 8}}],
    "under_way": None,
}


def test_a_sequence_comes_back_and_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "new" / "run"
    assert read_sequence(folder) is None
    write_sequence(folder, SEQUENCE)
    assert read_sequence(folder) == SEQUENCE
    write_sequence(folder, {**SEQUENCE, "complete": True})
    assert read_sequence(folder) == {**SEQUENCE, "complete": True}
    assert [path.name for path in folder.iterdir()] == [SEQUENCE_FILE]


def test_a_sequences_numbers_that_json_lacks_become_null(tmp_path):
    model = {
        "number": 0,
        "accuracy": math.nan,
        "candidates": [{"accuracies": (0.5, math.nan), "removed": {"a": 1}}],
    }
    write_sequence(tmp_path, {**SEQUENCE, "models": [model]})
    text = (tmp_path / SEQUENCE_FILE).read_text()
    (found,) = json.loads(text, parse_constant=pytest.fail)["models"]
    assert found == {
        "number": 0,
        "accuracy": None,
        "candidates": [{"accuracies": [0.5, None], "removed": {"a": 1}}],
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        *(('{"models": [{"num', "is damaged"), ("[]", "is damaged"), ("{}", "holds no models; train the run again")),
        ('{"models": []}', "holds no models; train the run again"),
        ('{"models": [{}], "units": {}, "clients": 3}', "holds no resource, initial; train the run again"),
    ],
)
def test_a_broken_sequence_is_named(tmp_path, text, what):
    (tmp_path / SEQUENCE_FILE).write_text(text)
    with pytest.raises(DataError, match=rf"sequence\.json: {what}"):
        read_sequence(tmp_path)
