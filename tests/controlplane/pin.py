# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.controlplane.pin v1.35.8` writes the module file and the hashes of a version of Kubernetes.

Kubernetes' own go.mod names the versions of all that it was tested with, and replaces its staging modules by folders
of its repository; elsewhere these are published with the same minor and patch, as v0.35.8. `go mod tidy` adds what
follows, and the hashes. A version whose modules the proxy does not serve cannot be pinned: Go says which.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.controlplane.binaries import find_go
from tests.controlplane.module_files import HERE, default_minor, minor_of, module_file

KUBERNETES = "k8s.io/kubernetes"
STAGED = ("k8s.io/component-base", "k8s.io/kube-scheduler", "k8s.io/kubectl")
"""The staging modules that main.go and extender.go import."""
OTHERS = ("github.com/spf13/cobra", "go.etcd.io/etcd/server/v3")
"""The other modules that they import, in the version that Kubernetes requires."""
Module = dict[str, Any]


def module_text(version: str, upstream: Module) -> str:
    """Write the module file of a version of Kubernetes from its own, as `go mod edit -json` shows it."""
    required = {entry["Path"]: entry["Version"] for entry in upstream["Require"]}
    staging = [entry["Old"]["Path"] for entry in upstream["Replace"] if entry["New"]["Path"].startswith("./staging")]
    published = version.replace("v1.", "v0.", 1)
    requirements = {
        KUBERNETES: version,
        **dict.fromkeys(STAGED, published),
        **{path: required[path] for path in OTHERS},
    }
    lines = [
        "module gpu-usher.io/controlplane",
        f"go {upstream['Go']}",
        *(f"godebug {entry['Key']}={entry['Value']}" for entry in upstream.get("GoDebug") or ()),
        "require (",
        *(f"{path} {wanted}" for path, wanted in sorted(requirements.items())),
        ")",
        "replace (",
        *(f"{path} => {path} {published}" for path in sorted(staging)),
        ")",
    ]
    return "\n".join(lines) + "\n"


def pin(version: str) -> Path:
    """Write the module file and the hashes of a version, and return the path of the former.

    Raises CalledProcessError when Go cannot have a module; its output says which.
    """
    downloaded = json.loads(_go("mod", "download", "-json", f"{KUBERNETES}@{version}"))
    upstream = json.loads(_go("mod", "edit", "-json", downloaded["GoMod"]))
    minor = minor_of(version)
    path = module_file(minor)
    path.parent.mkdir(exist_ok=True)
    path.write_text(module_text(version, upstream), "utf-8")
    path.with_suffix(".sum").unlink(missing_ok=True)
    _go("mod", "tidy", *([] if minor == default_minor() else [f"-modfile={path}"]))
    _go("mod", "edit", "-fmt", str(path))
    return path


def _go(*words: str) -> str:
    go = find_go()
    if go is None:
        raise SystemExit("pin: no `go` on PATH")
    env = {**os.environ, "GOFLAGS": "-mod=mod"}
    return subprocess.run([go, *words], cwd=HERE, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    for word in sys.argv[1:]:
        print(pin(word))
