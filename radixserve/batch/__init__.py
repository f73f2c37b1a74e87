"""Batch files: JSON Lines of requests in, JSON Lines of results out.

line       one request, or what is wrong with it          (pure)
record     one result                                     (pure)
reader     a file's lines, in order and by place
order      depth first over the common prefixes, with bounded memory
plan       what is left to do, in which order
dispatch   how a request reaches a server
runner     many at a time, tried again where that helps
writer     results appended whole, found again after a crash
report     counts, tokens, rates                          (pure)
estimate   what a file will cost, without running it      (pure)
"""
