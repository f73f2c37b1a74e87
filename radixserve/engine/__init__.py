"""The engine: text in, text out, over a scheduler and a runner.

`EngineCore` can be stepped by hand; `Engine` (blocking) and `AsyncEngine` (asyncio) drive it.
"""
