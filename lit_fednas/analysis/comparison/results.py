"""The methods that are compared, and the results of each, which differ in their seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import CLIENTS_FILE, ROUNDS_FILE, SearchFiles


@dataclass(frozen=True)
class Result:
    """What a method gave with one seed: a run, or one search or fine-tuning of it alone.

    Attributes:
        run: The run.
        part: The folder of the search or fine-tuning in it; ``None`` for all that the run has with its own weights.
    """

    run: Run
    part: str | None = None

    @property
    def folder(self) -> Path:
        """Of the run, or of its part."""
        return self.run.folder / (self.part or "")

    @property
    def name(self) -> str:
        """The folder's last names."""
        return self.run.name if self.part is None else f"{self.run.name}/{self.part}"

    @property
    def seed(self) -> int | None:
        """The run's seed, if it has a configuration."""
        return self.run.settings.get("seed_everything")

    @property
    def clients_folder(self) -> Path | None:
        """Returns where ``clients.csv`` is: of the run itself (``deployed_accuracy``), or else of its search."""
        places = [self.folder] if self.part else [self.folder, *(self.folder / name for name in self.run.searches)]
        return next((place for place in places if (place / CLIENTS_FILE).exists()), None)


#: Results that differ in their seeds, by method.
Methods = Mapping[str, Sequence[Result]]


def read_methods(words: Sequence[str]) -> dict[str, list[Result]]:
    """Returns the results of methods that are given as patterns of folders, by label.

    Args:
        words: ``label=pattern,pattern`` for one method, or a pattern alone, whose runs are methods by the names of the
            folders that they are in (``runs/<name>/version_<n>``). A pattern, with ``*`` for any name, names runs'
            folders, folders that hold runs, or the folder of a search or fine-tuning in a run.

    Raises:
        DataError: A label is duplicated or a pattern finds nothing, or a method has two results of one seed.
    """
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
    """Returns methods from results, runs or folders, each once.

    Args:
        folders: By label.

    Raises:
        DataError: A folder holds nothing to compare, or a method has two results of one seed.
    """
    methods: dict[str, list[Result]] = {}
    for label, given in folders.items():
        results = [one if isinstance(one, Result) else _result(one) for one in given]
        methods[label] = list({result.folder.resolve(): result for result in results}.values())
        _check_seeds(label, methods[label])
    return methods


def _result(given: Run | Path | str) -> Result:
    results = [Result(given)] if isinstance(given, Run) else _results(str(given))
    return results[0]


def _results(pattern: str) -> list[Result]:
    """Returns the results that a pattern names, and those of the runs in the folders that it names."""
    results: list[Result] = []
    for folder in map(Path, sorted(glob(pattern))):
        runs = [] if (folder / ROUNDS_FILE).exists() else [*folder.glob(f"*/{ROUNDS_FILE}")]
        runs = runs or [*folder.glob(f"*/*/{ROUNDS_FILE}")]  # of a study
        if (folder / ROUNDS_FILE).exists():
            results.append(Result(Run(folder)))
        elif SearchFiles(folder).exists() and (folder.parent / ROUNDS_FILE).exists():
            results.append(Result(Run(folder.parent), folder.name))
        else:
            results += [Result(Run(path.parent)) for path in sorted(runs)]
    if not results:
        raise DataError(f"{pattern}: finds no run; give folders that hold {ROUNDS_FILE}, or folders of such")
    return results


def _check_seeds(label: str, results: Sequence[Result]) -> None:
    """Validates that seeds differ: a run that was stopped and started again would count twice."""
    seeds: dict[tuple[int, str | None], Result] = {}  # a run's searches may differ in seeds of their own
    for result in results:
        if result.seed is not None and (first := seeds.setdefault((result.seed, result.part), result)) is not result:
            raise DataError(f"{label}: {first.folder} and {result.folder} have the same seed {result.seed}; give one")
