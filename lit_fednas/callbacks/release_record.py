"""What a private run has released, on disk before it leaves the server; a resumed run accounts for it.

Each start of a run appends a line per release to a file of its own beside the checkpoints. A checkpoint says how many
lines of which files are in its account; the others came after it, however often the run was resumed.
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
    """Files of a run's releases, ``<checkpoints>/released/<run>-<start>.jsonl``: of this start and of others."""

    def __init__(self) -> None:
        self.run = self.start = secrets.token_hex(8)  # a run is named after its first start
        self.counts: dict[str, int] = {}  # of the releases that the accountant has added, by start
        self._found: Path | None = None
        self._files: list[Path] = []

    def resume(self, state: Mapping[str, Any], beside: Path) -> list[dict[int, float]]:
        """Returns what was released after the checkpoint with this state, in the folder ``beside``."""
        self.run, self.counts = state["run"], dict(state["counts"])
        folders = [beside / _FOLDER, *map(Path, state["folders"])]
        name = f"{self.run}-{state['start']}.jsonl"
        self._found = next((folder for folder in folders if (folder / name).is_file()), None)
        if self._found is None:
            raise CheckpointError(
                f"privacy: {name}, which says what was released after the checkpoint, is not in "
                f"{' or '.join(map(str, folders))}; move a checkpoint together with the folder {_FOLDER!r} beside it "
                f"(which is written where a callback keeps checkpoints), or begin a new run"
            )
        missed: list[dict[int, float]] = []
        for path in sorted(self._found.glob(f"{self.run}-*.jsonl")):
            start = path.stem.removeprefix(f"{self.run}-")
            with reading(path), open(path) as file:
                whole = [json.loads(line) for line in file if line.endswith("\n")]  # a kill may cut the last one short
                counted = self.counts.get(start, 0)
                missed += [{int(client): float(loss) for client, loss in one.items()} for one in whole[counted:]]
            self.counts[start] = max(counted, len(whole))
        return missed

    def begin(self, checkpoints: Iterable[str]) -> None:
        """Creates this start's file, which its owner alone can read."""
        folders = dict.fromkeys(Path(folder).absolute() / _FOLDER for folder in checkpoints)
        if self._found is not None:
            folders[self._found.absolute()] = None
        self._files = [folder / f"{self.run}-{self.start}.jsonl" for folder in folders]
        for path in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)

    def write(self, losses: Mapping[int, float]) -> None:
        """Adds a release, and waits until it is on disk."""
        for path in self._files:
            with naming(path), open(path, "a") as file:
                file.write(json.dumps(dict(losses)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def count(self) -> None:
        """Notes that the accountant has added the last release."""
        self.counts[self.start] = self.counts.get(self.start, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        folders = [str(path.parent) for path in self._files]
        return {"run": self.run, "start": self.start, "counts": dict(self.counts), "folders": folders}
