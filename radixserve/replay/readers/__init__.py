"""One reader for each format of trace. `detect` finds the one that a file needs."""
