"""Products that torch has for accelerators only: of 4-bit weights, of groups of 8-bit matrices."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

PACK = torch.ops.aten._convert_weight_to_int4pack
PRODUCT = torch.ops.aten._weight_int4pack_mm
PACK_ON_CPU = torch.ops.aten._convert_weight_to_int4pack_for_cpu
PRODUCT_ON_CPU = torch.ops.aten._weight_int4pack_mm_for_cpu
GROUPED = torch.ops.aten._scaled_grouped_mm
ROW_WISE = 1  # torch.nn.functional.ScalingType


def moved(*tensors):
    return [one if one is None else one.to(DEVICE_TYPE) for one in tensors]


def int4_weights(rows, columns):
    """Weights of 0 to 15; the same with two in a byte."""
    weights = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    return weights, (weights[:, ::2] << 4 | weights[:, 1::2]).to(torch.uint8)


class TestInt4Weights(OpenRegTestCase):
    @parametrize("inner_tiles", [2, 4, 8])
    def test_order_is_that_of_cuda(self, inner_tiles):
        """As the kernel of CUDA has it, weight by weight: a lane of 32 has a row and a place."""
        weights, pairs = int4_weights(16, 256)
        packed = PACK(pairs.to(DEVICE_TYPE), inner_tiles).cpu()
        self.assertEqual(packed.shape, (2, 16 // inner_tiles, 32, inner_tiles // 2))
        for place in torch.cartesian_prod(*map(torch.arange, packed.shape)).tolist():
            tile, group, lane, pair = place
            first = (group * inner_tiles + pair * 2) * 16 + lane % 4 * 2
            columns = [first + one for one in (0, 8, 16, 24, 1, 9, 17, 25)]
            row = weights[tile * 8 + lane // 4]
            number = sum(int(row[one]) << 4 * i for i, one in enumerate(columns))
            self.assertEqual(int(packed[tuple(place)]) & 0xFFFFFFFF, number)

    @parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @parametrize("inner_tiles,group", [(2, 32), (4, 64), (8, 128)])
    @parametrize("rows", [32, 24])
    def test_product_is_that_of_the_cpu(self, dtype, inner_tiles, group, rows):
        weights, pairs = int4_weights(rows, 256)
        x, scales = torch.randn(5, 256).to(dtype), torch.randn(256 // group, rows, 2).to(dtype)
        packed = PACK(pairs.to(DEVICE_TYPE), inner_tiles)
        actual = PRODUCT(x.to(DEVICE_TYPE), packed, group, scales.to(DEVICE_TYPE))
        fill = -rows % 16  # the CPU takes multiples of 16 rows
        on_cpu = PACK_ON_CPU(torch.cat([weights, weights[:fill]]), inner_tiles)
        expected = PRODUCT_ON_CPU(x, on_cpu, group, torch.cat([scales, scales[:, :fill]], 1))
        self.assert_bit_equal(actual, expected[:, :rows].contiguous())

    def test_first_calls_do_not_wait(self):
        _, pairs = int4_weights(16, 64)
        x, scales, pairs = moved(torch.randn(3, 64), torch.randn(2, 16, 2), pairs)
        with StreamGate():
            y = PRODUCT(x, PACK(pairs, 2), 32, scales)
        self.assertEqual(y.shape, (3, 16))

    def test_wrong_arguments_are_errors_of_the_call(self):
        _, pairs = int4_weights(16, 64)
        x, scales, pairs = moved(torch.randn(3, 64), torch.randn(2, 16, 2), pairs)
        packed = PACK(pairs, 2)
        for call in (
            lambda: PACK(pairs.int(), 2),
            lambda: PACK(pairs, 3),
            lambda: PACK(pairs[:12], 2),
            lambda: PACK(pairs, 8),
            lambda: PRODUCT(x[:, :32], packed, 32, scales),
            lambda: PRODUCT(x, packed, 16, scales),
            lambda: PRODUCT(x, packed, 64, scales),
            lambda: PRODUCT(x, packed, 32, scales.half()),
            lambda: PRODUCT(x.long(), packed, 32, scales),
            lambda: PRODUCT(x, packed.view(-1, 32), 32, scales),
        ):
            with self.assertRaisesRegex(RuntimeError, "int4pack.*: expected"):
                call()
        with self.assertRaisesRegex(RuntimeError, "same device"):
            PRODUCT(x, packed, 32, scales.cpu())


def float8(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def product(left, right, scale_left, scale_right):
    """The CPU's product of two matrices."""
    if not left.size(1):
        return torch.zeros(left.size(0), right.size(1), dtype=torch.bfloat16)
    return torch._scaled_mm(
        left, right, scale_left[:, None], scale_right[None], out_dtype=torch.bfloat16
    )


# Rows, columns and what both matrices have in common; each is a sum of sizes, one for each group.
SIZES = (16, 0, 48)
ENDS = torch.tensor([16, 16, 64], dtype=torch.int32)
PARTS = (slice(0, 16), slice(16, 16), slice(16, 64))


def rows_in_groups():
    left, right = float8(64, 32), float8(3, 48, 32).mT
    scales = torch.rand(64), torch.rand(3, 48)
    expected = [
        product(left[part], right[i], scales[0][part], scales[1][i]) for i, part in enumerate(PARTS)
    ]
    return left, right, *scales, ENDS, torch.cat(expected)


def columns_in_groups():
    left, right = float8(3, 16, 32), float8(64, 32).mT
    scales = torch.rand(3, 16), torch.rand(64)
    expected = [
        product(left[i], right[:, part], scales[0][i], scales[1][part])
        for i, part in enumerate(PARTS)
    ]
    return left, right, *scales, ENDS, torch.cat(expected, 1)


def common_dimension_in_groups():
    left, right = float8(16, 64), float8(48, 64).mT
    scales = torch.rand(3 * 16), torch.rand(3 * 48)
    expected = [
        product(
            left[:, part],
            right[part],
            scales[0][i * 16 : i * 16 + 16],
            scales[1][i * 48 : i * 48 + 48],
        )
        for i, part in enumerate(PARTS)
    ]
    return left, right, *scales, ENDS, torch.stack(expected)


def matrices_in_groups():
    left, right = float8(3, 16, 32), float8(3, 48, 32).mT
    scales = torch.rand(3, 16), torch.rand(3, 48)
    expected = [product(left[i], right[i], scales[0][i], scales[1][i]) for i in range(3)]
    return left, right, *scales, None, torch.stack(expected)


CASES = [
    subtest(one, name=one.__name__)
    for one in (
        rows_in_groups,
        columns_in_groups,
        common_dimension_in_groups,
        matrices_in_groups,
    )
]


RESULT_DTYPE_PRODUCTS = {
    "mm": [(4, 5), (5, 3)],
    "bmm": [(2, 4, 5), (2, 5, 3)],
    "addmm": [(4, 3), (4, 5), (5, 3)],
    "baddbmm": [(2, 4, 3), (2, 4, 5), (2, 5, 3)],
}


class TestResultDtype(OpenRegTestCase):
    """Products with the argument out_dtype."""

    def factors(self, name, dtype):
        generator = torch.Generator().manual_seed(3)
        return [
            torch.randn(shape, generator=generator).to(dtype)
            for shape in RESULT_DTYPE_PRODUCTS[name]
        ]

    @parametrize("name", RESULT_DTYPE_PRODUCTS)
    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_result_is_that_of_wider_factors(self, name, dtype):
        function, factors = getattr(torch, name), self.factors(name, dtype)
        numbers = {"beta": 2, "alpha": 3} if "add" in name else {}
        expected = function(*(one.float() for one in factors), **numbers)
        own = [one.to(DEVICE_TYPE) for one in factors]
        self.assert_bit_equal(function(*own, out_dtype=torch.float32, **numbers), expected)
        out = torch.empty(0, device=DEVICE_TYPE)
        function(*own, out_dtype=torch.float32, out=out, **numbers)
        self.assert_bit_equal(out, expected)
        result = function(*own, out_dtype=dtype, **numbers)
        self.assert_bit_equal(result, function(*factors, **numbers))

    @parametrize("name", RESULT_DTYPE_PRODUCTS)
    def test_other_dtypes_are_refused(self, name):
        own = [one.to(DEVICE_TYPE) for one in self.factors(name, torch.float16)]
        for dtype in (torch.bfloat16, torch.float64, torch.int32):
            with self.assertRaisesRegex(RuntimeError, "out_dtype must"):
                getattr(torch, name)(*own, out_dtype=dtype)
        with self.assertRaisesRegex(RuntimeError, "out_dtype must be the same as the dtype of"):
            out = torch.empty(0, dtype=torch.float16, device=DEVICE_TYPE)
            getattr(torch, name)(*own, out_dtype=torch.float32, out=out)

    @parametrize("name", ["addmm", "baddbmm"])
    def test_addend_has_the_dtype_of_the_factors_or_of_the_result(self, name):
        addend, *factors = (one.to(DEVICE_TYPE) for one in self.factors(name, torch.float16))
        function = getattr(torch, name)
        wide = function(addend.float(), *factors, out_dtype=torch.float32)
        self.assertEqual(wide, function(addend, *factors, out_dtype=torch.float32))
        with self.assertRaisesRegex(RuntimeError, "self dtype must match either out_dtype or "):
            function(addend.double(), *factors, out_dtype=torch.float32)

    def test_call_returns_before_its_kernel_has_run(self):
        x = torch.ones(3, 3, dtype=torch.float16, device=DEVICE_TYPE)
        with StreamGate():
            y = torch.mm(x, x, out_dtype=torch.float32)
        self.assertEqual(y.tolist(), [[3] * 3] * 3)


class TestGroupedProducts(OpenRegTestCase):
    @parametrize("case", CASES)
    def test_groups_are_the_cpu_s_products(self, case):
        *arguments, expected = case()
        left, right, scale_left, scale_right, ends = moved(*arguments)
        actual = GROUPED(left, right, scale_left, scale_right, ends)
        self.assert_bit_equal(actual, expected)
        by_recipe = torch.ops.aten._scaled_grouped_mm_v2(
            left,
            right,
            [scale_left],
            [ROW_WISE],
            [],
            [scale_right],
            [ROW_WISE],
            [],
            ends,
            out_dtype=torch.bfloat16,
        )
        self.assert_bit_equal(by_recipe, expected)

    def test_bounds_are_read_by_the_kernel(self):
        *arguments, expected = rows_in_groups()
        left, right, scale_left, scale_right, ends = moved(*arguments)
        ends -= 1
        torch.openreg.synchronize()
        with StreamGate():
            ends += 1
            actual = GROUPED(left, right, scale_left, scale_right, ends)
        self.assert_bit_equal(actual, expected)

    def test_bounds_beyond_the_matrix_are_an_error_of_the_stream(self):
        *arguments, _ = rows_in_groups()
        left, right, scale_left, scale_right, ends = moved(*arguments)
        GROUPED(left, right, scale_left, scale_right, ends + 1)
        with self.assertRaisesRegex(RuntimeError, "ascend up to 64, got 65"):
            torch.accelerator.synchronize()

    def test_other_scales_are_refused(self):
        *arguments, _ = rows_in_groups()
        left, right, scale_left, scale_right, ends = moved(*arguments)
        of_blocks = [one.to(torch.float8_e8m0fnu) for one in (scale_left, scale_right)]
        with self.assertRaisesRegex(NotImplementedError, "_scaled_grouped_mm: expected scale_a"):
            GROUPED(left, right, *of_blocks, ends)
        with self.assertRaisesRegex(NotImplementedError, "_v2: expected RowWise scales"):
            torch.ops.aten._scaled_grouped_mm_v2(
                left, right, [scale_left], [3], [], [scale_right], [3], [], ends
            )

    def test_wrong_arguments_are_errors_of_the_call(self):
        *arguments, _ = rows_in_groups()
        left, right, scale_left, scale_right, ends = moved(*arguments)
        for call in (
            lambda: GROUPED(left.half(), right, scale_left, scale_right, ends),
            lambda: GROUPED(left, right.contiguous(), scale_left, scale_right, ends),
            lambda: GROUPED(left, right, scale_left, scale_right),
            lambda: GROUPED(left, right, scale_left, scale_right, ends.long()),
            lambda: GROUPED(left, right, scale_left, scale_right, ends[:2]),
            lambda: GROUPED(left, right, scale_left[:3], scale_right, ends),
            lambda: GROUPED(left, right, scale_left, scale_right[0], ends),
            lambda: GROUPED(left, right, scale_left, scale_right, ends, out_dtype=torch.float32),
        ):
            with self.assertRaisesRegex(RuntimeError, "_scaled_grouped_mm: expected"):
                call()
        with self.assertRaisesRegex(RuntimeError, "same device"):
            GROUPED(left, right, scale_left, scale_right, ends.cpu())


instantiate_parametrized_tests(TestInt4Weights)
instantiate_parametrized_tests(TestGroupedProducts)
instantiate_parametrized_tests(TestResultDtype)

if __name__ == "__main__":
    run_tests()
