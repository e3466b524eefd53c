"""The models of runs that grow a suite (FedTrans, section 4) or prune a network step by step (FedNAS, section 4).

Costs of pruned models are those of the short-term fine-tuning (section 5.3), averaged over all clients: the paper's
"avg uplink cost per client" falls with the number of groups (Table 4). Without such models, a section is empty.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.charts import Chart, Charts, line_chart
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.tables import COSTS, Bar, Cell, Table
from lit_fednas.formatting import cost_text, percent, short
from lit_fednas.records.run import SEQUENCE_FILE, SUITE_FILE, read_models, step_words

_SEQUENCE_NOTE = (
    "The deciding accuracy is that of the winner's group of clients, on their validation data; tests use the test data "
    "of all clients. Costs are averages per client since the first iteration; MACs are those of forward passes."
)
_GROWN = ["number", "parent", "round", "macs", "parameters", "bytes"]
_PRUNED = ["number", "round", "unit", "budget", "macs", "parameters", "bytes", "accuracy", "rounds"]


def suite(run: Run) -> list[Any]:
    """Shows the number of models and their table."""
    record = read_models(run.folder, SUITE_FILE)
    if record is None:
        return []
    models = record["models"]
    state = "no larger one will be added" if record.get("complete") else "training ended before the largest"
    text = f"{len(models)} {'models' if len(models) > 1 else 'model'}; {state}."
    return [text, suite_table(run, models)]


def _trained(run: Run) -> pd.DataFrame:
    """Returns the clients that trained models of the suite, with the ``numbers`` of these models."""
    numbers = run.clients["arch"].astype(str).str.extract(r"^model: (\d+(?:,\d+)*)$")[0]
    rows = run.clients[(run.clients["status"] == "ok") & numbers.notna()]
    return rows.assign(numbers=[tuple(map(int, text.split(","))) for text in numbers[rows.index]])


def suite_table(run: Run, models: Sequence[Mapping[str, Any]]) -> Table:
    """Lists the models of a suite: when each was added, and how many clients trained it how often."""
    trained = _trained(run).explode("numbers")
    clients = trained.groupby("numbers")["client"].agg(clients="nunique", trainings="size")
    table = pd.DataFrame(models)[_GROWN].astype({"parent": "Int64", "round": "Int64"})
    table = table.join(clients.reindex(table["number"], fill_value=0).reset_index(drop=True)).assign(
        derivation=[step_words(model["steps"]) or None for model in models],
        added=["start" if model["round"] is None else f"after {model['round'] + 1} rounds" for model in models],
        convergence=[model.get("degree_of_convergence") for model in models],
        cells=[str(model.get("cells", "")) for model in models],
    )
    titles = {"number": "model", "parent": "from"}
    names = ["model", "from", "added", *COSTS, "clients", "trainings", "convergence", "derivation", "cells"]
    return Table.of(table.rename(columns=titles), names, num_texts=3)


def sequence(run: Run) -> list[Any]:
    """Shows the models, the accuracies of candidates, and the remaining units of each layer."""
    record = read_models(run.folder, SEQUENCE_FILE)
    if record is None:
        return []
    table = sequence_table(record)
    iterations = [model for model in record["models"] if model["number"]]
    ends = {model["number"]: model for model in (*iterations[:1], *iterations[-1:])}
    charts = [_candidates(model, list(record["units"])) for model in ends.values()]
    blocks = [_summary(record, table), _sequence_table(run, record, table), _SEQUENCE_NOTE]
    return [*blocks, *([Charts(charts)] if charts else []), _layers(record)]


def sequence_table(record: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the models of a pruned sequence; costs are cumulative, without the initial model's."""
    models = pd.DataFrame(record["models"])
    spent = _client_costs(record)
    spent.iloc[0] = 0.0
    spent = spent.cumsum()
    table = models[_PRUNED].assign(
        share=models["resource"] / record["initial"],
        **{record["resource"]: models["resource"]},
        candidates=models["candidates"].map(len),
        macs_of_a_client=spent["macs"],
        bytes_up=spent["bytes_up"],
        bytes_down=spent["bytes_down"],
    )
    return table.astype({"round": "Int64", "budget": float, "accuracy": float})


def _client_costs(record: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the mean costs of a client in each iteration; the first row is the initial model's."""
    return pd.DataFrame([model["costs"] for model in record["models"]]) / record["clients"]


def _sequence_table(run: Run, record: Mapping[str, Any], table: pd.DataFrame) -> Table:
    """Lists the models, with a column of the resource unless it is one of the costs."""
    tested = run.finetuned(table="models")
    numbers = tested["arch"].astype(str).str.extract(r"^model: (\d+)$", expand=False).astype(float)
    table = table.merge(
        tested[["accuracy_before", "accuracy"]].assign(number=numbers), "left", "number", suffixes=("", "_after")
    )
    spent = ["macs_of_a_client", "bytes_up", "bytes_down"]
    table[spent] = table[spent].where(table["number"] > 0)
    table["round"] += 1  # records count rounds from 0
    table["share"] = table["share"].map(percent)
    titles = {"number": "model", "round": "selected after", "accuracy": "deciding_accuracy"}
    titles |= {"accuracy_before": "test_accuracy_before", "accuracy_after": "test_accuracy"}
    tests = ["test_accuracy_before", "test_accuracy"] if len(tested) else []
    costs = dict.fromkeys([record["resource"], *COSTS])
    names = ["model", "unit", "selected after", "budget", "share", *costs, "deciding_accuracy", *tests]
    return Table.of(table.rename(columns=titles), [*names, "rounds", "candidates", *spent], num_texts=2)


def _summary(record: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Returns the progress of the run and the costs of its initial model."""
    number, under_way = len(table) - 1, record.get("under_way")
    state = f"iteration {under_way['number']} is under way" if under_way else "training ended before the last"
    state = "complete" if record.get("complete") else state
    resource = "MACs" if record["resource"] == "macs" else record["resource"]
    share = f"{percent(table['share'].iloc[-1])} of the initial network's {resource}"
    text = f"{number} {'iterations' if number != 1 else 'iteration'}, down to {share}; {state}."
    macs, up, down = _client_costs(record).iloc[0][["macs", "bytes_up", "bytes_down"]]
    if not (macs or up or down):
        return text
    sent = f"{cost_text('bytes', up)} up and {cost_text('bytes', down)} down"
    return f"{text} The initial model took {short(macs)} MACs, {sent} per client."


def _candidates(model: Mapping[str, Any], units: Sequence[str]) -> Chart:
    """Draws the candidates' accuracies in an iteration, the selected one first."""
    selected_first = sorted(model["candidates"], key=lambda candidate: bool(candidate["unit"] != model["unit"]))
    lines = {
        candidate["unit"]: pd.Series(candidate["accuracies"], dtype=float).rename(lambda index: index + 1.0)
        for candidate in selected_first
    }
    title = f"Candidates of iteration {model['number']}: {model['unit']} is selected"
    return line_chart(title, lines, "round of the iteration", "accuracy", names=units)


def kept_units(record: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the number of units in every layer of every model (FedNAS, Fig. 5)."""
    names = {group: unit if len(groups) == 1 else group for unit, groups in record["units"].items() for group in groups}
    sizes = pd.DataFrame({model["number"]: model["sizes"] for model in record["models"]})
    return sizes.loc[list(names)].rename(index=names)


def _layers(record: Mapping[str, Any]) -> Table:
    """Lists the remaining units of every layer, with bars of their share."""
    units = kept_units(record)
    rows: list[list[Cell]] = []
    for number in units.columns:
        pairs = [(int(size), int(full)) for size, full in zip(units[number], units[0], strict=True)]
        bars = [Bar(size / full, str(size), f"{size} of {full} ({percent(size / full)})") for size, full in pairs]
        rows.append([str(number), *bars])
    return Table(["model", *map(str, units.index)], rows, title="Filters by layer")
