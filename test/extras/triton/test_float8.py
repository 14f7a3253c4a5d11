"""Conversions of float8e4b15, a format that torch does not have."""

import torch
from common import DEVICE_TYPE, instantiate_parametrized_tests, parametrize, run_tests
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def convert_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
        offsets = tl.arange(0, SIZE)
        x = tl.load(x_ptr + offsets)
        tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty))

    @triton.jit
    def scalar_kernel(x_ptr, out_ptr):
        tl.store(out_ptr, tl.load(x_ptr).to(tl.float32).to(tl.float8e4b15))

    @triton.jit
    def dot_kernel(a_ptr, b_ptr, out_ptr):
        offsets = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
        tl.store(out_ptr + offsets, tl.dot(tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)))


def narrow(raw):
    """A tensor of the format on the device, from bytes."""
    return triton.reinterpret(raw.to(DEVICE_TYPE), tl.float8e4b15)


def values_of(raw):
    """The numbers of the format, from bytes."""
    raw = raw.int()
    exponent, mantissa = (raw >> 3) & 15, (raw & 7) / 8.0
    magnitude = torch.where(
        exponent == 0, mantissa * 2.0**-14, (1 + mantissa) * torch.exp2(exponent - 15.0)
    )
    return torch.where(raw >= 128, -magnitude, magnitude)


def bytes_of(values):
    """The nearest numbers of the format; ties go away from zero."""
    grid = values_of(torch.arange(127, dtype=torch.uint8)).double()
    magnitude = values.double().abs().clamp(max=float(grid[-1]))
    middles = (grid[1:] + grid[:-1]) / 2
    nearest = torch.bucketize(magnitude, middles, right=True)
    return (nearest + 128 * values.signbit()).to(torch.uint8)


@needs_triton
@instantiate_parametrized_tests
class TestFloat8(TritonTestCase):
    @parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_each_number_is_read(self, dtype):
        raw = torch.arange(256, dtype=torch.uint8)
        out = torch.empty(256, dtype=dtype, device=DEVICE_TYPE)
        convert_kernel[(1,)](narrow(raw), out, SIZE=256)
        self.assertEqual(out.cpu().double(), values_of(raw).double(), rtol=0, atol=0)
        self.assertEqual(out.cpu().signbit(), raw >= 128)

    @parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_each_float16_becomes_the_nearest_number(self, dtype):
        x = torch.arange(2**16).to(torch.uint16).view(torch.float16)
        x = torch.cat([x[x.isfinite()], torch.tensor([float("inf"), -float("inf")]).half()])
        x = torch.nn.functional.pad(x, (0, 2**16 - len(x)))
        raw = torch.empty(2**16, dtype=torch.uint8, device=DEVICE_TYPE)
        convert_kernel[(1,)](x.to(dtype).to(DEVICE_TYPE), narrow(raw), SIZE=2**16)
        self.assertEqual(raw.cpu(), bytes_of(x))

    def test_nan_and_what_float16_cannot_hold_become_the_largest_number(self):
        x = torch.tensor([float("nan"), 1e6, -1e6, 65536.0], device=DEVICE_TYPE)
        raw = torch.empty(4, dtype=torch.uint8, device=DEVICE_TYPE)
        convert_kernel[(1,)](x, narrow(raw), SIZE=4)
        self.assertEqual(raw.tolist(), [0x7E, 0x7E, 0xFE, 0x7E])

    def test_scalar(self):
        raw = torch.zeros(1, dtype=torch.uint8, device=DEVICE_TYPE)
        scalar_kernel[(1,)](narrow(torch.tensor([0xB5], dtype=torch.uint8)), narrow(raw))
        self.assertEqual(raw.tolist(), [0xB5])

    def test_product_of_matrices(self):
        generator = torch.Generator().manual_seed(0)
        a, b = (
            torch.randint(256, (32, 32), generator=generator, dtype=torch.uint8) for _ in range(2)
        )
        out = torch.empty(32, 32, device=DEVICE_TYPE)
        dot_kernel[(1,)](narrow(a), narrow(b), out)
        expected = values_of(a).double() @ values_of(b).double()
        self.assertEqual(out.cpu().double(), expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    run_tests()
