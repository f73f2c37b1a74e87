"""Replays request traces through the core without a model: how large must the cache be?

readers/     a file -> Trace
sequential   one request at a time through tree and pool: hits of a policy at a capacity
optimum      the most hits that any eviction order could have had
simulation   the whole scheduler in simulated seconds, on a runner that only has a cost model
report, plot what came out, as a table, as JSON and as a picture
"""
