"""The folders of a finished run and its searches as tables; missing records are empty or ``None``."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lit_fednas.config_files import read_yaml
from lit_fednas.errors import DataError
from lit_fednas.records import COST_NAMES, FinetuneFiles, SearchFiles, TierModel, read_rounds
from lit_fednas.records.files import RESTORE, read_json, read_table, reading
from lit_fednas.records.forms import INPUTS, LEDGER, RUN_SETTINGS, check_form
from lit_fednas.records.run import (
    INPUTS_FILE,
    LEDGER_FILE,
    ROUNDS_FILE,
    Directions,
    directions_of,
    rounds_of,
    version_of,
)

#: The training until a round: the number of rounds, the MACs of all clients' forward passes, the bytes both ways.
SPENT = ("rounds", "spent_macs", "spent_bytes")
_CLIENT_COLUMNS = (
    *("round", "client", "arch", "status", "reason", "num_examples", "num_seen", "num_units", "num_steps", "loss"),
    *("macs", "bytes_down", "bytes_up", "seconds"),
)
_TEXTS = {"arch", "status", "reason", "tier", "subnet", "split", "weights", "owner"}


@dataclass(frozen=True, eq=False)
class SearchResult:
    """A search's files (``lit_fednas.records``) as tables."""

    name: str  # the folder's name
    settings: dict[str, Any]  # ``settings.json``
    evaluations: pd.DataFrame  # one row per distinct architecture
    history: pd.DataFrame  # one row per tier and generation
    front: pd.DataFrame  # non-dominated rows per tier; tier ``*`` is the front of all
    tiers: pd.DataFrame  # the best network of every tier
    models: dict[str, TierModel]  # ``architecture.json`` by tier

    @property
    def cost(self) -> str:
        """The cost that was traded against the metric."""
        return self.settings.get("cost", "macs")

    @property
    def metric(self) -> str:
        """The metric that was optimised."""
        return str(self.settings.get("metric", "accuracy"))

    @property
    def weights(self) -> str | None:
        """The digest of the weights that were searched."""
        return self.settings.get("weights")

    @property
    def tier_names(self) -> list[str]:
        """The names of the tiers, in the order of the search's settings."""
        return [tier["name"] for tier in self.settings.get("tiers", [])]

    @property
    def on_servers_data(self) -> bool:
        """True if networks were rated on the server's validation data, and not on clients' data."""
        return self.settings.get("client") is None and not self.settings.get("federated")

    def limits(self, tier: str) -> tuple[float | None, float | None]:
        """Returns the lower (exclusive) and the upper limit of a tier's traded cost, ``None`` without one."""
        limits: dict[str, Any] = next((other for other in self.settings.get("tiers", []) if other["name"] == tier), {})
        above, at_most = ((limits.get(key) or {}).get(self.cost) for key in ("above", "at_most"))
        return above, at_most


def read_search(folder: Path | str) -> SearchResult:
    """Reads the folder of a search, which may be unfinished."""
    files = SearchFiles(folder)
    if not files.exists():
        raise DataError(f"{folder}: holds no search (no settings.json); make one with lit-fednas search")
    names = ("evaluations", "history", "front", "tiers")
    tables = {name: _frame(files.rows(name), files.columns(name)) for name in names}
    models = {tier: files.tier_model(tier) for tier in files.tier_names}
    return SearchResult(files.folder.name, files.settings(), **tables, models=models)


@dataclass(frozen=True)
class Run:
    """The folder of a run, usually ``runs/<name>/version_<n>``; files are read on first use."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's last two names, such as ``digits/version_0``."""
        return "/".join(self.folder.resolve().parts[-2:])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of ``config.yaml``."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return {}
        with reading(path):
            settings = read_yaml(path)
            check_form(settings, RUN_SETTINGS)
            return dict(settings)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round: ``round`` and the metrics; cells are empty if a metric was not logged."""
        with reading(self.folder / ROUNDS_FILE):
            rows = [{"round": record["round"], **record["metrics"]} for record in self._records]
            return _frame(rows, dict.fromkeys(["round", *(name for row in rows for name in row)]))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per round and client of its cohort."""
        with reading(self.folder / ROUNDS_FILE):
            rows = [{"round": record["round"], **client} for record in self._records for client in record["clients"]]
            return _frame(rows, _CLIENT_COLUMNS)

    @cached_property
    def spent(self) -> pd.DataFrame:
        """The training of all clients until the end of each round (the index, from 0): :data:`SPENT`."""
        clients = self.clients.assign(spent_bytes=self.clients["bytes_down"] + self.clients["bytes_up"])
        clients = clients.rename(columns={"macs": "spent_macs"})
        spent = clients.groupby("round")[list(SPENT[1:])].sum(min_count=1).reindex(self.rounds["round"])
        if spent.notna().any(axis=None):
            spent = spent.fillna(0)  # rounds without a client, or with failed clients only
        return spent.cumsum().assign(rounds=spent.index + 1)[list(SPENT)]

    def rounds_of(self, weights: str | None) -> int | None:
        """Returns the number of rounds until the run had weights of a digest (``lit_fednas.records.run.rounds_of``)."""
        return rounds_of(self._records, weights)

    def spent_by(self, weights: str | None) -> dict[str, float] | None:
        """Returns :data:`SPENT` until the run had weights of a digest; ``None`` if it no longer has them."""
        rounds = self.rounds_of(weights)
        return None if rounds is None else dict(self.spent.reindex([rounds - 1]).iloc[0])  # NaN before the first round

    def logged(self, metric: str) -> pd.Series:
        """Returns a metric by the rounds that logged it."""
        values = self.rounds.set_index("round").get(metric, pd.Series(dtype=float))
        return values.astype(float).dropna()

    def logged_alone(self, metric: str) -> pd.Series:
        """Returns the validation metric of a run's only network, by the rounds that logged it."""
        logged = self.rounds.set_index("round").filter(regex=f"^val/[^/]*/{re.escape(metric)}$").astype(float)
        return logged.iloc[:, 0].dropna() if len(logged.columns) else pd.Series(dtype=float)

    def subnets(self, split: str) -> pd.DataFrame:
        """Returns the evaluated subnets of a split, ``val`` or ``test``."""
        columns = ("subnet", "arch", "split", *self.metrics, *COST_NAMES[:3])
        table = self._table(f"subnets-{split}.csv", columns)
        return table.assign(weights=table.get("weights"))  # None in files of earlier versions

    @cached_property
    def metrics(self) -> Directions:
        """The metrics of the run's task, the most important one first."""
        return directions_of(self.folder)

    @property
    def metric(self) -> str:
        """The most important metric."""
        return next(iter(self.metrics))

    @cached_property
    def task(self) -> str:
        """The task and its classes, such as ``Classification of 2: cat, dog``; empty if not recorded."""
        inputs = read_json(self.folder / INPUTS_FILE, INPUTS)
        task, names = inputs.get("task"), inputs.get("class_names") or []
        return f"{task} of {len(names)}: {', '.join(names)}" if task and names else ""

    def copies(self, other: "Run") -> bool:
        """Returns whether a run has the same seed and records as another, so that it is a copy or a repetition."""
        rounds, others = ([(line["round"], line.get("metrics")) for line in run._records] for run in (self, other))
        seeds = {run.settings.get("seed_everything") for run in (self, other)}
        return bool(rounds) and len(seeds) == 1 and rounds == others

    @cached_property
    def ledger(self) -> dict[str, Any] | None:
        """The content of ``ledger.json``."""
        return read_json(self.folder / LEDGER_FILE, LEDGER) or None

    @cached_property
    def partition(self) -> pd.DataFrame:
        """One row per client: ``client``, ``owner`` if there is one, ``size``, and the count of each class."""
        return self._table("partition.csv")

    @property
    def searches(self) -> list[str]:
        """The names of the run's searches."""
        return [files.folder.name for files in SearchFiles.within(self.folder)]

    @property
    def finetunings(self) -> list[str]:
        """The names of the run's fine-tunings."""
        return [files.folder.name for files in FinetuneFiles.within(self.folder)]

    def search(self, name: str = "search") -> SearchResult | None:
        """Returns the search with a name, if it exists."""
        return read_search(self.folder / name) if SearchFiles(self.folder / name).exists() else None

    def finetuned(self, name: str = "finetune", table: str = "tiers") -> pd.DataFrame:
        """Returns a table of a fine-tuning (``tiers``, ``candidates`` or ``models``); empty if it does not exist."""
        files = FinetuneFiles(self.folder / name)
        return _frame(files.rows(table), files.columns(table))

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        records, num_rounds = list(read_rounds(self.folder)), (self.ledger or {}).get("rounds", 0)
        if records and (recorded := records[-1]["round"] + 1) < num_rounds:
            raise DataError(f"{self.folder / ROUNDS_FILE}: has {recorded} of {num_rounds} rounds; {RESTORE}")
        return records

    def _table(self, name: str, columns: Iterable[str] = ()) -> pd.DataFrame:
        path = self.folder / name
        if not os.path.lexists(path):
            return pd.DataFrame(columns=list(columns))
        rows = read_table(path, columns)
        with reading(path):
            if any(row[name] == "" for row in rows for name in _TEXTS & {*columns}):
                raise ValueError("a row has an empty cell")
            return _frame(rows, dict.fromkeys([*columns, *(name for row in rows[:1] for name in row)]))


def read_run(folder: Path | str) -> Run:
    """Returns the run of a folder."""
    folder = Path(folder).expanduser()
    if not any((folder / name).is_file() for name in ("config.yaml", ROUNDS_FILE)):
        raise DataError(f"{folder}: is not a run (no config.yaml or {ROUNDS_FILE}); give one, such as runs/x/version_0")
    return Run(folder)


def run_folders(root: Path | str) -> list[Path]:
    """Returns the runs under a folder, also those without a finished round, but not the runs of fine-tunings."""
    root = Path(root).expanduser()
    started = (path.parent for path in root.glob(f"**/{INPUTS_FILE}") if path.with_name("config.yaml").is_file())
    folders = {*started, *(path.parent for path in root.glob(f"**/{ROUNDS_FILE}"))}
    return sorted(folder for folder in folders if folders.isdisjoint(folder.parents))


def newest_run(root: Path | str = "runs") -> Path:
    """Returns the last version of the run that was written last under a folder, of versions with a finished round."""
    files = [path for folder in run_folders(root) if (path := folder / ROUNDS_FILE).exists()]
    if not files:
        raise DataError(f"{root}: holds no run; train one with lit-fednas fit")
    newest = max(files, key=lambda path: path.stat().st_mtime).parent
    versions = [path.parent for path in files if path.parent.parent == newest.parent and version_of(path.parent) >= 0]
    return max(versions, key=version_of, default=newest)


def independent_costs(ledger: Mapping[str, Any]) -> pd.DataFrame:
    """Compares a run's costs with those of training each evaluated subnet alone with the same cohorts."""
    costs = pd.DataFrame({"this run": ledger["total"], **ledger["independent"]}).T
    table = pd.DataFrame({"macs": costs["macs"], "bytes": costs["bytes_down"] + costs["bytes_up"]})
    table.loc["one by one"] = table.iloc[1:].sum()
    times = (table / table.iloc[0].where(table.iloc[0] != 0)).add_prefix("times_")
    return table.join(times).rename_axis("training").reset_index()


def by_rounds_done(table: Any) -> Any:
    """Returns a table with the numbers of finished rounds as its index, instead of the records' rounds from 0."""
    return table.set_axis(table.index + 1, axis=0)


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """Returns rows as a table of these columns; cells are numbers (NaN if missing), except in columns of texts."""
    table = pd.DataFrame(rows, columns=list(columns))
    for name in table:
        if name not in _TEXTS:
            table[name] = pd.to_numeric(table[name])
    return table
