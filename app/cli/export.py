# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher export`: the policies in force as admission policies that the API server evaluates itself.

A module of its own, as `policy lint` starts in half the time without what this one imports (tests/cli/test_start.py).
"""

import yaml

from app import __version__
from app.admission.admission_policies import guard_policies, guards_in_force
from app.cli.source import Policies
from app.cluster.files import PACKAGE, read_knowledge, shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.knowledge.tables import Knowledge
from app.policy.compiled import PolicySet
from app.telemetry.logs import today


def admission_policies(policies: Policies = None) -> None:
    """Write policies that the API server evaluates itself, which guard devices while gpu-usher does not answer.

    A ValidatingAdmissionPolicy refuses pods that take GPUs which they did not request, and privileged ones; a
    MutatingAdmissionPolicy (Kubernetes 1.36 and newer) copies requests of GPUs to limits. Both only where the policies
    enforce it for every pod. All other rules are left to gpu-usher.
    """
    knowledge = read_knowledge()
    book = PolicyBook(policies or shipped_policies(), knowledge, today)
    print(admission_policies_text(book.current, knowledge), end="")


def admission_policies_text(policies: PolicySet, knowledge: Knowledge) -> str:
    """Return the policies and bindings as YAML, below a list of the guards that are left out."""
    guards = guards_in_force(policies)
    head = [
        f"# Made by `gpu-usher export admission-policies` of gpu-usher {__version__}, policies {policies.hash[:12]}.",
        "# Every other rule is left to gpu-usher.",
        *(
            f"# {guard} too: policy {policy} says otherwise for some pods."
            for guard, policy in guards.items()
            if policy
        ),
    ]
    written = yaml.safe_load((PACKAGE / "admission" / "admission_policies.yaml").read_text("utf-8"))
    documents = guard_policies(written, guards, knowledge)
    return "\n".join(head) + "\n" + yaml.safe_dump_all(documents, sort_keys=False, width=120)
