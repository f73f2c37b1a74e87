"""A run's prefix tree, in the terminal and as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from radixserve.frontend import Prompt, Report, program
from radixserve.frontend.backends.protocol import CallUsage
from radixserve.frontend.pieces import Text, Transcript
from radixserve.frontend.report import CallRecord
from tests.frontend.served import served

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from radixserve.frontend import Backend, EmbeddedBackend
    from radixserve.frontend.trace import Node, Trace

SHOTS = "".join(f"Review: film {number}\nLabel: pos\n\n" for number in range(5))


@program(max_tokens=4)
async def judging(p: Prompt, items: list[str]) -> None:
    p += SHOTS
    await p.commit()

    async def judge(branch: Prompt, item: str) -> None:
        branch += f"Review: {item}\nLabel: "
        await branch.select("label", ["pos", "neg"])
        branch += " because "
        await branch.gen("why", temperature=0.0)

    await p.each(judge, items)


async def traced(backend: Backend, items: list[str]) -> tuple[Report, Trace]:
    agent = judging.using(backend)
    run = agent.new_run()
    await agent.run_item(run, 0, (items,))
    return run.report, run.report.trace()


def nodes_of(root: Node) -> list[Node]:
    return [root, *(node for child in root.children.values() for node in nodes_of(child))]


async def test_the_tree_has_every_call_and_every_token(backend: EmbeddedBackend) -> None:
    report, trace = await traced(backend, ["great", "dull", "so so"])
    nodes = nodes_of(trace.root)
    assert sum(len(node.calls) for node in nodes) == len(report.calls) == trace.root.reach
    for node in nodes:
        assert node.reach == len(node.calls) + sum(c.reach for c in node.children.values())
    gens = [call for call in report.calls if call.kind == "gen"]
    for call in gens:
        assert call.transcript is not None
        assert len(backend.encoder.encode(call.transcript)) == call.usage.input_tokens


async def test_the_terminal_shows_what_is_shared(backend: EmbeddedBackend) -> None:
    report, trace = await traced(backend, ["great", "dull"])
    text = trace.text()
    assert text.startswith(str(report))
    [warm, *_] = report.calls
    shots = next(line for line in text.splitlines() if line.startswith("Review: film 0"))
    saved = re.search(r"([\d,]+) tok +x5, saves ([\d,]+) tok", shots)
    assert saved is not None
    shared, total = (int(number.replace(",", "")) for number in saved.groups())
    assert warm.usage.input_tokens - 2 <= shared <= warm.usage.input_tokens + 2
    assert total == 4 * shared
    assert text.count("-> label = ") == 2
    assert text.count("-> why = ") == 2
    assert "-> commit" in text


async def test_it_is_written_to_the_terminal_or_to_a_file(
    backend: EmbeddedBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, trace = await traced(backend, ["great"])
    report.show()
    assert capsys.readouterr().out == trace.text() + "\n"
    report.show(html=tmp_path / "trace.html")
    assert (tmp_path / "trace.html").read_text(encoding="utf-8") == trace.html()
    assert capsys.readouterr().out == ""


class Page(HTMLParser):
    """Checks that tags are paired, and keeps what could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.references += [name for name, _ in attrs if name in ("src", "href", "onload")]
        if tag in ("script", "link", "img", "iframe"):
            self.references.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_page_is_whole_and_loads_nothing(backend: EmbeddedBackend) -> None:
    _, trace = await traced(backend, ["great", "<script>alert(1)</script><img src=x>"])
    html = trace.html()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.references == []
    assert "&lt;script&gt;" in html


async def test_a_backend_without_tokens_has_a_tree_too(backend: EmbeddedBackend) -> None:
    async with served(backend.engine) as server, server.reached("openai") as reached:
        _, trace = await traced(reached, ["great", "dull"])
    assert not trace.units.is_exact
    assert re.search(r"~\d+ tok   x5", trace.text())


def call(text: str, number: int) -> CallRecord:
    transcript = Transcript().plus(Text(text))
    usage = CallUsage(input_tokens=len(text), output_tokens=1)
    return CallRecord(f"p.gen(#{number})", "gen", ("p",), None, "x", usage, transcript=transcript)


def test_many_branches_are_counted_and_not_drawn() -> None:
    report = Report([call(f"common {chr(0x4E00 + n)}", n) for n in range(100)])
    lines = report.trace().text().splitlines()
    assert len(lines) < 40
    assert lines[-1] == "`- ... 88 more calls"


def test_a_long_conversation_has_a_flat_tree() -> None:
    report = Report([call("word " * (number + 1), number) for number in range(1200)])
    text, html = report.trace().text(), report.trace().html()
    assert len(text.splitlines()) == 1 + 2 * 1200
    assert max(map(len, text.splitlines()[1:])) < 120
    assert html.count("</details>") == 1200


def test_equal_prompts_end_at_the_same_place() -> None:
    trace = Report([call("same", number) for number in range(3)]).trace()
    [node] = trace.root.children.values()
    assert len(node.calls) == node.reach == 3


def test_a_report_without_calls_has_an_empty_tree() -> None:
    assert Report().trace().text() == str(Report())
