"""The names of SGLang's frontend: its programs run with the import changed.

    import radixserve.compat.sgl as sgl

    @sgl.function
    def chat(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=64))

    sgl.set_default_backend(sgl.RuntimeEndpoint("http://127.0.0.1:8000"))
    print(chat.run("What is a radix tree?")["answer"])

A program is a plain function, so it needs a thread while it runs and waits: `run` uses the
caller's, `run_batch` and ``stream=True`` a bounded number of their own (`function.MAX_THREADS`).
What it appends is queued to the one event loop of our frontend, however many states and forks there
are: appending never waits, only reading does.

What differs from SGLang:

    errors     reach whoever reads the state, and `run` itself; nothing is hidden
    text()     shows turns as ``role: text``, not the model's template
    join       "concate_and_append" writes the branches' texts one after the other, exactly
    images, videos, speculation over APIs and separate sampling penalties are refused by name
"""

from radixserve.compat.sgl.backends import OpenAI, Runtime, RuntimeEndpoint, set_default_backend
from radixserve.compat.sgl.expressions import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    select,
    system,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
)
from radixserve.compat.sgl.function import SglFunction, function
from radixserve.compat.sgl.state import ProgramState, ProgramStateGroup

__all__ = [
    "OpenAI",
    "ProgramState",
    "ProgramStateGroup",
    "Runtime",
    "RuntimeEndpoint",
    "SglFunction",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]
