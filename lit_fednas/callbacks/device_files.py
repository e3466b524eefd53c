"""The weights that devices have last trained, on disk, where checkpoints refer to them.

An update is one file, which is never changed and whose name has a hash of its weights, so that no other has it, be it
of a run that was resumed in the same folder. So a checkpoint holds names, whatever the devices have trained, and a file
is removed once neither the present state nor a checkpoint of the run refers to it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from lit_fednas.errors import CheckpointError
from lit_fednas.federation.initial_weights import read_tensors
from lit_fednas.federation.ranks import Ranks
from lit_fednas.records.files import replacing

_FOLDER = "devices"

log = logging.getLogger(__name__)


class DeviceFiles:
    """Files of devices' weights, ``<checkpoints>/devices/<round>-<client>-<hash>.pt``.

    Args:
        state_key: Under which a checkpoint holds the state of the callback that they belong to.

    Attributes:
        folder: Where they lie; none before the first round.
    """

    def __init__(self, state_key: str) -> None:
        self.folder: Path | None = None
        self._state_key = state_key
        self._temporary: TemporaryDirectory[str] | None = None  # where no checkpoint is written
        # names in checkpoints, None in those that cannot be read, by path, time and size
        self._known: dict[tuple[Path, int, int], frozenset[str] | None] = {}

    def find(self, names: Collection[str], folders: Iterable[Path]) -> None:
        """Finds the files of a checkpoint.

        Args:
            names: Of the files.
            folders: Where they may lie.

        Raises:
            CheckpointError: No folder has them all.
        """
        for folder in (tried := list(folders)):
            missing = [name for name in sorted(names) if not (folder / name).is_file()]
            if not missing:
                self.folder = folder
                return
        raise CheckpointError(
            f"device_average: {missing[0]} of the devices' weights is not in {' or '.join(map(str, tried))}; move a "
            f"checkpoint together with the folder {_FOLDER!r} beside it, or set device_average to null"
        )

    def begin(self, checkpoints: str | None, names: Iterable[str], ranks: Ranks) -> None:
        """Prepares for a run, whose files begin as those that were found.

        Args:
            checkpoints: The folder of its checkpoints, if it writes any.
            names: Files that it goes on from.
            ranks: Of the run; all call this.
        """
        own = Path(checkpoints) / _FOLDER if checkpoints is not None else None
        if own is None and self._temporary is None and ranks.rank == 0:
            self._temporary = TemporaryDirectory(prefix="lit-fednas-devices-")
        own = own or Path(ranks.gather(self._temporary and self._temporary.name)[0] or "")
        if ranks.rank == 0 and self.folder is not None and self.folder != own:
            for name in names:
                with replacing(own / name, sync=True) as file, open(self.folder / name, "rb") as found:
                    shutil.copyfileobj(found, file)
        ranks.gather(None)  # the files are there
        self.folder = own

    def write(self, round: int, client: int, weights: Mapping[str, Tensor]) -> str:
        """Writes what a device has trained, as safely as a checkpoint that will refer to it.

        Args:
            round: In which it did.
            client: The device.
            weights: By name.

        Returns:
            The file's name.
        """
        assert self.folder is not None
        content = hashlib.blake2b(digest_size=6)
        for key, tensor in weights.items():
            content.update(key.encode())
            content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        name = f"{round}-{client}-{content.hexdigest()}.pt"
        with replacing(self.folder / name, sync=True) as file:
            torch.save(weights, file)
        return name

    def read(self, name: str) -> Mapping[str, Tensor]:
        """Opens a file; its tensors stay on disk until they are used."""
        assert self.folder is not None
        weights: Mapping[str, Tensor] = read_tensors(self.folder / name, "device_average", "set it to null")
        return weights

    def remove_others(self, names: Collection[str], folders: Iterable[str]) -> None:
        """Removes files to which neither the present state nor a checkpoint refers; none if one cannot be read.

        Args:
            names: The files of the present state.
            folders: Of the run's checkpoints, which may lie in folders below.
        """
        assert self.folder is not None
        if others := {path.name for path in self.folder.glob("[0-9]*-[0-9]*-*.pt")}.difference(names):
            referred = [self._named_in(path) for folder in folders for path in Path(folder).rglob("*.ckpt")]
            if None not in referred:
                for name in others.difference(*referred):  # type: ignore[arg-type]
                    (self.folder / name).unlink()

    def _named_in(self, checkpoint: Path) -> frozenset[str] | None:
        status = checkpoint.stat()
        key = checkpoint, status.st_mtime_ns, status.st_size
        if key not in self._known:
            self._known = {known: names for known, names in self._known.items() if known[0] != checkpoint}
            self._known[key] = self._read_names(checkpoint)
        return self._known[key]

    def _read_names(self, checkpoint: Path) -> frozenset[str] | None:
        try:
            content: Any = read_tensors(checkpoint, "ckpt_path", f"{self.folder} keeps all files until it is removed")
        except CheckpointError as error:
            log.warning("%s", error)
            return None
        callbacks = content.get("callbacks") if isinstance(content, dict) else None
        devices = (callbacks or {}).get(self._state_key, {}).get("devices", {})
        return frozenset(device["file"] for device in devices.values())
