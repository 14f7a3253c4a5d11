"""Benchmarks of openreg as ratios to the CPU device: ``python -m bench``. See README.md."""

__all__: list[str] = []
