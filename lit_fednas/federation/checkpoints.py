"""Files of weights: a run's checkpoints, initial weights, and the state of clients between rounds."""

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

#: Prefixes in a supernet's tensor names: of its only network, or of the first of several.
_NETWORK = ("network.", "networks.0.", "")
#: The prefixes in a file, which may hold a module, a supernet or a network.
_PREFIXES = (*(f"supernet.{prefix}" for prefix in _NETWORK), *_NETWORK)
#: Required keys of a checkpoint, and of its section ``federation``.
_WEIGHTS = ("state_dict", "pytorch-lightning_version", "federation")
_FEDERATION = ("supernet", "assignment", "seed")
_FOLDER = "clients"
#: The name of each client's file with facts about its content, by client.
Entries = dict[int, dict[str, Any]]

log = logging.getLogger(__name__)


def read_tensors(file: Path | str, field: str, remedy: str) -> Any:
    """Reads a file of ``torch.save``; tensors stay on disk until they are used."""
    if not Path(file).is_file():
        fault = "is a folder" if Path(file).is_dir() else "does not exist"
        raise CheckpointError(f"{field}: {file} {fault}; {remedy}")
    try:
        if zipped := is_zipfile(file):
            with ZipFile(file) as archive:
                if archive.testzip() is not None:  # torch itself does not compare the checksums
                    raise ValueError
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception:  # torch's own messages differ between formats, and may advise to run the code in the file
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
        raise CheckpointError(f"ckpt_path: {path} is not a run's checkpoint: it has no {', '.join(missing)}; {remedy}")
    return content


def check_checkpoint(path: Any, needed: Collection[str] = ()) -> None:
    """Validates a checkpoint like :func:`read_checkpoint`; accepts ``None`` and Lightning's words such as ``last``."""
    if path is not None and str(path) not in ("last", "best", "hpc"):
        read_checkpoint(path, needed)


def weights_file(path: Path | str) -> Path:
    """Returns the weights file in the folder of an exported supernet; returns other paths unchanged."""
    return Path(path, WEIGHTS_FILE) if Path(path, WEIGHTS_FILE).is_file() else Path(path)


def load_initial(network: nn.Module, path: Path, field: str, ignore_mismatched_sizes: bool = False) -> None:
    """Copies the weights of a file into a supernet or a network; tensors of other sizes are refused or skipped."""
    file = weights_file(path)
    loaded = read_tensors(file, field, "give a checkpoint or a state dictionary")
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{field}: {file} holds no weights; give a checkpoint or a state dictionary")
    network_state = network.state_dict()
    network_prefix = next(prefix for prefix in _NETWORK if all(name.startswith(prefix) for name in network_state))
    present = {name.removeprefix(network_prefix): tensor for name, tensor in network_state.items()}
    # the prefix that leaves most of the network's names is the right one
    stored: dict[str, Tensor] = max(
        ({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)} for prefix in _PREFIXES),
        key=lambda tensors: len(tensors.keys() & present.keys()),
    )
    mismatches = [name for name in present if name not in stored or stored[name].shape != present[name].shape]
    # other sizes are skipped only if the file has every name, and at least one tensor fits
    if mismatches and not (ignore_mismatched_sizes and stored.keys() >= present.keys() > set(mismatches)):
        missing = [name for name in mismatches if name not in stored]
        name = (missing or mismatches)[0] if ignore_mismatched_sizes else mismatches[0]
        raise ConfigError(
            f"{field}: {file} has {'no tensor' if name in missing else list(stored[name].shape)} for {name}, which is "
            f"{list(present[name].shape)} in the network; give the file of the same network"
        )
    if mismatches:
        log.warning("%s: %s differ in size in %s; they keep their random values", field, ", ".join(mismatches), file)
    matches = present.keys() - set(mismatches)
    network.load_state_dict(network_state | {network_prefix + name: stored[name] for name in matches})


def model_settings(checkpoint_path: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model's settings in the ``config.yaml`` of a checkpoint's run."""
    exported = checkpoint_path.with_name("config.yaml")  # an exported supernet has it in the same folder
    path = exported if exported.exists() else checkpoint_path.parent.parent / "config.yaml"
    if not path.exists() or "data" not in saved:
        raise CheckpointError(
            f"checkpoint: its run's {path} does not exist, or is of an earlier version; give the module's parts: "
            f"load_from_checkpoint({str(checkpoint_path)!r}, supernet=..., assignment=..., ...)"
        )
    with reading(path):
        return dict(yaml.safe_load(path.read_text())["model"])


def check_supernet(supernet: Supernet, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Validates that a checkpoint's weights are finite and fit a supernet."""
    present, name = supernet.fingerprint, saved["class"]
    if name != present["class"]:
        raise CheckpointError(f"checkpoint: it is of a {name}, not of a {present['class']}; use the config of its run")
    aliases = supernet.state_dict().keys() - saved["shapes"].keys()  # second names of tensors that layers share
    shapes = {tensor: list(content.shape) for tensor, content in tensors.items() if tensor not in aliases}
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
    """The files of a run's clients, shared by all ranks; files of a round count once they are committed.

    Each kind of content has one file per client, ``<checkpoints>/clients/<round>-<client>-<hash of the content>.pt``,
    which never changes. Checkpoints hold the names. A file is removed once neither the present state nor a checkpoint
    of the run refers to it.
    """

    def __init__(self) -> None:
        self._committed: dict[str, Entries] = {}
        self._uncommitted: dict[str, Entries] = {}  # entries of this rank's files of the present round
        self._loaded: dict[str, Entries] = {}  # entries of a checkpoint, until their kind is opened
        self._folders: list[Path] = []  # the run writes into the first; a resumed run's files may be in the others
        self._checkpoints: list[Path] = []
        self._ranks = Ranks()
        self._temporary: TemporaryDirectory[str] | None = None  # used if the run writes no checkpoints

    def open(self, kind: str, ranks: Ranks, checkpoints: Collection[str]) -> None:
        """Prepares a kind of content on all ranks, beside the run's checkpoints, and copies a resumed run's files."""
        self._uncommitted.pop(kind, None)  # left by an interrupted round
        entries = self._committed[kind] = self._loaded.pop(kind, self._committed.get(kind, {}))
        names = [entry["file"] for entry in entries.values()]
        origin = next((folder for folder in self._folders if all((folder / name).is_file() for name in names)), None)
        if names and origin is None:
            folders = " or ".join(str(folder) for folder in self._folders)
            missing = next(name for name in names if not (self._folders[0] / name).is_file())
            raise CheckpointError(
                f"ckpt_path: {missing} is not in {folders}; move a checkpoint with the folder {_FOLDER!r} beside it"
            )
        self._ranks = ranks
        self._checkpoints = [Path(folder) for folder in checkpoints]
        if not self._checkpoints and self._temporary is None and ranks.rank == 0:
            self._temporary = TemporaryDirectory(prefix="lit-fednas-clients-")
        temporary = ranks.gather(self._temporary and self._temporary.name)[0]
        target = self._checkpoints[0] / _FOLDER if self._checkpoints else Path(str(temporary))
        if ranks.rank == 0 and origin is not None and origin != target:
            for name in names:
                with replacing(target / name, sync=True, private=True) as file, open(origin / name, "rb") as source:
                    shutil.copyfileobj(source, file)
        ranks.gather(None)  # every rank waits until the files are copied
        self._folders = [target, *(folder for folder in self._folders if folder != target)]

    def entries(self, kind: str) -> Entries:
        """Returns the file name and the facts of each client that has a file."""
        return self._committed.get(kind, {})

    def read(self, kind: str, client: int) -> Mapping[str, Any]:
        """Returns the content of a client's file; tensors stay on disk until they are used. Empty without a file."""
        if client not in self.entries(kind):
            return {}
        path = self._folders[0] / self._committed[kind][client]["file"]
        return read_tensors(path, "ckpt_path", "give a checkpoint that has its clients' files beside it")

    def write(self, kind: str, round: int, client: int, content: Mapping[str, Any], **facts: Any) -> None:
        """Writes tensors (no views) and plain values of a client; checkpoints keep the facts beside its file's name."""
        buffer = io.BytesIO()
        torch.save(content, buffer)
        name = f"{round}-{client}-{hashlib.blake2b(buffer.getbuffer(), digest_size=6).hexdigest()}.pt"
        with replacing(self._folders[0] / name, sync=True, private=True) as file:
            file.write(buffer.getbuffer())
        self._uncommitted.setdefault(kind, {})[client] = {"file": name, **facts}

    def commit(self, clients: Collection[int]) -> None:
        """Replaces the files of some clients by those that any rank wrote in this round."""
        if not self._committed:
            return
        for uncommitted in self._ranks.gather(self._uncommitted):
            for kind, entries in uncommitted.items():
                self._committed[kind].update({client: entry for client, entry in entries.items() if client in clients})
        self._uncommitted = {}
        if self._ranks.rank == 0:
            self._remove_unused()
        self._ranks.gather(None)  # no rank writes before unused files are removed

    def state_dict(self) -> dict[str, Any]:
        """Returns the names and the folder of the files, as plain values."""
        return {"kept": self._committed, "folder": str(self._folders[0])} if self._committed else {}

    def load_state_dict(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restores the names of a checkpoint's files; they are beside the checkpoint or in the run's folder."""
        self._loaded = dict(state.get("kept", {}))
        self._folders = [checkpoint.parent / _FOLDER, Path(state["folder"])] if state else []

    def _remove_unused(self) -> None:
        """Removes files to which nothing refers; removes none if a checkpoint cannot be read."""
        unused = {path.name for path in self._folders[0].glob("[0-9]*-[0-9]*-*.pt")} - _files(self._committed)
        for checkpoint in (path for folder in self._checkpoints for path in folder.rglob("*.ckpt")) if unused else ():
            status = checkpoint.stat()
            names = _names_in(checkpoint, status.st_mtime_ns, status.st_size)
            unused = set() if names is None else unused - names
        for name in unused:
            (self._folders[0] / name).unlink()


def state_in(checkpoint: Any) -> Mapping[str, Any]:
    """Returns a store's state in one of Lightning's checkpoints; empty for checkpoints without one."""
    loops = checkpoint.get("loops") if isinstance(checkpoint, dict) else None
    return ((loops or {}).get("fit_loop") or {}).get("state_dict", {}).get("clients", {})


@lru_cache
def _names_in(checkpoint: Path, changed: int, size: int) -> set[str] | None:
    """Returns the files to which a checkpoint refers, or ``None`` if it cannot be read; cached until it changes."""
    try:
        content = read_tensors(checkpoint, "ckpt_path", "the files of clients are kept until it is removed")
    except CheckpointError as error:
        log.warning("%s", error)
        return None
    return _files(state_in(content).get("kept", {}))


def _files(entries_by_kind: Mapping[str, Entries]) -> set[str]:
    return {entry["file"] for entries in entries_by_kind.values() for entry in entries.values()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies on the CPU that share no memory with the tensors."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
