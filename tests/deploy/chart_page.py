# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.deploy.chart_page`: write deploy/chart/README.md from the values' schema and defaults."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.deploy.rendering import DEPLOY

CHART = DEPLOY / "chart"
PAGE = CHART / "README.md"
HEAD = """# The chart of gpu-usher

{description}
Helm installs it on Kubernetes {kube_version} ([supported versions](../../docs/reference/kubernetes-versions.md)).

[deploy/README.md](../README.md#install) has the commands: install with `webhooks.enabled=false`, then upgrade with
`true`. The files `values-<overlay>.yaml` are the overlays of kustomize; the tests compare what both render.

## Values

`make generated` writes this table from [values.schema.json](values.schema.json) and [values.yaml](values.yaml). An
unknown value is an error.

| value | type | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Write the page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    head = HEAD.format(
        description=chart["description"],
        kube_version=f"{chart['kubeVersion'].strip('>=').rpartition('.')[0]} and newer",
    )
    return head + "".join(f"{row}\n" for row in _rows(schema, values, ""))


def _rows(schema: Mapping[str, Any], values: Any, path: str) -> Iterator[str]:
    """List the rows of all values without members."""
    for name, member in schema["properties"].items():
        full, default = f"{path}{name}", values.get(name) if isinstance(values, dict) else None
        if "properties" in member:
            yield from _rows(member, default, f"{full}.")
        else:
            shown = "" if default in (None, "") else f"`{json.dumps(default).replace('|', chr(92) + '|')}`"
            yield f"| `{full}` | {_type(member)} | {shown} | {member['description']} |"


def _type(member: Mapping[str, Any]) -> str:
    if "enum" in member:
        return ", ".join(f"`{word}`" for word in member["enum"])
    return f"list of {member['items']['type']}" if member["type"] == "array" else str(member["type"])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
