# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.release.build`: make all files of a release from a checkout without local changes.

Nothing of the machine, of the day or of the directory is in the files: two clones of one commit give equal digests.
Only what the locks pin by hash is fetched, by pip.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.release.archives import Entry, entries_below, gzipped, json_bytes, sha256, tar_of
from tests.release.image import MACHINES, build_image, python_of
from tests.release.signing import public_pem, read_private_key, sign

ROOT = Path(__file__).parent.parent.parent
SUMS, PROVENANCE, PUBLIC_KEY = "SHA256SUMS", "provenance.intoto.json", "release.pub"
REPOSITORY = "https://gpu-usher.example/gpu-usher"
"""The reserved address in place of that of the sources (MAINTAINERS.md); only names in the files depend on it."""
KUSTOMIZE = ("deploy/base", "deploy/components", "deploy/overlays", "policies")
"""What the overlays read."""
Object = dict[str, Any]


def build(version: str, key: str, out: Path, base: Path | None, lock: Path, python: str) -> None:
    """Write the files of a release, their sums and signatures into an empty directory.

    Raises SystemExit.
    """
    commit = _checked(version, out)
    private_key = read_private_key(key)
    date = _git("log", "-1", "--format=%ct")
    out.mkdir(parents=True, exist_ok=True)
    wheel, sdist = _python_packages(date)
    files = dict((wheel, sdist))
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, wheel[0])
        path.write_bytes(wheel[1])
        files[f"gpu-usher-{version}-image.tar"] = build_image(ROOT, version, lock, path, base, python)
    files[f"gpu-usher-{version}.tgz"] = _chart()
    files[f"gpu-usher-{version}-kustomize.tar.gz"] = _kustomize(version)
    files |= _krew(version, *wheel)
    bill = _bill_of_materials(lock)
    files[f"gpu-usher-{version}-wheel.cdx.json"] = _json(bill)
    files[f"gpu-usher-{version}-image.cdx.json"] = _json(_of_image(bill, version, base, python))
    files[PUBLIC_KEY] = public_pem(private_key)
    files[PROVENANCE] = _json(_provenance(files, version, commit, lock, base))
    files[SUMS] = "".join(f"{sha256(files[name])}  {name}\n" for name in sorted(files)).encode()
    for name, content in files.items():
        (out / name).write_bytes(content)
        (out / f"{name}.sig").write_bytes(sign(private_key, content))
    for line in files[SUMS].decode().splitlines():
        print(line)


def _checked(version: str, out: Path) -> str:
    """Check that the version is the tree's, and that the tree is a commit; return the commit."""
    declared = {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"],
        "app/__init__.py": re.findall(r'"(.+?)"', (ROOT / "app" / "__init__.py").read_text("utf-8"))[-1],
        **{f"deploy/chart/Chart.yaml {name}": chart_of(ROOT)[name] for name in ("version", "appVersion")},
    }
    if wrong := [f"{place} has {found}" for place, found in declared.items() if found != version]:
        raise SystemExit(f"release: VERSION={version}: {', '.join(wrong)}")
    if changes := _git("status", "--porcelain"):
        raise SystemExit(f"release: wants a checkout without changes, has {changes.splitlines()[0]}")
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"release: {out} is not empty")
    return _git("rev-parse", "HEAD")


def chart_of(root: Path) -> Object:
    """Read Chart.yaml."""
    chart: Object = yaml.safe_load((root / "deploy" / "chart" / "Chart.yaml").read_text("utf-8"))
    return chart


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _python_packages(date: str) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    """Build the wheel and the source distribution, dated as the commit; (name, content) of each."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "hatchling", "build", "-d", temporary]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": date}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"release: hatchling: {done.stderr.strip()[-500:]}")
        made = {path.suffix: (path.name, path.read_bytes()) for path in Path(temporary).iterdir()}
    return made[".whl"], made[".gz"]


def _chart() -> bytes:
    return gzipped(tar_of(entries_below(ROOT / "deploy" / "chart", "gpu-usher/", follow=True)))


def _kustomize(version: str) -> bytes:
    entries = (entry for folder in KUSTOMIZE for entry in entries_below(ROOT / folder, f"{folder}/"))
    licence = Entry("LICENSE", (ROOT / "LICENSE").read_bytes())
    return gzipped(tar_of([licence, Entry("VERSION", f"{version}\n".encode()), *entries]))


def _krew(version: str, wheel_name: str, wheel: bytes) -> Mapping[str, bytes]:
    """Write the archive of the krew plugin, and its manifest with the archive's digest."""
    plugin = (ROOT / "deploy" / "krew" / "kubectl-gpu_usher").read_bytes()
    entries = [Entry("kubectl-gpu_usher", plugin, executable=True), Entry(wheel_name, wheel)]
    archive = gzipped(tar_of([*entries, Entry("LICENSE", (ROOT / "LICENSE").read_bytes())]))
    name = f"gpu-usher-{version}-krew.tar.gz"
    text = (ROOT / "deploy" / "krew" / "gpu-usher.yaml").read_text("utf-8")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    for placeholder, value in (
        ("@VERSION@", f"v{version}"),
        ("@URI@", f"{REPOSITORY}/releases/download/v{version}/{name}"),
        ("@SHA256@", sha256(archive)),
        ("@WHEEL@", wheel_name),
    ):
        text = text.replace(placeholder, value)
    return {name: archive, f"gpu-usher-{version}-krew.yaml": text.encode()}


def _bill_of_materials(lock: Path) -> Object:
    """List what the lock pins as CycloneDX 1.6."""
    words = ["requirements", "--pyproject", "pyproject.toml", "--spec-version", "1.6", "--output-reproducible"]
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *words, "--short-PURLs", "--output-file", "-"]
    done = subprocess.run([*command, str(lock)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: cyclonedx_py: {done.stderr.strip()[-500:]}")
    bill: Object = json.loads(done.stdout)
    return bill


def _of_image(bill: Object, version: str, base: Path | None, python: str) -> Object:
    """Make the list of the image: what the lock pins, the wheel, and the base by its digest."""
    container = {"type": "container", "name": "gpu-usher", "version": version, "bom-ref": "image"}
    wheel = {"type": "library", "name": "gpu-usher", "version": version, "purl": f"pkg:pypi/gpu-usher@{version}"}
    below = {"type": "container", "name": "base", "version": python, "bom-ref": "base"}
    if base is not None:
        below["version"] = f"sha256:{sha256(base.read_bytes())}"
    components = [*bill.get("components", []), {**wheel, "bom-ref": "wheel"}, below]
    return {**bill, "metadata": {**bill["metadata"], "component": container}, "components": components,
            "dependencies": []}  # fmt: skip


def _provenance(files: Mapping[str, bytes], version: str, commit: str, lock: Path, base: Path | None) -> Object:
    """Write an in-toto statement with SLSA provenance v1: what was made, of which commit, locks and base."""
    read = [*sorted(ROOT.glob("requirements*.lock")), ROOT / "Dockerfile", *([base] if base else [])]
    read += [lock] if lock not in read else []
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256(files[name])}} for name in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{REPOSITORY}/blob/main/RELEASE.md",
                "externalParameters": {"version": version, "architectures": sorted(MACHINES)},
                "resolvedDependencies": [
                    {"uri": f"git+{REPOSITORY}", "digest": {"gitCommit": commit}},
                    *({"name": path.name, "digest": {"sha256": sha256(path.read_bytes())}} for path in read),
                ],
            },
            "runDetails": {"builder": {"id": os.environ.get("BUILDER_ID", f"{REPOSITORY}/blob/main/Makefile")}},
        },
    }


def _json(value: object) -> bytes:
    return json_bytes(value) + b"\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--key", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    parser.add_argument("--python", default=python_of(ROOT))
    given = parser.parse_args()
    build(given.version, given.key, given.out, given.base, given.lock, given.python)
