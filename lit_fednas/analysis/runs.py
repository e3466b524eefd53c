"""A finished run's folder, and a search's in it, read into tables; what is missing is empty or ``None``."""

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

#: What training has taken until a round: its number, from 1; forward passes of all clients; bytes, both ways.
SPENT = ("rounds", "spent_macs", "spent_bytes")
_CLIENT_COLUMNS = (
    *("round", "client", "arch", "status", "reason", "num_examples", "num_seen", "num_units", "num_steps", "loss"),
    *("macs", "bytes_down", "bytes_up", "seconds"),
)
_TEXTS = {"arch", "status", "reason", "tier", "subnet", "split", "weights", "owner"}


@dataclass(frozen=True, eq=False)
class SearchResult:
    """A search's files (``lit_fednas.records``) as tables."""

    name: str  # of its folder
    settings: dict[str, Any]  # ``settings.json``
    evaluations: pd.DataFrame  # one row per distinct architecture
    history: pd.DataFrame  # one row per tier and generation
    front: pd.DataFrame  # non-dominated rows per tier; ``*`` is the front of all
    tiers: pd.DataFrame  # the best of every tier
    models: dict[str, TierModel]  # ``architecture.json`` by tier

    @property
    def cost(self) -> str:
        """The cost that was traded against the metric."""
        return self.settings.get("cost", "macs")

    @property
    def metric(self) -> str:
        """What the networks were chosen by."""
        return str(self.settings.get("metric", "accuracy"))

    @property
    def weights(self) -> str | None:
        """The digest of the weights that were searched."""
        return self.settings.get("weights")

    @property
    def tier_names(self) -> list[str]:
        """As they were given to the search."""
        return [tier["name"] for tier in self.settings.get("tiers", [])]

    @property
    def on_servers_data(self) -> bool:
        """Whether networks were rated by the server's validation data, not by one client's or by the clients."""
        return self.settings.get("client") is None and not self.settings.get("federated")

    def limits(self, tier: str) -> tuple[float | None, float | None]:
        """Returns a tier's least (excluded) and greatest traded cost, where it has them."""
        tiers: list[dict[str, Any]] = self.settings.get("tiers", [])
        given = next((named for named in tiers if named["name"] == tier), {})
        above, at_most = ((given.get(key) or {}).get(self.cost) for key in ("above", "at_most"))
        return above, at_most


def read_search(folder: Path | str) -> SearchResult:
    """Returns a search's folder, also that of a search which has not ended, as tables."""
    files = SearchFiles(folder)
    if not files.exists():
        raise DataError(f"{folder}: holds no search (no settings.json); make one with lit-fednas search")
    names = ("evaluations", "history", "front", "tiers")
    tables = {name: _frame(files.rows(name), files.columns(name)) for name in names}
    models = {tier: files.tier_model(tier) for tier in files.tier_names}
    return SearchResult(files.folder.name, files.settings(), **tables, models=models)


@dataclass(frozen=True)
class Run:
    """A run's folder, usually ``runs/<name>/version_<n>``; its files are read when they are first asked for."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's last two names, such as ``digits/version_0``."""
        return "/".join(self.folder.resolve().parts[-2:])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``config.yaml``."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return {}
        with reading(path):
            settings = read_yaml(path)
            check_form(settings, RUN_SETTINGS)
            return dict(settings)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round: ``round`` and the metrics; empty cells where a metric was not logged."""
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
        """What all clients had spent by the end of each round (the index, from 0): :data:`SPENT`."""
        clients = self.clients.assign(spent_bytes=self.clients["bytes_down"] + self.clients["bytes_up"])
        clients = clients.rename(columns={"macs": "spent_macs"})
        spent = clients.groupby("round")[list(SPENT[1:])].sum(min_count=1).reindex(self.rounds["round"])
        if spent.notna().any(axis=None):
            spent = spent.fillna(0)  # nobody took part, or all of them failed
        return spent.cumsum().assign(rounds=spent.index + 1)[list(SPENT)]

    def rounds_of(self, weights: str | None) -> int | None:
        """Returns after how many rounds the run had weights of a digest (``lit_fednas.records.run.rounds_of``)."""
        return rounds_of(self._records, weights)

    def spent_by(self, weights: str | None) -> dict[str, float] | None:
        """Returns :data:`SPENT` until the run had weights of a digest; None if it no longer has them."""
        rounds = self.rounds_of(weights)
        return None if rounds is None else dict(self.spent.reindex([rounds - 1]).iloc[0])  # NaN before the first round

    def logged(self, metric: str) -> pd.Series:
        """Returns a metric by the rounds that logged it."""
        values = self.rounds.set_index("round").get(metric, pd.Series(dtype=float))
        return values.astype(float).dropna()

    def logged_alone(self, metric: str) -> pd.Series:
        """Returns the validation metric of the only network of a run, by the rounds that logged it."""
        logged = self.rounds.set_index("round").filter(regex=f"^val/[^/]*/{re.escape(metric)}$").astype(float)
        return logged.iloc[:, 0].dropna() if len(logged.columns) else pd.Series(dtype=float)

    def subnets(self, split: str) -> pd.DataFrame:
        """Returns the evaluated subnets of a split, ``val`` or ``test``."""
        columns = ("subnet", "arch", "split", *self.metrics, *COST_NAMES[:3])
        table = self._table(f"subnets-{split}.csv", columns)
        return table.assign(weights=table.get("weights"))  # None in files of earlier versions

    @cached_property
    def metrics(self) -> Directions:
        """What the run's task is measured by, the one that counts most first."""
        return directions_of(self.folder)

    @property
    def metric(self) -> str:
        """The metric that counts most."""
        return next(iter(self.metrics))

    @cached_property
    def measured(self) -> str:
        """What its metrics are of, such as ``Classification of 2: cat, dog``; empty where that is not recorded."""
        inputs = read_json(self.folder / INPUTS_FILE, INPUTS)
        task, names = inputs.get("task"), inputs.get("class_names") or []
        return f"{task} of {len(names)}: {', '.join(names)}" if task and names else ""

    def copies(self, other: "Run") -> bool:
        """Returns whether a run has the same records as another: a copy, or the same run once more."""
        rounds, others = ([(each["round"], each.get("metrics")) for each in run._records] for run in (self, other))
        return (
            bool(rounds)
            and self.settings.get("seed_everything") == other.settings.get("seed_everything")
            and rounds == others
        )

    @cached_property
    def ledger(self) -> dict[str, Any] | None:
        """``ledger.json``."""
        return read_json(self.folder / LEDGER_FILE, LEDGER) or None

    @cached_property
    def partition(self) -> pd.DataFrame:
        """One row per client: ``client``, ``owner`` where it has one, ``size``, and the count of each class."""
        return self._table("partition.csv")

    @property
    def searches(self) -> list[str]:
        """The names of its searches."""
        return [files.folder.name for files in SearchFiles.within(self.folder)]

    @property
    def finetunings(self) -> list[str]:
        """The names of its fine-tunings."""
        return [files.folder.name for files in FinetuneFiles.within(self.folder)]

    def search(self, name: str = "search") -> SearchResult | None:
        """Returns the search of a name, if there was one."""
        return read_search(self.folder / name) if SearchFiles(self.folder / name).exists() else None

    def finetuned(self, name: str = "finetune", table: str = "tiers") -> pd.DataFrame:
        """Returns a table of a fine-tuning (``tiers``, ``candidates`` or ``models``); empty where it has none."""
        files = FinetuneFiles(self.folder / name)
        return _frame(files.rows(table), files.columns(table))

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        records, done = list(read_rounds(self.folder)), (self.ledger or {}).get("rounds", 0)
        if records and records[-1]["round"] + 1 < done:
            last = records[-1]["round"]
            raise DataError(f"{self.folder / ROUNDS_FILE}: has {last + 1} of {done} rounds; {RESTORE}")
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
        raise DataError(f"{folder}: is not a run (no config.yaml or {ROUNDS_FILE}); give one, as runs/<name>/version_0")
    return Run(folder)


def run_folders(root: Path | str) -> list[Path]:
    """Returns the runs under a folder, also those that never finished a round, without those of a fine-tuning."""
    root = Path(root).expanduser()
    started = (path.parent for path in root.glob(f"**/{INPUTS_FILE}") if path.with_name("config.yaml").is_file())
    folders = {*started, *(path.parent for path in root.glob(f"**/{ROUNDS_FILE}"))}
    return sorted(folder for folder in folders if folders.isdisjoint(folder.parents))


def newest_run(root: Path | str = "runs") -> Path:
    """Returns the last version of the run under a folder that was written to last, of those with a round."""
    written = [path for folder in run_folders(root) if (path := folder / ROUNDS_FILE).exists()]
    if not written:
        raise DataError(f"{root}: holds no run; train one with lit-fednas fit")
    last = max(written, key=lambda path: path.stat().st_mtime).parent
    versions = [path.parent for path in written if path.parent.parent == last.parent and version_of(path.parent) >= 0]
    return max(versions, key=version_of, default=last)


def independent_costs(ledger: Mapping[str, Any]) -> pd.DataFrame:
    """Compares a run's cost with training each evaluated subnet on its own with the same cohorts."""
    costs = pd.DataFrame({"this run": ledger["total"], **ledger["independent"]}).T
    table = pd.DataFrame({"macs": costs["macs"], "bytes": costs["bytes_down"] + costs["bytes_up"]})
    table.loc["one by one"] = table.iloc[1:].sum()
    times = (table / table.iloc[0].where(table.iloc[0] != 0)).add_prefix("times_")
    return table.join(times).rename_axis("training").reset_index()


def by_rounds_done(table: Any) -> Any:
    """Returns a table by the records' rounds (from 0) by how many rounds were done after each, as readers count."""
    return table.set_axis(table.index + 1, axis=0)


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """Returns rows as a table of just these columns, with numbers as numbers and NaN for none."""
    table = pd.DataFrame(rows, columns=list(columns))
    for name in table:
        if name not in _TEXTS:
            table[name] = pd.to_numeric(table[name])
    return table
