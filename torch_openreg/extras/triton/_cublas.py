"""Matrix products of cuBLAS as Triton offers them, by torch's operators."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["CublasLt", "replace_cublas"]

_DTYPES = (torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32)


class CublasLt:
    """Replaces ``nvidia.cublas.CublasLt`` of Triton, whose library a machine without a GPU lacks.

    Products run on the current stream. Their sums are in float32.

    Args:
        workspace: A tensor for intermediate results, which the operators do not use.
    """

    def __init__(self, workspace: torch.Tensor) -> None:
        self._workspace = workspace

    def matmul(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Writes ``a @ b.T`` to ``c``.

        Args:
            a: Of shape (M, K).
            b: Of shape (N, K) and the dtype of ``a``.
            c: Of shape (M, N) and the dtype of ``a``.

        Raises:
            RuntimeError: The shapes do not match, or the dtypes do not, or the dtype is none of
                float8_e4m3fn, float16, bfloat16 and float32.
        """
        _check(a, b, c)
        c.copy_(_product(a, b))

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        alpha: float,
        beta: float,
    ) -> None:
        """Writes ``alpha * (a @ b.T) + beta * c`` to ``d``.

        Args:
            a: Of shape (M, K).
            b: Of shape (N, K) and the dtype of ``a``.
            c: Of shape (M, N).
            d: Of shape (M, N) and the dtype of ``a``.
            alpha: The factor of the product.
            beta: The factor of ``c``.

        Raises:
            RuntimeError: As of :meth:`matmul`.
        """
        _check(a, b, d)
        if c.shape != d.shape:
            raise RuntimeError(
                f"gemm: expected c of the shape of d, got {_shape(c)} and {_shape(d)}"
            )
        d.copy_(alpha * _product(a, b) + beta * c.float())


def replace_cublas() -> None:
    """Makes Triton's name for cuBLAS mean :class:`CublasLt`."""
    from triton._C.libtriton import nvidia

    nvidia.cublas.CublasLt = CublasLt


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float().T


def _check(a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> None:
    shapes = ", ".join(map(_shape, (a, b, result)))
    if not a.dim() == b.dim() == result.dim() == 2:
        raise RuntimeError(f"expected three matrices, got shapes {shapes}")
    if a.shape[1] != b.shape[1] or result.shape != (a.shape[0], b.shape[0]):
        raise RuntimeError(f"expected shapes (M, K), (N, K) and (M, N), got {shapes}")
    dtypes: list[Any] = [a.dtype, b.dtype, result.dtype]
    if len(set(dtypes)) != 1 or a.dtype not in _DTYPES:
        raise RuntimeError(
            f"expected one dtype of {', '.join(map(str, _DTYPES))}, "
            f"got {', '.join(map(str, dtypes))}"
        )


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))
