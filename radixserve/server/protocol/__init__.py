"""Typed requests and the JSON of the answers. Everything a caller can get wrong is found here."""
