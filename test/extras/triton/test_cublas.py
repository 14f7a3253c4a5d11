"""cuBLAS by the class that Triton has for it, with the device type cuda."""

import torch
from common import DEVICE_TYPE, instantiate_parametrized_tests, parametrize, run_tests
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton

if HAS_TRITON:
    from triton._C.libtriton import nvidia
    from triton.runtime import driver

    from torch_openreg.extras.triton._cublas import CublasLt

_M, _N, _K = 24, 40, 32


def _matrix(rows, columns, dtype):
    values = torch.arange(rows * columns).remainder(13).sub(6).reshape(rows, columns)
    return values.float().div(4).to(dtype)


@needs_triton
@instantiate_parametrized_tests
class TestCublas(TritonTestCase):
    def make(self):
        driver.active.get_current_target()
        workspace = torch.empty(1024, device=DEVICE_TYPE, dtype=torch.uint8)
        return (nvidia.cublas.CublasLt if DEVICE_TYPE == "cuda" else CublasLt)(workspace)

    def test_only_the_device_type_cuda_replaces_the_class(self):
        driver.active.get_current_target()
        self.assertEqual(nvidia.cublas.CublasLt is CublasLt, DEVICE_TYPE == "cuda")

    @parametrize(
        "dtype", [torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32], name_fn=str
    )
    def test_product_with_the_transposed_second_matrix(self, dtype):
        a, b = _matrix(_M, _K, dtype), _matrix(_N, _K, dtype)
        c = torch.empty(_M, _N, dtype=dtype, device=DEVICE_TYPE)
        self.make().matmul(a.to(DEVICE_TYPE), b.to(DEVICE_TYPE), c)
        expected = (a.double() @ b.double().T).to(dtype)
        self.assertEqual(c.cpu().float(), expected.float(), rtol=0, atol=0)

    def test_sum_of_a_product_and_a_matrix(self):
        a, b, c = (
            _matrix(*shape, torch.float16).to(DEVICE_TYPE)
            for shape in ((_M, _K), (_N, _K), (_M, _N))
        )
        d = torch.empty_like(c)
        self.make().gemm(a, b, c, d, 0.5, 2.0)
        expected = 0.5 * (a.cpu().double() @ b.cpu().double().T) + 2 * c.cpu().double()
        self.assertEqual(d.cpu(), expected.half(), rtol=0, atol=0)
        with self.assertRaisesRegex(
            RuntimeError, r"c of the shape of d, got \(2,\) and \(24, 40\)"
        ):
            self.make().gemm(a, b, c[0, :2], d, 1.0, 1.0)

    def test_matrices_that_do_not_match_are_refused(self):
        make = self.make()
        a, b, c = (torch.zeros(*shape, device=DEVICE_TYPE) for shape in ((2, 3), (4, 3), (2, 4)))
        for given, text in (
            (
                (a, b.T, c),
                r"expected shapes \(M, K\), \(N, K\) and \(M, N\), got \(2, 3\), \(3, 4\)",
            ),
            ((a, b, c.T), r"got \(2, 3\), \(4, 3\), \(4, 2\)"),
            ((a[0], b, c), r"expected three matrices, got shapes \(3,\), \(4, 3\), \(2, 4\)"),
            ((a, b.half(), c), "got torch.float32, torch.float16, torch.float32"),
            (
                (a.double(), b.double(), c.double()),
                "expected one dtype of torch.float8_e4m3fn, .*64",
            ),
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                make.matmul(*given)


if __name__ == "__main__":
    run_tests()
