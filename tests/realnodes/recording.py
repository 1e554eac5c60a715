# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.recording [FILE]`: run NVIDIA's components again for every world of tests/gfd/worlds.json.

Prints each label and each resource that is not as it was recorded. With FILE it also writes there what the components
say now, in the format of worlds.json.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.realnodes.device_plugin import ANSWER_SECONDS, PluginRun, missing, run_plugin
from tests.realnodes.nvidia import build, discover_labels
from tests.realnodes.worlds import World, list_worlds

RECORDED = Path("tests/gfd/worlds.json")
QUIET_SECONDS = 0.5
"""The plugin registers one resource after the other, in some ten milliseconds each."""


def record(built: Path, world: World) -> dict[str, Any]:
    """Run both components for a world; give its labels and resources as worlds.json has them."""
    with tempfile.TemporaryDirectory() as labels, tempfile.TemporaryDirectory() as plugin:
        node_labels = discover_labels(built, world, Path(labels))
        with run_plugin(built, world, Path(plugin)) as run:
            counts = _wait_for_quiet(run)
    return {"name": world.name, "labels": dict(sorted(node_labels.items())), "resources": dict(sorted(counts.items()))}


def _wait_for_quiet(run: PluginRun) -> dict[str, dict[str, int]]:
    """Wait until the plugin registers nothing more: it does not say which resource is its last."""
    seen: dict[str, dict[str, int]] = {}
    end = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < end and run.plugin.running:
        time.sleep(QUIET_SECONDS)
        if seen and run.counts() == seen:
            break
        seen = run.counts()
    return seen


def compare(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Say what differs, one line each."""
    for part in ("labels", "resources"):
        for name in sorted(before[part].keys() | after[part].keys()):
            old, new = before[part].get(name), after[part].get(name)
            if old != new:
                yield f"{before['name']}: {name} was {old}, is {new}"


def main(words: list[str]) -> int:
    """Record; 1 where the components cannot run here."""
    if missing():
        print(missing(), file=sys.stderr)
        return 1
    built = build()
    lines = []
    for recorded in json.loads(RECORDED.read_text("utf-8")):
        now = record(built, list_worlds()[recorded["name"]])
        lines.append(json.dumps(now, separators=(",", ":")))
        print("".join(f"{line}\n" for line in compare(recorded, now)), end="", flush=True)
    for file in words:
        Path(file).write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
