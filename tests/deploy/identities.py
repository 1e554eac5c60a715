# SPDX-License-Identifier: Apache-2.0
"""The tables of SECURITY.md about our service accounts, made from the RBAC that `overlays/production` renders.

`python -m tests.deploy.identities` writes them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.controlplane.binaries import find_binaries
from tests.deploy.rendering import DEPLOY, Object, kustomized

PAGE = DEPLOY.parent / "SECURITY.md"
BEGIN, END = "<!-- identities -->\n", "<!-- /identities -->\n"
OPTIONAL = ("self-signed", "claim-templates")
"""Components with an account of their own that `production` does not have as shipped."""
READING = ("get", "list", "watch")
UPSTREAM = ("system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader")
"""Roles that every cluster has, and whose rules are Kubernetes' own."""
BINDING = "the namespaces that bind it"
"""In place of a namespace, for a ClusterRole that nothing of ours binds."""
HEAD = "| account | container | may read | may write |\n|---|---|---|---|\n"


def tables() -> str:
    """Write both tables."""
    optional = [document for name in OPTIONAL for document in _component(DEPLOY / "components" / name)]
    return (
        f"In `production`:\n\n{HEAD}{_rows(kustomized('production'))}\n"
        f"With a component that `production` does not have ({', '.join(f'`{name}`' for name in OPTIONAL)}):\n\n"
        f"{HEAD}{_rows(optional)}"
    )


def page() -> str:
    """Return SECURITY.md as it should be."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def _component(folder: Path) -> list[Object]:
    names = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["resources"]
    return [document for name in names for document in yaml.safe_load_all((folder / name).read_text("utf-8"))]


def _rows(objects: list[Object]) -> str:
    """Write a row for each ServiceAccount, in the order of their names."""
    accounts = sorted(document["metadata"]["name"] for document in objects if document["kind"] == "ServiceAccount")
    containers = _containers_by_account(objects)
    rows = []
    for account in accounts:
        rights = Rights()
        for kind, name, namespace in _bound(objects, account):
            rights.add_role(objects, kind, name, _place(namespace))
        reads, writes = rights.in_words()
        rows.append(f"| `{account}` | {containers.get(account, '')} | {reads} | {writes or 'nothing'} |\n")
    return "".join(rows)


def _place(namespace: str | None) -> str:
    if not namespace:
        return ""
    return f" in {namespace}" if namespace == BINDING else f" in `{namespace}`"


def _bound(objects: list[Object], account: str) -> Iterator[tuple[str, str, str | None]]:
    """List the roles of an account, by kind and name, with the namespace of a RoleBinding."""
    for binding in objects:
        subjects = binding.get("subjects") or ()
        if any(subject["kind"] == "ServiceAccount" and subject["name"] == account for subject in subjects):
            yield binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace")
    bound = {binding["roleRef"]["name"] for binding in objects if "roleRef" in binding}
    for role in objects:
        if role["kind"] == "ClusterRole" and role["metadata"]["name"] == account and account not in bound:
            yield role["kind"], account, BINDING


class Rights:
    """The rights of one account, in words: for reading and for writing, by verbs and place."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, str], list[str]] = {}
        self._writes: dict[tuple[str, str], list[str]] = {}

    def add_role(self, objects: list[Object], kind: str, name: str, place: str) -> None:
        """Add the rules of a role; of a role of Kubernetes itself, its name."""
        if name in UPSTREAM:
            group = self._writes if name.startswith("system:") else self._reads
            group.setdefault(("what", ""), []).append(f"`{name}` may{place}")
            return
        (role,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
        for rule in role["rules"]:
            what = ", ".join(rule["resources"]) + "".join(f" `{each}`" for each in rule.get("resourceNames", ()))
            for group, verbs in (
                (self._reads, [verb for verb in rule["verbs"] if verb in READING]),
                (self._writes, [verb for verb in rule["verbs"] if verb not in READING]),
            ):
                everywhere = " in every namespace" if group is self._writes and not rule.get("resourceNames") else ""
                if verbs:
                    group.setdefault((", ".join(verbs), place or everywhere), []).append(what)

    def in_words(self) -> tuple[str, str]:
        """Return what is read and what is written."""
        groups = (self._reads, self._writes)
        reads, writes = (
            "; ".join(f"{verbs} {', '.join(what)}{place}" for (verbs, place), what in group.items()) for group in groups
        )
        return reads, writes


def _containers_by_account(objects: list[Object]) -> dict[str, str]:
    """Name the container that has the token of each account: that of the pod, or of a mounted Secret."""
    of_secret = {
        document["metadata"]["name"]: document["metadata"]["annotations"]["kubernetes.io/service-account.name"]
        for document in objects
        if document.get("type") == "kubernetes.io/service-account-token"
    }
    found = {}
    for document in objects:
        if document["kind"] != "Deployment":
            continue
        pod, deployment = document["spec"]["template"]["spec"], document["metadata"]["name"]
        volumes = {
            volume["name"]: of_secret.get(volume.get("secret", {}).get("secretName", ""))
            for volume in pod.get("volumes", ())
        }
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            mounted = [volumes.get(mount["name"]) for mount in container.get("volumeMounts", ())]
            account = next(filter(None, mounted), pod["serviceAccountName"])
            found[account] = f"`{container['name']}` of Deployment `{deployment}`"
    return found


def main() -> None:
    """Write the page, where there is a kubectl."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        print(f"SECURITY.md not written: {binaries}", file=sys.stderr)
        return
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
