"""The command line: the only place that wires the parts together.

Nothing here loads torch before a command needs it, so that `radixserve --help` is quick.
"""
