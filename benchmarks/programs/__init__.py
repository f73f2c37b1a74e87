"""Prompt programs of the papers as benchmarks: few-shot, agents, tree search, judges, chats."""
