"""The package's configurations, by their names in ``configs/``; reading of YAML; modules beside configurations."""

import json
import os
import re
import shutil
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

import yaml

from lit_fednas.errors import ConfigError
from lit_fednas.formatting import listing

#: Numbers that YAML 1.1 reads to base 60, such as 1:30, or to base 8, such as 010.
_OLD_NUMBER = re.compile(r"[-+]?(\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?|0[0-7_]+)")
_INSTALLED = Path(__file__).with_name("configs")
#: The configurations' folder, in the package or beside it in a checkout.
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "configs"
#: The environment variable with the folders of users' modules, for child processes, and the start of a line with them.
MODULES, _MODULES_LINE = "LIT_FEDNAS_MODULES", "# modules: "
#: Absolute folders, as jsonargparse changes the directory while it reads a file; true for additions to sys.path.
_module_folders: dict[str, bool] = {}
#: Options of a search without tiers.
EXAMPLE_TIERS = "--search.tiers EvenBudgets --search.tiers.count 3"
#: Configurations for beginners: a run, a run with your own images, and a comparison of many runs.
_FIRST = ("recommended/digit_pairs.yaml", "recommended/images.yaml", "studies/growth.yaml")


def names() -> list[str]:
    """Returns the names of all configurations, such as ``superfed/digits.yaml``."""
    return sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml"))


def find(path: Path | str) -> Path:
    """Returns the path of a setting's file, which may be one of the package's configurations."""
    path = Path(path).expanduser()
    packaged = FOLDER / path.as_posix().removeprefix("configs/")
    return packaged if not path.exists() and packaged.is_file() else path


def find_config(text: str) -> str:
    """Returns the path of the file that ``--config`` names."""
    path = find(text)
    if text == "-" or ":" in text or path.exists():
        return str(path) if path.exists() else text
    choices, name = names(), text.removeprefix("configs/")
    matches = [choice for choice in choices if choice.endswith(f"/{name}")] or get_close_matches(name, choices)
    hint = f"did you mean {', '.join(matches)}? " if matches else ""
    raise ConfigError(f"config: {text} is neither a file nor in the package; {hint}(lit-fednas configs lists them)")


def read_yaml(path: Path | str) -> Any:
    """Returns the plain values of a YAML file.

    Raises:
        ConfigError: The file cannot be read, is empty, has a key twice, or has a name or a number that YAML misreads.
    """
    path = Path(path)
    try:
        if (content := parse_yaml(path.read_text(encoding="utf-8"))) is None:
            raise ConfigError("is empty, or holds only comments; write settings into it, or leave it out")
        return content
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error}); save it as UTF-8") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}; correct it") from error


def parse_yaml(text: str) -> Any:
    """Returns the plain values of YAML; raises ConfigError or ``yaml.YAMLError`` for a wrong text."""
    loader = yaml.SafeLoader(text)
    if (node := loader.get_single_node()) is None:
        return None
    _check_node(node, set())
    return loader.construct_document(node)


def _check_reading(scalar: yaml.Node, is_name: bool) -> None:
    kind, text = scalar.tag.rpartition(":")[2], scalar.value
    if (is_name and kind in ("bool", "null")) or (kind in ("int", "float") and _OLD_NUMBER.fullmatch(text)):
        value = json.dumps(yaml.safe_load(text))
        remedy = f"quote it if it is text ({text!r}), or write {value}"
        raise ConfigError(f"{text or 'nothing'} in line {scalar.start_mark.line + 1} is read as {value}; {remedy}")


def _check_node(node: yaml.Node, checked: set[int]) -> None:
    """Validates a node's keys and values; raises RecursionError if it contains itself."""
    if id(node) in checked:
        return
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    for scalar in (node, *(key for key, _ in pairs)):
        _check_reading(scalar, is_name=scalar is not node)
    keys = Counter(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode))
    if duplicates := [key for key, count in keys.items() if count > 1 and key != "<<"]:
        line = node.start_mark.line + 1
        raise yaml.YAMLError(f"{duplicates[0]!r} is duplicated in the mapping from line {line} on")
    for child in [value for _, value in pairs] + (node.value if isinstance(node, yaml.SequenceNode) else []):
        _check_node(child, checked)
    checked.add(id(node))


def configs(name: str = "", /, output: Path | None = None) -> None:
    """Lists the configurations of the package, shows one, or copies them.

    A name of the list also works as a file, as in --config, unless the working directory has a file of this path.

    Args:
        name: Name of the configuration to show, or a word in the names or the first lines of those to list.
        output: Folder for copies of the configurations, which keep their names.

    Raises:
        ConfigError: No configuration contains the word, or a file of this name exists in the folder.
    """
    summaries = {config: _summary(FOLDER / config) for config in names()}
    name = name.removeprefix("configs/")
    matches = {config: text for config, text in summaries.items() if name.lower() in f"{config} {text}".lower()}
    if name in summaries:
        matches = {name: summaries[name]}
    if not matches:
        raise ConfigError(f"name: no configuration contains {name!r}; lit-fednas configs lists them all")
    if output is not None:
        targets = {config: output / config for config in matches}
        if existing := [target for target in targets.values() if target.exists()]:
            raise ConfigError(f"output: {existing[0]} exists; delete it, or give another folder")
        for config, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(FOLDER / config, target)
            print(f"written: {target}")
    elif name in summaries:
        print((FOLDER / name).read_text(encoding="utf-8"), end="")
    else:
        if not name:
            first = listing({config: summaries[config] for config in _FIRST}, 120)
            print(f"begin with:\n{first}\n\nall:")
        print(listing(matches, 120))


def find_modules(*configs: str) -> None:
    """Makes modules importable from the working directory, and from folders of or named in configurations."""
    folders = [os.getcwd(), *os.environ.get(MODULES, "").split(os.pathsep)]
    for path in map(Path, configs):
        line = path.read_text(encoding="utf-8").partition("\n")[0]
        recorded = line.removeprefix(_MODULES_LINE) if line.startswith(_MODULES_LINE) else ""
        folders += [str(path.absolute().parent), *recorded.split(os.pathsep)]
    sys.path[:] = [folder for folder in sys.path if not _module_folders.get(folder)]
    _module_folders.clear()  # removes folders of an earlier command in this process
    _module_folders.update({folder: folder not in sys.path for folder in folders if folder})
    sys.path += [folder for folder, is_new in _module_folders.items() if is_new]


def modules_line() -> str:
    """Returns the first line of a run's configuration, with the folders of imported users' modules."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] not in ("__main__", __package__)]
    files = [file for file in (str(getattr(module, "__file__", "")) for module in modules) if "-packages" not in file]
    used = [folder for folder in _module_folders if any(file.startswith(folder + os.sep) for file in files)]
    return f"{_MODULES_LINE}{os.pathsep.join(used)}\n" if used else ""


def expanded(value: Any) -> Any:
    """Returns settings with the home folder in place of a leading ``~``; changes mappings in place."""
    if isinstance(value, str | PurePath):
        return type(value)(os.path.expanduser(value))
    if type(value) in (list, tuple):
        return type(value)(map(expanded, value))
    if isinstance(values := vars(value) if isinstance(value, Namespace) else value, dict):
        values.update({name: expanded(item) for name, item in values.items()})
    return value


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a configuration's values with names such as ``model.client.epochs``."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item


def _summary(path: Path) -> str:
    """Returns the first line of a file, which is a comment."""
    with path.open(encoding="utf-8") as file:
        text = file.readline().strip("# \n")
    return text if text.endswith((".", ":")) else f"{text} ..."
