# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher schema`: print the JSON Schema of GPUPolicy, for editors."""

import json

from app.policy.schema import json_schema


def schema() -> None:
    """Print the JSON Schema of GPUPolicy documents."""
    print(schema_text(), end="")


def schema_text() -> str:
    """Write the schema as policies/schema/gpupolicy.json holds it."""
    return json.dumps(json_schema(), indent=2) + "\n"
