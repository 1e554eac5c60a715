# SPDX-License-Identifier: Apache-2.0
"""`make vex`: what `make audit` finds in a lock, as an OpenVEX document, with the maintainers' assessments.

OpenVEX 0.2.0 (github.com/openvex/spec) has no document without a statement: where nothing is known, none is written.
The exit codes are those of tests/audit.py.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from app import __version__
from app.telemetry.logs import now
from tests.audit import CLEAN, NOT_ASKED, OSV, VULNERABLE, NotAskedError, ask

CONTEXT = "https://openvex.dev/ns/v0.2.0"
ADDRESS = "https://gpu-usher.example/vex/"
"""The addresses of documents (MAINTAINERS.md#addresses)."""
ASSESSMENTS = Path(__file__).with_name("vex_assessments.yaml")
Package = Mapping[str, Any]
Assessment = Mapping[str, str]


def vex(lock: Path, target: Path, url: str = OSV) -> int:
    """Ask about every package of a lock, and write what is known to a file; return the exit code."""
    try:
        packages = ask(lock, url)
    except NotAskedError as error:
        print(error, file=sys.stderr)
        return NOT_ASKED
    target.unlink(missing_ok=True)
    statements = list(statements_of(packages, yaml.safe_load(ASSESSMENTS.read_text("utf-8"))))
    if not statements:
        print(f"{lock}: nothing is known, so that there is no OpenVEX document")
        return CLEAN
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(document(statements, _timestamp()), indent=2) + "\n", "utf-8")
    print(target)
    return VULNERABLE


def statements_of(packages: Iterable[Package], assessments: Iterable[Assessment]) -> Iterator[dict[str, Any]]:
    """Write a statement for each vulnerability of each package."""
    known = {(row["vulnerability"], row["package"]): row for row in assessments}
    for package in packages:
        for found in package.get("vulns", ()):
            names = [found["id"], *found.get("aliases", ())]
            row = next((known[name, package["name"]] for name in names if (name, package["name"]) in known), None)
            vulnerability: dict[str, Any] = {"name": found["id"]}
            if names[1:]:
                vulnerability["aliases"] = names[1:]
            part = {"@id": f"pkg:pypi/{package['name']}@{package['version']}"}
            product = {"@id": f"pkg:pypi/gpu-usher@{__version__}", "subcomponents": [part]}
            yield {"vulnerability": vulnerability, "products": [product], **_assessed(row)}


def _assessed(row: Assessment | None) -> dict[str, str]:
    """Return the members of a statement that an assessment decides.

    Raises KeyError for a row that does not say why.
    """
    if row is None:
        return {"status": "under_investigation"}
    if row["status"] == "affected":
        return {"status": "affected", "action_statement": row["action"]}
    return {"status": row["status"], "justification": row["justification"], "status_notes": row["why"]}


def document(statements: list[dict[str, Any]], timestamp: str) -> dict[str, Any]:
    """Write the document; equal statements have one address."""
    digest = hashlib.sha256(json.dumps(statements, sort_keys=True).encode()).hexdigest()
    return {
        "@context": CONTEXT,
        "@id": f"{ADDRESS}{digest[:32]}",
        "author": "gpu-usher maintainers",
        "timestamp": timestamp,
        "version": 1,
        "tooling": "tests/vex.py",
        "statements": statements,
    }


def _timestamp() -> str:
    """Return the present, or SOURCE_DATE_EPOCH, by which a release gives equal files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (datetime.fromtimestamp(int(epoch), UTC) if epoch else now()).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(vex(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
