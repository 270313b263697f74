"""Float32 matrix products."""
