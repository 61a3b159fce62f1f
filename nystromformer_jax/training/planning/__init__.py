"""Memory, communication and time of a training step, from the compiler, before the devices exist."""
