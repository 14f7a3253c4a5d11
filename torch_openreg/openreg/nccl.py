"""What programs ask NCCL: its version. The distributed backend is ``occl`` of this package."""

__all__ = ["version"]

# The last one before reductions of 8-bit floating-point numbers, which the backend refuses.
_VERSION = (2, 23, 4)


def version() -> tuple[int, int, int]:
    """Returns the version of NCCL that the backend ``occl`` does the work of: (2, 23, 4).

    Programs compare it with the version in which NCCL learned something. There is no NCCL behind
    the backend.
    """
    return _VERSION
