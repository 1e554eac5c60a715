# SPDX-License-Identifier: Apache-2.0
"""The reader of images asks little at a time, keeps what it knew, and says which registry does not answer."""

import asyncio
from collections.abc import Mapping

import pytest

from app.cluster.reflector import Clock
from app.images.reader import (
    LONGEST_RETRY_SECONDS,
    MOST_AT_ONCE,
    RESOLVE_SECONDS,
    RETRY_SECONDS,
    ImageReader,
)
from app.images.registry import Registries, RegistryAccess
from app.knowledge.image_configs import ImageFacts
from app.kube.pods import read_pod
from app.telemetry.metrics import Metrics
from app.values.errors import SourceError
from app.world.image_index import ImageIndex
from tests.builders import gpus, pod
from tests.images.published import CUDA_12_4, facts

IMAGE = "r.example/team/serve:v1"
DIGEST = "sha256:" + "1" * 64


class Source(Registries):
    """Registries that answer with the digests of `tags`, or with an error. `asked` are (reference, digest known)."""

    def __init__(self, tags: Mapping[str, str] | None = None) -> None:
        super().__init__(RegistryAccess())
        self.tags = dict(tags or {})
        self.error: SourceError | None = None
        self.asked: list[tuple[str, str]] = []

    async def read(self, image: str, known: ImageFacts | None = None) -> ImageFacts:
        self.asked.append((image, known.digest if known else ""))
        if self.error is not None:
            raise self.error
        digest = self.tags.get(image, DIGEST)
        return known if known and digest == known.digest else facts(digest, amd64=CUDA_12_4)


class Scene:
    """A reader of a source, whose clock a test turns."""

    def __init__(self, source: Source, most: int = 100) -> None:
        self.now = 0.0
        self.source, self.index, self.metrics = source, ImageIndex(), Metrics()
        clock = Clock(now=lambda: self.now, chance=lambda: 0.0)
        self.reader = ImageReader(source, self.index, self.metrics, clock, most=most)

    def silence(self) -> float | None:
        self.reader.measure()
        labels = {"registry": "r.example"}
        return self.metrics.registry.get_sample_value("gpu_usher_registry_silence_seconds", labels)

    def want(self, *images: str) -> None:
        self.index.want(read_pod(pod(*(gpus(1, image=image, name=f"c{i}") for i, image in enumerate(images)))))

    def turn(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, and read what is taken."""
        self.now += seconds
        taken = self.reader.take()
        for image in taken:
            asyncio.run(self.reader.read(image))
        return taken

    def digest(self, image: str) -> str:
        return "".join(self.index.digests(read_pod(pod(gpus(1, image=image)))))


def test_image_that_is_wanted_is_read_once() -> None:
    scene = Scene(Source())
    scene.want(IMAGE)

    assert scene.turn() == [IMAGE]
    scene.want(IMAGE)
    assert scene.turn() == []
    assert scene.digest(IMAGE) == DIGEST


def test_tag_is_looked_up_again_and_a_digest_is_not() -> None:
    pinned = f"r.example/team/serve@{DIGEST}"
    scene = Scene(Source())
    scene.want(IMAGE, pinned)
    scene.turn()
    scene.source.tags[IMAGE] = "sha256:" + "2" * 64

    assert scene.turn(RESOLVE_SECONDS - 1) == []
    assert scene.turn(1) == [IMAGE]
    assert scene.source.asked[-1] == (IMAGE, DIGEST)
    assert scene.digest(IMAGE) == "sha256:" + "2" * 64


def test_failure_is_tried_again_ever_later_and_what_was_known_stays() -> None:
    scene = Scene(Source())
    scene.want(IMAGE)
    scene.turn()
    scene.source.error = SourceError("refused")

    waits, begun = [], scene.now + RESOLVE_SECONDS
    scene.turn(RESOLVE_SECONDS)
    for _ in range(10):
        since = scene.now
        while not scene.turn(RETRY_SECONDS):
            pass
        waits.append(scene.now - since)

    assert waits[:3] == [RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS]
    assert waits[-1] == LONGEST_RETRY_SECONDS
    assert scene.digest(IMAGE) == DIGEST
    assert scene.silence() == scene.now - begun
    assert scene.reader.status()["registries"]["r.example"]["failing_seconds"] == int(scene.now - begun)


@pytest.mark.parametrize(
    "outcome", ["address", "not_found", "unauthorized", "digest", "too_large", "malformed", "redirect"]
)
def test_fault_of_an_image_is_no_silence_of_its_registry(outcome: str) -> None:
    scene = Scene(Source())
    scene.source.error = SourceError("why", outcome)
    scene.want(IMAGE)

    scene.turn()

    state = scene.reader.status()["registries"]["r.example"]
    assert (state["failing_seconds"], state["problem"]) == (None, "why")


def test_registry_that_answers_again_is_no_longer_silent() -> None:
    scene = Scene(Source())
    scene.source.error = SourceError("late", "timeout")
    scene.want(IMAGE)
    scene.turn()
    scene.source.error = None

    scene.turn(2 * RETRY_SECONDS)

    assert scene.silence() == 0
    assert scene.reader.status()["registries"]["r.example"]["problem"] is None


def test_few_images_are_read_at_once() -> None:
    scene = Scene(Source())
    scene.want(*(f"r.example/a:{number}" for number in range(20)))

    first = scene.reader.take()

    assert len(first) == MOST_AT_ONCE
    assert scene.reader.take() == []


def test_oldest_reference_goes_where_there_are_too_many() -> None:
    scene = Scene(Source(), most=3)
    for number in range(5):
        scene.want(f"r.example/a:{number}")
        scene.turn()

    assert [bool(scene.digest(f"r.example/a:{number}")) for number in range(5)] == [False, False, True, True, True]
