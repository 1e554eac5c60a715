# SPDX-License-Identifier: Apache-2.0
"""Archives of which equal content gives equal bytes: sorted members, without times, users and modes of a machine."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an archive, or a symbolic link if `link` is not empty."""

    name: str
    content: bytes = b""
    executable: bool = False
    link: str = ""


def entries_below(folder: Path, prefix: str, follow: bool = False) -> Iterator[Entry]:
    """List the files and symbolic links below a folder; with `follow` each link is the file that it leads to."""
    for path in sorted(folder.rglob("*")):
        name = f"{prefix}{path.relative_to(folder).as_posix()}"
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink() and path.is_dir() and follow:
            yield from entries_below(path.resolve(), f"{name}/", follow)
        elif path.is_symlink() and not follow:
            yield Entry(name, link=str(path.readlink()))
        elif path.is_file():
            yield Entry(name, path.read_bytes(), bool(path.stat().st_mode & 0o100))


def tar_of(entries: Iterable[Entry]) -> bytes:
    """Pack entries sorted by name, with the folders that they are in, all of user and group 0 and of 1970."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders: set[str] = set()
        for entry in sorted(entries, key=lambda one: one.name):
            for parent in reversed(Path(entry.name).parents[:-1]):
                if parent.as_posix() not in folders:
                    folders.add(parent.as_posix())
                    tar.addfile(_member(parent.as_posix(), tarfile.DIRTYPE, 0o755))
            member = _member(entry.name, tarfile.REGTYPE, 0o755 if entry.executable else 0o644)
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
                tar.addfile(member)
            else:
                member.size = len(entry.content)
                tar.addfile(member, io.BytesIO(entry.content))
    return packed.getvalue()


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime, member.uname, member.gname = kind, mode, 0, "", ""
    return member


def gzipped(content: bytes) -> bytes:
    """Compress without a name and a time."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as file:
        file.write(content)
    return packed.getvalue()


def sha256(content: bytes) -> str:
    """Give the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def json_bytes(value: object) -> bytes:
    """Write JSON whose bytes depend on the value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read_tar(content: bytes) -> dict[str, bytes]:
    """Read the files of a tar archive, compressed or not, by name.

    Raises tarfile.TarError, EOFError, OSError and zlib.error for a damaged one.
    """
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isreg())
        return {name: file.read() for name, file in files if file is not None}
