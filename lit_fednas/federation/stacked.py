"""Several clients of one architecture in one fit: stacked weights, and one gradient function mapped over them.

A processor does an operation of a small network in less time than it takes to start it. So the weights of K
clients are laid side by side in tensors ``[K, ...]``, ``torch.func`` maps the gradient function over their first
dimension, and an ordinary optimizer steps them all: whatever is started is started once for K clients.

Up to the order of float sums every client is trained as if it were alone: on its own batches, of which none is
padded; with its own dropout masks; clipped by its own norm; and left as it is once its batches have ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from lit_fednas.errors import ConfigError
from lit_fednas.federation.compiled import compile_now
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.messages import ClientTask
from lit_fednas.objectives import Objective
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import Supernet

Batch = tuple[Tensor, Tensor]

_FUNCTIONS_KEPT = 64
_STACKS_KEPT = 4
_ALONE = "set client.together to 1"

# what they do to an element depends on nothing but that element, so a step on stacked tensors is one step for each
_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)


def check_stackable(settings: ClientSettings, faults: FaultPolicy, objective: Objective) -> None:
    """Refuses what cannot be done for several clients at once.

    Raises:
        ConfigError: A time limit per client, an objective that is not stackable, or an optimizer that does not
            step element by element.
    """
    asked = f"client.together: {settings.together}"
    if faults.time_limit is not None:
        raise ConfigError(
            f"{asked} clients in one fit cannot be stopped one by one after faults.time_limit, "
            f"{faults.time_limit:g} s; set it to null, or {_ALONE}"
        )
    if not objective.stackable:
        raise ConfigError(
            f"{asked} clients in one fit is not possible with the objective {type(objective).__name__}, which is "
            f"not stackable; {_ALONE}"
        )
    optimizer, _ = settings.optimizers([nn.Parameter(torch.zeros(1, 1))])
    if type(optimizer) not in _ELEMENTWISE:
        raise ConfigError(
            f"{asked} clients in one fit need an optimizer of torch that steps element by element, such as SGD or "
            f"Adam, and client.optimizer is {type(optimizer).__name__}; {_ALONE}"
        )


@dataclass
class StackedClient:
    """One of the clients that are trained together.

    Attributes:
        task: What it was asked.
        draws: For its dropout masks, where the weights lie.
        batches: Its batches, epoch after epoch.
        num_steps: Optimizer steps taken.
        num_seen: Examples that went through the network.
    """

    task: ClientTask
    draws: torch.Generator
    batches: Iterator[Batch] = field(init=False)
    num_steps: int = 0
    num_seen: int = 0


class StackedGradients:
    """The gradient function of an architecture, mapped over clients.

    Calling it takes the parameters and the other tensors by name, ``[clients, ...]``, inputs
    ``[clients, batch, ...]``, targets ``[clients, batch]`` and one generator per client. It returns the
    gradients, ``[clients, ...]`` by name, and the losses, ``[clients]``; running statistics among the other
    tensors are updated in place.

    Args:
        network: The architecture's network, on the meta device.
        objective: The local loss.
        weights: The architecture's tensors by name.
        input_shape: Shape of one example.
        settings: How many clients are trained together, and whether full batches of as many are compiled.

    Attributes:
        trained: Names of the parameters that the loss depends on.
        needs_two: Whether the network normalises over batches, which one example does not allow.

    Raises:
        ConfigError: A dry run shows that the network or the objective cannot be mapped over clients.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        weights: Mapping[str, Tensor],
        input_shape: tuple[int, ...],
        settings: ClientSettings,
    ) -> None:
        self._network = network
        self._lossy = _Lossy(network, objective)
        self._mapped = vmap(grad_and_value(self._loss), randomness="error")
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())
        self.start()
        some = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        batch = some.new_zeros(2, *input_shape), some.new_zeros(2, dtype=torch.int64)
        self.trained = self._dry_run_of_one(weights, batch)
        self._has_dropout = self._dry_run_of_two(weights, batch, settings.together)
        self._compiled: Callable[..., tuple[dict[str, Tensor], Tensor]] | None = None
        self._to_compile = (settings.together, settings.batch_size) if settings.compile else ()
        if self._has_dropout and settings.compile:
            raise ConfigError(
                f"client.compile: true cannot compile the dropout of together: {settings.together} clients; set "
                f"client.compile to false, or client.together to 1"
            )

    def start(self) -> None:
        """Puts the network into training mode; others run it too, in theirs."""
        self._network.train()

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        draws: Sequence[torch.Generator],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients and losses of one batch per client."""
        tensors = (parameters, others, inputs, targets)
        if inputs.shape[:2] == self._to_compile:
            return (self._compiled or self._compile(*tensors))(*tensors)
        if not self._has_dropout:
            return self._mapped(*tensors)
        with _OwnDropout(draws):
            return self._mapped(*tensors)

    def _compile(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Any:
        """Compiles the mapped function for tensors of these shapes."""
        compiled = torch.compile(self._mapped, dynamic=False)
        like: list[Any] = [{name: t.clone() for name, t in part.items()} for part in (parameters, others)]
        like += [torch.zeros_like(part) for part in batch]
        compile_now(lambda: compiled(*like), batch[0].device)
        self._compiled = compiled
        return compiled

    def _loss(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        named = {f"network.{name}": tensor for part in (parameters, others) for name, tensor in part.items()}
        return functional_call(self._lossy, named, batch)

    def _dry_run_of_one(self, weights: Mapping[str, Tensor], batch: Batch) -> tuple[str, ...]:
        """Finds the parameters that get a gradient; torch's optimizers pass the others by."""
        names = [name for name, parameter in self._network.named_parameters() if parameter.requires_grad]
        parameters = {name: weights[name].detach().clone().requires_grad_() for name in names}
        others = {name: tensor.detach().clone() for name, tensor in weights.items() if name not in parameters}
        with torch.enable_grad(), isolated(0, "dry run", device=batch[0].device):
            loss = self._loss(parameters, others, *batch)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(names, gradients, strict=True) if gradient is not None)

    def _dry_run_of_two(self, weights: Mapping[str, Tensor], batch: Batch, together: int) -> bool:
        """Maps over two clients; says whether there is dropout."""
        pairs = {name: torch.stack([tensor.detach()] * 2) for name, tensor in weights.items()}
        parameters = {name: pairs.pop(name) for name in self.trained}
        mode = _OwnDropout([generator(0, "dry run", device=batch[0].device) for _ in range(2)])
        try:
            with mode:
                self._mapped(parameters, pairs, *(torch.stack([part] * 2) for part in batch))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if "random" in reason:
                what = f"the network draws random numbers by {mode.failed}, which cannot be stacked"
            else:
                what = f"the network or the objective cannot be stacked ({mode.failed or 'backward'}: {reason})"
            raise ConfigError(f"client.together: {together}: {what}; {_ALONE}") from error
        return mode.used


class Stacks:
    """What clients that are trained together need of an architecture, kept for those of lately.

    Args:
        supernet: The global weights.
        objective: The local loss.
        settings: How many clients are trained in one fit, at most, and whether that is compiled.
    """

    def __init__(self, supernet: Supernet, objective: Objective, settings: ClientSettings) -> None:
        self._supernet = supernet
        self._objective = objective
        self._settings = settings
        self._functions: OrderedDict[Any, StackedGradients] = OrderedDict()
        self._stacks: OrderedDict[Any, dict[str, Tensor]] = OrderedDict()

    def gradients(self, arch: Any, context: Callable[[], AbstractContextManager[None]]) -> StackedGradients:
        """The gradient function of an architecture, after a dry run if it is new.

        Args:
            arch: The architecture.
            context: What a step runs in (its precision).
        """
        if arch not in self._functions:
            supernet = self._supernet
            with context():
                self._functions[arch] = StackedGradients(
                    supernet.skeleton(arch),
                    self._objective,
                    supernet.views(arch),
                    supernet.input_shape,
                    self._settings,
                )
        self._functions.move_to_end(arch)
        if len(self._functions) > _FUNCTIONS_KEPT:
            self._functions.popitem(last=False)
        return self._functions[arch]

    @torch.no_grad()
    def weights(self, arch: Any, count: int) -> dict[str, Tensor]:
        """The architecture's present weights, ``[count, ...]`` by name, in tensors that the next call reuses."""
        views = self._supernet.views(arch)
        room = self._stacks.pop(arch, {})
        if not room or len(next(iter(room.values()))) < count:
            room.clear()
            while len(self._stacks) >= _STACKS_KEPT:
                self._stacks.popitem(last=False)
            room.update({name: view.new_empty((count, *view.shape)) for name, view in views.items()})
        self._stacks[arch] = room
        stacked = {name: tensor[:count] for name, tensor in room.items()}
        torch._foreach_copy_(list(stacked.values()), [view.expand(count, *view.shape) for view in views.values()])
        return stacked

    def clear(self) -> None:
        """Gives the memory back."""
        self._stacks.clear()


class StackedModule(pl.LightningModule):
    """Trains the stacked weights of several clients, each on its own batches.

    Args:
        gradients: The architecture's gradient function.
        weights: What the clients received, by name, ``[clients, ...]``; trained in place.
        clients: One per row.
        settings: Optimizer, steps, clipping.
        lr_factor: What the round multiplies the learning rate with.
        keep_going: Called before every step; raises to end the fit.
    """

    def __init__(
        self,
        gradients: StackedGradients,
        weights: Mapping[str, Tensor],
        clients: Sequence[StackedClient],
        settings: ClientSettings,
        lr_factor: float,
        keep_going: Callable[[], None],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.gradients = gradients
        self.weights = weights
        self.clients = clients
        self.settings = settings
        self.lr_factor = lr_factor
        self.keep_going = keep_going
        self.num_steps = 0
        self._trained = {name: weights[name].detach().requires_grad_() for name in gradients.trained}
        self._others = {name: tensor for name, tensor in weights.items() if name not in self._trained}
        self._going = list(range(len(clients)))
        self._ended: list[tuple[Rows, list[Tensor]]] = []
        some = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        self._loss_sums = some.new_zeros(len(clients))

    def steps(self) -> Iterator[dict[int, Batch]]:
        """Step after step, the next batch of every client that has one, by its row.

        A batch of one example is passed over if the network normalises over batches.
        """
        least = 2 if self.gradients.needs_two else 1
        going = dict(enumerate(self.clients))
        while going:
            drawn = {
                row: next((batch for batch in client.batches if len(batch[1]) >= least), None)
                for row, client in going.items()
            }
            found = {row: batch for row, batch in drawn.items() if batch is not None}
            going = {row: going[row] for row in found}
            if found:
                yield found

    def configure_optimizers(self) -> Optimizer:
        """The local optimizer over the stacked parameters, and its scheduler if there is one."""
        optimizer, self._scheduler = self.settings.optimizers(self._trained.values(), self.lr_factor)
        return optimizer

    def on_train_start(self) -> None:
        """Puts the network into training mode."""
        self.gradients.start()

    def training_step(self, batch: dict[int, Batch], batch_idx: int) -> Any:
        """One step of every client that has a batch; -1 when the steps asked for are done.

        Clients whose batches have the same shape are mapped over together; others wait for no padding.
        """
        self.keep_going()
        trainer = self.trainer
        assert isinstance(trainer, ClientTrainer)
        self._leave_out([row for row in self._going if row not in batch])
        trainer.client_optimizer.zero_grad(set_to_none=True)
        by_shape: dict[torch.Size, list[int]] = {}
        for row, (inputs, _) in batch.items():
            by_shape.setdefault(inputs.shape, []).append(row)
        for rows in by_shape.values():
            self._differentiate(rows, [batch[row] for row in rows])
        if self.settings.clip_norm is not None:
            clip_each([leaf.grad for leaf in self._trained.values()], self.settings.clip_norm)
        trainer.client_strategy.apply_gradients(self)
        if self._scheduler is not None:
            self._scheduler.step()
        self.num_steps += 1
        return -1 if self.num_steps == self.settings.steps else None

    def on_train_end(self) -> None:
        """Gives the clients that ended early their weights back, which the optimizer has moved since."""
        for rows, kept in self._ended:
            for leaf, values in zip(self._trained.values(), kept, strict=True):
                rows.write(leaf.detach(), values)
        self._ended.clear()

    @torch.no_grad()
    def outcomes(self) -> list[tuple[float, float]]:
        """Per client the sum of its losses and a sum of its weights' norms, with one look at the device."""
        count = len(self.clients)
        floating = [t.reshape(count, -1) for t in self.weights.values() if t.is_floating_point()]
        norms = torch.stack([torch.linalg.vector_norm(tensor, dim=1) for tensor in floating]).sum(0)
        return [tuple(pair) for pair in torch.stack([self._loss_sums, norms], dim=1).tolist()]

    def _leave_out(self, rows: list[int]) -> None:
        """Remembers the weights of clients that have no more batches."""
        if rows:
            at = Rows(rows, self._loss_sums.device)
            self._ended.append((at, [at.read(leaf.detach()).clone() for leaf in self._trained.values()]))
            self._going = [row for row in self._going if row not in rows]

    @torch.no_grad()
    def _differentiate(self, rows: list[int], batches: list[Batch]) -> None:
        """Gradients of some clients, into their rows of the stacked gradients."""
        at = Rows(rows, self._loss_sums.device)
        clients = [self.clients[row] for row in rows]
        others = {name: at.read(tensor) for name, tensor in self._others.items()}
        gradients, losses = self.gradients(
            {name: at.read(leaf.detach()) for name, leaf in self._trained.items()},
            others,
            torch.stack([inputs for inputs, _ in batches]),
            torch.stack([targets for _, targets in batches]),
            [client.draws for client in clients],
        )
        for name, leaf in self._trained.items():
            if len(rows) == len(self.clients):
                leaf.grad = gradients[name].contiguous()
                continue
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
            at.write(leaf.grad, gradients[name])
        if at.copies:
            for name, tensor in self._others.items():
                at.write(tensor, others[name])
        size = len(batches[0][1])
        at.write(self._loss_sums, at.read(self._loss_sums) + losses * size)
        for client in clients:
            client.num_steps += 1
            client.num_seen += size


class Rows:
    """Some rows of stacked tensors: a view of them where they are adjacent, else a copy.

    Args:
        rows: Their numbers, ascending.
        device: Where the tensors lie.

    Example:
        >>> tensor = torch.arange(8).view(4, 2)
        >>> Rows([0, 2], tensor.device).read(tensor).tolist()
        [[0, 1], [4, 5]]

    Attributes:
        copies: Whether they are copies.
    """

    def __init__(self, rows: Sequence[int], device: torch.device) -> None:
        self.copies = rows[-1] - rows[0] >= len(rows)
        if not self.copies:
            self._slice = slice(rows[0], rows[-1] + 1)
            return
        index = torch.tensor(rows)
        if device.type == "cuda":  # from pinned memory, so that the device need not be waited for
            index = index.pin_memory()
        self._index = index.to(device, non_blocking=True)

    def read(self, tensor: Tensor) -> Tensor:
        """The rows of ``[all, ...]``, as ``[rows, ...]``."""
        return tensor.index_select(0, self._index) if self.copies else tensor[self._slice]

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Sets the rows of ``[all, ...]`` to ``[rows, ...]``."""
        if self.copies:
            tensor.index_copy_(0, self._index, values)
        else:
            tensor[self._slice] = values


@torch.no_grad()
def clip_each(gradients: Sequence[Tensor | None], max_norm: float) -> None:
    """``torch.nn.utils.clip_grad_norm_`` for each client: gradients ``[clients, ...]``, changed in place."""
    found = [gradient for gradient in gradients if gradient is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in found])
    factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in found:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


class _Lossy(nn.Module):
    """A network and its loss as one module, so that ``functional_call`` gives the network its weights."""

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch."""
        return self.objective.loss(self.network, inputs, targets)


class _OwnDropout(TorchFunctionMode):
    """Lets dropout, where it is mapped over clients, draw each client's mask from the client's own generator.

    On a CPU these are the masks of ``torch.nn.Dropout`` under ``isolated``, number by number. On a GPU, where
    dropout is one fused operation, they are equally distributed but other masks; there, too, they belong to the
    client alone.

    Args:
        draws: One generator per client.

    Attributes:
        used: Whether there was any dropout.
        failed: The name of the function of torch that raised an error.
    """

    def __init__(self, draws: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.draws = draws
        self.used = False
        self.failed = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return (self._dropout if func is functional.dropout else func)(*args, **kwargs)
        except Exception:
            self.failed = self.failed or getattr(func, "__name__", str(func))
            raise

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)  # draws nothing
        self.used = True
        mask = _Masks.apply(input, 1 - p, self.draws)
        return input.mul_(mask) if inplace else input * mask


class _Masks(torch.autograd.Function):
    """Dropout masks that are drawn outside of ``vmap``, which allows no random operation inside."""

    @staticmethod
    def forward(like: Tensor, keep: float, draws: Sequence[torch.Generator]) -> Tensor:
        raise RuntimeError("dropout of what is the same for all clients: a random mask cannot be stacked")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], like: Tensor, keep: float, draws: Sequence[torch.Generator]
    ) -> tuple[Tensor, int]:
        """Masks ``[clients, ...]`` for inputs of that shape, whose clients stand in dimension ``in_dims[0]``."""
        masks = like.new_empty(like.movedim(in_dims[0], 0).shape)
        for mask, own in zip(masks, draws, strict=True):
            mask.bernoulli_(keep, generator=own)
        return masks.div_(keep), 0
