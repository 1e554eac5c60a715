# SPDX-License-Identifier: Apache-2.0
"""A release: two clones give equal files, and a flipped byte of any file is found."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app import __version__
from tests.release.archives import json_bytes, read_tar, sha256
from tests.release.build import PROVENANCE, SUMS, _git
from tests.release.image import MEDIA, Base, Layout, python_in, read_base
from tests.release.signing import PrivateKey, is_signed, public_pem, read_private_key, sign
from tests.release.verify import Files, main, problems, read_release

ROOT = Path(__file__).parent.parent.parent
BUILD_SECONDS = 300


def pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def clone(target: Path) -> Path:
    """Clone the commit of this checkout, with its uncommitted changes as one commit more."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", ".controlplane", ".venv", ".hypothesis", "*_cache", "__pycache__", "build", "dist"))  # fmt: skip
    date = {"GIT_AUTHOR_DATE": "1764144000 +0000", "GIT_COMMITTER_DATE": "1764144000 +0000"}
    name = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=target, env={**os.environ, **date}, check=True, timeout=60)
    return target


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signing key on P-256, with its public half beside it."""
    path = tmp_path_factory.mktemp("key") / "release.key"
    made = generate_private_key(SECP256R1())
    path.write_bytes(pem(made))
    path.with_suffix(".pub").write_bytes(public_pem(made))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base image of one small layer, for arm64 alone."""
    layout = Layout()
    layer = layout.add(f"{MEDIA}.layer.v1.tar", b"\0" * 1024)
    config = {
        "architecture": "arm64", "os": "linux", "config": {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "config": layout.add(f"{MEDIA}.config.v1+json", json_bytes(config)),
        "layers": [layer],
    }
    layout.manifests.append(layout.add(f"{MEDIA}.manifest.v1+json", json_bytes(manifest)))
    path = tmp_path_factory.mktemp("base") / "base.tar"
    path.write_bytes(layout.packed())
    return path


def release(tree: Path, key: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Make a release of a clone; the lock is empty, so that nothing is fetched."""
    lock = key.with_name("empty.lock")
    lock.write_text("# nothing\n", "utf-8")
    command = [sys.executable, "-m", "tests.release.build", __version__, "--key", str(key), "--out", str(out)]
    command += ["--lock", str(lock), *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)


@pytest.fixture(scope="module")
def files(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a release."""
    folder = tmp_path_factory.mktemp("one")
    done = release(clone(folder / "a clone"), key, folder / "out")
    assert done.returncode == 0, done.stderr
    return read_release(folder / "out")


def found(files: Files, key: Path) -> list[str]:
    return problems(files, read_private_key(str(key)).public_key())


def test_two_clones_give_equal_files(files: Files, key: Path, tmp_path: Path) -> None:
    """F164: in another directory, with other times of files and another umask."""
    tree = clone(tmp_path / "elsewhere" / "x")
    for path in tree.rglob("*"):
        if ".git" not in path.parts and not path.is_symlink():
            os.utime(path, (1, 1))

    done = release(tree, key, tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert {name: sha256(content) for name, content in read_release(tmp_path / "out").items()} == {
        name: sha256(content) for name, content in files.items()
    }


def test_release_is_verified(files: Files, key: Path) -> None:
    """F164: eleven files, the sums, and a signature of each."""
    assert found(files, key) == []
    assert len(files) == 24


@pytest.mark.parametrize("place", [0, 0.5, 1], ids=["first", "middle", "last"])
def test_flipped_byte_of_any_file_is_found(files: Files, key: Path, place: float) -> None:
    """F164: of every file, the sums and the signatures too."""
    unnoticed = []
    for name, content in files.items():
        index = round(place * (len(content) - 1))
        flipped = content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]
        if not found({**files, name: flipped}, key):
            unnoticed.append(name)

    assert unnoticed == []


def test_file_that_lacks_or_is_too_many_is_found(files: Files, key: Path) -> None:
    """F164."""
    for name in files:
        assert found({other: content for other, content in files.items() if other != name}, key)
    assert found({**files, "more": b"x"}, key)
    assert found({**files, "more.sig": b"x"}, key)


def test_signatures_of_another_key_are_refused(files: Files, key: Path) -> None:
    """F164: somebody who replaces all files cannot sign them."""
    other = generate_private_key(SECP256R1())
    replaced = {name: content for name, content in files.items() if not name.endswith(".sig")}

    assert found(replaced | {f"{name}.sig": sign(other, content) for name, content in replaced.items()}, key)


def test_damage_inside_is_found_though_all_is_signed_anew(files: Files, key: Path) -> None:
    """F164: the layers of the image, the archive of the plugin and the wheel are read."""
    private_key = read_private_key(str(key))
    image = next(name for name in files if name.endswith("-image.tar"))
    layer = max(read_tar(files[image]).values(), key=len)
    index = files[image].index(layer) + len(layer) // 2
    damaged = {name: content for name, content in files.items() if not name.endswith(".sig")}
    damaged[image] = files[image][:index] + bytes([files[image][index] ^ 1]) + files[image][index + 1 :]
    statement = json.loads(damaged[PROVENANCE])
    for subject in statement["subject"]:
        subject["digest"]["sha256"] = sha256(damaged[subject["name"]])
    damaged[PROVENANCE] = json_bytes(statement)
    sums = (f"{sha256(damaged[name])}  {name}\n" for name in sorted(damaged) if name != SUMS)
    damaged[SUMS] = "".join(sums).encode()
    damaged |= {f"{name}.sig": sign(private_key, content) for name, content in damaged.items()}

    assert any(image in line for line in found(damaged, key)), found(damaged, key)


def test_command_verifies_a_directory(
    files: Files, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """F164: exit 0 and 1."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["verify", str(tmp_path), "--public-key", str(key.with_suffix(".pub"))])

    codes = [main()]
    (tmp_path / SUMS).write_bytes(b"")
    codes.append(main())

    assert codes == [0, 1]
    assert "24 files verified" in capsys.readouterr().out


@pytest.mark.parametrize(
    "made", [generate_private_key(SECP256R1()), Ed25519PrivateKey.generate()], ids=["P-256", "Ed25519"]
)
def test_signature_is_the_same_each_time_and_of_one_content(made: PrivateKey) -> None:
    """F164."""
    signature = sign(made, b"content")

    assert sign(made, b"content") == signature
    assert is_signed(made.public_key(), b"content", signature)
    assert not is_signed(made.public_key(), b"contents", signature)


def test_openssl_accepts_a_signature(files: Files, key: Path, tmp_path: Path) -> None:
    """F164: the signature is plain ECDSA, which other programs check."""
    name = next(name for name in files if name.endswith(".whl"))
    (tmp_path / "file").write_bytes(files[name])
    (tmp_path / "sig").write_bytes(files[f"{name}.sig"])
    raw = subprocess.run(["openssl", "base64", "-d", "-A", "-in", "sig"], cwd=tmp_path, capture_output=True, check=True)
    (tmp_path / "raw").write_bytes(raw.stdout)

    words = ["dgst", "-sha256", "-verify", str(key.with_suffix(".pub")), "-signature", "raw", "file"]
    done = subprocess.run(["openssl", *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "Verified OK"


def test_image_has_both_architectures_the_user_and_the_command(files: Files) -> None:
    """F134: as the Dockerfile's last stage says."""
    layout = read_tar(files[f"gpu-usher-{__version__}-image.tar"])
    manifests = json.loads(layout["index.json"])["manifests"]
    assert [one["platform"]["architecture"] for one in manifests] == ["amd64", "arm64"]
    for one in manifests:
        manifest = json.loads(layout[f"blobs/{one['digest'].replace(':', '/')}"])
        config = json.loads(layout[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])["config"]
        layer = read_tar(layout[f"blobs/{manifest['layers'][-1]['digest'].replace(':', '/')}"])
        assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["gpu-usher"])
        assert {"opt/gpu-usher/bin/gpu-usher", "opt/gpu-usher/lib/app/cli/main.py"} <= layer.keys()
        assert not [name for name in layer if name.endswith((".pyc", "direct_url.json"))]


def test_image_is_put_on_its_base(base: Path, key: Path, tmp_path: Path) -> None:
    """F134: the layers of the base come first, for its platforms alone."""
    done = release(clone(tmp_path / "clone"), key, tmp_path / "out", "--base", str(base))

    assert done.returncode == 0, done.stderr
    (made,) = read_base(tmp_path / "out" / f"gpu-usher-{__version__}-image.tar")
    assert made.architecture == "arm64"
    assert len(made.layers) == len(made.config["rootfs"]["diff_ids"]) == 2
    assert "LANG=C.UTF-8" in made.config["config"]["Env"]
    assert found(read_release(tmp_path / "out"), key) == []


@pytest.mark.parametrize(("variable", "version"), [("PYTHON_VERSION=3.11.9", "3.11"), ("LANG=C.UTF-8", "3.12")])
def test_wheels_are_those_of_the_python_of_the_base(variable: str, version: str) -> None:
    """F134: a base with another minor version than the Dockerfile's could not load the others."""
    assert python_in(Base("amd64", {"config": {"Env": ["PATH=/usr/bin", variable]}}, (), {}), "3.12") == version
    assert python_in(Base("amd64", {}, (), {}), "3.12") == "3.12"


def test_wrong_version_and_changed_checkout_are_refused(key: Path, tmp_path: Path) -> None:
    """F164."""
    tree = clone(tmp_path / "clone")
    (tree / "LICENSE").write_text("mine", "utf-8")

    changed = release(tree, key, tmp_path / "out")
    chart = tree / "deploy" / "chart" / "Chart.yaml"
    chart.write_text(chart.read_text("utf-8").replace("version: 0", "version: 9"), "utf-8")
    wrong = release(tree, key, tmp_path / "out")

    assert (changed.returncode, wrong.returncode) == (1, 1)
    assert "wants a checkout without changes, has M LICENSE" in changed.stderr
    assert "deploy/chart/Chart.yaml version has 9" in wrong.stderr


@pytest.mark.parametrize("content", [b"", b"no key", pem(generate_private_key(SECP256R1()))[:60]])
def test_key_that_is_none_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    """F164."""
    (tmp_path / "key").write_bytes(content)

    with pytest.raises(SystemExit, match="wants a PEM key on P-256 or Ed25519"):
        read_private_key(str(tmp_path / "key"))


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_calls_targets_of_the_makefile_and_nothing_else(path: Path) -> None:
    """F164: each action is pinned by a commit, and no token may write."""
    document = yaml.safe_load(path.read_text("utf-8"))
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    called = [
        re.fullmatch(r'make ([a-z-]+)((?: [A-Z_]+=(?:"\$[A-Z_]+"|[\w:/.]+))*)', step["run"])
        for step in steps
        if "run" in step
    ]

    assert called
    assert None not in called
    assert {match[1] for match in called if match} <= targets
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert document["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in document["jobs"].values())


def test_release_names_the_commit(files: Files) -> None:
    """F164."""
    predicate = json.loads(files[PROVENANCE])["predicate"]

    commits = [one["digest"].get("gitCommit") for one in predicate["buildDefinition"]["resolvedDependencies"]]
    assert re.fullmatch("[0-9a-f]{40}", commits[0] or "")
    assert commits[0] != _git("rev-parse", "HEAD")
