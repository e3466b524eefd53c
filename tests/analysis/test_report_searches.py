"""The report's sections on searches and fine-tunings."""

from __future__ import annotations

import html
import shutil
from pathlib import Path
from typing import Any

from lit_fednas.analysis.report import write_report
from lit_fednas.records import FinetuneFiles, SearchFiles
from lit_fednas.records.run import append_round
from tests.analysis.made_runs import ROW, SETTINGS
from tests.analysis.pages import Page


def section(page: Page, title: str) -> str:
    return html.unescape(page.text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0])


def candidate(tier: str, number: int, first: float, last: float, **costs: Any) -> dict[str, Any]:
    """Returns a row of a fine-tuning's tables, with its validation accuracies before and after training."""
    metrics = {"val_accuracy_before": first, "val_accuracy": last, "test_accuracy": last - 0.125}
    spent = {"macs": 2_000_000, "bytes_down": 3000, "bytes_up": 4000, "macs_per_example": 632, "parameters": 50}
    row = {"tier": tier, "number": number, "arch": f"arch-{tier}-{number}", "eligible": 8, "rounds": 2, "bytes": 200}
    return {**ROW, **row, **metrics, **spent, **costs}


def finetune(run: Path, rows: list[dict[str, Any]], name: str = "finetune", **settings: Any) -> FinetuneFiles:
    """Writes a fine-tuning in which the first network of each tier is the best."""
    files = FinetuneFiles(run / name)
    files.write_settings({**SETTINGS, "search": "search", "initial": "supernet", "models": None, **settings})
    files.write("candidates", rows)
    files.write("tiers", [row for row in rows if row["number"] == 0])
    return files


def test_searches_that_have_not_ended_or_that_clients_scored(run_folder: Path, finished_page: Page) -> None:
    files = SearchFiles(run_folder / "search")
    spent = {"macs": 5_000_000, "bytes_down": 2000, "bytes_up": 30}
    files.write_settings({**files.settings(), "communication": spent, "client": 3, "complete": False})
    (run_folder / "search" / "history.csv").unlink()
    (run_folder / "random" / "front.csv").unlink()
    (run_folder / "random" / "tiers.csv").unlink()
    page = Page(write_report(run_folder))
    first, second = section(page, "Search"), section(page, "Search: random")
    start = "on the validation data of client 3. The search has not ended. The clients were sent 2 kB, sent 30 B, and"
    assert f"{start} computed 5 M MACs." in first
    words = ("Hypervolume", "test accuracy (%)", "All")
    assert [f">{word}<" in first for word in words] == [False, True, True]
    assert [f">{word}<" in second for word in words] == [True, False, False]
    assert all(f">{word}<" in section(finished_page, "Search") for word in words)


def test_a_fine_tuning(run_folder: Path) -> None:
    files = finetune(run_folder, [candidate("small", 0, 0.5, 0.75), candidate("large", 0, 0.25, 0.5, macs=7)])
    for number, metrics in enumerate(({"val/network/accuracy": 0.625}, {})):
        append_round(files.folder / "runs" / "small-0", {"round": number, "metrics": metrics, "clients": []})
    page = Page(write_report(run_folder))
    assert "The networks of search, trained from the supernet's weights." in page.texts["p"]
    cells = page.texts["td"]
    start = cells.index("large", cells.index("632"))
    row = ["large", "25.0", "50.0", "37.5", "632", "50", "200 B", "8", "2", "7", "3 kB", "4 kB"]
    assert cells[start : start + 12] == row
    assert "arch-large-0" in page.texts["code"]
    curves = [tip.splitlines() for tip in page.tips if tip.startswith("rounds") and "small: " in tip]
    ends = [["rounds 0", "small: 50.0", "large: 25.0"], ["rounds 2", "small: 75.0", "large: 50.0"]]
    assert [curves[-3], curves[-1]] == ends
    assert curves[-2] == ["rounds 1", "small: 62.5"]


def test_networks_that_are_trained_alone_come_first(run_folder: Path, finished_page: Page) -> None:
    """The best of each tier by validation is beside the supernet's; the page does not call it a fine-tuning."""
    rows = [candidate("small", 0, 0.09, 0.75), candidate("large", 0, 0.08, 0.5), candidate("large", 1, 0.08, 0.25)]
    tiers = SearchFiles(run_folder / "search").settings()["tiers"]
    finetune(run_folder, rows, "thirds", initial="random", tiers=tiers, complete=False)
    unfinished = {"search": "search", "models": None, "initial": "random", "complete": False}
    FinetuneFiles(run_folder / "begun").write_settings(SETTINGS | unfinished)
    page = Page(write_report(run_folder))
    title = "One supernet and networks trained alone"
    assert page.texts["h2"][:2] == [title, "Training"]
    assert page.texts["h2"][-3:] == ["Trained alone: begun", "Trained alone: thirds", "Settings"]
    assert title not in finished_page.texts["h2"]
    first = section(page, title)
    cells = [cell.partition("</td>")[0].partition(">")[2] for cell in first.split("<td")[1:]]
    start = cells.index("alone: thirds *")
    assert cells[start - 1 : start + 5] == ["small", "alone: thirds *", "75.0", "62.5", "632", "200 B"]
    assert cells[:2] == ["small", "one supernet"]
    assert float(cells[3]) < 62.5
    text = section(page, "Trained alone: thirds")
    assert "The networks of search, trained alone, from scratch. The training alone has not ended." in text
    assert ">val accuracy (%)<" in text
    assert "All 3 networks that were trained" in text
    assert "before" not in text
    assert "fine-tun" not in page.text.lower()
    for files in SearchFiles.within(run_folder):
        shutil.rmtree(files.folder)
    (run_folder / "subnets-val.csv").unlink()
    assert Page(write_report(run_folder)).texts["h2"][0] == "Training"  # nothing to compare with


def test_a_flat_front_is_reported_if_the_number_of_examples_is_known(run_folder: Path) -> None:
    files = SearchFiles(run_folder / "search")
    small, large = files.rows("tiers")
    start = "Larger networks are not better here (within ±"
    for accuracies, count, expected in (((0.5, 0.5), 64, True), ((0.5, 0.9), 64, False), ((0.5, 0.5), None, False)):
        changed = [{**row, "val_accuracy": share} for row, share in zip((small, large), accuracies, strict=True)]
        files.write("tiers", changed)
        files.write_settings({**files.settings(), "num_examples": count})
        text = section(Page(write_report(run_folder)), "Search")
        assert (f"{start}17.3 points on 64 validation examples); train `{small['arch']}` alone" in text) == expected
        assert (start in text) == expected


def test_models_that_clients_tested_and_a_fine_tuning_that_has_just_begun(run_folder: Path) -> None:
    files = finetune(run_folder, [candidate("small", 0, 0.5, 0.75)], models=["a"], complete=False)
    row = {**ROW, "macs_per_example": 1000, "clients": 3, "examples": 1234, "accuracy_before": 0.25}
    files.write("models", [{**row, "accuracy": 0.5}, {**row, "arch": "b"}])
    unfinished = {"search": "search", "models": None, "complete": False}
    FinetuneFiles(run_folder / "begun").write_settings(SETTINGS | unfinished)
    page = Page(write_report(run_folder))
    text = section(page, "Fine-tuning")
    assert "The models that were named, trained from the supernet's weights. The fine-tuning has not ended." in text
    cells = [cell.partition("</td>")[0].partition(">")[2] for cell in text.split("<td")[1:]]
    first, second = ["1 k", "3", "1,234", "25.0", "50.0"], ["1 k", "3", "1,234", "25.0", "–"]
    assert cells[-12:] == ["<code>a</code>", *first, "<code>b</code>", *second]
    assert "The networks of search. The fine-tuning has not ended." in section(page, "Fine-tuning: begun")
