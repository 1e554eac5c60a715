# SPDX-License-Identifier: Apache-2.0
"""`make audit`: ask the OSV database what is known against the packages of a lock, by pip-audit.

pip-audit ends with 1 for a vulnerability and for a database that it cannot reach. Here the exit code tells them apart:
0 nothing is known, 1 something is, 2 nobody could be asked.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OSV = "https://api.osv.dev/v1/query"
CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 2
AUDIT_SECONDS = 600
"""Bound on some seventy questions, each of which waits 15 s at most."""


def audit(lock: Path, url: str = OSV) -> int:
    """Ask about every package of a lock, and print what is known; gives the exit code."""
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
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        why = _last_line(done.stderr) if not isinstance(error, subprocess.TimeoutExpired) else str(error)
        print(f"not audited: {url} gave no answer: {why}", file=sys.stderr)
        print(
            f"nothing is known about {lock}; try again where {url} can be reached (OSV=URL: a mirror)", file=sys.stderr
        )
        return NOT_ASKED
    return _told(lock, packages)


def _told(lock: Path, packages: list[dict[str, Any]]) -> int:
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    found = [(each, vulnerability) for each in packages for vulnerability in each.get("vulns", ())]
    for each, vulnerability in found:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        what = f"{vulnerability['id']}, fixed in {fixed}: {vulnerability['description'][:200]}"
        print(f"{each['name']} {each['version']}: {what}")
    unseen = f"; not looked at: {', '.join(skipped)}" if skipped else ""
    print(f"{lock}: {len(packages)} packages, {len(found)} known vulnerabilities{unseen}")
    return VULNERABLE if found else CLEAN


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no words"])[-1][:300]


if __name__ == "__main__":
    sys.exit(audit(Path(sys.argv[1]), *sys.argv[2:]))
