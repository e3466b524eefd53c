"""Settings of the clients' training, of their learning rates over the rounds, and of failures."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Optimizer
from typing_extensions import override

from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.messages import ClientResult
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelowOne, UnitInterval, checked


def check_finite(optimizer: Optimizer) -> None:
    """Validates that an optimizer's settings are finite, because torch accepts a learning rate of NaN."""
    for name, value in optimizer.defaults.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value} is not finite")


class RateSchedule(ABC):
    """A factor of the local learning rate for each round. It keeps no state, so that a run can be resumed."""

    @abstractmethod
    def factor(self, round: int, max_rounds: int, progress: float | None = None) -> float:
        """Returns a round's factor; ``progress`` is the finished share of the run, by rounds or by budgets."""

    def _share(self, round: int, length: int, progress: float | None) -> float:
        """Returns a schedule's finished share: the larger of its shares of rounds and budgets."""
        shares = [round / max(1, length)] if length >= 0 else []
        if progress is not None:
            shares.append(progress)
        if not shares:
            raise ConfigError(
                f"client.lr_schedule: {type(self).__name__} needs an end; set its rounds, trainer.max_rounds, or "
                f"cost_ledger.max_macs or max_bytes"
            )
        return min(1.0, max(shares))


@checked("client.lr_schedule")
class CosineRate(RateSchedule):
    """Half a cosine from 1 in the first round to ``final`` in the last; later rounds keep ``final``.

    Args:
        final: Factor at the end of the schedule.
        rounds: Length of the schedule in rounds. By default it ends with the run, by rounds or budget.

    Example:
        >>> [round(CosineRate().factor(t, 5), 3) for t in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(self, final: float = 0.0, rounds: PositiveInt | None = None) -> None:
        self.final = final
        self.rounds = rounds

    @override
    def factor(self, round: int, max_rounds: int, progress: float | None = None) -> float:
        length, end = (max_rounds, progress) if self.rounds is None else (self.rounds, None)
        share = self._share(round, length - 1, end)  # the last round is the end
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2


@checked("client.lr_schedule")
class StepRate(RateSchedule):
    """A factor that is multiplied by ``gamma`` at regular steps.

    Args:
        every: Number of rounds between two steps.
        gamma: Factor of each step.

    Example:
        >>> [StepRate(every=2, gamma=0.5).factor(t, 6) for t in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, every: PositiveInt, gamma: float = 0.1) -> None:
        self.every = every
        self.gamma = gamma

    @override
    def factor(self, round: int, max_rounds: int, progress: float | None = None) -> float:
        return float(self.gamma ** (round // self.every))


@checked("client.lr_schedule")
class MilestoneRate(RateSchedule):
    """A factor that is multiplied by ``gamma`` at each milestone (FedorAS, Tables 10 and 11).

    Args:
        milestones: Shares of the schedule after which the factor changes.
        gamma: Factor of each milestone.
        rounds: Length of the schedule in rounds. By default it ends with the run, by rounds or budget.

    Example:
        >>> [round(MilestoneRate().factor(t, 8), 3) for t in (3, 4, 5, 6)]
        [1.0, 0.1, 0.1, 0.01]
    """

    def __init__(
        self, milestones: Sequence[ShareBelowOne] = (0.5, 0.75), gamma: float = 0.1, rounds: PositiveInt | None = None
    ) -> None:
        self.milestones = milestones
        self.gamma = gamma
        self.rounds = rounds

    @override
    def factor(self, round: int, max_rounds: int, progress: float | None = None) -> float:
        length, end = (max_rounds, progress) if self.rounds is None else (self.rounds, None)
        # the tolerance is for floats such as 0.55 * 100, which is above 55
        num_passed = sum(self._share(round, length, end) + 1e-9 >= milestone for milestone in self.milestones)
        return float(self.gamma**num_passed)


@checked("faults")
@dataclass(frozen=True)
class FaultPolicy:
    """Policy for clients that fail: by default their update is skipped, and the reason is logged and counted.

    Failures are an exception in a client's fit, weights that are not finite, a client that drops out, and an update far
    larger than the others'. (Over Flower, the app's setting ``timeout`` limits the time of a device's answer.)

    Args:
        on_client_error: ``skip`` continues without the client; ``raise`` stops the run and names round and client.
        dropout_rate: Share of clients that drop out in mid-round; a simulation, reproducible by the seed.
        straggler_rate: Share of clients that are too slow for all their passes (a simulation): they train 1 to
            ``client.epochs`` passes, each number equally likely (Li et al., 2020, FedProx' experiments).
        min_survivors: Minimum number of updates for a server step; with fewer, the weights stay. With 0 the server
            steps in every round, even without updates, because differential privacy adds its noise in every round.
        max_failed_rounds: Number of consecutive rounds without any successful client that stops the run. It also stops
            at once if all clients of its first round fail for the same reason. Null never stops it.
        norm_bound: Maximum norm of an update, as a multiple of the cohort's median for its tensors
            (:mod:`~lit_fednas.federation.acceptance`). Null sets no bound. With a bound, each rank holds its
            clients' updates until all have come.
    """

    on_client_error: Literal["skip", "raise"] = "skip"
    dropout_rate: ShareBelowOne = 0.0
    straggler_rate: UnitInterval = 0.0
    min_survivors: NonNegativeInt = 1
    max_failed_rounds: PositiveInt | None = 5
    norm_bound: PositiveFloat | None = None

    def check(self, result: ClientResult, cause: Exception | None = None) -> None:
        """Raises a client's failure as :class:`ClientError` if the policy stops at failures."""
        if self.on_client_error == "raise" and result.status in ("error", "non-finite", "timeout"):
            raise ClientError(f"round {result.task.round + 1}, client {result.task.client}: {result.reason}") from cause


@final
@checked("client")
class ClientSettings:
    """Settings of the training of every client.

    Args:
        optimizer: The local optimizer; each fit creates a new one.
        batch_size: Examples per step; a client's last batch may be smaller.
        drop_last: Whether a smaller last batch is skipped, unless it is the client's only one. Batch norm of only two
            or three examples disturbs the training.
        epochs: Passes over the client's data per round.
        steps: Local steps per round, over as many passes as necessary. Null trains ``epochs`` passes.
        lr_schedule: Schedule of a factor of the learning rate over the rounds. Null keeps the learning rate constant.
        clip_norm: Maximum norm of a step's gradient. Null clips nothing.
        precision: Lightning's precision of the fit.
        channels_last: Whether convolutions keep the channels innermost in memory, which is often faster. Results,
            dropout included, are the same up to the order of float sums, which batch norms of small maps amplify.
        clients_per_fit: Number of clients of one architecture that one fit trains with stacked weights. This is faster
            for small networks without dropout, which take longer to start operations than to compute them; on a CPU
            large convolutions gain nothing.
        validate: Weights that each client tests on its own validation split (``data.client_val``): ``trained`` or
            ``received`` ones. The client's record has the metrics, and ``clients/accuracy`` is the cohort's mean.
        compile: Whether full batches run through ``torch.compile``. The compilation of each architecture takes tens of
            seconds. Compiled dropout draws other masks, which are also determined by seed, round and client.
        fast: ``auto`` chooses ``channels_last``, ``clients_per_fit``, ``compile`` and the number of threads for the
            fastest training on this machine. It measures them in the first round for up to 3 seconds and 5 % of the
            run, and keeps results the same up to the order of float sums (:mod:`~lit_fednas.federation.fastest`). The
            choice is logged, recorded and saved in checkpoints for resumed runs. It is not the default, because two
            runs with one seed may choose differently.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size: PositiveInt = 32,
        drop_last: bool = False,
        epochs: PositiveInt = 1,
        steps: PositiveInt | None = None,
        lr_schedule: RateSchedule | None = None,
        clip_norm: PositiveFloat | None = None,
        precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true",
        channels_last: bool = False,
        clients_per_fit: PositiveInt = 1,
        compile: bool = False,
        validate: Literal["trained", "received"] | None = None,
        fast: Literal["auto"] | None = None,
    ) -> None:
        choices = {"channels_last": channels_last, "compile": compile, "clients_per_fit": clients_per_fit > 1}
        for name in (name for name, is_set in choices.items() if is_set and fast is not None):
            raise ConfigError(f"client.fast: {fast} chooses client.{name} itself; remove that, or set fast to null")
        # 16-mixed scales a single loss, and stacked weights [clients, ...] have no channels-last layout
        conflicts = {"precision: 16-mixed": precision == "16-mixed", "channels_last: true": channels_last}
        for setting in (setting for setting, is_set in conflicts.items() if is_set and clients_per_fit > 1):
            raise ConfigError(f"client.{setting} is for one client in a fit; change it, or set clients_per_fit to 1")
        self.optimizer = optimizer
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epochs = epochs
        self.steps = steps
        self.lr_schedule = lr_schedule
        self.clip_norm = clip_norm
        self.precision = precision
        self.channels_last = channels_last
        self.clients_per_fit = clients_per_fit
        self.compile = compile
        self.validate = validate
        self.fast = fast

    def with_changes(self, **changes: Any) -> Self:
        """Returns a copy with some arguments of the constructor changed."""
        return type(self)(**vars(self) | changes)

    def examples(self, size: int, steps: int | None = None) -> int:
        """Returns the number of examples in one fit of a client with ``size`` examples; a task may set ``steps``.

        Example:
            >>> ClientSettings(batch_size=4, epochs=2).examples(10), ClientSettings(batch_size=4, steps=4).examples(10)
            (20, 14)
        """
        steps = self.steps if steps is None else steps
        full_batches, rest = divmod(size, self.batch_size)
        if self.drop_last and full_batches:
            rest = 0
        examples_per_pass, steps_per_pass = full_batches * self.batch_size + rest, full_batches + (rest > 0)
        if steps is None or size == 0:
            return self.epochs * examples_per_pass
        passes, extra_steps = divmod(steps, steps_per_pass)
        return passes * examples_per_pass + extra_steps * self.batch_size

    def learning_rate(self, lr_factor: float = 1.0) -> float:
        """Returns a fit's learning rate in its first step, for the optimizer's first group of parameters."""
        optimizer = self.local_optimizer([torch.nn.Parameter(torch.zeros(1))], lr_factor)
        return float(optimizer.param_groups[0]["lr"])

    def local_optimizer(self, parameters: Iterable[Any], lr_factor: float = 1.0) -> Optimizer:
        """Returns a new optimizer for a fit, with the learning rate times ``lr_factor``."""
        optimizer = self.optimizer(parameters)
        check_finite(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * lr_factor
        return optimizer
