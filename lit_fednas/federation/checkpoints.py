"""Files of weights: a run's checkpoint and what it must fit, initial weights, what is kept of clients."""

import hashlib
import io
import logging
import shutil
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
import yaml
from torch import Tensor, nn

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.ranks import Ranks
from lit_fednas.records.files import reading, replacing
from lit_fednas.records.run import WEIGHTS_FILE
from lit_fednas.supernets import Supernet

#: Prefixes of a supernet's tensors where it holds one network: an ordinary network, or the first of several.
_NETWORK = ("network.", "networks.0.", "")
_PREFIXES = (*(f"supernet.{prefix}" for prefix in _NETWORK), *_NETWORK)  # of the same in a file
#: What a checkpoint of a run has in any case, and what the part of it that is ours has.
_WEIGHTS = ("state_dict", "pytorch-lightning_version", "federation")
_FEDERATION = ("supernet", "assignment", "seed")
_FOLDER = "clients"
#: The file of a client, and what can be known of it without opening it; by client, by kind.
Entries = dict[int, dict[str, Any]]

log = logging.getLogger(__name__)


def read_tensors(file: Path | str, field: str, remedy: str) -> Any:
    """Reads what ``torch.save`` has written; tensors stay on disk until they are used."""
    if not Path(file).is_file():
        fault = "is a folder" if Path(file).is_dir() else "does not exist"
        raise CheckpointError(f"{field}: {file} {fault}; {remedy}")
    try:
        if zipped := is_zipfile(file):
            with ZipFile(file) as archive:
                if archive.testzip() is not None:  # torch itself does not compare the checksums
                    raise ValueError
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception:  # what torch says depends on what the file is, and may advise to run the code in it
        raise CheckpointError(
            f"{field}: {file} cannot be read: it is damaged, or holds more than tensors and plain values; {remedy}"
        ) from None


def read_checkpoint(path: Any, needed: Collection[str] = ()) -> dict[str, Any]:
    """Reads a run's checkpoint."""
    remedy = "give a .ckpt file that lit-fednas fit has saved"
    content = read_tensors(path, "ckpt_path", remedy)
    content = content if isinstance(content, dict) else {}
    part = content.get("federation")
    missing = [name for name in (*_WEIGHTS, *needed) if content.get(name) is None]
    missing += [f"federation.{name}" for name in _FEDERATION if part and name not in part]
    if missing:
        raise CheckpointError(f"ckpt_path: {path} is not of a run: it has no {', '.join(missing)}; {remedy}")
    return content


def check_checkpoint(path: Any, needed: Collection[str] = ()) -> None:
    """Validates a checkpoint as :func:`read_checkpoint` does; ``None`` and words like ``last`` pass."""
    if path is not None and str(path) not in ("last", "best", "hpc"):
        read_checkpoint(path, needed)


def weights_file(path: Path | str) -> Path:
    """Returns the weights in the folder of an exported supernet; another path as it is."""
    return Path(path, WEIGHTS_FILE) if Path(path, WEIGHTS_FILE).is_file() else Path(path)


def load_initial(network: nn.Module, path: Path, field: str, ignore_mismatched_sizes: bool = False) -> None:
    """Writes the weights of a file into a supernet or a network, in place; tensors of other sizes may be left out."""
    file = weights_file(path)
    loaded = read_tensors(file, field, "give a checkpoint or a state dictionary")
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{field}: {file} holds no weights; give a checkpoint or a state dictionary")
    own = network.state_dict()
    own_prefix = next(prefix for prefix in _NETWORK if all(name.startswith(prefix) for name in own))
    present = {name.removeprefix(own_prefix): tensor for name, tensor in own.items()}
    # a file may hold a module, a supernet or a network: the prefix after which most names are known is the right one
    given: dict[str, Tensor] = max(
        ({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)} for prefix in _PREFIXES),
        key=lambda tensors: len(tensors.keys() & present.keys()),
    )
    others = [name for name in present if name not in given or given[name].shape != present[name].shape]
    # sizes may differ only where every tensor is there by name, and not all of them differ
    if others and not (ignore_mismatched_sizes and given.keys() >= present.keys() > set(others)):
        missing = [name for name in others if name not in given]
        name = (missing or others)[0] if ignore_mismatched_sizes else others[0]
        raise ConfigError(
            f"{field}: {file} has {'no tensor' if name in missing else list(given[name].shape)} for {name}, which is "
            f"{list(present[name].shape)} in the network; give the file of the same network"
        )
    if others:
        log.warning("%s: %s are of other sizes in %s; they start as drawn", field, ", ".join(others), file)
    network.load_state_dict(own | {own_prefix + name: given[name] for name in present.keys() - set(others)})


def model_settings(checkpoint_path: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model's settings in the ``config.yaml`` of a checkpoint's run."""
    beside = checkpoint_path.with_name("config.yaml")  # of an exported supernet
    path = beside if beside.exists() else checkpoint_path.parent.parent / "config.yaml"
    if not path.exists() or "data" not in saved:
        raise CheckpointError(
            f"checkpoint: its run's {path} does not exist, or is of an earlier version; give the module's parts: "
            f"load_from_checkpoint({str(checkpoint_path)!r}, supernet=..., assignment=..., ...)"
        )
    with reading(path):
        return dict(yaml.safe_load(path.read_text())["model"])


def check_supernet(supernet: Supernet, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Validates that a checkpoint's weights are those of a supernet, and finite."""
    present, name = supernet.fingerprint, saved["class"]
    if name != present["class"]:
        raise CheckpointError(f"checkpoint: it is of a {name}, not of a {present['class']}; use the config of its run")
    second = supernet.state_dict().keys() - saved["shapes"].keys()  # further names of tensors that layers share
    shapes = {tensor: list(content.shape) for tensor, content in tensors.items() if tensor not in second}
    if shapes != present["shapes"]:
        names = sorted(set(shapes) ^ set(present["shapes"]))
        names += [tensor for tensor, shape in present["shapes"].items() if shapes.get(tensor, shape) != shape]
        raise CheckpointError(
            f"checkpoint: its {name} differs in {len(names)} tensors, first in {names[0]} "
            f"({shapes.get(names[0])} there, {present['shapes'].get(names[0])} here); "
            f"use the model.supernet settings that the run was started with"
        )
    layers = saved.get("layers", present["layers"])
    if layers != present["layers"]:
        raise CheckpointError(
            f"checkpoint: its {name} has layers of {', '.join(layers)}, this one of "
            f"{', '.join(present['layers'])}; use the model.supernet settings that the run was started with"
        )
    for tensor, content in tensors.items():
        if not content.isfinite().all():
            raise CheckpointError(f"checkpoint: its {tensor} holds NaN or infinity; give an earlier checkpoint")


class ClientStore:
    """The files of a run's clients, the same for all ranks; what a round writes counts once it is committed.

    Each kind of content has one file per client, ``<checkpoints>/clients/<round>-<client>-<hash of the content>.pt``,
    which never changes. So checkpoints hold names, and a file is removed once neither the present state nor a
    checkpoint of the run refers to it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Entries] = {}
        self._written: dict[str, Entries] = {}  # by this rank in the present round
        self._loaded: dict[str, Entries] = {}  # of a checkpoint, until their kind is used
        self._folders: list[Path] = []  # where the files may be; those of this run are in the first
        self._checkpoints: list[Path] = []
        self._ranks = Ranks()
        self._temporary: TemporaryDirectory[str] | None = None  # where no checkpoint is written

    def open(self, kind: str, ranks: Ranks, checkpoints: Collection[str]) -> None:
        """Prepares for a kind of content, on all ranks, and finds the files of a checkpoint that is resumed from."""
        # checkpoints are the folders in which the run writes its own
        self._written.pop(kind, None)  # in a round that was interrupted
        entries = self._kept[kind] = self._loaded.pop(kind, self._kept.get(kind, {}))
        names = [entry["file"] for entry in entries.values()]
        found = next((folder for folder in self._folders if all((folder / name).is_file() for name in names)), None)
        if names and found is None:
            where = " or ".join(str(folder) for folder in self._folders)
            missing = next(name for name in names if not (self._folders[0] / name).is_file())
            raise CheckpointError(
                f"ckpt_path: {missing} is not in {where}; move a checkpoint with the folder {_FOLDER!r} beside it"
            )
        self._ranks = ranks
        self._checkpoints = [Path(folder) for folder in checkpoints]
        if not self._checkpoints and self._temporary is None and ranks.rank == 0:
            self._temporary = TemporaryDirectory(prefix="lit-fednas-clients-")
        temporary = ranks.gather(self._temporary and self._temporary.name)[0]
        target = self._checkpoints[0] / _FOLDER if self._checkpoints else Path(str(temporary))
        if ranks.rank == 0 and found is not None and found != target:
            for name in names:
                with replacing(target / name, sync=True, private=True) as file, open(found / name, "rb") as source:
                    shutil.copyfileobj(source, file)
        ranks.gather(None)  # the files are there
        self._folders = [target, *(folder for folder in self._folders if folder != target)]

    def entries(self, kind: str) -> Entries:
        """Returns the facts known of each client that has a file."""
        return self._kept.get(kind, {})

    def read(self, kind: str, client: int) -> Mapping[str, Any]:
        """Opens a client's file, whose tensors stay on disk until they are used; empty if there is none."""
        if client not in self.entries(kind):
            return {}
        path = self._folders[0] / self._kept[kind][client]["file"]
        return read_tensors(path, "ckpt_path", "give a checkpoint whose files are there")

    def write(self, kind: str, round: int, client: int, content: Mapping[str, Any], **facts: Any) -> None:
        """Writes a client's file: tensors (no views) and plain values, and facts that can be read without it."""
        buffer = io.BytesIO()
        torch.save(content, buffer)
        name = f"{round}-{client}-{hashlib.blake2b(buffer.getbuffer(), digest_size=6).hexdigest()}.pt"
        with replacing(self._folders[0] / name, sync=True, private=True) as file:
            file.write(buffer.getbuffer())
        self._written.setdefault(kind, {})[client] = {"file": name, **facts}

    def commit(self, clients: Collection[int]) -> None:
        """Keeps what was written of some clients in this round, on any rank, in place of what was kept before."""
        if not self._kept:
            return
        for written in self._ranks.gather(self._written):
            for kind, entries in written.items():
                self._kept[kind].update({client: entry for client, entry in entries.items() if client in clients})
        self._written = {}
        if self._ranks.rank == 0:
            self._remove_others()
        self._ranks.gather(None)  # the next round may write now

    def state_dict(self) -> dict[str, Any]:
        """Returns the names of the files and where they are, as plain values."""
        return {"kept": self._kept, "folder": str(self._folders[0])} if self._kept else {}

    def load_state_dict(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restores the names of a checkpoint's files, which are beside it or where the run had them."""
        self._loaded = dict(state.get("kept", {}))
        self._folders = [checkpoint.parent / _FOLDER, Path(state["folder"])] if state else []

    def _remove_others(self) -> None:
        """Removes the files that neither the present state nor a checkpoint refers to; none if one cannot be read."""
        unused = {path.name for path in self._folders[0].glob("[0-9]*-[0-9]*-*.pt")} - _files(self._kept)
        for checkpoint in (path for folder in self._checkpoints for path in folder.rglob("*.ckpt")) if unused else ():
            status = checkpoint.stat()
            names = _names_in(checkpoint, status.st_mtime_ns, status.st_size)
            unused = set() if names is None else unused - names
        for name in unused:
            (self._folders[0] / name).unlink()


def state_in(checkpoint: Any) -> Mapping[str, Any]:
    """Returns the store's state in a checkpoint of Lightning's; empty if it has none."""
    loops = checkpoint.get("loops") if isinstance(checkpoint, dict) else None
    return ((loops or {}).get("fit_loop") or {}).get("state_dict", {}).get("clients", {})


@lru_cache
def _names_in(checkpoint: Path, changed: int, size: int) -> set[str] | None:
    """Returns the files that a checkpoint refers to, read once while it is the same; ``None`` if it cannot be read."""
    try:
        content = read_tensors(checkpoint, "ckpt_path", "the files of clients are kept until it is removed")
    except CheckpointError as error:
        log.warning("%s", error)
        return None
    return _files(state_in(content).get("kept", {}))


def _files(kept: Mapping[str, Entries]) -> set[str]:
    return {entry["file"] for entries in kept.values() for entry in entries.values()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies on the CPU, which no longer depend on what they were views of."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
