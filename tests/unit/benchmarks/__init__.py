"""Of what benchmarks compute beside the clock."""
