"""What `benchmarks.gpu_check` checks and measures, one section a file."""
