"""Where prompt programs run: in this process, on a radixserve, on any OpenAI-compatible server."""
