"""A record of a private run's releases, written before they leave the server, so that a resumed run accounts for them.

Each start of a run appends a line per release to a new file beside the checkpoints. A checkpoint contains the number of
lines of each file that its accountant includes; other lines were written after the checkpoint.
"""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lit_fednas.errors import CheckpointError
from lit_fednas.records.files import naming, reading

_FOLDER = "released"


class ReleaseRecord:
    """The files with a run's releases, ``<checkpoints>/released/<run>-<start>.jsonl``."""

    def __init__(self) -> None:
        self.run = self.start = secrets.token_hex(8)  # a run is named after its first start
        self.counts: dict[str, int] = {}  # number of releases in the account, by start
        self._previous: Path | None = None
        self._files: list[Path] = []

    def resume(self, state: Mapping[str, Any], beside: Path) -> list[dict[int, float]]:
        """Returns the losses of releases after the checkpoint with this state, in the folder ``beside``."""
        self.run, self.counts = state["run"], dict(state["counts"])
        folders = [beside / _FOLDER, *map(Path, state["folders"])]
        name = f"{self.run}-{state['start']}.jsonl"
        self._previous = next((folder for folder in folders if (folder / name).is_file()), None)
        if self._previous is None:
            raise CheckpointError(
                f"privacy: {name}, the record of releases after the checkpoint, is not in "
                f"{' or '.join(map(str, folders))}; move a checkpoint together with the folder {_FOLDER!r} beside it, "
                f"or start a new run"
            )
        losses: list[dict[int, float]] = []
        for path in sorted(self._previous.glob(f"{self.run}-*.jsonl")):
            start = path.stem.removeprefix(f"{self.run}-")
            with reading(path), open(path) as file:
                lines = [json.loads(line) for line in file if line.endswith("\n")]  # a kill may truncate the last line
                count = self.counts.get(start, 0)
                losses += [{int(client): float(loss) for client, loss in line.items()} for line in lines[count:]]
            self.counts[start] = max(count, len(lines))
        return losses

    def begin(self, checkpoints: Iterable[str]) -> None:
        """Creates this start's file, which only its owner can read."""
        folders = dict.fromkeys(Path(folder).absolute() / _FOLDER for folder in checkpoints)
        if self._previous is not None:
            folders[self._previous.absolute()] = None
        self._files = [folder / f"{self.run}-{self.start}.jsonl" for folder in folders]
        for path in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)

    def write(self, losses: Mapping[int, float]) -> None:
        """Appends a release, and waits until it is on disk."""
        for path in self._files:
            with naming(path), open(path, "a") as file:
                file.write(json.dumps(dict(losses)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def count(self) -> None:
        """Counts the last release as part of the account."""
        self.counts[self.start] = self.counts.get(self.start, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        folders = [str(path.parent) for path in self._files]
        return {"run": self.run, "start": self.start, "counts": dict(self.counts), "folders": folders}
