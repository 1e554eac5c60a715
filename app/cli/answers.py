# SPDX-License-Identifier: Apache-2.0
"""What commands and the web UI listener answer as JSON: the type of each answer, and the JSON Schema made from it.

The schemas stand in `app/cli/schemas/` too, so that a change of an answer is seen as one
(docs/reference/requirements.md#promises: CLI JSON is stable; fields may be added, none taken away or given another
meaning within a minor version).
"""

import json
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from app.cli.certs import CertificateCheck
from app.cli.lint import LintResult
from app.cli.mutate import MutatedFile
from app.cli.policy_tests import PolicyTestResult
from app.cli.replay import ReplayResult
from app.cli.simulate import SimulationResult
from app.doctor.fleet_checks import Finding
from app.explain.explanation import Explanation
from app.explain.gpu_inventory import Inventory
from app.explain.policy_diff import Differences
from app.schedulerconfig.verify import ConfigurationFinding as ConfigFinding
from app.values.errors import BadInput
from app.web.api import DryRun
from app.whatif.advice import Advice
from app.whatif.driver import Rollout
from app.whatif.mig_relayout import MIGRelayout
from app.whatif.node_template import NodeTemplate

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

ANSWERS: Mapping[str, tuple[Any, str]] = {
    "explain": (Explanation, "gpu-usher explain -o json, and POST /explain"),
    "dry-run": (DryRun, "POST /dry-run"),
    "doctor": (tuple[Finding, ...], "gpu-usher doctor -o json"),
    "inventory": (Inventory, "gpu-usher inventory -o json"),
    "mutate": (MutatedFile, "gpu-usher mutate -o json"),
    "diff": (Differences, "gpu-usher diff -o json"),
    "replay": (ReplayResult, "gpu-usher replay -o json"),
    "lint": (LintResult, "gpu-usher lint -o json"),
    "test": (PolicyTestResult, "gpu-usher test -o json"),
    "scheduler-config": (
        tuple[ConfigFinding, ...] | Mapping[str, Any],
        "gpu-usher scheduler-config -o json: with --verify the findings, else a KubeSchedulerConfiguration",
    ),
    "whatif-driver": (Rollout, "gpu-usher whatif driver -o json"),
    "whatif-mig": (MIGRelayout, "gpu-usher whatif mig -o json"),
    "whatif-node-template": (NodeTemplate, "gpu-usher whatif node-template -o json"),
    "advise-mig": (Advice, "gpu-usher advise mig -o json"),
    "simulate": (SimulationResult, "gpu-usher simulate -o json"),
    "certs-issue": (CertificateCheck, "gpu-usher certs issue -o json"),
    "certs-show": (CertificateCheck, "gpu-usher certs show -o json"),
}
"""By the command's words joined with `-`, or by the route: the type, and where the answer comes from."""


def answer_text(name: str) -> str:
    """Write the schema of an answer as app/cli/schemas/ holds it.

    Raises BadInput for a name that is not among them.
    """
    return json.dumps(answer_schema(name), indent=2) + "\n"


def answer_schema(name: str) -> Schema:
    """Make the schema of an answer; every field of an object is always there, as the encoder writes them all."""
    if name not in ANSWERS:
        raise BadInput(f"--answer: got {name[:40]!r}, wants one of {', '.join(ANSWERS)}")
    type_, where = ANSWERS[name]
    made = _plain(msgspec.json.schema(type_))
    return {"$schema": DIALECT, "$id": f"urn:gpu-usher:answer:{name}", "$comment": where, **made}


def _plain(schema: Any) -> Any:
    """Require every field of an object, drop defaults, and take the indentation out of docstrings."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _plain(value) for key, value in schema.items() if key != "default"}
    if isinstance(schema.get("description"), str):
        found["description"] = cleandoc(schema["description"])
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found["properties"] = {name: _plain(each) for name, each in schema["properties"].items()}
        found["required"] = list(schema["properties"])
    return found
