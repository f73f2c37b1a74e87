"""Structured output: from what a caller asks for to the tokens that may come next."""
