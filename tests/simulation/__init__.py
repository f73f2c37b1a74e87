"""Long runs of the core's own classes, without a model."""
