"""Prompt programs."""
