# SPDX-License-Identifier: Apache-2.0
"""The versions of Kubernetes that the tests can build, and the one that is chosen: `make e2e KUBERNETES=1.34`.

Each minor version has a module file that pins every dependency, and a file of hashes beside it. Those of the version
that is taken by default are go.mod and go.sum; the others are in `versions`. All versions share the sources.
"""

import os
from pathlib import Path

HERE = Path(__file__).parent
OTHERS = HERE / "versions"
CHOICE = "KUBERNETES"
"""The variable of the environment, and of make, that chooses a minor version such as 1.34."""


def minors() -> tuple[str, ...]:
    """List the minor versions that have a module file, the oldest first."""
    return tuple(sorted({default_minor(), *(path.stem for path in OTHERS.glob("*.mod"))}, key=_number))


def default_minor() -> str:
    """Read the minor version of go.mod, such as 1.36."""
    return minor_of(_word_after("k8s.io/kubernetes ", HERE / "go.mod"))


def minor_of(version: str) -> str:
    """Return the minor version of a version such as v1.36.3: 1.36."""
    return ".".join(version.removeprefix("v").split(".")[:2])


def chosen_minor() -> str:
    """Return the minor version that CHOICE names, or the default.

    Raises SystemExit for one that has no module file.
    """
    minor = os.environ.get(CHOICE) or default_minor()
    if minor not in minors():
        raise SystemExit(f"{CHOICE}={minor}: wants one of {', '.join(minors())} (tests/controlplane/versions)")
    return minor


def minors_with_groups() -> tuple[str, ...]:
    """List the minor versions whose kube-scheduler places PodGroups; where one is chosen, no other."""
    first = minors().index("1.36")
    return tuple(one for one in minors()[first:] if one == chosen_minor() or not os.environ.get(CHOICE))


def checks_stateful_sets() -> bool:
    """Tell whether kube-apiserver checks the pod template of a StatefulSet, as it does those of other workloads.

    v1.33.13 stores one whose pods it then refuses, v1.34.10 does not (both seen in the scenarios).
    """
    return chosen_minor() != "1.33"


def module_file(minor: str) -> Path:
    """Return the module file of a minor version; its file of hashes has the suffix .sum."""
    return HERE / "go.mod" if minor == default_minor() else OTHERS / f"{minor}.mod"


def kubernetes_version(minor: str | None = None) -> str:
    """Read the version of k8s.io/kubernetes from a module file, by default the chosen one, such as v1.36.3."""
    return _word_after("k8s.io/kubernetes ", module_file(minor or chosen_minor()))


def go_version(minor: str) -> str:
    """Read the oldest version of Go that builds a minor version."""
    return _word_after("go ", module_file(minor))


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])


def _word_after(prefix: str, path: Path) -> str:
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    return next(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
