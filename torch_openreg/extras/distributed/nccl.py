"""The version of NCCL, for programs that check it. The package's own backend is ``occl``."""

__all__ = ["version"]

# The last one before reductions of 8-bit floating-point numbers, which the backend rejects.
_VERSION = (2, 23, 4)


def version() -> tuple[int, int, int]:
    """Returns the version of NCCL whose features the backend ``occl`` has: (2, 23, 4).

    Programs compare it with the version that introduced a feature of NCCL. The backend does not use
    NCCL.
    """
    return _VERSION
