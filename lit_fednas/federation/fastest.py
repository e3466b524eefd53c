"""``client.fast: auto``: the settings with which a run's clients train fastest on the machine at hand.

It is measured in the first round, on some of that round's own tasks, which leave no trace. Contenders take turns, and
one is taken only if its median time saves a tenth, and its first step is that of the settings as they were written, but
for the order of float sums. Where measuring would take more than :data:`SHARE` of the run, or some seconds, settings
stay as they were written.
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

#: A setting is taken if it needs less than this share of the time.
WORTHWHILE = 0.9
#: Seconds that a network's compilation is expected to take at most.
COMPILATION = 60.0

#: The share of the training that lies ahead that choosing may take at most; a compilation pays for itself.
SHARE = 0.05
#: Seconds that it may take at most, likewise.
MOST_SECONDS = 3.0

_TURN = 0.15  # seconds of training that are timed at once, about, if the clients have as much
_TURNS = 3, 7  # how often: at least, and at most
_MOST_TASKS = 64
# How far a first step may be from the plain one, as a share of it. Sums of float32 in another order differ by 0.04 at
# most (ResNet-18 under Adam, whose steps have one size for large and small gradients), rounded products by 0.42, and
# other masks of a dropout by 1.3.
_TOLERANCE = {"32-true": 0.1, "bf16-mixed": 0.6, "16-mixed": 0.6}

log = logging.getLogger(__name__)


def fastest(
    module: FederatedLightningModule,
    data: ClientData,
    tasks: Sequence[ClientTask],
    check: Callable[[], None],
    threads: Sequence[int],
    rounds: float,
) -> dict[str, Any] | None:
    """Measures which settings train a round's clients fastest: layout or stacking, then threads, then compilation."""
    race = _Race(module, data, check, threads[0], tasks)
    if not race.able:
        return None
    steps = sum(module.client.examples(task.num_examples, task.steps) for task in tasks) / module.client.batch_size
    ahead = rounds * steps * race.step
    race.end = race.start + min(SHARE * ahead, MOST_SECONDS)
    # compilation is tried only if a tenth of what is known to lie ahead would pay for compiling each architecture
    compiled = inf > (1 - WORTHWHILE) * ahead > COMPILATION * module.supernet.space.size
    if (compiled or race.has_time(1)) and race.prepare():
        race.run([(changes, threads[0]) for changes in race.layouts()])
        race.run([(race.best.changes, number) for number in threads[1:]])
        if compiled:
            race.end = inf
            race.run([({**race.best.changes, "compile": True}, race.best.threads)])
    torch.set_num_threads(race.best.threads)
    return {
        "settings": race.best.changes,
        "threads": race.best.threads if len(threads) > 1 else None,
        "chosen": race.best.name,
        "ratios": race.ratios,
    }


def trained_with(module: FederatedLightningModule, settings: ClientSettings) -> FederatedLightningModule:
    """Returns the module with other settings of the clients' training; all else is shared."""
    changed = copy.copy(module)
    changed.client = settings
    return changed


class _Contender:
    """Trains tasks with some settings changed; ``parts`` are the arguments of a :class:`LocalRunner`."""

    def __init__(self, parts: tuple[Any, ...], changes: Mapping[str, Any], threads: int, faults: FaultPolicy) -> None:
        module, data, check = parts
        self.changes = dict(changes)
        self.threads = threads
        self.settings = module.client.but(fast=None, validate=None, **changes)
        changed = trained_with(module, self.settings)
        check_clients(changed, data)
        changed.faults = faults
        self._runner = LocalRunner(changed, data, check)
        self._runner.transport = Transport()  # what rounds at random would hide what is compared
        self._received = module.supernet.views

    @property
    def name(self) -> str:
        changes = [name if value is True else f"{name} {value}" for name, value in self.changes.items()]
        return ", ".join([*changes, f"{self.threads} thread{'s' if self.threads > 1 else ''}"])

    def time(self, tasks: Sequence[ClientTask], steps: int | None) -> tuple[float, int]:
        """Returns how many seconds the tasks take, and on how many examples they train, but for fits that fail."""
        start = perf_counter()
        seen = sum(result.num_seen for result, _ in self._trained(tasks, steps))
        return perf_counter() - start, seen

    def first_steps(self, tasks: Sequence[ClientTask]) -> dict[Any, list[Tensor]]:
        """Returns how a step changes the weights of each task that can be trained, by client and architecture."""
        changes = {}
        for result, update in self._trained(tasks, 1):
            if update is not None:
                received = self._received(result.task.arch)
                changes[result.task.key] = [
                    (tensor - received[name]).detach()
                    for name, tensor in update.weights.items()
                    if tensor.is_floating_point()
                ]
        return changes

    def _trained(self, tasks: Sequence[ClientTask], steps: int | None) -> Iterator[Outcome]:
        torch.set_num_threads(self.threads)
        return self._runner.run(tasks if steps is None else [replace(task, steps=steps) for task in tasks])


class _Race:
    """Contenders, the best of them, and what they are measured on."""

    def __init__(
        self,
        module: FederatedLightningModule,
        data: ClientData,
        check: Callable[[], None],
        threads: int,
        tasks: Sequence[ClientTask],
    ) -> None:
        self._parts = module, data, check
        # what a contender alone cannot do must not end the run
        self._faults = replace(module.faults, on_client_error="skip")
        self._tolerance = _TOLERANCE[module.client.precision]
        self.start = perf_counter()
        self.end = inf  # when measuring ends
        self.plain = self.best = _Contender(self._parts, {}, threads, module.faults)
        self.ratios: dict[str, float] = {}
        self.able = list(dropwhile(lambda task: not self.plain.first_steps([task]), tasks))
        if self.able:
            self.step = self._seconds(self.able[0], 1)
            self.able = self.able[: min(_MOST_TASKS, max(1, int(_TURN / self.step)))]
            self._turn = self.step * len(self.able)  # of a turn, about

    def has_time(self, contenders: int) -> bool:
        """Returns whether so many new contenders can be timed before the end."""
        known = 1 + (self.best is not self.plain)
        return perf_counter() + self._turn * (_TURNS[0] * (known + contenders) + contenders) <= self.end

    def prepare(self) -> bool:
        """Measures the plain contender; returns whether any task can be trained."""
        self._first_steps = self.plain.first_steps(self.able)
        self.sample = [task for task in self.able if task.key in self._first_steps]
        if self.sample:
            self._steps = self._steps_of_a_turn(self._parts[0].client)
        return bool(self.sample)

    def layouts(self) -> Iterator[dict[str, Any]]:
        """Yields settings of how tensors lie in memory, where they mean anything."""
        if any(tensor.dim() == 4 for change in self._first_steps.values() for tensor in change):
            yield {"channels_last": True}
        (_, alike), *_ = Counter((task.arch, task.lr_factor) for task in self.sample).most_common(1)
        if alike > 1:
            yield {"clients_per_fit": alike}

    def run(self, contenders: Iterable[tuple[Mapping[str, Any], int]]) -> None:
        """Times contenders against the plain one and the best so far, and takes the best of all, if there is time."""
        contenders = list(contenders)
        if not self.has_time(len(contenders)):
            return
        able = (self._contender(changes, threads) for changes, threads in contenders)
        new = [contender for contender in able if contender is not None]
        if not new:
            return
        seconds: dict[_Contender, list[float]] = {contender: [] for contender in (self.plain, self.best, *new)}
        for turn in range(_TURNS[1]):
            if turn >= _TURNS[0] and perf_counter() + self._turn * len(seconds) > self.end:
                break
            for contender, times in seconds.items():
                spent, seen = contender.time(self.sample, self._steps)
                times.append(spent / seen if seen else inf)  # one with failed fits is slower, or infinitely slow
        medians = {contender: median(times) for contender, times in seconds.items()}
        plain = medians[self.plain]
        self.ratios |= {each.name: round(medians[each] / plain, 3) for each in new if medians[each] < inf}
        first = min(new, key=medians.__getitem__)
        if medians[first] < WORTHWHILE * medians[self.best]:
            self.best = first

    def _steps_of_a_turn(self, settings: ClientSettings) -> int | None:
        """Returns how many steps of each task are timed: as it was written, unless that takes too long."""
        examples = max(settings.examples(task.num_examples, task.steps) for task in self.sample)
        whole = ceil(examples / settings.batch_size)
        steps, seconds = 1, self.step
        while steps < whole and seconds * len(self.sample) < _TURN:
            steps = min(2 * steps, whole)
            seconds = self._seconds(self.sample[0], steps)
        self._turn = seconds * len(self.sample)
        return steps if steps < whole else None

    def _seconds(self, task: ClientTask, steps: int) -> float:
        """Returns what some steps take, the less of two times: once they may have waited for something else."""
        return min(self.plain.time([task], steps)[0] for _ in range(2))

    def _contender(self, changes: Mapping[str, Any], threads: int) -> _Contender | None:
        """Returns a contender whose first steps are those of the plain one."""
        try:
            contender = _Contender(self._parts, changes, threads, self._faults)
            steps = contender.first_steps(self.sample)
        except ConfigError as error:
            log.debug("client.fast: %s cannot be used (%s)", dict(changes), error)
            return None
        for task in self.sample:
            plain = self._first_steps[task.key]
            changed = steps.get(task.key, [torch.full_like(tensor, torch.inf) for tensor in plain])
            far = _norm([a - b for a, b in zip(changed, plain, strict=True)])
            if not far <= self._tolerance * _norm(plain):
                log.info("client.fast: %s is left out: it changes the results", contender.name)
                return None
        return contender


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]).norm())
