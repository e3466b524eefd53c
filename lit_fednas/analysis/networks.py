"""One tidy table of networks: by which method, from which run, how good, at which cost, and after how much training.

A method's networks are whatever it makes: subnets, exits, models that grew, were pruned or fine-tuned.
"""

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

#: Of a network: ``val`` and ``test`` are the metric on the server's data, NaN where it was not evaluated; then its
#: costs, and what training had taken until it had its weights.
COLUMNS = ("arch", "val", "test", *COST_NAMES, *SPENT)
#: Whose it is.
WHOSE = ("method", "result", "seed")


@dataclass(frozen=True)
class Result:
    """What a method gave with one seed: a run, or one search or fine-tuning of it alone."""

    run: Run
    part: str | None = None  # the folder of the search or fine-tuning; None for all that has the run's own weights

    @property
    def folder(self) -> Path:
        """Of the run, or of its part."""
        return self.run.folder / (self.part or "")

    @property
    def name(self) -> str:
        """The folder's last names."""
        return self.run.name if self.part is None else f"{self.run.name}/{self.part}"

    @property
    def trained_alone(self) -> bool:
        """Whether its networks were trained without the run's weights: a fine-tuning from random ones."""
        return self.part in self.run.finetunings and FinetuneFiles(self.folder).settings().get("initial") == "random"

    @property
    def seed(self) -> int | None:
        """The run's seed, if it has a configuration."""
        return self.run.settings.get("seed_everything")

    @cached_property
    def searches(self) -> list[SearchResult]:
        """The searches that count: all of the run, of the latest weights first, or the result itself."""
        names = [name for name in self.run.searches if self.part in (None, name)]
        searches = [read_search(self.run.folder / name) for name in names]
        return sorted(searches, key=lambda search: -(self.run.rounds_of(search.weights) or 0))

    @property
    def clients_folder(self) -> Path | None:
        """Where ``clients.csv`` is: of the run itself (``deployed_accuracy``), or else of its search."""
        places = [self.run.folder / search.name for search in self.searches]
        counted_rounds = (self.run.ledger or {}).get("rounds", len(self.run.rounds))
        if self.part or counted_rounds == len(self.run.rounds):  # else a resume was stopped before it wrote its scores
            places.insert(0, self.folder)
        return next((place for place in places if (place / CLIENTS_FILE).exists()), None)


#: Results that differ in their seeds, by method.
Methods: TypeAlias = Mapping[str, Sequence[Result]]
#: What each tier affords, by the names of costs; a tier without limits holds every network.
Tiers: TypeAlias = Mapping[str, Mapping[str, float]]
_MEMORY = "memory_bytes"  # a limit on the sum of two costs
_LIMITS = (*COST_NAMES, _MEMORY)
_NESTED = ("search", "tiers", "init_args", "budgets")


def read_methods(words: Sequence[str]) -> dict[str, list[Result]]:
    """Returns the results of methods by label, given as ``lit-fednas compare`` is given them."""
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
    """Returns methods from results, runs or folders by label, each once; two of one seed are refused."""
    methods: dict[str, list[Result]] = {}
    for label, given in folders.items():
        runs = [Result(each) if isinstance(each, Run) else each for each in given]
        results = [each if isinstance(each, Result) else _results(str(each))[0] for each in runs]
        methods[label] = list({result.folder.resolve(): result for result in results}.values())
        _check_seeds(label, methods[label])
    return methods


def _results(pattern: str) -> list[Result]:
    """Returns the results that a pattern names, and those of the runs in the folders that it names."""
    results: list[Result] = []
    for folder in map(Path, sorted(glob(os.path.expanduser(pattern)))):
        if (folder / ROUNDS_FILE).exists():
            results.append(Result(Run(folder)))
        elif SearchFiles(folder).exists() and (folder.parent / ROUNDS_FILE).exists():
            results.append(Result(Run(folder.parent), folder.name))
        else:
            runs = [*folder.glob(f"*/{ROUNDS_FILE}")] or [*folder.glob(f"*/*/{ROUNDS_FILE}")]  # the second of a study
            results += [Result(Run(path.parent)) for path in sorted(runs)]
    if not results:
        raise DataError(f"{pattern}: finds no run; give folders that hold {ROUNDS_FILE}, or folders of such")
    return results


def _check_seeds(label: str, results: Sequence[Result]) -> None:
    """Validates that seeds differ: a run that was stopped and started again would count twice."""
    seeds: dict[tuple[int, str | None], Result] = {}  # a run's searches may differ in seeds of their own
    for result in results:
        if result.seed is None or (first := seeds.setdefault((result.seed, result.part), result)) is result:
            continue
        if not result.run.copies(first.run):  # which are left out
            raise DataError(f"{label}: {first.folder} and {result.folder} have the same seed {result.seed}; give one")


def comparable(methods: Methods) -> tuple[dict[str, list[Result]], list[str]]:
    """Returns the results that measure what the first does, each run once, and a line for each that is left out."""
    kept: dict[str, list[Result]] = {}
    left_out: list[str] = []
    first = next((result.run for results in methods.values() for result in results if result.run.measured), None)
    for method, results in methods.items():
        for result in results:
            run, others = result.run, kept.setdefault(method, [])
            same = [other.folder for other in others if other.part == result.part and run.copies(other.run)]
            if first is not None and run.measured not in ("", first.measured):
                short = (shorten(each.measured, 60, placeholder=" ...") for each in (run, first))
                left_out.append(f"{method}: {run.folder} measures {next(short)}, and {first.folder} {next(short)}")
            elif same:
                left_out.append(f"{method}: {result.folder} is a copy of {same[0]}")
            else:
                others.append(result)
                for search in result.searches:
                    if run.rounds_of(search.weights) is None:
                        folder = run.folder / search.name
                        left_out.append(f"{method}: {folder} is of weights that the run no longer has")
    return {method: results for method, results in kept.items() if results}, left_out


def read_tiers(path: Path | str) -> dict[str, dict[str, float]]:
    """Reads tiers from a YAML file: budgets by name, alone or as in the file of a study or a search."""
    return checked_tiers(read_yaml(find(path)), str(path))


def checked_tiers(content: Any, where: str) -> dict[str, dict[str, float]]:
    """Returns budgets by tier, out of what a configuration holds around them."""
    for name in _NESTED:
        if isinstance(content, dict) and name in content:
            content = content[name]
    form = "write {small: {macs: 0.8e+6}, large: {macs: 2.5e+6}}"
    if not isinstance(content, dict) or not content:
        raise DataError(f"tiers: {where} holds no budgets; {form}")
    tiers: dict[str, dict[str, float]] = {}
    for tier, limits in content.items():
        if not isinstance(limits, dict):
            raise DataError(f"tiers: {where}: {tier}: {limits} is not a budget; {form}")
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
    """Returns the tiers of all searches and fine-tunings, or one without limits if none has any or two differ."""
    found: dict[str, dict[str, float]] = {}
    for results in methods.values():
        for result in results:
            for name in result.run.searches if result.part is None else [result.part]:
                for tier in SearchFiles(result.run.folder / name).settings().get("tiers", []):
                    if found.setdefault(str(tier["name"]), tier["at_most"]) != tier["at_most"]:
                        return {ALL_TIERS: {}}
    return found or {ALL_TIERS: {}}


def within(networks: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Returns the networks whose costs are known and at most the limits."""
    costs = networks.assign(**{_MEMORY: networks["bytes"] + networks["activation_bytes"]})
    if unknown := [name for name in limits if name not in costs]:
        known = ", ".join(_LIMITS)
        raise DataError(f"tiers: {unknown[0]} is not recorded of networks; give limits (--tiers FILE) on {known}")
    return networks[(costs[list(limits)] <= pd.Series(limits, dtype=float)).all(axis=1)]


def networks_of(methods: Methods, metric: str | None = None, each_round: bool = False) -> pd.DataFrame:
    """Returns the networks at the end, or at each validation: :data:`WHOSE`, :data:`COLUMNS`, ``attrs`` by metric."""
    runs = [result.run for results in methods.values() for result in results]
    metric = metric or runs[0].metric
    read = history if each_round else networks
    tables = [
        read(result, metric).assign(method=method, result=result.name, seed=result.seed)
        for method, results in methods.items()
        for result in results
    ]
    table = pd.concat(tables, ignore_index=True)[[*WHOSE, *COLUMNS]]
    table.attrs.update(metric=metric, higher=runs[0].metrics[metric] is not False)
    return table


def networks(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns the networks that a result ended with: :data:`COLUMNS`, a row per evaluated or searched network."""
    run, part = result.run, result.part
    metric = _metric(run, metric)
    if part in run.finetunings:
        found, begun = run.finetuned(part, "candidates"), _begun(run, part)
        taken = (found["rounds"], found["macs"], found["bytes_down"] + found["bytes_up"])  # by all of its networks
        total = {name: begun[name] + costs.sum() for name, costs in zip(SPENT, taken, strict=True)}
        costs = found.drop(columns="macs").rename(columns={"macs_per_example": "macs"})  # not those of its training
        table = _stacked([costs.assign(val=found[f"val_{metric}"], test=found[f"test_{metric}"], **total)])
    else:
        table = networks_of_weights(result, metric)
    if table.empty:
        raise DataError(f"{result.folder}: has evaluated no network; let the run end, or search it")
    return table


def networks_of_weights(result: Result, metric: str) -> pd.DataFrame:
    """Returns :data:`COLUMNS` of the networks with a run's weights that it or its searches evaluated; may be empty."""
    run, part = result.run, result.part
    # searches on one client's data, or by the clients' scores, count only alone: their validation data are others
    tables = [_searched(search, metric) for search in result.searches if part or search.on_servers_data]
    tables += [] if part else [_evaluated(run, metric)]
    # a network that was tested before one that was not, a search's figures before those of the last validation
    table = pd.concat([table for table in tables if len(table)] or [pd.DataFrame(columns=["arch", "test", "weights"])])
    table = table.fillna({"weights": ""}).iloc[table["test"].isna().argsort(kind="stable")]
    table = table.groupby(["arch", "weights"], sort=False, as_index=False).first()
    trained = {weights: run.spent_by(weights) for weights in set(table["weights"])}
    selected, keys = _spent_until_selected(run), zip(table["arch"], table["weights"], strict=True)
    spent = [selected.get(arch) or trained[weights] for arch, weights in keys]
    table = table.assign(**{name: [cost and cost[name] for cost in spent] for name in SPENT})
    return _stacked([table[[cost is not None for cost in spent]]])


def history(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns the networks of a run or a fine-tuning at each validation: :data:`COLUMNS`, ``test`` is NaN."""
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


def _begun(run: Run, name: str) -> dict[str, float]:
    """Returns what the weights had taken that a fine-tuning began with."""
    settings = FinetuneFiles(run.folder / name).settings()
    if settings.get("initial") != "supernet":
        return dict.fromkeys(SPENT, 0.0)
    return run.spent_by(settings.get("weights")) or dict.fromkeys(SPENT, float("nan"))


def _spent_until_selected(run: Run) -> dict[str, dict[Any, float]]:
    """Returns what had been spent when each model of a pruned sequence had its weights, by architecture."""
    sequence = read_models(run.folder, SEQUENCE_FILE)
    if sequence is None:
        return {}
    initial, *others = sequence["models"]
    nothing = dict.fromkeys(SPENT, 0.0)
    with reading(run.folder / SEQUENCE_FILE):
        ends = {model["number"]: model["round"] for model in others}
        if others:  # the initial one was trained before the first iteration, if in this run
            ends[initial["number"]] = others[0]["first_round"] - 1
        return {f"model: {number}": dict(run.spent.loc[end]) if end >= 0 else nothing for number, end in ends.items()}


def _searched(search: SearchResult, metric: str) -> pd.DataFrame:
    """Returns the networks that a search evaluated; those of the tiers were tested."""
    best = search.tiers.drop_duplicates("arch").set_index("arch")
    tested = best.get(f"test_{metric}", pd.Series(dtype=float))
    figures = {"val": search.evaluations[metric], "test": search.evaluations["arch"].map(tested)}
    return search.evaluations.assign(**figures, weights=search.weights)


def _evaluated(run: Run, metric: str) -> pd.DataFrame:
    """Returns the subnets that a run evaluated in the end, and those of ``lit-fednas test``."""
    keys = ["arch", "weights"]  # a validation and a test may be of the weights of different rounds
    tables = (run.subnets(split).fillna({"weights": ""}).drop_duplicates(keys) for split in ("val", "test"))
    val, test = (table.set_index(keys) for table in tables)
    table = val.combine_first(test).assign(val=val[metric], test=test[metric])
    return table.rename_axis(keys).reset_index()


def _tuning(run: Run, name: str, metric: str) -> pd.DataFrame:
    """Returns a fine-tuning's networks whenever one was validated, as if all were trained side by side."""
    ended, begun = networks(Result(run, name), metric).assign(test=float("nan")), _begun(run, name)
    curves = {}
    for place, row in run.finetuned(name, "candidates").iterrows():
        known = Run(run.folder / name / "runs" / f"{row['tier']}-{row['number']}").logged_alone(metric)
        curves[place] = pd.Series({**known.set_axis((known.index + 1) / row["rounds"]), 1.0: row[f"val_{metric}"]})
    moments = pd.DataFrame(curves).sort_index().ffill()  # by the share of the rounds
    parts = [
        ended.assign(val=values, **{unit: begun[unit] + share * (ended[unit] - begun[unit]) for unit in SPENT})
        for share, values in moments.iterrows()
    ]
    return _stacked(parts).dropna(subset="val").reset_index(drop=True)


def _named_networks(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the names by which networks are logged, with their architectures and costs."""
    table = pd.concat([run.subnets("val"), run.subnets("test")]).drop_duplicates("subnet")
    names = ["arch", *(name for name in COST_NAMES if name in table)]
    named = {row["subnet"]: {name: row[name] for name in names} for row in table.to_dict("records")}
    for added in (read_models(run.folder, SUITE_FILE), read_models(run.folder, SEQUENCE_FILE)):
        for model in () if added is None else added["models"]:
            costs = {name: model[name] for name in COST_NAMES if name in model}
            named.setdefault(f"model{model['number']}", {"arch": f"model: {model['number']}", **costs})
    yield from named.items()


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Returns tables below each other, with :data:`COLUMNS`, NaN where one has none."""
    table = pd.concat([table.reindex(columns=list(COLUMNS)) for table in tables if len(table)] or [pd.DataFrame()])
    table = table.reindex(columns=list(COLUMNS)).reset_index(drop=True)
    return table.astype(dict.fromkeys(set(COLUMNS) - {"arch"}, float))
