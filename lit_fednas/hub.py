"""The commands ``hub push`` and ``hub pull``, which exchange a supernet's folder with the Hugging Face hub."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from lit_fednas.config_files import EXAMPLE_TIERS, find
from lit_fednas.errors import ConfigError
from lit_fednas.records.run import PRETRAINED_FILES, WEIGHTS_FILE

#: Trained supernets of the package.
_MODELS = Path(__file__).with_name("models")


def push(folder: Path, repo: str, private: bool = False) -> None:
    """Uploads a supernet's folder to the Hugging Face hub.

    Args:
        folder: Folder of lit-fednas export --supernet; its config.yaml contains the paths of your data.
        repo: Name of the repository, OWNER/NAME; created if it is missing. Log in first (hf auth login).
        private: Whether a new repository is visible only to its owner.

    Raises:
        ConfigError: The folder is not a supernet's, or the hub refuses it.
    """
    if not (folder / WEIGHTS_FILE).is_file():
        raise ConfigError(f"folder: {folder} has no {WEIGHTS_FILE}; write it with lit-fednas export --supernet")
    with _library(repo) as hub:
        hub.HfApi().create_repo(repo, private=private, exist_ok=True)
        hub.HfApi().upload_folder(repo_id=repo, folder_path=folder, allow_patterns=list(PRETRAINED_FILES))
    print(f"uploaded: {folder} to {repo}")


def pull(repo: str, output: Path | None = None, revision: str | None = None) -> None:
    """Downloads a supernet's folder from the Hugging Face hub, or copies the package's.

    Args:
        repo: Name of the repository, OWNER/NAME, or digit-pairs, which comes with the package. Read its config.yaml
            first, since a command imports the classes that it names.
        output: New folder; by default NAME.
        revision: Branch, tag or commit.

    Raises:
        ConfigError: The folder exists already, or the repository has no supernet.
    """
    folder = output or Path(repo.rpartition("/")[2])
    if folder.exists():
        raise ConfigError(f"output: {folder} exists already; give a new folder")
    if "/" not in repo:
        _copy(repo, folder)
        return
    with _library(repo) as hub:
        hub.snapshot_download(repo, revision=revision, local_dir=folder, allow_patterns=list(PRETRAINED_FILES))
    if not (folder / WEIGHTS_FILE).is_file():
        raise ConfigError(f"repo: {repo} has no {WEIGHTS_FILE}; give one that lit-fednas hub push has uploaded")
    _say_next(folder, EXAMPLE_TIERS)


def _copy(name: str, folder: Path) -> None:
    """Copies a trained supernet of the package."""
    names = [path.name for path in _MODELS.iterdir()]
    if name not in names:
        raise ConfigError(f"repo: {name} is not in the package, which has {', '.join(names)}; give OWNER/NAME")
    shutil.copytree(_MODELS / name, folder)
    config = f"{name.replace('-', '_')}.yaml"
    shutil.copy(find(f"recommended/{config}"), folder / "config.yaml")
    _say_next(folder, f"--config search/{config}")


def _say_next(folder: Path, tiers: str) -> None:
    print(f"written: {folder}")
    path = quote(str(folder))
    print(f"next: lit-fednas search --config {path}/config.yaml {tiers} --ckpt_path {path}")


@contextmanager
def _library(repo: str) -> Iterator[Any]:
    """Yields ``huggingface_hub``; converts its errors, also those of the network, to one line."""
    try:
        import huggingface_hub

        yield huggingface_hub
    except ImportError:
        raise ConfigError("hub: needs the package huggingface_hub; pip install 'lit-fednas[hub]'") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"repo: {repo}: the hub's library says: {reason}; correct the name, or log in") from error
