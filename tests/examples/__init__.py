"""The examples, on the real model."""
