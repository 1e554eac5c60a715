# SPDX-License-Identifier: Apache-2.0
"""Follows the steps of a Dockerfile without a container engine: each becomes a layer, a directory of what it changes.

A step runs in a chroot of an overlay of the layers before it. Its mounts and processes live in namespaces that end with
it. Layers are kept below `.controlplane/image-layers`, and their names are digests of all that went into them: as with
a container engine, a build repeats only what comes after the first change.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from tests.controlplane.binaries import BUILT
from tests.realnodes.dockerfile import Copy, MakeDirectory, Run, Stage, Step, context_files

LAYERS = BUILT / "image-layers"
STEP_SECONDS = 1200
"""Bound on a step; the slowest installs a hundred wheels, which took four minutes on two busy cores."""
NAMESPACE = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")
"""The command's processes and mounts end as soon as this process does, even if it is killed."""
ENTER = """
umask 022
lower=$1 upper=$2 work=$3 root=$4 from=$5 command=$6
shift 6
mount -t overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work,redirect_dir=off,metacopy=off" overlay "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
for node in null:3 zero:5 full:7 random:8 urandom:9
do mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
done
mkdir "$root/run/from" "$root/run/host"
[ -z "$from" ] || mount -t overlay -o "lowerdir=$from" overlay "$root/run/from"
while [ $# -gt 0 ]
do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else [ -e "$root$2" ] || : > "$root$2"; fi
  mount --bind -o ro "$1" "$root$2"
  shift 2
done
exec chroot "$root" /bin/sh -c "$command"
"""
"""Mounts the layers and runs a command in a chroot of them. Files of the host are mounted below /run, which is no part
of the layer, or over empty files of the base. The numbers of the devices are those of mem(4) and random(4)."""
COPY_ALL = """
for source
do
  if [ -d "/run/from/$source" ]; then mkdir -p "$target"; source=$source/.
  else case $target in */) mkdir -p "$target";; *) mkdir -p "$(dirname "$target")";; esac
  fi
  cp -dR --preserve=mode,timestamps,links "/run/from/$source" "$target"
done
"""
"""Copies each source as COPY does: the content of a directory, or a file under its own name or the target's."""


def digest(*parts: object) -> str:
    """Return a short digest: of the content of each Path, and of the repr() of everything else."""
    total = hashlib.sha256()
    for part in parts:
        words = _content(part) if isinstance(part, Path) else repr(part).encode()
        total.update(hashlib.sha256(words).digest())
    return total.hexdigest()[:16]


def _content(path: Path) -> bytes:
    return os.readlink(path).encode() if path.is_symlink() else path.read_bytes()


def follow(stages: Sequence[Stage], base: Path, context: Path, ignored: tuple[str, ...]) -> dict[str, tuple[Path, ...]]:
    """Follow the steps of all stages; give each stage's layers by its name, of which the base is the first.

    Raises SystemExit with a failed step's own words, ValueError for a COPY of what is not there.
    """
    done: dict[str, tuple[Path, ...]] = {}
    for stage in stages:
        layers: tuple[Path, ...] = (base,)
        for step in stage.steps:
            layers = (*layers, _layer(step, layers, done, context, ignored))
        done[stage.name] = layers
    return done


def remove_others(used: Collection[Path]) -> None:
    """Remove the layers of earlier builds, and what builds that were killed left behind."""
    for path in LAYERS.iterdir():
        if path not in used:
            shutil.rmtree(path)


def _layer(
    step: Step, below: tuple[Path, ...], done: Mapping[str, tuple[Path, ...]], context: Path, ignored: tuple[str, ...]
) -> Path:
    identity: list[object] = [ENTER, COPY_ALL, below[-1].name, step]
    if isinstance(step, Copy) and step.stage is None:
        files = [file for source in step.sources for file in context_files(context, source, ignored)]
        for file in files:
            identity += [file.relative_to(context).as_posix(), file.lstat().st_mode, file]
        return kept(digest(*identity), lambda folder: _copy_from_context(step, folder, below, context, files))
    if isinstance(step, Copy):
        sources = done.get(step.stage or "", ())
        if not sources:
            raise ValueError(f"Dockerfile: COPY --from={step.stage}: no stage before this one has that name")
        identity.append(sources[-1].name)
        return kept(digest(*identity), lambda folder: _enter(_copying(step), folder, below, sources))
    if isinstance(step, MakeDirectory):
        return kept(digest(*identity), lambda folder: _enter(f"mkdir -p {shlex.quote(step.path)}", folder, below))
    return kept(digest(*identity), lambda folder: _run(step, folder, below))


def kept(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the layer of that name. If it is missing, `fill` gets a temporary folder and fills `layer` in it."""
    target = LAYERS / name
    if not target.is_dir():
        LAYERS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=LAYERS) as temporary:
            layer = Path(temporary, "layer")
            layer.mkdir()
            fill(Path(temporary))
            layer.rename(target)
    return target


def _run(step: Run, folder: Path, below: Sequence[Path]) -> None:
    """Run a command as an engine does, with the host's network and pip's settings beside the step's environment."""
    settings, binds = pip_settings(os.environ)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in (("HOME", "/root"), *step.environment)]
    move = f"cd {shlex.quote(step.directory)} || exit"
    command = "\n".join((*exports, move, f"exec /bin/sh -c {shlex.quote(step.command)}"))
    network = {Path("/etc", name): f"/etc/{name}" for name in ("hosts", "resolv.conf")}
    _enter(command, folder, below, (), settings, {**network, **binds})


def pip_settings(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[Path, str]]:
    """Give the variables that tell pip where packages are, and each file that they name with its place in the chroot.

    They belong to the machine, so no layer may contain them. Paths that a configuration file names are not mounted.
    """
    settings = {
        name: value
        for name, value in environment.items()
        if name.startswith("PIP_") or name == "REQUESTS_CA_BUNDLE" or name.lower().endswith("_proxy")
    }
    settings.setdefault("PIP_CONFIG_FILE", "/etc/pip.conf")
    files = sorted({value for value in settings.values() if value.startswith("/") and Path(value).exists()})
    places = {file: f"/run/host/{number}" for number, file in enumerate(files)}
    inside = {name: places.get(value, value) for name, value in settings.items()}
    return inside, {Path(file): place for file, place in places.items()}


def _copy_from_context(step: Copy, folder: Path, below: Sequence[Path], context: Path, files: Sequence[Path]) -> None:
    for file in files:
        target = folder / "context" / file.relative_to(context)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)
    for path in (folder / "context").rglob("*/"):
        path.chmod(0o755)
    _enter(_copying(step), folder, below, (folder / "context",))


def _copying(step: Copy) -> str:
    sources = " ".join(map(shlex.quote, step.sources))
    return f"set -eu\ntarget={shlex.quote(step.target)}\nset -- {sources}\n{COPY_ALL}"


def _enter(
    command: str,
    folder: Path,
    below: Sequence[Path],
    sources: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    binds: Mapping[Path, str] | None = None,
) -> None:
    """Run a shell command on top of layers; `layer` in the folder takes what it changes.

    `sources`: further layers, which the command finds below /run/from. `binds`: path of the host → path in the chroot.

    Raises SystemExit with the command's own words.
    """
    for name in ("work", "root", "empty"):
        (folder / name).mkdir()
    lower = ":".join(str(path) for path in reversed(below))
    # Without an upper directory an overlay wants two lower ones.
    from_lower = ":".join(str(path) for path in (*reversed(sources), folder / "empty")) if sources else ""
    words = [lower, *(str(folder / name) for name in ("layer", "work", "root")), from_lower, command]
    words += [word for path, place in (binds or {}).items() for word in (str(path), place)]
    done = subprocess.run(
        [*NAMESPACE, "sh", "-euc", ENTER, "sh", *words],
        env={"PATH": os.environ.get("PATH", os.defpath), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
        raise SystemExit(f"images: a step ended with {done.returncode}: {command[-200:]}\n{said}")
