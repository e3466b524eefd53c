"""The contracts as an author outside the package uses them: they accept right parts and refuse broken ones."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lit_fednas.cli import main
from lit_fednas.testing import assert_resumes
from lit_fednas.testing.contract import Contract
from tests.test_cli import DIGITS, overlaid

HERE = Path(__file__).parent


class Outcomes:
    """A plug-in that records the classes that passed, and the messages of others."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = report.nodeid.split("::")[1]
        if report.failed:
            self.failed[kind] = report.longreprtext
        elif report.when == "call":
            self.passed.add(kind)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(str(report.longrepr))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yields an author's folder with the parts and their tests."""
    for name in ("own_parts", "own_suite", "broken_suite"):
        shutil.copy(HERE / f"{name}.py", tmp_path)
    yield tmp_path
    for name in ("own_parts", "own_suite", "broken_suite"):
        sys.modules.pop(name, None)


def run(folder: Path, *tests: str) -> Outcomes:
    """Runs pytest in this process, without the settings of this repository."""
    outcomes = Outcomes()
    words = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider", "-p", "no:xdist", "-qq"]
    pytest.main([*words, *(f"{folder}/{test}" for test in tests)], plugins=[outcomes])
    return outcomes


def test_parts_that_keep_the_contracts_pass(folder: Path) -> None:
    outcomes = run(folder, "own_suite.py")
    assert (outcomes.errors, outcomes.failed, len(outcomes.passed)) == ([], {}, 8)


def test_a_source_and_a_partitioner_by_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "rows.txt").write_text("0.1 0.2 0\n0.3 0.4 1\n0.5 0.6 1\n0.7 0.8 0\n")
    source = ["--data.source", "own_parts.Columns", "--data.source.path", "rows.txt", "--data.source.num_classes", "2"]
    clients = ["--data.partitioner", "own_parts.Halving", "--data.num_clients", "2", "--data.server_val", "0"]
    assert main(["partition", *source, *clients]) == 0
    assert "2, of 1 to 3 examples" in capsys.readouterr().out


def test_broken_parts_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each class fails the promise in its docstring; another promise might never end."""
    promises = Contract.promises

    def named(self: Contract) -> list[tuple[str, Callable[[], None]]]:
        matches = [(name, check) for name, check in promises(self) if name == self.__doc__]
        assert len(matches) == 1
        return [*matches, ("to be itself", lambda: None)]

    monkeypatch.setattr(Contract, "promises", named)
    outcomes = run(folder, "broken_suite.py")
    assert (outcomes.errors, outcomes.passed, len(outcomes.failed)) == ([], set(), 14)
    for kind, text in outcomes.failed.items():
        promise = getattr(sys.modules["broken_suite"], kind).__doc__
        assert f"broken promises: {promise}" in text
        assert f"broken promise of it: {promise}" in text
        assert "to be itself" not in text


@pytest.mark.slow
def test_a_run_whose_callback_forgets_its_state_does_not_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    words = *overlaid(folder)[2:], "--trainer.max_rounds", "3", "--trainer.callbacks"
    assert_resumes(DIGITS, *words, "own_parts.Damping", stop=2)
    with pytest.raises(AssertionError, match=r"places differ, first .*last\.ckpt"):
        assert_resumes(DIGITS, *words, "broken_suite.Forgetful", stop=2)
