"""The Dockerfile keeps the rules that its own builder does not hold anybody to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).parents[2]

GOOD = """
FROM debian:13.1-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \\
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch==2.13.0
FROM debian:13.1-slim
COPY --from=build /opt /opt
USER server
ENTRYPOINT ["server"]
"""


class Instruction(NamedTuple):
    """One instruction, its continued lines joined."""

    name: str
    rest: str


def parse(text: str) -> list[Instruction]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [Instruction(name.upper(), rest.strip()) for name, _, rest in parts]


def faults(text: str) -> Iterator[str]:
    instructions = parse(text)
    yield from (fault for i in instructions for fault in faults_of_one(i, stages(instructions)))
    last = instructions[[i.name for i in instructions].index("FROM") :]
    while "FROM" in (names := [i.name for i in last[1:]]):
        last = last[1 + names.index("FROM") :]
    users = [i.rest for i in last if i.name == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        yield "the last stage runs as root"
    if not any(i.name == "ENTRYPOINT" for i in last):
        yield "there is no entry point"


def stages(instructions: list[Instruction]) -> set[str]:
    found = (re.search(r" AS (\S+)$", i.rest, re.IGNORECASE) for i in instructions)
    return {match.group(1) for match in found if match}


def faults_of_one(instruction: Instruction, stages: set[str]) -> Iterator[str]:
    name, rest = instruction
    if name == "FROM" and rest.split()[0] not in stages and not is_pinned(rest.split()[0]):
        yield f"{rest.split()[0]} is not pinned"
    if name == "ADD":
        yield "ADD fetches and unpacks in silence; COPY does not"
    if name in ("ENTRYPOINT", "CMD") and not is_exec_form(rest):
        yield f"{name} runs through a shell, which gets the signals instead"
    if name in ("ENV", "ARG") and re.search(r"(KEY|TOKEN|SECRET|PASSWORD)\w*\s*=", rest, re.I):
        yield f"a secret in {name} stays in the image"
    if name == "RUN":
        yield from faults_of_run(rest)


def is_pinned(image: str) -> bool:
    tag = image.partition("@sha256:")[2] or image.rpartition("/")[2].partition(":")[2]
    return bool(re.search(r"\d", tag)) and not tag.startswith("latest")


def is_exec_form(rest: str) -> bool:
    try:
        return isinstance(json.loads(rest), list)
    except ValueError:
        return False


def faults_of_run(rest: str) -> Iterator[str]:
    if "apt-get install" in rest:
        if "apt-get update" not in rest:
            yield "apt's lists may be of another day's layer"
        if "rm -rf /var/lib/apt/lists/*" not in rest:
            yield "apt's lists stay in the image"
        if "--no-install-recommends" not in rest:
            yield "apt installs what is only recommended"
    if "pip install" in rest and "--no-cache-dir" not in rest:
        yield "pip's cache stays in the image"
    if re.search(r"\bsudo\b|\b(curl|wget)\b.*\|", rest):
        yield "what is fetched is run, or run as root"


def test_the_dockerfile_keeps_the_rules() -> None:
    assert list(faults((REPO / "Dockerfile").read_text(encoding="utf-8"))) == []


def test_it_has_more_than_one_stage_and_the_compiler_is_not_in_the_last() -> None:
    bases = [i.rest for i in parse((REPO / "Dockerfile").read_text()) if i.name == "FROM"]

    assert len(bases) > 1
    assert "-devel-" not in bases[-1]


def test_everything_that_it_copies_is_there_and_is_sent_to_the_builder() -> None:
    sent = [
        line.removeprefix("!").rstrip("/")
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for name, rest in parse((REPO / "Dockerfile").read_text()):
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (REPO / source).exists(), source
                assert source.rstrip("/") in sent


def test_what_it_starts_the_server_with_is_understood() -> None:
    from radixserve.cli.main import make_parser

    [command] = [i.rest for i in parse((REPO / "Dockerfile").read_text()) if i.name == "CMD"]

    arguments = make_parser().parse_args(json.loads(command))
    assert str(arguments.config) == "/etc/radixserve/gpu.toml"


def test_a_good_file_has_no_fault() -> None:
    assert list(faults(GOOD)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("debian:13.1-slim AS build", "debian AS build", "debian is not pinned"),
        ("debian:13.1-slim AS build", "debian:latest AS build", "debian:latest is not pinned"),
        ("COPY --from=build /opt", "ADD https://example.org/x", "ADD fetches"),
        ("USER server", "", "runs as root"),
        ("USER server", "USER root", "runs as root"),
        ('["server"]', "server", "through a shell"),
        ('ENTRYPOINT ["server"]', "", "no entry point"),
        (" --no-cache-dir", "", "pip's cache"),
        ("&& rm -rf /var/lib/apt/lists/*", "", "apt's lists stay"),
        ("apt-get update &&", "", "another day's layer"),
        (" --no-install-recommends", "", "only recommended"),
        ("USER server", "ENV API_KEY=abc\nUSER server", "a secret in ENV"),
        ("USER server", "RUN curl -s https://example.org | sh\nUSER server", "fetched is run"),
    ],
)
def test_a_fault_is_found(old: str, new: str, fault: str) -> None:
    assert old in GOOD

    assert [found for found in faults(GOOD.replace(old, new, 1)) if fault in found]
