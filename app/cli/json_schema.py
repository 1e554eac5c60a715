# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher schema`: prints what is generated from the models, such as the JSON Schema of GPUPolicy documents."""

import json
import re
from collections.abc import Collection
from typing import Annotated

import typer
import yaml

from app.admission.exemptions import exemption_policy
from app.admission.match_conditions import cpu_guard_conditions, device_conditions, match_conditions
from app.cli.answers import ANSWERS, answer_text
from app.cli.policy_page import page_text
from app.cluster.files import read_knowledge
from app.policy.schema import custom_resource_definition, json_schema
from app.values.errors import BadInput

EXTENDED = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A name of an extended resource, without characters that end a CEL string."""
CRD_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml`.
"""


EXEMPTIONS_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by `gpu-usher schema --exemptions > deploy/base/exemptions.yaml`.
# Only who may create exemptions.gpu-usher.io exempts a namespace, by our labels or by an exempt name. cluster-admin
# may; to others it is given by a ClusterRole and a ClusterRoleBinding with the rule
#   {apiGroups: [gpu-usher.io], resources: [exemptions], verbs: [create]}
"""


def schema(
    crd: bool = typer.Option(False, "--crd", help="Print the CustomResourceDefinition, as YAML, instead."),
    conditions: bool = typer.Option(
        False, "--match-conditions", help="Print the matchConditions of the webhooks, as YAML, instead."
    ),
    exemptions: bool = typer.Option(
        False, "--exemptions", help="Print the policy on who may exempt namespaces, as YAML, instead."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="Print the page about policies, in Markdown, instead."),
    resource: Annotated[
        list[str] | None,
        typer.Option(help="With --match-conditions: an extendedResourceName of a DeviceClass here; may be repeated."),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help=f"Print the JSON Schema of what a command or route answers instead: {', '.join(ANSWERS)}.",
            autocompletion=lambda: list(ANSWERS),
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of GPUPolicy documents, for editors, or another text generated from the same models."""
    chosen = [
        text
        for requested, text in (
            (crd, crd_text),
            (conditions, lambda: conditions_text(resource or ())),
            (exemptions, exemptions_text),
            (markdown, page_text),
            (answer is not None, lambda: answer_text(answer or "")),
        )
        if requested
    ]
    if len(chosen) > 1:
        raise BadInput("schema: wants one of --crd, --match-conditions, --exemptions, --markdown, --answer")
    if resource and not conditions:
        raise BadInput("schema: --resource wants --match-conditions")
    print((chosen or [schema_text])[0](), end="")


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


def exemptions_text() -> str:
    """Return the policy on who may exempt namespaces, as deploy/base/exemptions.yaml stores it (F21)."""
    documents = exemption_policy(read_knowledge().families)
    return EXEMPTIONS_HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=120)


def crd_text() -> str:
    """Return the CustomResourceDefinition as deploy/components/crd/gpupolicies.yaml stores it."""
    return CRD_HEADER + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120)
