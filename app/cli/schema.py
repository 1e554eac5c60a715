# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher schema`: print what GPUPolicy documents look like, as JSON Schema or as CustomResourceDefinition."""

import json

import typer
import yaml

from app.policy.crd import custom_resource_definition
from app.policy.schema import json_schema

CRD_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml`.
"""


def schema(
    crd: bool = typer.Option(False, "--crd", help="Print the CustomResourceDefinition, as YAML, instead."),
) -> None:
    """Print the JSON Schema of GPUPolicy documents, for editors."""
    print(crd_text() if crd else schema_text(), end="")


def schema_text() -> str:
    """Write the schema as policies/schema/gpupolicy.json holds it."""
    return json.dumps(json_schema(), indent=2) + "\n"


def crd_text() -> str:
    """Write the definition as deploy/components/crd/gpupolicies.yaml holds it."""
    return CRD_HEADER + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120)
