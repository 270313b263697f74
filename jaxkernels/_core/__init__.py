"""Code that every kernel shares: JAX compatibility, FFI targets, argument checks, devices."""
