"""The command ``lit-fednas study``: trains the arms of a study, compares them, and judges its claims."""

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lit_fednas.analysis.comparison import Comparison, compared
from lit_fednas.analysis.networks import Result, methods_of
from lit_fednas.cli.effects import has_other_parts
from lit_fednas.config_files import MODULES, find
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import NonNegativeInt, PositiveInt
from lit_fednas.records.files import locked
from lit_fednas.studies.findings import METRICS, check_metric, claims_text, judged, keep_results, measured, read_results
from lit_fednas.studies.jobs import Cluster
from lit_fednas.studies.reading import MOST_RUNS, read_study
from lit_fednas.studies.runs import Run, Runs, check_commands, run_all
from lit_fednas.studies.study import Study, check_seeds, require_known


def study(
    file: Path,
    *extra: str,
    seeds: list[int] | None = None,
    arms: list[str] | None = None,
    judge: bool = False,
    show: bool = False,
    jobs: PositiveInt = 1,
    cluster: str | None = None,
    cluster_options: dict[str, Any] | None = None,
    count: PositiveInt | None = None,
    draw_seed: NonNegativeInt = 0,
    out: Path = Path("runs"),
    results: Path | None = None,
) -> int:
    """Trains the arms of a study with the same seeds, compares them, and judges its claims.

    Every arm and seed is a run in its own folder: training and the commands after it. The same command resumes a
    stopped study without its finished runs; arms and seeds may be added. A Weights & Biases sweep file (grid or random)
    is a study, too, and needs no server.

    Args:
        file: The study's file, or the name of one of the package's (lit-fednas configs studies lists them).
        *extra: Words after -- are added to every command.
        seeds: Seeds in place of the file's.
        arms: Labels of the arms to run; all of the file if not given.
        judge: Compares the finished runs and judges the stored results, without training.
        show: Prints the commands without running them.
        jobs: Number of runs at the same time.
        cluster: The cluster that runs each command as a job of submitit: "slurm", or "local" for local processes.
        cluster_options: Options of the jobs, as {timeout_min: 600, gpus_per_node: 1, slurm_partition: gpu}.
        count: Draws of a random study.
        draw_seed: Seed of a random study's draws.
        out: The folder that contains the study's folder.
        results: The file of measures; results.csv in the study's folder if not given.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        ConfigError: The file or an arm's settings are invalid (raised before training), or another process runs this
            study.
        DataError: No run has finished.
    """
    content = read_study(file, count, draw_seed)
    os.environ[MODULES] = str(find(file).absolute().parent)
    if not content.arms:
        raise ConfigError(f"{file}: count: missing for a random study; give the number of draws, --count 20")
    if seeds is not None:
        check_seeds(seeds)
    if (number := len(seeds or content.seeds) * len(content.select(arms))) > MOST_RUNS:
        raise ConfigError(f"seeds: make {number:,} runs of all arms; give at most {MOST_RUNS:,}")
    planned = [
        Run(
            content.arms[label].parameters,
            label,
            seed,
            f"{content.arms[label].folder}/seed{seed}",
            content.commands(label, seed, extra, out),
            [f"{content.arms[need].folder}/seed{seed}" for need in content.arms[label].needs()],
        )
        for seed in seeds or content.seeds
        for label in content.select(arms)
    ]
    if show:
        print("\n".join(shlex.join(command) for run in planned for command in run.commands))
        return 0
    folder = out / content.name
    results_file = results or folder / "results.csv"
    if judge:
        _report(content, Runs(folder, {}, []), results_file, judge)
        return 0
    with locked(folder, "out"):
        runs = Runs(folder, {"study": content.name, "file": str(file)}, planned)
        settings = check_commands(runs.unfinished, 1 if cluster else jobs) if runs.unfinished else {}
        _check_metrics(content, settings.values())
        executor = Cluster(cluster, folder / "jobs", cluster_options or {}) if cluster else None
        status = run_all(runs, settings, jobs, executor)
        if runs.finished or not status:
            _report(content, runs, results_file, judge)
    return status


def _check_metrics(content: Study, settings: Iterable[Mapping[str, Any]]) -> None:
    """Validates the names of metrics, unless a user's own part may log other ones."""
    if not (configs := list(settings)) or has_other_parts(configs):
        return
    for name, arguments in content.measures.items():
        if "metric" in arguments:
            check_metric(str(arguments["metric"]), f"measures.{name}.metric")
    if metric := (content.compare or {}).get("metric"):
        where = "metric.name" if any(arm.command for arm in content.arms.values()) else "compare.metric"
        require_known(metric, METRICS["val"], f"{where}: {metric}", "a metric")


def _report(content: Study, runs: Runs, results_file: Path, judge: bool) -> None:
    finished = [run for run in runs.finished if run.arm in content.arms]
    if finished and (content.measures or content.claims) and not judge:
        tables = [measured(content, run.arm, run.seed, runs.folder / run.folder, run.minutes) for run in finished]
        keep_results(results_file, pd.concat(tables))
    if content.claims:
        print(f"\n{claims_text(judged([content], read_results(results_file)))}")
    if not runs.finished:
        if not judge or not content.claims:
            raise DataError(f"{runs.folder}: no run has finished; see study.json, and start the same command again")
        return
    if content.compare is not None or not content.claims:
        comparison = compare_arms(content, finished, runs.folder)
        print(f"\n{comparison.text()}\n\nwritten in {runs.folder}: {', '.join(comparison.write(runs.folder))}")


def compare_arms(content: Study, runs: Iterable[Run], folder: Path) -> Comparison:
    """Compares the arms of a study and their fine-tunings, each as a method."""
    arm_folders: dict[str, list[Result | Path]] = {label: [] for label in content.arms}
    tuned_folders: dict[str, list[Result | Path]] = {}
    for run in runs:
        arm_folders[run.arm].append(folder / run.folder)
        for step in content.arms[run.arm].then:
            if step.command == "finetune":
                name = step.options.get("name", "fine-tuned")
                tuned_folders.setdefault(f"{run.arm}, {name}", []).append(folder / run.folder / step.name)
    methods = methods_of({label: folders for label, folders in {**arm_folders, **tuned_folders}.items() if folders})
    return compared(methods, content.tiers, **(content.compare or {}))
