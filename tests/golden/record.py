"""Records the golden runs.

python -m tests.golden.record             writes golden.json anew: for a change that is meant to change results
python -m tests.golden.record --digests F writes digests of every bit to F, or compares with what F holds
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.golden.runs import GOLDEN, RUNS, digests, figures, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="Which runs; all if none are named.")
    parser.add_argument("--digests", type=Path)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # LightningCLI looks at it
    known = json.loads(options.digests.read_text()) if options.digests and options.digests.exists() else {}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    differ = False
    for name in options.names or RUNS:
        start = perf_counter()
        with TemporaryDirectory() as folder:
            done = run(name, Path(folder))
            found, shown = digests(done), figures(done)
        print(f"{name}: {perf_counter() - start:.1f} s", file=sys.stderr)
        if options.digests is None:
            golden[name] = shown
        elif name not in known:
            known[name] = found
        elif known[name] != found:
            differ = True
            others = sorted(key for key in known[name].keys() | found.keys() if known[name].get(key) != found.get(key))
            print(f"{name}: differs in {', '.join(others)}")
        else:
            print(f"{name}: equal, bit for bit ({len(found)} digests)")
    if options.digests is None:
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    else:
        options.digests.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
