"""A simulated accelerator: the real engine on a device that is not the CPU; README.md says how to use it."""
