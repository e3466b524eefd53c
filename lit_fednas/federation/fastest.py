"""``client.fast: auto``: the settings with which a run's clients train fastest on this machine.

Contenders are timed in turns in the first round, on some of its tasks, without any effect on the training. A contender
wins only if its median time saves a tenth, and if its first step equals that of the written settings up to the order of
float sums. The written settings stay if measuring would exceed :data:`SHARE` of the run or :data:`MAX_SECONDS`.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from math import ceil, inf
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_fednas.data.clients import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.federation.client import LocalRunner, check_clients
from lit_fednas.federation.fit import Outcome
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.messages import ClientTask
from lit_fednas.transport import Transport

if TYPE_CHECKING:
    from lit_fednas.federation.module import FederatedLightningModule

#: A contender wins if it needs less than this share of the best time so far.
WORTHWHILE = 0.9
#: Upper estimate of the seconds that a network's compilation takes.
COMPILATION = 60.0

#: Maximum time of the choice as a share of the remaining training; compilations are excepted, as they pay off.
SHARE = 0.05
#: Maximum seconds of the choice, with the same exception.
MAX_SECONDS = 3.0

_TURN = 0.15  # seconds of training in one measurement, approximately
_TURNS = 3, 7  # minimum and maximum number of measurements of a contender
_MAX_TASKS = 64
# Maximum relative distance of a first step from the plain one. Float32 sums in another order differ by up to 0.04
# (ResNet-18 under Adam, which scales small gradients up), rounded products by 0.42, and other dropout masks by 1.3.
_TOLERANCE = {"32-true": 0.1, "bf16-mixed": 0.6, "16-mixed": 0.6}

log = logging.getLogger(__name__)


def fastest(
    module: FederatedLightningModule,
    data: ClientData,
    tasks: Sequence[ClientTask],
    check: Callable[[], None],
    threads: Sequence[int],
    remaining_rounds: float,
) -> dict[str, Any] | None:
    """Measures which settings train a round's clients fastest: layout or stacking, then threads, then compilation."""
    race = _Race(module, data, check, threads[0], tasks)
    if not race.tasks:
        return None
    steps = sum(module.client.examples(task.num_examples, task.steps) for task in tasks) / module.client.batch_size
    remaining_seconds = remaining_rounds * steps * race.step_seconds
    race.deadline = race.start + min(SHARE * remaining_seconds, MAX_SECONDS)
    # saving a tenth of the remaining time must pay for the compilation of every architecture
    may_compile = inf > (1 - WORTHWHILE) * remaining_seconds > COMPILATION * module.supernet.space.size
    if (may_compile or race.has_time(1)) and race.prepare():
        race.run([(changes, threads[0]) for changes in race.layouts()])
        race.run([(race.best.changes, number) for number in threads[1:]])
        if may_compile:
            race.deadline = inf
            race.run([({**race.best.changes, "compile": True}, race.best.threads)])
    torch.set_num_threads(race.best.threads)
    return {
        "settings": race.best.changes,
        "threads": race.best.threads if len(threads) > 1 else None,
        "chosen": race.best.name,
        "ratios": race.ratios,
    }


def with_client_settings(module: FederatedLightningModule, settings: ClientSettings) -> FederatedLightningModule:
    """Returns a shallow copy of the module with other settings of the clients' training."""
    changed_module = copy.copy(module)
    changed_module.client = settings
    return changed_module


class _Contender:
    """Trains tasks with some settings changed; ``parts`` are the arguments of a :class:`LocalRunner`."""

    def __init__(self, parts: tuple[Any, ...], changes: Mapping[str, Any], threads: int, faults: FaultPolicy) -> None:
        module, data, check = parts
        self.changes = dict(changes)
        self.threads = threads
        self.settings = module.client.with_changes(fast=None, validate=None, **changes)
        changed_module = with_client_settings(module, self.settings)
        check_clients(changed_module, data)
        changed_module.faults = faults
        self._runner = LocalRunner(changed_module, data, check)
        self._runner.transport = Transport()  # random rounding would hide the differences between steps
        self._views = module.supernet.views

    @property
    def name(self) -> str:
        changes = [name if value is True else f"{name} {value}" for name, value in self.changes.items()]
        return ", ".join([*changes, f"{self.threads} thread{'s' if self.threads > 1 else ''}"])

    def time(self, tasks: Sequence[ClientTask], steps: int | None) -> tuple[float, int]:
        """Returns the seconds of the tasks' fits, and the number of examples in them, excluding failed fits."""
        start = perf_counter()
        num_seen = sum(result.num_seen for result, _ in self._train(tasks, steps))
        return perf_counter() - start, num_seen

    def first_steps(self, tasks: Sequence[ClientTask]) -> dict[Any, list[Tensor]]:
        """Returns the weights' changes by one step, by the key of each task that can be trained."""
        changes = {}
        for result, update in self._train(tasks, 1):
            if update is not None:
                received = self._views(result.task.arch)
                changes[result.task.key] = [
                    (tensor - received[name]).detach()
                    for name, tensor in update.weights.items()
                    if tensor.is_floating_point()
                ]
        return changes

    def _train(self, tasks: Sequence[ClientTask], steps: int | None) -> Iterator[Outcome]:
        torch.set_num_threads(self.threads)
        return self._runner.run(tasks if steps is None else [replace(task, steps=steps) for task in tasks])


class _Race:
    """Measures contenders on the same tasks, and keeps the best."""

    def __init__(
        self,
        module: FederatedLightningModule,
        data: ClientData,
        check: Callable[[], None],
        threads: int,
        tasks: Sequence[ClientTask],
    ) -> None:
        self._parts = module, data, check
        # a failure with a contender's settings must not end the run
        self._faults = replace(module.faults, on_client_error="skip")
        self._tolerance = _TOLERANCE[module.client.precision]
        self.start = perf_counter()
        self.deadline = inf
        self.plain = self.best = _Contender(self._parts, {}, threads, module.faults)
        self.ratios: dict[str, float] = {}
        self.tasks = list(dropwhile(lambda task: not self.plain.first_steps([task]), tasks))
        if self.tasks:
            self.step_seconds = self._seconds(self.tasks[0], 1)
            self.tasks = self.tasks[: min(_MAX_TASKS, max(1, int(_TURN / self.step_seconds)))]
            self._turn_seconds = self.step_seconds * len(self.tasks)

    def has_time(self, num_new: int) -> bool:
        """Returns whether a number of new contenders can be timed before the deadline."""
        num_old = 1 + (self.best is not self.plain)
        # each new contender takes one more turn, for its first steps
        return perf_counter() + self._turn_seconds * (_TURNS[0] * (num_old + num_new) + num_new) <= self.deadline

    def prepare(self) -> bool:
        """Trains the first steps with the written settings; returns whether any task can be trained."""
        self._first_steps = self.plain.first_steps(self.tasks)
        self.sample = [task for task in self.tasks if task.key in self._first_steps]
        if self.sample:
            self._steps = self._steps_per_turn(self._parts[0].client)
        return bool(self.sample)

    def layouts(self) -> Iterator[dict[str, Any]]:
        """Yields memory layouts that these tasks can use: channels innermost for images, stacks for equal fits."""
        if any(tensor.dim() == 4 for change in self._first_steps.values() for tensor in change):
            yield {"channels_last": True}
        (_, num_equal), *_ = Counter((task.arch, task.lr_factor) for task in self.sample).most_common(1)
        if num_equal > 1:
            yield {"clients_per_fit": num_equal}

    def run(self, contenders: Iterable[tuple[Mapping[str, Any], int]]) -> None:
        """Times contenders against the plain one and the best so far, if there is time, and keeps the best."""
        contenders = list(contenders)
        if not self.has_time(len(contenders)):
            return
        built = (self._contender(changes, threads) for changes, threads in contenders)
        new_contenders = [contender for contender in built if contender is not None]
        if not new_contenders:
            return
        seconds: dict[_Contender, list[float]] = {racer: [] for racer in (self.plain, self.best, *new_contenders)}
        for turn in range(_TURNS[1]):
            if turn >= _TURNS[0] and perf_counter() + self._turn_seconds * len(seconds) > self.deadline:
                break
            for contender, times in seconds.items():
                duration, num_seen = contender.time(self.sample, self._steps)
                times.append(duration / num_seen if num_seen else inf)  # failed fits make a contender slower
        medians = {contender: median(times) for contender, times in seconds.items()}
        ratios = {contender: medians[contender] / medians[self.plain] for contender in new_contenders}
        self.ratios |= {contender.name: round(ratio, 3) for contender, ratio in ratios.items() if ratio < inf}
        winner = min(new_contenders, key=medians.__getitem__)
        if medians[winner] < WORTHWHILE * medians[self.best]:
            self.best = winner

    def _steps_per_turn(self, settings: ClientSettings) -> int | None:
        """Returns the number of timed steps of each task; ``None`` if whole fits fit into a turn."""
        num_examples = max(settings.examples(task.num_examples, task.steps) for task in self.sample)
        max_steps = ceil(num_examples / settings.batch_size)
        steps, seconds = 1, self.step_seconds
        while steps < max_steps and seconds * len(self.sample) < _TURN:
            steps = min(2 * steps, max_steps)
            seconds = self._seconds(self.sample[0], steps)
        self._turn_seconds = seconds * len(self.sample)
        return steps if steps < max_steps else None

    def _seconds(self, task: ClientTask, steps: int) -> float:
        """Returns the smaller of two times of some steps, because other processes may have delayed one."""
        return min(self.plain.time([task], steps)[0] for _ in range(2))

    def _contender(self, changes: Mapping[str, Any], threads: int) -> _Contender | None:
        """Returns a contender; ``None`` if its settings are invalid, or its first steps differ from the plain ones."""
        try:
            contender = _Contender(self._parts, changes, threads, self._faults)
            steps = contender.first_steps(self.sample)
        except ConfigError as error:
            log.debug("client.fast: %s cannot be used (%s)", dict(changes), error)
            return None
        for task in self.sample:
            plain_step = self._first_steps[task.key]
            step = steps.get(task.key, [torch.full_like(tensor, torch.inf) for tensor in plain_step])
            distance = _norm([a - b for a, b in zip(step, plain_step, strict=True)])
            if not distance <= self._tolerance * _norm(plain_step):  # NaN is too far as well
                log.info("client.fast: %s is left out: it changes the results", contender.name)
                return None
        return contender


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]).norm())
