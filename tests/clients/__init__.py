"""Other people's clients and evaluation tools, unchanged, against the real server."""
