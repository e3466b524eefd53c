"""One tidy table of networks: subnets, exits, and models that grew, were pruned or were fine-tuned."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import pandas as pd

from lit_fednas.analysis.runs import SPENT, Run, SearchResult, read_search
from lit_fednas.config_files import find, read_yaml
from lit_fednas.errors import DataError
from lit_fednas.records import ALL_TIERS, COST_NAMES, FinetuneFiles, SearchFiles
from lit_fednas.records.files import reading
from lit_fednas.records.run import CLIENTS_FILE, ROUNDS_FILE, SEQUENCE_FILE, SUITE_FILE, read_models

#: Columns of a network: the architecture, the metric on the server's data (``val`` and ``test``, NaN if not evaluated),
#: the costs, and the training until it had its weights.
COLUMNS = ("arch", "val", "test", *COST_NAMES, *SPENT)
#: Columns of a network's origin.
ORIGIN = ("method", "result", "seed")


@dataclass(frozen=True)
class Result:
    """The result of a method with one seed: a run, or only one of its searches or fine-tunings."""

    run: Run
    part: str | None = None  # the search's or fine-tuning's folder; None for all networks with the run's weights

    @property
    def folder(self) -> Path:
        """The folder of the run, or of its part."""
        return self.run.folder / (self.part or "")

    @property
    def name(self) -> str:
        """The last names of the folder's path."""
        return self.run.name if self.part is None else f"{self.run.name}/{self.part}"

    @property
    def trained_alone(self) -> bool:
        """True if its networks were trained from random weights instead of the run's."""
        return self.part in self.run.finetunings and FinetuneFiles(self.folder).settings().get("initial") == "random"

    @property
    def seed(self) -> int | None:
        """The run's seed, if it has a configuration."""
        return self.run.settings.get("seed_everything")

    @cached_property
    def searches(self) -> list[SearchResult]:
        """The searches of the run, those of the latest weights first; or the search that is the part."""
        names = [name for name in self.run.searches if self.part in (None, name)]
        searches = [read_search(self.run.folder / name) for name in names]
        return sorted(searches, key=lambda search: -(self.run.rounds_of(search.weights) or 0))

    @property
    def clients_folder(self) -> Path | None:
        """The folder with ``clients.csv``: the run's own (``deployed_accuracy``), otherwise that of a search."""
        folders = [self.run.folder / search.name for search in self.searches]
        # with fewer rounds in the ledger, a resumed run was stopped before it wrote its scores
        if self.part or (self.run.ledger or {}).get("rounds", len(self.run.rounds)) == len(self.run.rounds):
            folders.insert(0, self.folder)
        return next((folder for folder in folders if (folder / CLIENTS_FILE).exists()), None)


#: Results with different seeds, by method.
Methods: TypeAlias = Mapping[str, Sequence[Result]]
#: The limits of each tier, by the names of costs; a tier without limits holds every network.
Tiers: TypeAlias = Mapping[str, Mapping[str, float]]
_MEMORY = "memory_bytes"  # the sum of two costs: bytes and activation_bytes
_LIMITS = (*COST_NAMES, _MEMORY)
_NESTED = ("search", "tiers", "init_args", "budgets")


def read_methods(words: Sequence[str]) -> dict[str, list[Result]]:
    """Returns the results of methods by label, from the arguments of ``lit-fednas compare``."""
    methods: dict[str, list[Result]] = {}
    for word in words:
        label, equals, patterns = word.rpartition("=")
        results = [result for pattern in patterns.split(",") for result in _results(pattern)]
        if equals and not label:
            raise DataError(f"{word}: has no label before '='; write label=pattern")
        if label in methods:
            raise DataError(f"{word}: {label} is duplicated; join its folders by commas")
        for result in results:
            methods.setdefault(label or result.run.folder.resolve().parent.name, []).append(result)
    return methods_of(methods)


def methods_of(folders: Mapping[str, Iterable[Result | Run | Path | str]]) -> dict[str, list[Result]]:
    """Returns methods from results, runs or folders by label, without duplicates; refuses two results of one seed."""
    methods: dict[str, list[Result]] = {}
    for label, sources in folders.items():
        runs = [Result(source) if isinstance(source, Run) else source for source in sources]
        results = [source if isinstance(source, Result) else _results(str(source))[0] for source in runs]
        methods[label] = list({result.folder.resolve(): result for result in results}.values())
        _check_seeds(label, methods[label])
    return methods


def _results(pattern: str) -> list[Result]:
    """Returns the results that match a pattern, and those of the runs in matching folders."""
    results: list[Result] = []
    for folder in map(Path, sorted(glob(os.path.expanduser(pattern)))):
        if (folder / ROUNDS_FILE).exists():
            results.append(Result(Run(folder)))
        elif SearchFiles(folder).exists() and (folder.parent / ROUNDS_FILE).exists():
            results.append(Result(Run(folder.parent), folder.name))
        else:
            runs = [*folder.glob(f"*/{ROUNDS_FILE}")] or [*folder.glob(f"*/*/{ROUNDS_FILE}")]  # the latter in a study
            results += [Result(Run(path.parent)) for path in sorted(runs)]
    if not results:
        raise DataError(f"{pattern}: matches no run; give folders of runs (with {ROUNDS_FILE}), or their parents")
    return results


def _check_seeds(label: str, results: Sequence[Result]) -> None:
    """Validates that seeds differ, because a run that was stopped and started again would count twice."""
    seeds: dict[tuple[int, str | None], Result] = {}  # searches of the same run are independent results
    for result in results:
        if result.seed is None or (first := seeds.setdefault((result.seed, result.part), result)) is result:
            continue
        if not result.run.copies(first.run):  # copies are excluded from the comparison
            raise DataError(f"{label}: {first.folder} and {result.folder} have the same seed {result.seed}; give one")


def comparable(methods: Methods) -> tuple[dict[str, list[Result]], list[str]]:
    """Returns the results with the task of the first, without copies, and a line for each exclusion."""
    included: dict[str, list[Result]] = {}
    exclusions: list[str] = []
    first = next((result.run for results in methods.values() for result in results if result.run.task), None)
    for method, results in methods.items():
        for result in results:
            run, siblings = result.run, included.setdefault(method, [])
            originals = [other.folder for other in siblings if other.part == result.part and run.copies(other.run)]
            if first is not None and run.task not in ("", first.task):
                task, first_task = (shorten(text, 60, placeholder=" ...") for text in (run.task, first.task))
                exclusions.append(f"{method}: {run.folder} measures {task}, and {first.folder} {first_task}")
            elif originals:
                exclusions.append(f"{method}: {result.folder} is a copy of {originals[0]}")
            else:
                siblings.append(result)
                for search in result.searches:
                    if run.rounds_of(search.weights) is None:
                        exclusions.append(
                            f"{method}: {run.folder / search.name} belongs to weights that the run no longer has"
                        )
    return {method: results for method, results in included.items() if results}, exclusions


def read_tiers(path: Path | str) -> dict[str, dict[str, float]]:
    """Reads the limits of tiers from a YAML file, also from the file of a study or a search."""
    return checked_tiers(read_yaml(find(path)), str(path))


def checked_tiers(content: Any, where: str) -> dict[str, dict[str, float]]:
    """Returns the limits of each tier, from a configuration that may contain them at a deeper level."""
    for name in _NESTED:
        if isinstance(content, dict) and name in content:
            content = content[name]
    form = "write {small: {macs: 0.8e+6}, large: {macs: 2.5e+6}}"
    if not isinstance(content, dict) or not content:
        raise DataError(f"tiers: {where} holds no limits; {form}")
    tiers: dict[str, dict[str, float]] = {}
    for tier, limits in content.items():
        if not isinstance(limits, dict):
            raise DataError(f"tiers: {where}: {tier}: {limits} is not a mapping of limits; {form}")
        tiers[str(tier)] = {name: _limit(f"{where}: {tier}.{name}", name, value) for name, value in limits.items()}
    return tiers


def _limit(where: str, name: str, value: Any) -> float:
    if name not in _LIMITS:
        raise DataError(f"tiers: {where}: is not a known cost; choose from {', '.join(_LIMITS)}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not number > 0:
        raise DataError(f"tiers: {where}: {value} is not a number above 0; correct it")
    return number


def tiers_of(methods: Methods) -> dict[str, dict[str, float]]:
    """Returns the tiers of all searches and fine-tunings; one without limits if there are none, or two differ."""
    tiers: dict[str, dict[str, float]] = {}
    for results in methods.values():
        for result in results:
            for name in result.run.searches if result.part is None else [result.part]:
                for tier in SearchFiles(result.run.folder / name).settings().get("tiers", []):
                    if tiers.setdefault(str(tier["name"]), tier["at_most"]) != tier["at_most"]:
                        return {ALL_TIERS: {}}
    return tiers or {ALL_TIERS: {}}


def within(networks: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Returns the networks with recorded costs within the limits."""
    costs = networks.assign(**{_MEMORY: networks["bytes"] + networks["activation_bytes"]})
    if unknown := [name for name in limits if name not in costs]:
        names = ", ".join(_LIMITS)
        raise DataError(f"tiers: {unknown[0]} is not recorded of networks; give limits (--tiers FILE) on {names}")
    return networks[(costs[list(limits)] <= pd.Series(limits, dtype=float)).all(axis=1)]


def networks_of(methods: Methods, metric: str | None = None, each_round: bool = False) -> pd.DataFrame:
    """Returns :data:`ORIGIN` and :data:`COLUMNS` of the networks at the end, or at each validation."""
    runs = [result.run for results in methods.values() for result in results]
    metric = metric or runs[0].metric
    networks_at = history if each_round else networks
    tables = [
        networks_at(result, metric).assign(method=method, result=result.name, seed=result.seed)
        for method, results in methods.items()
        for result in results
    ]
    table = pd.concat(tables, ignore_index=True)[[*ORIGIN, *COLUMNS]]
    table.attrs.update(metric=metric, higher=runs[0].metrics[metric] is not False)
    return table


def networks(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns :data:`COLUMNS` of the networks at the end of a result: a row per evaluated or searched network."""
    run, part = result.run, result.part
    metric = _metric(run, metric)
    if part in run.finetunings:
        rows, start = run.finetuned(part, "candidates"), _start_of(run, part)
        spent = (rows["rounds"], rows["macs"], rows["bytes_down"] + rows["bytes_up"])  # summed over all networks
        total = {name: start[name] + costs.sum() for name, costs in zip(SPENT, spent, strict=True)}
        costs = rows.drop(columns="macs").rename(columns={"macs_per_example": "macs"})  # drops the MACs of training
        table = _stacked([costs.assign(val=rows[f"val_{metric}"], test=rows[f"test_{metric}"], **total)])
    else:
        table = networks_of_weights(result, metric)
    if table.empty:
        raise DataError(f"{result.folder}: has evaluated no network; let the run end, or search it")
    return table


def networks_of_weights(result: Result, metric: str) -> pd.DataFrame:
    """Returns :data:`COLUMNS` of the networks that a run or its searches evaluated with its weights; may be empty."""
    run, part = result.run, result.part
    # a search on clients' data counts only as a result of its own, because its validation data differ
    tables = [_searched(search, metric) for search in result.searches if part or search.on_servers_data]
    tables += [] if part else [_evaluated(run, metric)]
    # of several rows of a network the first counts: tested ones, then a search's, then the last validation's
    table = pd.concat([table for table in tables if len(table)] or [pd.DataFrame(columns=["arch", "test", "weights"])])
    table = table.fillna({"weights": ""}).iloc[table["test"].isna().argsort(kind="stable")]
    table = table.groupby(["arch", "weights"], sort=False, as_index=False).first()
    trained = {weights: run.spent_by(weights) for weights in set(table["weights"])}
    selected, keys = _spent_until_selected(run), zip(table["arch"], table["weights"], strict=True)
    spent = [selected.get(arch) or trained[weights] for arch, weights in keys]
    table = table.assign(**{name: [cost and cost[name] for cost in spent] for name in SPENT})
    return _stacked([table[[cost is not None for cost in spent]]])


def history(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns :data:`COLUMNS` of a run's or a fine-tuning's networks at each validation; ``test`` is NaN."""
    run, metric = result.run, _metric(result.run, metric)
    if result.part in run.finetunings:
        return _tuning(run, str(result.part), metric)
    if result.part is not None:
        raise DataError(f"{result.folder}: has no validations round by round; give the run's folder")
    if not validated(result, metric):
        raise DataError(f"{run.folder}: has logged no {metric} of networks in subnets-val.csv; let the run end")
    parts = [
        run.spent.join(run.logged(f"val/{name}/{metric}").rename("val"), how="inner").assign(**costs)
        for name, costs in _named_networks(run)
    ]
    return _stacked(parts).sort_values("rounds", kind="stable").reset_index(drop=True)


def validated(result: Result, metric: str) -> bool:
    """Returns whether training has validated the metric of any network with known costs."""
    return result.part in result.run.finetunings or any(
        len(result.run.logged(f"val/{name}/{metric}")) for name, _ in _named_networks(result.run)
    )


def _metric(run: Run, metric: str | None) -> str:
    if metric is not None and metric not in run.metrics:
        raise DataError(f"{run.folder}: has no {metric}; choose from {', '.join(run.metrics)}")
    return metric or run.metric


def _start_of(run: Run, name: str) -> dict[str, float]:
    """Returns the training of the weights with which a fine-tuning began."""
    settings = FinetuneFiles(run.folder / name).settings()
    if settings.get("initial") != "supernet":
        return dict.fromkeys(SPENT, 0.0)
    return run.spent_by(settings.get("weights")) or dict.fromkeys(SPENT, float("nan"))


def _spent_until_selected(run: Run) -> dict[str, dict[Any, float]]:
    """Returns the training until each model of a pruned sequence had its weights, by architecture."""
    sequence = read_models(run.folder, SEQUENCE_FILE)
    if sequence is None:
        return {}
    initial, *pruned = sequence["models"]
    zero = dict.fromkeys(SPENT, 0.0)
    with reading(run.folder / SEQUENCE_FILE):
        ends = {model["number"]: model["round"] for model in pruned}
        if pruned:  # the initial model was trained before the first iteration, possibly in another run
            ends[initial["number"]] = pruned[0]["first_round"] - 1
        return {f"model: {number}": dict(run.spent.loc[end]) if end >= 0 else zero for number, end in ends.items()}


def _searched(search: SearchResult, metric: str) -> pd.DataFrame:
    """Returns the networks that a search evaluated; only the tiers' networks have a test metric."""
    best = search.tiers.drop_duplicates("arch").set_index("arch")
    tested = best.get(f"test_{metric}", pd.Series(dtype=float))
    figures = {"val": search.evaluations[metric], "test": search.evaluations["arch"].map(tested)}
    return search.evaluations.assign(**figures, weights=search.weights)


def _evaluated(run: Run, metric: str) -> pd.DataFrame:
    """Returns the subnets that a run evaluated at its end, and those of ``lit-fednas test``."""
    keys = ["arch", "weights"]  # a validation and a test may use the weights of different rounds
    tables = (run.subnets(split).fillna({"weights": ""}).drop_duplicates(keys) for split in ("val", "test"))
    val, test = (table.set_index(keys) for table in tables)
    table = val.combine_first(test).assign(val=val[metric], test=test[metric])
    return table.rename_axis(keys).reset_index()


def _tuning(run: Run, name: str, metric: str) -> pd.DataFrame:
    """Returns a fine-tuning's networks at every validation of one, as if all were trained side by side."""
    final, start = networks(Result(run, name), metric).assign(test=float("nan")), _start_of(run, name)
    curves = {}
    for number, row in run.finetuned(name, "candidates").iterrows():
        logged = Run(run.folder / name / "runs" / f"{row['tier']}-{row['number']}").logged_alone(metric)
        curves[number] = pd.Series({**logged.set_axis((logged.index + 1) / row["rounds"]), 1.0: row[f"val_{metric}"]})
    moments = pd.DataFrame(curves).sort_index().ffill()  # indexed by the share of finished rounds
    parts = [
        final.assign(val=values, **{unit: start[unit] + share * (final[unit] - start[unit]) for unit in SPENT})
        for share, values in moments.iterrows()
    ]
    return _stacked(parts).dropna(subset="val").reset_index(drop=True)


def _named_networks(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the logged names of networks, with their architectures and costs."""
    table = pd.concat([run.subnets("val"), run.subnets("test")]).drop_duplicates("subnet")
    names = ["arch", *(name for name in COST_NAMES if name in table)]
    rows = {row["subnet"]: {name: row[name] for name in names} for row in table.to_dict("records")}
    for record in (read_models(run.folder, SUITE_FILE), read_models(run.folder, SEQUENCE_FILE)):
        for model in () if record is None else record["models"]:
            costs = {name: model[name] for name in COST_NAMES if name in model}
            rows.setdefault(f"model{model['number']}", {"arch": f"model: {model['number']}", **costs})
    yield from rows.items()


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenates tables with :data:`COLUMNS`; NaN where a table lacks a column."""
    table = pd.concat([table.reindex(columns=list(COLUMNS)) for table in tables if len(table)] or [pd.DataFrame()])
    table = table.reindex(columns=list(COLUMNS)).reset_index(drop=True)
    return table.astype(dict.fromkeys(set(COLUMNS) - {"arch"}, float))
