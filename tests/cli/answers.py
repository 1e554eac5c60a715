# SPDX-License-Identifier: Apache-2.0
"""The JSON answers of commands and of the web UI listener: the type of each, and the JSON Schema made from it.

`python -m tests.cli.answers` writes the schemas into `app/cli/schemas/`, which `schema --answer` prints
(docs/reference/requirements.md#promises: the JSON of the command line is stable; fields may be added, but not removed
or changed in meaning within a minor version).
"""

import json
from collections.abc import Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from app.cli.certs import CertificateCheck
from app.cli.image import ImageReport
from app.cli.mutate import MutatedFile
from app.cli.policies import LintResult, PolicyTestResult
from app.cli.policy_changes import ReplayResult
from app.doctor.fleet_checks import Finding
from app.explain.explanation import Explanation
from app.explain.gpu_inventory import Inventory
from app.explain.policy_diff import Differences
from app.schedulerconfig.verify import ConfigurationFinding as ConfigFinding
from app.usage.table import UsageReport
from app.web.api import DryRun
from app.whatif.advice import Advice
from app.whatif.dra import DRAMove
from app.whatif.driver import Rollout
from app.whatif.mig_relayout import MIGRelayout
from app.whatif.node_template import NodeTemplate
from app.whatif.repack import Repack
from app.whatif.right_size import RightSizes

PUBLISHED = Path(__file__).parents[2] / "app/cli/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

ANSWERS: Mapping[str, tuple[Any, str]] = {
    "explain": (Explanation, "gpu-usher explain -o json, and POST /explain"),
    "dry-run": (DryRun, "POST /dry-run"),
    "doctor": (tuple[Finding, ...], "gpu-usher doctor -o json"),
    "inventory": (Inventory, "gpu-usher inventory -o json"),
    "mutate": (MutatedFile, "gpu-usher mutate -o json"),
    "image": (ImageReport, "gpu-usher image -o json"),
    "policy-diff": (Differences, "gpu-usher policy diff -o json"),
    "policy-replay": (ReplayResult, "gpu-usher policy replay -o json"),
    "policy-lint": (LintResult, "gpu-usher policy lint -o json"),
    "policy-test": (PolicyTestResult, "gpu-usher policy test -o json"),
    "scheduler-config": (
        tuple[ConfigFinding, ...] | Mapping[str, Any],
        "gpu-usher scheduler-config -o json: with --verify the findings, else a KubeSchedulerConfiguration",
    ),
    "plan-driver": (Rollout, "gpu-usher plan driver -o json"),
    "plan-relayout": (MIGRelayout, "gpu-usher plan relayout -o json"),
    "plan-claims": (DRAMove, "gpu-usher plan claims -o json"),
    "plan-node-template": (NodeTemplate, "gpu-usher plan node-template -o json"),
    "plan-mig": (Advice, "gpu-usher plan mig -o json"),
    "plan-repack": (Repack, "gpu-usher plan repack -o json"),
    "plan-right-size": (RightSizes, "gpu-usher plan right-size -o json"),
    "usage": (UsageReport, "gpu-usher usage -o json"),
    "certs-issue": (CertificateCheck, "gpu-usher certs issue -o json"),
    "certs-show": (CertificateCheck, "gpu-usher certs show -o json"),
}
"""By the words of the command joined with `-`, or by route: the type of the answer, and where it comes from."""


def answer_text(name: str) -> str:
    """Return the schema of an answer as app/cli/schemas/ stores it."""
    return json.dumps(answer_schema(name), indent=2) + "\n"


def answer_schema(name: str) -> Schema:
    """Return the schema of an answer; all fields are required, because the encoder writes all of them."""
    type_, where = ANSWERS[name]
    body = _plain(msgspec.json.schema(type_))
    return {"$schema": DIALECT, "$id": f"urn:gpu-usher:answer:{name}", "$comment": where, **body}


def _plain(schema: Any) -> Any:
    """Require every field of an object, drop defaults, and remove the indentation of docstrings."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key != "default"}
    if isinstance(schema.get("description"), str):
        plain["description"] = cleandoc(schema["description"])
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        plain["properties"] = {name: _plain(item) for name, item in schema["properties"].items()}
        plain["required"] = list(schema["properties"])
    return plain


if __name__ == "__main__":
    for name in ANSWERS:
        (PUBLISHED / f"{name}.json").write_text(answer_text(name), "utf-8")
