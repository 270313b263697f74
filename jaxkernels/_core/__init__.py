"""What every kernel needs: JAX's versions, the registry of targets, checks of arguments, devices."""
