# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference that are made from code: reason codes and faults.

`python -m tests.reference` writes them.
"""

from app.cluster.files import read_knowledge
from app.values.reasons import MESSAGE_LIMIT, Code, ReasonKind
from tests.chaos.faults import FAULTS
from tests.docstrings import ROOT

FOLDER = ROOT / "docs" / "reference"
REASONS, FAULTS_PAGE = FOLDER / "reasons.md", FOLDER / "faults.md"
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
    return "\n".join([*parts, _pod_failures()])


def _pod_failures() -> str:
    """Write the table of a kubelet's reasons, which are no codes of ours."""
    rows = [
        f"| {failure.reason or '(none)'} | {failure.message} | {'no' if failure.refused else 'yes'} | {failure.why} |"
        f" {failure.remedy} |"
        for failure in read_knowledge().pod_failures
    ]
    return """\
## Reasons of kubelets

Not ours: `status.reason` and a part of `status.message` of a pod that is Failed. `explain` of such a pod says what it
means, what probably led there, and what to do; `doctor` counts the GPU pods that were never started
(`RefusedByKubelet`). They are from `app/knowledge/pod_failures.yaml`, and yours to change with `serve --knowledge`.

| reason begins with | message has | was started | what it means | remedy |
|---|---|---|---|---|
""" + "\n".join([*rows, ""])


def faults_page() -> str:
    """Write the page of faults: each fault and its visible effect."""
    rows = [
        f"| {fault.number} | {fault.what} | {fault.expected}{' (*)' if fault.cluster else ''} |" for fault in FAULTS
    ]
    return f"""\
# Faults

{MADE}, from `tests/chaos/faults.py`.

What can go wrong around gpu-usher, and what it does then. Docstrings of tests name the faults that they prove ("fault
24"); [`make chaos`](../../tests/results/chaos.md) runs them. (*): also to be tried
[on a real cluster](../../deploy/README.md#faults-to-try-on-a-real-cluster).

| fault | what goes wrong | what gpu-usher does |
|---|---|---|
""" + "\n".join([*rows, ""])


def main() -> None:
    """Write both pages."""
    REASONS.write_text(reasons_page(), "utf-8")
    FAULTS_PAGE.write_text(faults_page(), "utf-8")


if __name__ == "__main__":
    main()
