# SPDX-License-Identifier: Apache-2.0
"""What is known of the images of pods, by reference, and the references of which something is to be known.

A reader of registries (app/images) fills it, or a command. Nothing here waits: a pod is judged by what is known when it
is asked about.
"""

from dataclasses import replace

from app.knowledge.image_configs import ImageFacts
from app.kube.pods import Pod

MOST_WANTED = 1_000
"""References that wait to be read; further ones are asked for again when their template is next compiled. A guess: the
reader reads some ten a second."""


class ImageIndex:
    """The facts of images by reference. `wanted` are the references to read, the first first.

    Nothing is wanted while `reading` is False, as there is no reader.
    """

    def __init__(self) -> None:
        self.reading = False
        self.wanted: dict[str, None] = {}
        self.facts: dict[str, ImageFacts] = {}

    def put(self, image: str, facts: ImageFacts | None) -> None:
        """Set what is known of a reference; None forgets it."""
        if facts is None:
            self.facts.pop(image, None)
        else:
            self.facts[image] = facts

    def digests(self, pod: Pod) -> tuple[str, ...]:
        """Give the digest of each image of a pod that is known, else empty: a key of what `with_facts` adds.

        Without any it is the empty tuple.
        """
        known = [self.facts.get(container.image) for container in pod.containers]
        return tuple(facts.digest if facts else "" for facts in known) if any(known) else ()

    def with_facts(self, pod: Pod) -> Pod:
        """Add what is known of its images to a pod."""
        containers = (replace(one, facts=self.facts.get(one.image)) for one in pod.containers)
        return replace(pod, containers=tuple(containers))

    def want(self, pod: Pod) -> None:
        """Ask for the images of a pod that are not known."""
        for container in pod.containers:
            if container.image not in self.facts and len(self.wanted) < MOST_WANTED:
                self.wanted[container.image] = None
