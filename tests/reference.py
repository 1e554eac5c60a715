# SPDX-License-Identifier: Apache-2.0
"""The page of docs/reference that is made from code: the reason codes.

`python -m tests.reference` writes it.
"""

from app.values.reasons import MESSAGE_LIMIT, Code, ReasonKind
from tests.docstrings import ROOT

FOLDER = ROOT / "docs" / "reference"
REASONS = FOLDER / "reasons.md"
MADE = "`python -m tests.reference` wrote this"

KINDS = {
    ReasonKind.CLASS: (
        "Class reasons",
        "Facts of the node that evicting pods cannot change. They are in `FailedAndUnresolvableNodes`, so that"
        " kube-scheduler\ndoes not try preemption there.",
    ),
    ReasonKind.FREE: (
        "Free reasons",
        "What is free on the node now. They are in `FailedNodes`, because evicting pods could change it.",
    ),
    ReasonKind.ADMISSION: (
        "Admission reasons",
        "Why an object is denied, or warned of. `InvalidAnnotation` also refuses nodes, for a pod that was created"
        " while\nthe webhook was away.",
    ),
}


KUBELETS = """\
## Reasons of kubelets

`status.reason` and `status.message` of a Failed pod are the kubelet's. `app/knowledge/pod_failures.yaml` has what each
means and its remedy, which `explain` of such a pod prints; `doctor` counts GPU pods that were never started
(`RefusedByKubelet`). `serve --knowledge` adds rows.
"""


def reasons_page() -> str:
    """Write the page of reason codes: one table for each kind, with the remedies."""
    parts = [
        f"""\
# Reasons

{MADE}, from `app/values/reasons.py`.

A refusal is a reason: a code, a message and a remedy. The code is the label of metrics and the word in logs, warnings
and `explain`. A message says what is wrong and what is wanted, in at most {MESSAGE_LIMIT} characters. It names nothing
of the node (no value, count, age or name), because kube-scheduler groups equal texts.
"""
    ]
    for kind, (title, what) in KINDS.items():
        rows = [f"| {code.name} | {code.remedy} |" for code in Code if code.kind is kind]
        parts.append(f"## {title}\n\n{what}\n\n| code | remedy |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join([*parts, KUBELETS])


def main() -> None:
    """Write the page."""
    REASONS.write_text(reasons_page(), "utf-8")


if __name__ == "__main__":
    main()
