"""The devices of torch_openreg as a backend of Triton, by the entry point group triton.backends.

``import triton`` imports ``compiler`` and ``driver`` in each environment that has torch_openreg, so
they import nothing but Triton's base classes, and nothing in them fails. What they do is in
``torch_openreg.extras.triton``, which is imported when a kernel is compiled or launched.
"""

import functools

__all__ = ["runs_here"]


@functools.cache
def runs_here() -> bool:
    """Returns whether Triton is installed, and its kernels run on our devices."""
    try:
        from triton_openreg.driver import OpenRegDriver
    except ImportError:
        return False
    return OpenRegDriver.is_active()
