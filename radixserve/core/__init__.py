"""The pure core: the radix tree, its block pool and the scheduler over them.

No torch, no asyncio, no clock, no randomness, no logging: time and seeds are handed in, plans and
results are values. Everything here can be run and tested without a model.
"""
