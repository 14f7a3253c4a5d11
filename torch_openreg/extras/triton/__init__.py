"""Compiles Triton kernels for devices that are parts of a CPU's memory."""
