"""Settings: the clients' training, their learning rates over the rounds, and what happens when a client fails."""

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
    """Validates that an optimizer's settings are finite, as torch accepts a learning rate of NaN."""
    for name, value in optimizer.defaults.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value} is not finite")


class RateSchedule(ABC):
    """A factor of the local learning rate for each round; a function of the round alone, so it resumes."""

    @abstractmethod
    def factor(self, round: int, max_rounds: int, progress: float | None = None) -> float:
        """Returns the factor in a round.

        Args:
            round: The round, from 0.
            max_rounds: Rounds of the whole run; -1 if it has no end.
            progress: The share of the run that was over before the round, also of a budget (``cost_ledger``).

        Returns:
            The factor of the local learning rate.
        """

    def _share(self, round: int, length: int, progress: float | None) -> float:
        """Returns the share of a schedule that is over: by its length in rounds, if it has one, and by a budget's."""
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
    """Half a cosine from 1 in the first round to ``final`` in the last, and in all rounds after it.

    Args:
        final: The last round's factor; where a budget ends the run, that of the spent budget.
        rounds: The number of rounds until then; the run's end by rounds or budget if not given.

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
    """Multiplied by ``gamma`` every so many rounds.

    Args:
        every: Rounds between two steps.
        gamma: The factor of each.

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
    """Multiplied by ``gamma`` once each of these shares of the rounds is over (FedorAS, Tables 10 and 11).

    Args:
        milestones: Shares of all rounds.
        gamma: The factor of each.
        rounds: The number of all rounds; the run's end by rounds or budget if not given.

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
        # 0.55 of 100 rounds is above 55
        passed = sum(self._share(round, length, end) + 1e-9 >= milestone for milestone in self.milestones)
        return float(self.gamma**passed)


@checked("faults")
@dataclass(frozen=True)
class FaultPolicy:
    """Client failures are isolated: each leads to a skipped update, a logged reason and a count.

    Failures are an exception in a client's fit, weights that are not finite, a client that drops out, and an update far
    larger than the others'. (How long devices are waited for over Flower is the setting ``timeout`` of their app.)

    Args:
        on_client_error: ``skip``, or ``raise``: stop at once, naming round and client.
        dropout_rate: Share of clients that drop out in mid-round, drawn by address (a simulation).
        straggler_rate: Share of clients that have no time for all their passes, drawn by address (a simulation): they
            train 1 to ``client.epochs``, each number equally likely (Li et al., 2020, FedProx' experiments).
        min_survivors: With fewer updates than this, a round leaves the weights as they were. With 0 the server steps in
            every round, also without updates (for differential privacy, whose noise does not depend on failures).
        max_failed_rounds: Rounds in a row in which every client failed, after which the run stops; at once if all
            clients of its first round fail alike. Null for never.
        norm_bound: The greatest norm of an update that is used, as a multiple of the cohort's median for an update of
            its tensors (:mod:`~lit_fednas.federation.acceptance`); without bound if not given. With one, each rank
            keeps the updates of its clients until all have come.
    """

    on_client_error: Literal["skip", "raise"] = "skip"
    dropout_rate: ShareBelowOne = 0.0
    straggler_rate: UnitInterval = 0.0
    min_survivors: NonNegativeInt = 1
    max_failed_rounds: PositiveInt | None = 5
    norm_bound: PositiveFloat | None = None

    def check(self, result: ClientResult, cause: Exception | None = None) -> None:
        """Raises a client's failure as :class:`ClientError` if the policy is to stop at once."""
        if self.on_client_error == "raise" and result.status in ("error", "non-finite", "timeout"):
            raise ClientError(f"round {result.task.round + 1}, client {result.task.client}: {result.reason}") from cause


@final
@checked("client")
class ClientSettings:
    """How every client trains the subnet that it receives.

    Args:
        optimizer: The local optimizer, new for each fit.
        batch_size: Examples per step; a client's last batch may be smaller.
        drop_last: Whether a smaller last batch is left out, unless it is the client's only one. Networks that
            normalise over batches learn nonsense from a batch of two or three.
        epochs: Passes over the client's data per round.
        steps: Steps per round instead; passes follow each other until they are done.
        lr_schedule: What the learning rate is multiplied with, round by round; with nothing if not given.
        clip_norm: Greatest norm of a step's gradient; unclipped if not given.
        precision: Lightning's precision of the fit.
        channels_last: Whether convolutions keep the channels innermost in memory, which is often faster. Results are
            the same up to the order of float sums, which batch norms of small maps amplify, dropout included.
        clients_per_fit: Clients of the same architecture that are trained in one fit, with stacked weights; for small
            networks without dropout, where starting operations takes longer than doing them. On a CPU large
            convolutions gain nothing.
        validate: Whether each client tests what it trains on its own validation split (``data.client_val``): once
            it has ``trained`` it, or as it was ``received``. The result is in its record, and the cohort's mean is
            logged as ``clients/accuracy``.
        compile: Whether full batches run through ``torch.compile``, once per architecture, which takes tens of
            seconds. Compiled dropout draws other masks, which belong to seed, round and client as well.
        fast: ``auto`` chooses ``channels_last``, ``clients_per_fit``, ``compile`` and the number of threads: what
            trains this run's clients fastest on this machine, measured in the first round for up to 3 seconds and 5 %
            of the run, with the same results up to the order of float sums, which batch norms of small maps amplify
            (:mod:`~lit_fednas.federation.fastest`). The choice is logged, recorded, and kept in checkpoints, so
            that a resumed run trains as it did. Not the default, as two runs of one seed may choose differently.
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
        chosen = {"channels_last": channels_last, "compile": compile, "clients_per_fit": clients_per_fit > 1}
        for name in (name for name, is_set in chosen.items() if is_set and fast is not None):
            raise ConfigError(f"client.fast: {fast} chooses client.{name} itself; leave that out, or set fast to null")
        # it scales one loss, and there are those of several clients; stacked weights have no such layout
        unfit = {"precision: 16-mixed": precision == "16-mixed", "channels_last: true": channels_last}
        for setting in (setting for setting, is_set in unfit.items() if is_set and clients_per_fit > 1):
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

    def but(self, **changes: Any) -> Self:
        """Returns these settings with some arguments of the constructor changed."""
        return type(self)(**vars(self) | changes)

    def examples(self, size: int, steps: int | None = None) -> int:
        """Returns how many examples pass through the network in one fit; ``steps`` are those of a task of its own.

        Example:
            >>> ClientSettings(batch_size=4, epochs=2).examples(10), ClientSettings(batch_size=4, steps=4).examples(10)
            (20, 14)
        """
        steps = self.steps if steps is None else steps
        full, rest = divmod(size, self.batch_size)
        if self.drop_last and full:
            rest = 0
        in_pass, steps_of_pass = full * self.batch_size + rest, full + (rest > 0)
        if steps is None or size == 0:
            return self.epochs * in_pass
        passes, more = divmod(steps, steps_of_pass)
        return passes * in_pass + more * self.batch_size

    def learning_rate(self, lr_factor: float = 1.0) -> float:
        """Returns the learning rate of a fit's first step, of the optimizer's first group of parameters."""
        optimizer = self.local_optimizer([torch.nn.Parameter(torch.zeros(1))], lr_factor)
        return float(optimizer.param_groups[0]["lr"])

    def local_optimizer(self, parameters: Iterable[Any], lr_factor: float = 1.0) -> Optimizer:
        """Returns a fit's optimizer."""
        optimizer = self.optimizer(parameters)
        check_finite(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * lr_factor
        return optimizer
