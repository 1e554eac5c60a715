# SPDX-License-Identifier: Apache-2.0
"""The interface that is promised to users, as sorted lines; `python -m tests.promised` writes those of this tree.

tests/interface/ has the lines of each release too. Whatever differs from the last release wants a line in the changelog
(tests/test_interface.py; docs/reference/stability.md).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.cli.verbs import VERBS
from app.kube.pods import PREFIX
from app.policy.annotations import ANNOTATIONS
from app.policy.schema import custom_resource_definition
from app.telemetry.metrics import Metrics
from app.values.reasons import Code
from tests.cli.commands import every

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "interface"
CURRENT = FOLDER / "current.txt"
ANSWERS = ROOT / "app" / "cli" / "schemas"
Object = dict[str, Any]


def fields() -> Iterator[str]:
    """List the fields of a GPUPolicy by their paths, with the values of enumerations, and the versions."""
    for version in custom_resource_definition()["spec"]["versions"]:
        yield f"version GPUPolicy {version['name']}"
        yield from _properties("field", version["schema"]["openAPIV3Schema"], "", {})


def _properties(kind: str, schema: Object, path: str, defs: Mapping[str, Object], depth: int = 0) -> Iterator[str]:
    """List the properties of a JSON Schema at any depth; a definition within itself ends the walk."""
    if depth > 12:
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        left = {key: value for key, value in defs.items() if key != name}
        yield from _properties(kind, defs.get(name, {}), path, left, depth + 1)
    for value in schema.get("enum", ()):
        yield f"{kind} {path} = {value}"
    for name, inner in schema.get("properties", {}).items():
        yield f"{kind} {path}.{name}"
        yield from _properties(kind, inner, f"{path}.{name}", defs, depth + 1)
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())):
        if isinstance(inner, dict):
            yield from _properties(kind, inner, path, defs, depth + 1)


def answers() -> Iterator[str]:
    """List the members of what commands write with `-o json`."""
    for path in sorted(ANSWERS.glob("*.json")):
        schema = json.loads(path.read_text("utf-8"))
        yield from _properties("json", schema, path.stem, schema.get("$defs", {}))


def commands() -> Iterator[str]:
    """List the commands with their options, which are the settings of `serve` too, and the meanings of exit code 1."""
    for words, command in every():
        name = " ".join(("gpu-usher", *words))
        yield f"command {name}"
        for parameter in command.params:
            yield from (f"setting {name} {option}" for option in (*parameter.opts, *parameter.secondary_opts))
            yield from (f"setting {variable}" for variable in _variables(parameter.envvar))
    for verb, row in VERBS.items():
        yield f"exit {verb} 1: {row.fails or 'none'}"
    yield "exit any 2: bad input"


def _variables(named: Any) -> tuple[str, ...]:
    return (named,) if isinstance(named, str) else tuple(named or ())


def metrics() -> Iterator[str]:
    """List the metrics with their labels."""
    registry = Metrics("all").registry
    for collector in list(registry._collector_to_names):
        for family in getattr(collector, "describe", collector.collect)():
            labels = ",".join(getattr(collector, "_labelnames", ()))
            yield f"metric {family.name}{{{labels}}} {family.type}"


def interface() -> list[str]:
    """List all that is promised, sorted, each once."""
    listed = [
        *fields(),
        *answers(),
        *commands(),
        *metrics(),
        *(f"annotation {PREFIX}{name}" for name in ANNOTATIONS),
        *(f"reason {code.name}" for code in Code),
    ]
    return sorted(set(listed))


def main() -> None:
    """Write the lines of this tree."""
    CURRENT.write_text("\n".join(interface()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
