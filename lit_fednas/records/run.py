"""The records of a run's rounds, costs, client scores and models, and the metrics that it measures."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.records.files import (
    RESTORE,
    changing,
    check_sum,
    naming,
    parse_json,
    plain_numbers,
    read_json,
    read_table,
    reading,
    replace_json,
    replace_table,
    replace_text,
    seal,
    unseal,
)
from lit_fednas.records.forms import INPUTS, LEDGER, ROUND, SEQUENCE, SETTINGS, SUITE, check_form

ROUNDS_FILE = "rounds.jsonl"
METRICS_FILE = "metrics.csv"
LEDGER_FILE = "ledger.json"
INPUTS_FILE = "inputs.json"
CLIENTS_FILE = "clients.csv"
#: The columns of ``clients.csv`` before the metrics.
CLIENT_SCORE_COLUMNS = ("client", "tier", "num_examples")
SUITE_FILE = "suite.json"
SEQUENCE_FILE = "sequence.json"
#: The records that are complete when training ends; tables of subnets are complete when they are written.
RECORDS = (INPUTS_FILE, "partition.csv", ROUNDS_FILE, LEDGER_FILE, CLIENTS_FILE, SUITE_FILE, SEQUENCE_FILE)
#: The forms of the files of models.
MODELS = {SUITE_FILE: SUITE, SEQUENCE_FILE: SEQUENCE}
#: The files in the folder of an exported supernet.
WEIGHTS_FILE, SUPERNET_FILE, CARD_FILE = "weights.ckpt", "supernet.json", "README.md"
PRETRAINED_FILES = ("config.yaml", WEIGHTS_FILE, SUPERNET_FILE, CARD_FILE)

#: Whether higher is better, by metric; ``None`` if unknown. The first metric counts most.
Directions: TypeAlias = Mapping[str, bool | None]

#: The metrics of classes, also the default for folders without a record of their metrics.
OF_CLASSES: Directions = {"accuracy": True, "loss": False}

_AFTER = "after_training"
#: Tolerance of targets, because the float32 number 0.7 of a logged metric is 1e-8 below the target 0.7.
_TOLERANCE = 1e-6


def append_round(folder: Path, record: dict[str, Any]) -> None:
    """Adds a round's record to a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ROUNDS_FILE
    unseal(path)
    with naming(path), open(path, "a") as file:
        file.write(_line(plain_numbers(record)))


def read_rounds(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields a run's records without a truncated last line; raises DataError for a damaged line."""
    path, previous = folder / ROUNDS_FILE, None
    if not os.path.lexists(path):
        return
    with reading(path), open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    record = parse_json(line.decode())
                    check_form(record, ROUND, "it")
                except (ValueError, RecursionError) as error:
                    fault = f"is not the record of a round ({shorten(str(error), 90, placeholder=' ...')})"
                    raise DataError(f"{path}: line {number} {fault}; {RESTORE}") from None
                if previous is not None and record["round"] != previous + 1:
                    raise DataError(f"{path}: line {number} is of round {record['round']}, after {previous}; {RESTORE}")
                previous = record["round"]
                yield record
        check_sum(path)


def rounds_of(records: Sequence[Mapping[str, Any]], weights: str | None) -> int | None:
    """Returns the number of rounds until a run had weights (by default its last); ``None`` if it replaced them."""
    rounds = {record.get("weights"): record["round"] + 1 for record in records}
    unnamed = rounds.pop(None, None)  # rounds of version 0.2 come first and have no digest
    return rounds.get(weights, unnamed) if weights and rounds else len(records)


def write_subnets(folder: Path, split: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the evaluated subnets of a split; keeps rows of other subnets if the run still has their weights."""
    path, records, names = folder / f"subnets-{split}.csv", [*read_rounds(folder)], {row["subnet"] for row in rows}
    earlier_rows = read_table(path, ["subnet"]) if path.is_file() else []
    other_rows = [row for row in earlier_rows if row["subnet"] not in names]
    other_rows = [row for row in other_rows if rounds_of(records, row.get("weights")) is not None]
    replace_table(path, list(rows[0]), [*rows, *other_rows])
    seal(folder, path.name)


def _forget_metrics(path: Path, round: int) -> None:
    """Drops the rows that training logged in a round and later; keeps those of ``validate`` and ``test``."""
    if not path.is_file():
        return
    rows, trained = [], set()
    for row in read_table(path, ["step"], grows=True):
        names = {name.partition("/")[0] for name, value in row.items() if value} - {"epoch", "step"}
        with reading(path):
            step = int(row["step"])
        if not names <= {"val", "test"}:
            trained.add(step)
        # training logs a step before its validation does; any other validation comes before the step is trained
        if step < round or step not in trained or (round and names <= {"test"}):
            rows.append(row)
    if rows:
        replace_table(path, list(rows[0]), rows, lineterminator="\r\n")  # the line ends of Lightning's logger
    else:
        path.unlink()


def forget_from(folder: Path, round: int) -> None:
    """Drops the records of a round and all later ones, which a resumed run writes again."""
    _forget_metrics(folder / METRICS_FILE, round)
    ledger = read_json(folder / LEDGER_FILE, LEDGER)
    path = folder / ROUNDS_FILE
    records = [record for record in read_rounds(folder) if record["round"] < round]
    if records and records[-1]["round"] != round - 1:
        last = records[-1]["round"]
        raise DataError(f"{path}: has {last + 1} rounds, and the checkpoint {round}; {RESTORE}")
    if ledger.get("rounds", 0) > round:  # the run writes its ledger again when it ends
        replace_json(folder / LEDGER_FILE, {**ledger, "rounds": round})
    if records:
        replace_text(path, "".join(map(_line, records)))
    else:
        path.unlink(missing_ok=True)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def write_ledger(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes the costs of training into the ledger; keeps its key ``after_training``."""
    with changing(folder / ROUNDS_FILE):
        after_training = read_json(folder / LEDGER_FILE, LEDGER).get(_AFTER)
        replace_json(folder / LEDGER_FILE, {**summary, **({_AFTER: after_training} if after_training else {})})


def note_after_training(folder: Path, name: str, costs: Mapping[str, int]) -> None:
    """Adds the costs of the search or fine-tuning in a subfolder; does nothing for a run without a ledger."""
    with changing(folder / ROUNDS_FILE):  # two commands may end at once
        ledger = read_json(folder / LEDGER_FILE, LEDGER)
        if "total" in ledger:
            replace_json(folder / LEDGER_FILE, {**ledger, _AFTER: {**ledger.get(_AFTER, {}), name: costs}})


def write_client_scores(folder: Path, rows: Iterable[Mapping[str, Any]], last_columns: Sequence[str] = ()) -> None:
    """Writes ``clients.csv``, a row per client; ``last_columns`` follow the metrics."""
    rows = list(rows)
    metrics = [name for name in (rows[0] if rows else OF_CLASSES) if name not in (*CLIENT_SCORE_COLUMNS, *last_columns)]
    replace_table(folder / CLIENTS_FILE, (*CLIENT_SCORE_COLUMNS, *metrics, *last_columns), rows)


def version_of(folder: Path) -> int:
    """Returns the number of a run's version; -1 for a folder with another name."""
    number = folder.name.removeprefix("version_")
    return int(number) if number.isdecimal() and number != folder.name else -1


def read_models(folder: Path, name: str) -> dict[str, Any] | None:
    """Reads the models of a run that grows or prunes, by the file's name; ``None`` if the run has written none."""
    path = folder / name
    content = read_json(path, MODELS[name])
    numbers = [model["number"] for model in content.get("models", ())]
    with reading(path):
        if numbers != [*range(len(numbers))]:
            raise ValueError("models are not numbered from 0")
    if content and not content["models"]:
        raise DataError(f"{path}: holds no models; train the run again")
    return content or None


def suite_of(run: str, field: str) -> dict[str, Any]:
    """Reads the models that a run has grown."""
    suite = read_models(Path(run), SUITE_FILE)
    if suite is None:
        raise ConfigError(f"{field}: {run} holds no {SUITE_FILE}; name a run that grew its models")
    return suite


def step_words(steps: Iterable[Mapping[str, Any]]) -> str:
    """Returns the derivation of a model as a short text."""
    cells: dict[str, list[str]] = {}
    for step in steps:
        for kind in ("widen", "deepen"):
            if kind in step:
                cells.setdefault(kind, []).append(step[kind])
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in cells.items())


def directions_of(folder: Path) -> Directions:
    """Returns the metrics of a run, a search or a fine-tuning, from the files in its folder."""
    for name, form in (("settings.json", SETTINGS), (INPUTS_FILE, INPUTS)):
        if metrics := read_json(folder / name, form).get("metrics"):
            return dict(metrics)
    return OF_CLASSES


def choose_metric(metric: str | None, directions: Directions, field: str) -> tuple[str, bool]:
    """Returns the metric that ranks networks (by default the first), and whether higher is better."""
    metric = metric or next(iter(directions))
    choices = ", ".join(name for name, higher in directions.items() if higher is not None)
    if metric not in directions:
        raise ConfigError(f"{field}: {metric!r} is not measured here; choose from {choices}")
    higher = directions[metric]
    if higher is None:
        raise ConfigError(f"{field}: {metric!r} does not say whether higher is better; choose from {choices}")
    return metric, higher


def error(value: float, higher: bool) -> float:
    """Returns the value to minimise: the metric, or 1 minus the metric where higher is better."""
    return 1 - value if higher else value


def reaches(value: float, target: float, higher: bool = True) -> bool:
    """Returns whether a metric is at least (or, without ``higher``, at most) the target; NaN never is."""
    return value >= target - _TOLERANCE if higher else value <= target + _TOLERANCE
