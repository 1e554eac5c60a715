# SPDX-License-Identifier: Apache-2.0
"""`make audit`: ask the OSV database, by pip-audit, for known vulnerabilities of the packages of a lock.

pip-audit ends with 1 for a vulnerability and for a database that it cannot reach. Here the exit code tells them apart:
0 none is known, 1 some is, 2 the database could not be asked.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OSV = "https://api.osv.dev/v1/query"
CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 2
AUDIT_SECONDS = 600
"""Seconds for about seventy requests, each of which takes 15 s at most."""


class NotAskedError(Exception):
    """The database gave no answer; the text says why."""


def ask(lock: Path, url: str = OSV) -> list[dict[str, Any]]:
    """Ask about every package of a lock; return pip-audit's list of packages, each with its vulnerabilities.

    Raises NotAskedError.
    """
    words = ["--requirement", str(lock), "--require-hashes", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    words += ["--vulnerability-service", "osv", "--osv-url", url, "--format", "json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *words],
            capture_output=True,
            text=True,
            timeout=AUDIT_SECONDS,
            check=False,
        )
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        why = _last_line(done.stderr) if not isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise NotAskedError(f"not audited: {url} gave no answer: {why}") from error
    return packages


def audit(lock: Path, url: str = OSV) -> int:
    """Ask about every package of a lock, print the known vulnerabilities, and return the exit code."""
    try:
        return _report(lock, ask(lock, url))
    except NotAskedError as error:
        print(error, file=sys.stderr)
        print(
            f"nothing is known about {lock}; try again where {url} can be reached (OSV=URL: a mirror)", file=sys.stderr
        )
        return NOT_ASKED


def _report(lock: Path, packages: list[dict[str, Any]]) -> int:
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    vulnerable = [(package, vulnerability) for package in packages for vulnerability in package.get("vulns", ())]
    for package, vulnerability in vulnerable:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        what = f"{vulnerability['id']}, fixed in {fixed}: {vulnerability['description'][:200]}"
        print(f"{package['name']} {package['version']}: {what}")
    unseen = f"; not looked at: {', '.join(skipped)}" if skipped else ""
    print(f"{lock}: {len(packages)} packages, {len(vulnerable)} known vulnerabilities{unseen}")
    return VULNERABLE if vulnerable else CLEAN


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no words"])[-1][:300]


if __name__ == "__main__":
    sys.exit(audit(Path(sys.argv[1]), *sys.argv[2:]))
