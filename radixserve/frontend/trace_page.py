"""A prefix tree as one HTML page: no script, nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from radixserve.frontend.outcome import MAX_CHILDREN, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.frontend.report import CallRecord
    from radixserve.frontend.trace import Node, Trace

SHOWN_LEN = 4000
"""Characters of a text that the page has."""
_STYLE = """
body{font:14px/1.5 ui-monospace,Menlo,Consolas,monospace;margin:2em;color:#222;background:#fff}
h1{font-size:16px} details{margin-left:1.2em;border-left:1px solid #ccc;padding-left:.6em}
summary{cursor:pointer} pre{white-space:pre-wrap;background:#f5f5f5;padding:.5em;margin:.3em 0}
.size{color:#666} .call{margin:.2em 0 .2em 1.2em} .cost{color:#666}
.bar{display:inline-block;height:.6em;width:10em;background:#d95f02;vertical-align:middle}
.bar span{display:block;height:100%;background:#1b9e77}
"""


def page_of(trace: Trace) -> str:
    """Return the page."""
    body = "\n".join(_nodes(trace))
    title = escape(str(trace.report))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Prompt program</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>\n"
        "<p>Bars: the input of a call, green where it was cached.</p>\n"
        f"{body}\n</body></html>\n"
    )


def _nodes(trace: Trace) -> Iterator[str]:
    todo: list[Node | str] = list(reversed(trace.root.children.values()))
    is_open = " open" if len(todo) <= MAX_CHILDREN else ""
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            yield node
            continue
        label, size = escape(trace.label(node)), escape(trace.size(node))
        yield f'<details{is_open}><summary>{label} <span class="size">{size}</span></summary>'
        yield f"<pre>{escape(trace.units.text(node.units)[:SHOWN_LEN])}</pre>"
        yield from map(_call, node.calls)
        todo += ["</details>", *reversed(node.children.values())]


def _call(call: CallRecord) -> str:
    usage = call.usage
    share = 100 * usage.cached_tokens / usage.input_tokens if usage.input_tokens else 0
    bar = f'<span class="bar"><span style="width:{share:.0f}%"></span></span>'
    output = f"<pre>{escape(call.text[:SHOWN_LEN])}</pre>" if call.text else ""
    path = f'<span class="cost">{escape(call.path)}</span>'
    return f'<div class="call">{bar} {escape(outcome_of(call))} {path}{output}</div>'
