"""The engine: text in, text out, over a scheduler and a runner.

`EngineCore` can be stepped by hand; `Engine` (blocking) and `AsyncEngine` (asyncio) drive it.
"""

import os

# Torch's worker threads (GNU OpenMP) spin between two parallel regions. When another process takes
# one of the cores, they spin against the very thread they wait for, and a step takes ten times as
# long. A short spin keeps nearly all of the speed on an idle machine and a third of it on a busy
# one. The library reads this once, when torch is first imported; a value that is set wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
