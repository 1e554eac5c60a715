# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher schema`: prints what is generated from the models, such as the JSON Schema of GPUPolicy documents."""

import json
import re
from collections.abc import Collection
from typing import Annotated

import typer
import yaml

from app.admission.match_conditions import cpu_guard_conditions, device_conditions, match_conditions
from app.cluster.files import PACKAGE, read_knowledge
from app.policy.schema import custom_resource_definition, json_schema
from app.values.errors import BadInput

EXTENDED = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A name of an extended resource, without characters that end a CEL string."""
CRD_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml`.
"""
ANSWERS = PACKAGE / "cli" / "schemas"
"""The JSON Schemas of answers, by the words of the command joined with `-`, or by route."""


def answers() -> list[str]:
    """Return the names of the answers that have a schema."""
    return sorted(path.stem for path in ANSWERS.glob("*.json"))


def schema(
    crd: bool = typer.Option(False, "--crd", help="Print the CustomResourceDefinition, as YAML, instead."),
    conditions: bool = typer.Option(
        False, "--match-conditions", help="Print the matchConditions of the webhooks, as YAML, instead."
    ),
    resource: Annotated[
        list[str] | None,
        typer.Option(help="With --match-conditions: an extendedResourceName of a DeviceClass here; may be repeated."),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help=f"Print the JSON Schema of what a command or route answers instead: {', '.join(answers())}.",
            autocompletion=lambda: answers(),
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of GPUPolicy documents, for editors, or another text generated from the same models."""
    chosen = [
        text
        for requested, text in (
            (crd, crd_text),
            (conditions, lambda: conditions_text(resource or ())),
            (answer is not None, lambda: answer_text(answer or "")),
        )
        if requested
    ]
    if len(chosen) > 1:
        raise BadInput("schema: wants one of --crd, --match-conditions, --answer")
    if resource and not conditions:
        raise BadInput("schema: --resource wants --match-conditions")
    print((chosen or [schema_text])[0](), end="")


def answer_text(name: str) -> str:
    """Return the JSON Schema of an answer.

    Raises BadInput for an unknown name.
    """
    if name not in answers():
        raise BadInput(f"--answer: got {name[:40]!r}, wants one of {', '.join(answers())}")
    return (ANSWERS / f"{name}.json").read_text("utf-8")


def schema_text() -> str:
    """Return the schema as policies/schema/gpupolicy.json stores it."""
    return json.dumps(json_schema(), indent=2) + "\n"


def conditions_text(also: Collection[str] = ()) -> str:
    """Return the matchConditions of the webhooks in deploy/, generated from the resource families (F22).

    `also` are names of more resources. Raises BadInput for one that is not an extended resource.
    """
    for name in also:
        if not EXTENDED.fullmatch(name):
            raise BadInput(f"--resource {name[:80]}: wants the name of an extended resource, as example.com/gpu")
    knowledge = read_knowledge()
    conditions_by_webhook = {
        "mutate, validate": match_conditions(knowledge, also),
        "devices": device_conditions(knowledge),
        "cpu-guard": cpu_guard_conditions(knowledge.families),
    }
    return yaml.safe_dump(conditions_by_webhook, sort_keys=False, width=120)


def crd_text() -> str:
    """Return the CustomResourceDefinition as deploy/components/crd/gpupolicies.yaml stores it."""
    return CRD_HEADER + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120)
