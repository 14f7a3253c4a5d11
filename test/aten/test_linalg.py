"""Decompositions and solvers that torch handles by the device."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


class TestLuSolve(OpenRegTestCase):
    @parametrize("left", [False, True])
    @parametrize("adjoint", [False, True])
    @parametrize("is_out", [False, True])
    def test_result_is_a_conjugate_where_the_cpu_s_is(self, left, adjoint, is_out):
        torch.manual_seed(0)
        matrix, numbers = (torch.randn(3, 3, dtype=torch.complex64) for _ in range(2))
        results = []
        for device in ("cpu", DEVICE_TYPE):
            factors = torch.linalg.lu_factor(matrix.to(device))
            out = torch.empty(3, 3, dtype=torch.complex64, device=device) if is_out else None
            results.append(
                torch.linalg.lu_solve(
                    *factors, numbers.to(device), left=left, adjoint=adjoint, out=out
                )
            )
        expected, actual = results
        self.assertEqual(actual.is_conj(), expected.is_conj())
        self.assertEqual(actual.stride(), expected.stride())
        self.assert_bit_equal(actual, expected)


class TestLuWithoutPivots(OpenRegTestCase):
    @parametrize("dtype", DTYPES)
    @parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 3), (0, 3, 3), (0, 0)])
    def test_factors_are_those_of_the_matrix(self, dtype, shape):
        torch.manual_seed(0)
        matrix = torch.randn(shape, dtype=dtype) + 4 * torch.eye(*shape[-2:], dtype=dtype)
        x = matrix.to(DEVICE_TYPE)
        lu, pivots, info = torch.linalg.lu_factor_ex(x, pivot=False)
        self.assertEqual(lu.shape, x.shape)
        count = min(shape[-2:])
        ordered = torch.arange(1, count + 1, dtype=torch.int32).expand(*shape[:-2], count)
        self.assert_bit_equal(pivots, ordered)
        self.assertEqual(info.cpu(), torch.zeros(shape[:-2], dtype=torch.int32))
        _, lower, upper = torch.linalg.lu(x, pivot=False)
        self.assertEqual(lower.cpu() @ upper.cpu(), matrix)
        self.assert_bit_equal(lower.tril(-1)[..., :count], lu[..., :count].tril(-1))
        self.assert_bit_equal(upper, lu[..., :count, :].triu())
        ones = torch.ones(*shape[:-2], count, dtype=dtype)
        self.assertEqual(lower.diagonal(dim1=-2, dim2=-1).cpu(), ones)

    def test_solution_by_the_factors(self):
        torch.manual_seed(0)
        matrix = torch.randn(3, 3) + 4 * torch.eye(3)
        numbers = torch.randn(3, 2)
        lu, pivots = torch.linalg.lu_factor(matrix.to(DEVICE_TYPE), pivot=False)
        solution = torch.linalg.lu_solve(lu, pivots, numbers.to(DEVICE_TYPE))
        self.assertEqual(solution.cpu(), torch.linalg.solve(matrix, numbers))

    def test_gradient_is_that_of_the_matrix(self):
        torch.manual_seed(0)
        x = (torch.randn(3, 3, dtype=torch.float64) + 4 * torch.eye(3)).to(DEVICE_TYPE)
        x.requires_grad_()

        def product(matrix):
            _, lower, upper = torch.linalg.lu(matrix, pivot=False)
            return lower @ upper

        self.assertTrue(torch.autograd.gradcheck(product, x))

    def test_a_pivot_of_zero_is_reported(self):
        x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], device=DEVICE_TYPE)
        _, _, info = torch.linalg.lu_factor_ex(x, pivot=False)
        self.assertEqual(info.item(), 1)
        with self.assertRaisesRegex(RuntimeError, "lu_factor_ex"):
            torch.linalg.lu_factor_ex(x, pivot=False, check_errors=True)

    def test_call_returns_before_its_kernel_runs(self):
        x = torch.eye(3, device=DEVICE_TYPE)
        torch.linalg.lu_factor_ex(x, pivot=False)
        with StreamGate() as gate:
            result = torch.linalg.lu_factor_ex(x, pivot=False)
            gate.open()
        self.assert_bit_equal(result.LU, torch.eye(3))


instantiate_parametrized_tests(TestLuSolve)
instantiate_parametrized_tests(TestLuWithoutPivots)

if __name__ == "__main__":
    run_tests()
