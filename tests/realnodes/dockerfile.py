# SPDX-License-Identifier: Apache-2.0
"""Reads our Dockerfile and .dockerignore, for a build without a container engine; see tests/realnodes/rootfs.py.

Only the instructions and forms that our Dockerfile uses are understood, as the Dockerfile reference defines them
(https://docs.docker.com/reference/dockerfile/). Everything else raises ValueError, so no step is left out silently.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

Variables = Mapping[str, str]
"""Variable name → value."""


@dataclass(frozen=True, slots=True)
class Run:
    """A RUN instruction in its shell form."""

    command: str
    environment: tuple[tuple[str, str], ...]
    directory: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A COPY instruction. `stage` names the stage that the sources come from; None means the build context."""

    sources: tuple[str, ...]
    target: str
    """Absolute. With a trailing slash it is a directory, into which files are copied under their own names."""
    stage: str | None


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """What WORKDIR does to the file system: the directory exists afterwards."""

    path: str


Step = Run | Copy | MakeDirectory


@dataclass(frozen=True, slots=True)
class Config:
    """What an image says about the process that runs in it."""

    environment: Variables
    user: str = ""
    directory: str = "/"
    ports: tuple[str, ...] = ()
    """Such as 8443/tcp."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, from its FROM to the next."""

    name: str
    base: str
    config: Config
    arguments: Variables
    """The ARG values that are in force where the stage ends."""
    steps: tuple[Step, ...] = ()

    @property
    def variables(self) -> Variables:
        """What `$NAME` stands for: ENV wins over ARG."""
        return {**self.arguments, **self.config.environment}


def read_stages(text: str, base_environment: Variables) -> tuple[Stage, ...]:
    """Read a Dockerfile, in which every ARG keeps its default. `base_environment` is that of the base image.

    Raises ValueError for what is not understood, with the instruction.
    """
    global_arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for word, rest in read_instructions(text):
        try:
            if word == "FROM":
                stages.append(_begin(rest, len(stages), global_arguments, base_environment))
            elif stages:
                stages[-1] = _HANDLERS[word](stages[-1], rest, global_arguments)
            elif word == "ARG":
                global_arguments |= _assignments(rest, global_arguments)
            else:
                raise ValueError("it stands before FROM")
        except (ValueError, KeyError) as error:
            reason = "the instruction is not known" if isinstance(error, KeyError) else error
            raise ValueError(f"Dockerfile: {word} {rest[:80]}: {reason}") from error
    return tuple(stages)


def read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Give each instruction's word and its text: without comments, and with continued lines joined."""
    joined = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.rstrip().endswith("\\"):
            joined += line.rstrip()[:-1]
            continue
        word, _, rest = (joined + line).strip().partition(" ")
        yield word.upper(), rest.strip()
        joined = ""
    if joined:
        raise ValueError(f"Dockerfile: {joined[:80]}: the last line is continued by none")


def _begin(rest: str, number: int, global_arguments: Variables, base_environment: Variables) -> Stage:
    words = _substitute(rest, global_arguments).split()
    if len(words) == 3 and words[1].upper() == "AS":
        return Stage(words[2], words[0], Config(base_environment), {})
    if len(words) == 1:
        return Stage(str(number), words[0], Config(base_environment), {})
    raise ValueError("wanted FROM IMAGE or FROM IMAGE AS NAME")


def _arg(stage: Stage, rest: str, global_arguments: Variables) -> Stage:
    if "=" not in rest:
        if rest not in global_arguments:
            raise ValueError("it has no default")
        return replace(stage, arguments={**stage.arguments, rest: global_arguments[rest]})
    return replace(stage, arguments={**stage.arguments, **_assignments(rest, stage.variables)})


def _env(stage: Stage, rest: str, _: Variables) -> Stage:
    environment = {**stage.config.environment, **_assignments(rest, stage.variables)}
    return replace(stage, config=replace(stage.config, environment=environment))


def _workdir(stage: Stage, rest: str, _: Variables) -> Stage:
    path = _absolute(stage, _substitute(rest, stage.variables))
    config = replace(stage.config, directory=path)
    return replace(stage, config=config, steps=(*stage.steps, MakeDirectory(path)))


def _run(stage: Stage, rest: str, _: Variables) -> Stage:
    if rest.startswith(("[", "--")) or "<<" in rest:
        raise ValueError("only the shell form without options and here-documents is understood")
    if stage.config.user:
        raise ValueError("it stands after USER, and steps run as root only")
    step = Run(rest, tuple(stage.variables.items()), stage.config.directory)
    return replace(stage, steps=(*stage.steps, step))


def _copy(stage: Stage, rest: str, _: Variables) -> Stage:
    words = _substitute(rest, stage.variables).split()
    options = [word for word in words if word.startswith("--")]
    *sources, target = words[len(options) :]
    if not sources or any(not option.startswith("--from=") for option in options) or len(options) > 1:
        raise ValueError("wanted COPY [--from=STAGE] SOURCE… TARGET")
    if re.search(r"[*?\[<\"]", "".join(sources)):
        raise ValueError("patterns, the JSON form and here-documents are not understood")
    if len(sources) > 1 and not target.endswith("/"):
        raise ValueError("several sources want a target that ends with a slash")
    if any(".." in source.split("/") for source in sources):
        raise ValueError("a source lies outside of the build context")
    absolute = _absolute(stage, target) + ("/" if target.endswith("/") else "")
    step = Copy(tuple(sources), absolute, options[0].removeprefix("--from=") if options else None)
    return replace(stage, steps=(*stage.steps, step))


def _user(stage: Stage, rest: str, _: Variables) -> Stage:
    return replace(stage, config=replace(stage.config, user=_substitute(rest, stage.variables)))


def _expose(stage: Stage, rest: str, _: Variables) -> Stage:
    words = _substitute(rest, stage.variables).split()
    ports = tuple(word if "/" in word else f"{word}/tcp" for word in words)
    return replace(stage, config=replace(stage.config, ports=(*stage.config.ports, *ports)))


def _healthcheck(stage: Stage, rest: str, _: Variables) -> Stage:
    if rest != "NONE":
        raise ValueError("only NONE is understood, as Kubernetes runs no other")
    return stage


def _entrypoint(stage: Stage, rest: str, _: Variables) -> Stage:
    return replace(stage, config=replace(stage.config, entrypoint=_json_form(rest)))


def _cmd(stage: Stage, rest: str, _: Variables) -> Stage:
    return replace(stage, config=replace(stage.config, command=_json_form(rest)))


_HANDLERS: Mapping[str, Callable[[Stage, str, Variables], Stage]] = {
    "ARG": _arg,
    "WORKDIR": _workdir,
    "RUN": _run,
    "COPY": _copy,
    "ENV": _env,
    "USER": _user,
    "EXPOSE": _expose,
    "HEALTHCHECK": _healthcheck,
    "ENTRYPOINT": _entrypoint,
    "CMD": _cmd,
}
"""Instruction → what it makes of a stage, from the stage, the instruction's text and the global ARG values."""


def _assignments(rest: str, variables: Variables) -> dict[str, str]:
    if "'" in rest or "\\" in rest:
        raise ValueError("single quotes and backslashes are not understood")
    words = [word.partition("=") for word in shlex.split(rest)]
    if not words or any(not separator for _, separator, _ in words):
        raise ValueError("wanted NAME=VALUE")
    return {name: _substitute(value, variables) for name, _, value in words}


def _substitute(text: str, variables: Variables) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not name or name not in variables:
            raise ValueError(f"{match[0]} has no value here, or is a form that is not understood")
        return variables[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\}|)", value, text)


def _json_form(rest: str) -> tuple[str, ...]:
    words = json.loads(rest) if rest.startswith("[") else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("only the JSON form is understood, a list of words")
    return tuple(words)


def _absolute(stage: Stage, path: str) -> str:
    return posixpath.normpath(posixpath.join(stage.config.directory, path))


def read_ignored(text: str) -> tuple[str, ...]:
    """Read a .dockerignore: paths from the context's root, and `**/NAME` for a name at any depth.

    Raises ValueError for other patterns.
    """
    patterns = tuple(line.strip().rstrip("/") for line in text.splitlines() if line.strip() and line[0] != "#")
    for pattern in patterns:
        name = pattern.removeprefix("**/")
        if re.search(r"[*?!\[\\]", name) or (name != pattern and "/" in name):
            raise ValueError(f".dockerignore: {pattern}: wanted a path, or **/NAME")
    return patterns


def context_files(context: Path, source: str, ignored: tuple[str, ...]) -> list[Path]:
    """List the files that COPY takes from the build context for one source, sorted; links count as files.

    Raises ValueError if there is none.
    """
    path = context / source
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [
        file
        for file in paths
        if (file.is_symlink() or file.is_file()) and not _is_ignored(file.relative_to(context).as_posix(), ignored)
    ]
    if not files:
        raise ValueError(f"Dockerfile: COPY {source}: the build context has no such file")
    return files


def _is_ignored(path: str, ignored: tuple[str, ...]) -> bool:
    names = path.split("/")
    return any(
        pattern.removeprefix("**/") in names
        if pattern.startswith("**/")
        else path == pattern or path.startswith(f"{pattern}/")
        for pattern in ignored
    )
