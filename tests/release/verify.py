# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.release.verify DIRECTORY --public-key FILE`: check every file of a release; exit 1 if any is wrong.

Each check yields lines of what is wrong. The public key comes from elsewhere than the release: the one that lies in it
proves nothing.
"""

import argparse
import json
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from tests.release.archives import read_tar, sha256
from tests.release.build import PROVENANCE, PUBLIC_KEY, SUMS
from tests.release.signing import PublicKey, is_signed, read_public_key

Files = Mapping[str, bytes]
Object = dict[str, Any]
SIGNATURE = ".sig"
KINDS = (
    r"gpu-usher-[^/]+-image\.tar",
    r"gpu-usher-\d[^/]*\d\.tgz",
    r"gpu-usher-[^/]+-kustomize\.tar\.gz",
    r"gpu-usher-[^/]+-krew\.tar\.gz",
    r"gpu-usher-[^/]+-krew\.yaml",
    r"gpu_usher-[^/]+\.whl",
    r"gpu_usher-[^/]+\.tar\.gz",
    r"gpu-usher-[^/]+-wheel\.cdx\.json",
    r"gpu-usher-[^/]+-image\.cdx\.json",
    re.escape(PROVENANCE),
    re.escape(PUBLIC_KEY),
)
"""Regular expressions, of each of which a release has one file; the chart's name ends with its version."""


def signatures_valid(files: Files, key: PublicKey) -> Iterator[str]:
    """Every file has a signature by the key, and nothing else has one."""
    names = {name for name in files if not name.endswith(SIGNATURE)}
    for name in sorted(names):
        signature = files.get(name + SIGNATURE)
        if signature is None:
            yield f"{name}: has no signature"
        elif not is_signed(key, files[name], signature):
            yield f"{name}: the signature is not of this file by this key"
    for name in sorted(files.keys() - names - {name + SIGNATURE for name in names}):
        yield f"{name}: signs no file"


def sums_right(files: Files, _key: PublicKey) -> Iterator[str]:
    """SHA256SUMS has every file, and no other."""
    rows = (line.partition("  ") for line in files.get(SUMS, b"").decode("utf-8", "replace").splitlines())
    lines = {name: digest for digest, _, name in rows}
    names = {name for name in files if not name.endswith(SIGNATURE)} - {SUMS}
    for name in sorted(names | lines.keys()):
        if name not in lines or name not in files:
            yield f"{name}: {'is not in' if name in files else 'is missing, and in'} {SUMS}"
        elif sha256(files[name]) != lines[name]:
            yield f"{name}: has another digest than {SUMS} says"


def complete(files: Files, _key: PublicKey) -> Iterator[str]:
    """There is one file of each kind."""
    for kind in KINDS:
        found = [name for name in files if re.fullmatch(kind, name)]
        if len(found) != 1:
            yield f"{kind}: wants one file, has {', '.join(found) or 'none'}"


def provenance_right(files: Files, _key: PublicKey) -> Iterator[str]:
    """The provenance names every file with its digest, and a commit."""
    statement: Object = json.loads(files[PROVENANCE])
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    made = {name for name in files if not name.endswith(SIGNATURE)} - {SUMS, PROVENANCE}
    for name in sorted(made | subjects.keys()):
        if name not in files or sha256(files[name]) != subjects.get(name):
            yield f"{name}: is not the subject of {PROVENANCE}"
    sources = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    if not any(re.fullmatch("[0-9a-f]{40}", one["digest"].get("gitCommit", "")) for one in sources):
        yield f"{PROVENANCE}: names no commit"


def image_whole(files: Files, _key: PublicKey) -> Iterator[str]:
    """Each descriptor of the OCI layout is of its blob, and each layer of its diff ID."""
    name, packed = _one(files, KINDS[0])
    layout = read_tar(packed)
    blobs = {f"sha256:{path.rpartition('/')[2]}": content for path, content in layout.items() if "blobs/" in path}
    for digest, content in blobs.items():
        if f"sha256:{sha256(content)}" != digest:
            yield f"{name}: blob {digest} has another digest"
    for descriptor in json.loads(layout["index.json"])["manifests"]:
        manifest = json.loads(blobs[descriptor["digest"]])
        config = json.loads(blobs[manifest["config"]["digest"]])
        if len(config["rootfs"]["diff_ids"]) != len(manifest["layers"]):
            yield f"{name}: {descriptor['digest']} has another number of layers than its config"
        for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=False):
            content = blobs[layer["digest"]]
            raw = zlib.decompress(content, wbits=31) if layer["mediaType"].endswith("+gzip") else content
            if len(content) != layer["size"] or f"sha256:{sha256(raw)}" != diff_id:
                yield f"{name}: layer {layer['digest']} is not {diff_id}"


def archives_readable(files: Files, _key: PublicKey) -> Iterator[str]:
    """The wheel's RECORD, the versions of chart and packages, and the digest of the krew archive are right."""
    name, packed = _one(files, KINDS[5])
    with zipfile.ZipFile(BytesIO(packed)) as wheel:
        if broken := wheel.testzip():
            yield f"{name}: {broken} is damaged"
    version = name.split("-")[1]
    chart_name, chart = _one(files, KINDS[1])
    described = yaml.safe_load(read_tar(chart)["gpu-usher/Chart.yaml"])
    if described["version"] != version or chart_name != f"gpu-usher-{version}.tgz":
        yield f"{chart_name}: has version {described['version']}, the wheel {version}"
    krew_name, krew = _one(files, KINDS[3])
    manifest_name, manifest = _one(files, KINDS[4])
    platform = yaml.safe_load(manifest)["spec"]["platforms"][0]
    if platform["sha256"] != sha256(krew) or not platform["uri"].endswith(f"/{krew_name}"):
        yield f"{manifest_name}: names another archive than {krew_name}"
    if read_tar(krew).get(name) != packed:
        yield f"{krew_name}: has another wheel than {name}"
    for kind in (KINDS[2], KINDS[6]):
        read_tar(_one(files, kind)[1])
    for kind in (KINDS[7], KINDS[8]):
        bill_name, bill = _one(files, kind)
        if json.loads(bill).get("bomFormat") != "CycloneDX":
            yield f"{bill_name}: is no CycloneDX"


def _one(files: Files, kind: str) -> tuple[str, bytes]:
    return next((name, content) for name, content in files.items() if re.fullmatch(kind, name))


Check = Callable[[Files, PublicKey], Iterator[str]]
OUTER: tuple[Check, ...] = (complete, signatures_valid, sums_right)
INNER: tuple[Check, ...] = (provenance_right, image_whole, archives_readable)
"""Checks of what the files hold, which only files that the first checks accept are read for."""
DAMAGE = (ValueError, KeyError, IndexError, OSError, EOFError, StopIteration, tarfile.TarError, zlib.error)


def problems(files: Files, key: PublicKey) -> list[str]:
    """List what is wrong with a release; empty if nothing is."""
    found = [line for check in OUTER for line in check(files, key)]
    return found or [line for check in INNER for line in _checked(check, files, key)]


def _checked(check: Check, files: Files, key: PublicKey) -> Iterator[str]:
    """Yield what a check finds, and what keeps it from going on."""
    try:
        yield from check(files, key)
    except (*DAMAGE, zipfile.BadZipFile, yaml.YAMLError) as error:
        yield f"a file cannot be read: {error}"


def read_release(folder: Path) -> Files:
    """Read the files of a directory."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def main() -> int:
    """Print what is wrong, or what was verified."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--public-key", type=Path, required=True)
    given = parser.parse_args()
    files = read_release(given.directory)
    found = problems(files, read_public_key(given.public_key))
    print(*(found or [f"{len(files)} files verified"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
