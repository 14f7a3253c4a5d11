"""Control flow of Triton kernels: loops, conditions, early returns, calls, prints, assertions."""

import ctypes

import torch
import triton
import triton.language as tl
from launcher import KernelError, launch, lowered, ttir
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_openreg.extras.triton._assembly import expression_of
from torch_openreg.extras.triton._lower import lower
from torch_openreg.extras.triton._lowered import LoweringError

SHIFT = tl.constexpr("shf.l.wrap.b32 $0, $1, $1, 3;")
EXP2 = tl.constexpr("ex2.approx.ftz.f32 $0, $1;")
TANH = tl.constexpr("tanh.approx.f32 $0, $1;")
SOFTPLUS = tl.constexpr("""{ .reg .pred large;
    setp.gt.f32 large, $1, 4.;
    @large mov.f32 $0, $1; // the rest is too small
    @!large mul.f32 $0, $1, 1.4426950408889634;
    @!large ex2.approx.ftz.f32 $0, $0;
    @!large add.f32 $0, $0, 1.0;
    @!large lg2.approx.ftz.f32 $0, $0;
    @!large mul.f32 $0, $0, 0f3F317218; }""")
STEPS = tl.constexpr("""
    .reg .f32 a, b;
    .reg .pred p;
    sub.rn.f32 a, $1, $2;
    abs.f32 a, a;
    fma.rn.f32 b, a, -2e0, $1; /* both */
    max.f32 b, b, $2;
    setp.le.f32 p, b, a;
    selp.f32 $0, b, a, p;
""")
UNEQUAL = tl.constexpr("""
    .reg .pred p;
    setp.ne.f32 p, $1, 2.0;
    selp.f32 $0, 1.0, 0.0, p;
""")


@triton.jit
def sums_of_blocks(x_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    turns = 0
    for start in range(0, n, step):
        total += tl.load(x_ptr + start + i, mask=start + i < n, other=0.0)
        turns += 1
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + BLOCK, turns)


@triton.jit
def advancing_pointers(x_ptr, out_ptr, rows, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointers = x_ptr + i
    offsets = i
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(rows):
        total += tl.load(pointers) + tl.load(x_ptr + offsets)
        pointers += stride
        offsets += stride
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + BLOCK + i, offsets.to(tl.float32))
    tl.store(pointers, total)


@triton.jit
def swapped(x_ptr, y_ptr, out_ptr, turns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + i)
    b = tl.load(y_ptr + i)
    c = 1
    d = 2
    for _ in range(turns):
        a, b = b, a + b
        c, d = d, c
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + BLOCK + i, b)
    tl.store(out_ptr + 2 * BLOCK + i, c * 10.0 + d + tl.zeros([BLOCK], tl.float32))


@triton.jit
def transposed_each_turn(x_ptr, out_ptr, turns, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    x = tl.load(x_ptr + at)
    for _ in range(turns):
        x = tl.trans(x) + 1.0
    tl.store(out_ptr + at, x)


@triton.jit
def nested(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for a in range(n):
        row = total
        for b in range(a):
            row += i * b
            if b % 2 == 0:
                row -= a
            elif b == 3:
                row = row * 2
            else:
                row += 1
        total = tl.where(row > 50, row - 50, row)
    tl.store(out_ptr + i, total)


@triton.jit
def collatz(x_ptr, out_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    steps = 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
            steps += 1
        else:
            x = 3 * x + 1
            steps += 1
    tl.store(out_ptr + p, steps)


@triton.jit
def halved_until_small(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    turns = 0
    while tl.max(x, 0) > 1.0:
        x = x * 0.5
        turns += 1
    tl.store(out_ptr + i, x)
    tl.store(out_ptr + BLOCK, turns)


@triton.jit
def returns_early(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    if p >= n:
        return
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + p * BLOCK + i)
    if tl.sum(x, 0) < 0:
        tl.store(out_ptr + p * BLOCK + i, -x)
        return
    tl.store(out_ptr + p * BLOCK + i, x * 2)


@triton.jit(noinline=True)
def power(x, n):
    result = x
    for _ in range(1, n):
        result *= x
    return result


@triton.jit(noinline=True)
def sign_of(x):
    if x < 0:
        return -1.0
    if x > 0:
        return 1.0
    return 0.0


@triton.jit(noinline=True)
def two_results(x, y):
    return power(x, 2) + y, x


@triton.jit
def calls(x_ptr, out_ptr, BLOCK: tl.constexpr):
    for i in range(BLOCK):
        x = tl.load(x_ptr + i)
        a, b = two_results(x, 1.0)
        tl.store(out_ptr + i, power(x, 3) + b)
        tl.store(out_ptr + BLOCK + i, a)
        tl.store(out_ptr + 2 * BLOCK + i, sign_of(x))
        tl.store(out_ptr + 3 * BLOCK + i, sign_of(x * 0))


@triton.jit
def program_ids(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    at = x + nx * (y + ny * z)
    tl.store(out_ptr + at, at + 1000 * nz)


@triton.jit
def static_loop(out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = i
    for k in tl.static_range(4):
        x += k
    for k in tl.range(0, 4, num_stages=2):
        x += k
    for k in range(10, 0, -3):
        x += k
    tl.store(out_ptr + i, x)


@triton.jit
def prints(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i[:, None] * 2 + tl.arange(0, 2)[None, :])
    tl.device_print("x = %d", x)
    tl.device_print("both", n, n + 1)
    tl.device_print("mask", i.to(tl.int64) - 1, hex=True)
    tl.device_print('quote"\\')


@triton.jit
def asserts(x_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.device_assert(x >= 0, 'x is "negative"')
    tl.store(x_ptr + i, x + 1)


@triton.jit
def assembly(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise(SHIFT, "=r,r", [x], tl.float32, True, 1)
    tl.store(x_ptr + i, y)


@triton.jit
def approximations(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise(EXP2, "=f,f", [x], tl.float32, True, 1)
    z = tl.inline_asm_elementwise(TANH, "=f,f", [x], tl.float32, True, 1)
    tl.store(out_ptr + i, y)
    tl.store(out_ptr + BLOCK + i, z)


@triton.jit
def softplus(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(SOFTPLUS, "=r,r", [x], tl.float32, True, 1))


@triton.jit
def steps(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    z = tl.inline_asm_elementwise(STEPS, "=f,f,f", [x, y], tl.float32, True, 1)
    z = tl.inline_asm_elementwise(STEPS, "=f,f,f", [z, y], tl.float32, True, 1)
    tl.store(out_ptr + i, z)


@triton.jit
def unequal(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(UNEQUAL, "=f,f", [x], tl.float32, True, 1))


class TestControl(TestCase):
    @parametrize("n", (0, 1, 100, 128))
    def test_loops_over_blocks(self, n):
        x = torch.randn(128)
        out = torch.zeros(33)
        launch(sums_of_blocks, (1,), x, out, n, 32, BLOCK=32)
        padded = torch.zeros(128)
        padded[:n] = x[:n]
        self.assertEqual(out[:32], padded.reshape(4, 32).sum(0))
        self.assertEqual(out[32].item(), -(-n // 32))

    def test_pointers_and_offsets_advance(self):
        x = torch.randn(6, 40)
        before, out = x.clone(), torch.zeros(2, 32)
        launch(advancing_pointers, (1,), x, out, 5, 40, BLOCK=32)
        self.assertEqual(out[0], 2 * before[:5, :32].sum(0))
        self.assertEqual(out[1], torch.arange(32.0) + 200)
        self.assertEqual(x[5, :32], out[0])

    @parametrize("turns", (0, 1, 2, 5))
    def test_values_of_an_iteration_do_not_see_the_next(self, turns):
        x, y = torch.randn(16), torch.randn(16)
        out = torch.zeros(3, 16)
        launch(swapped, (1,), x, y, out, turns, BLOCK=16)
        a, b, c, d = x, y, 1, 2
        for _ in range(turns):
            a, b, c, d = b, a + b, d, c
        self.assertEqual(out, torch.stack([a, b, torch.full([16], 10.0 * c + d)]))
        square = torch.randn(8, 8)
        result = torch.zeros(8, 8)
        launch(transposed_each_turn, (1,), square, result, turns, N=8)
        self.assertEqual(result, (square.t() if turns % 2 else square) + turns)

    def test_conditions_in_loops_in_loops(self):
        out = torch.zeros(8, dtype=torch.int32)
        launch(nested, (1,), out, 7, BLOCK=8)
        expected = []
        for i in range(8):
            total = 0
            for a in range(7):
                row = total
                for b in range(a):
                    row += i * b
                    row = row - a if b % 2 == 0 else row * 2 if b == 3 else row + 1
                total = row - 50 if row > 50 else row
            expected.append(total)
        self.assertEqual(out.tolist(), expected)

    def test_loops_with_a_condition(self):
        x = torch.tensor([1, 6, 27], dtype=torch.int32)
        out = torch.zeros_like(x)
        launch(collatz, (3,), x, out)
        self.assertEqual(out.tolist(), [0, 8, 111])
        x = torch.rand(32) * 10
        out = torch.zeros(33)
        launch(halved_until_small, (1,), x, out, BLOCK=32)
        turns = int(out[32].item())
        self.assertEqual(out[:32], x * 0.5**turns)
        self.assertTrue(0.5 < out[:32].max() <= 1)

    def test_programs_return_early(self):
        x = torch.stack([torch.rand(16), -torch.rand(16), torch.rand(16)])
        out = torch.zeros(3, 16)
        launch(returns_early, (3,), x, out, 2, BLOCK=16)
        self.assertEqual(out, torch.stack([x[0] * 2, -x[1], torch.zeros(16)]))

    def test_functions_that_are_not_inlined(self):
        x = torch.randn(16)
        self.assertIn('"tt.call"', ttir(calls, x, x, BLOCK=16))
        out = torch.ones(64)
        launch(calls, (1,), x, out, BLOCK=16)
        self.assertEqual(out[:16], x**3 + x)
        self.assertEqual(out[16:32], x**2 + 1)
        self.assertEqual(out[32:48], x.sign())
        self.assertEqual(out[48:], torch.zeros(16))

    @parametrize("threads", (1, 3))
    def test_each_program_runs_once(self, threads):
        for grid in ((7,), (3, 5), (2, 3, 4)):
            size = torch.Size(grid).numel()
            out = torch.zeros(size, dtype=torch.int32)
            launch(program_ids, grid, out, threads=threads)
            last = grid[2] if len(grid) == 3 else 1
            self.assertEqual(out.tolist(), [index + 1000 * last for index in range(size)])

    def test_loops_that_are_unrolled_or_run_down(self):
        out = torch.zeros(4, dtype=torch.int32)
        launch(static_loop, (1,), out, BLOCK=4)
        self.assertEqual(out.tolist(), [12 + 22 + i for i in range(4)])


class TestDebugging(TestCase):
    def test_prints_are_those_of_cuda(self):
        x = torch.arange(4, dtype=torch.int32)
        text = b""

        def collect(context, data, size):
            nonlocal text
            text += ctypes.string_at(data, size)

        launch(prints, (1,), x, 41, BLOCK=2, print_text=collect)
        self.assertEqual(
            text.decode().splitlines(),
            [
                "pid (0, 0, 0) idx (0, 0) x = %d: 0",
                "pid (0, 0, 0) idx (0, 1) x = %d: 1",
                "pid (0, 0, 0) idx (1, 0) x = %d: 2",
                "pid (0, 0, 0) idx (1, 1) x = %d: 3",
                "pid (0, 0, 0) idx () both: (operand 0) 41",
                "pid (0, 0, 0) idx () both: (operand 1) 42",
                "pid (0, 0, 0) idx (0) mask: 0xffffffffffffffff",
                "pid (0, 0, 0) idx (1) mask: 0x0000000000000000",
                'pid (0, 0, 0)  quote"\\',
            ],
        )

    def test_an_assertion_ends_the_launch(self):
        x = torch.ones(64)
        x[37] = -1
        with self.assertRaises(KernelError) as caught:
            launch(asserts, (4,), x, BLOCK=16)
        error = caught.exception
        self.assertEqual(error.status, "assertion")
        self.assertEqual(error.location.message, 'x is "negative"')
        self.assertEqual(error.program, (2, 0, 0))
        self.assertEqual(x[:32], torch.full([32], 2.0))
        self.assertEqual(x[38:], torch.ones(26))

    def test_assembly_is_refused_with_its_line(self):
        with self.assertRaises(LoweringError) as caught:
            lowered(assembly, torch.zeros(16), BLOCK=16)
        error = caught.exception
        self.assertEqual(error.operation, "tt.elementwise_inline_asm")
        self.assertIn("shf.l.wrap.b32", str(error))
        with open(__file__) as file:
            line = file.readlines()[error.frames[-1].line - 1]
        self.assertIn("tl.inline_asm_elementwise(SHIFT", line)
        self.assertTrue(str(error).startswith(f"{__file__}:{error.frames[-1].line}: "))

    def test_approximate_instructions_are_functions(self):
        x = torch.randn(16)
        out = torch.empty(2, 16)
        launch(approximations, (1,), x, out, BLOCK=16)
        self.assertEqual(out, torch.stack([x.exp2(), x.tanh()]))

    def test_assembly_of_floats_depends_on_predicates(self):
        x = torch.cat([torch.randn(60) * 4, torch.tensor([4.0, 4.5, 0.0, float("inf")])])
        out = torch.empty(64)
        launch(softplus, (1,), x, out, BLOCK=64)
        expected = torch.where(x > 4, x, torch.log1p(x.double().exp()).float())
        self.assertEqual(out, expected)

    def test_comparisons_of_assembly_are_false_of_nan(self):
        out = torch.empty(4)
        launch(unequal, (1,), torch.tensor([1.0, 2.0, float("nan"), 3.0]), out, BLOCK=4)
        self.assertEqual(out, torch.tensor([1.0, 0.0, 0.0, 1.0]))

    def test_assembly_of_floats_has_registers_and_several_inputs(self):
        x, y = torch.randn(2, 64)
        out = torch.empty(64)
        launch(steps, (1,), x, y, out, BLOCK=64)
        z = x
        for _ in range(2):
            a = (z - y).abs()
            b = torch.maximum(z - 2 * a, y)
            z = torch.where(b <= a, b, a)
        self.assertEqual(out, z)

    @parametrize(
        "text",
        (
            "add.s32 $0, $1, $1;",
            "add.sat.f32 $0, $1, $1;",
            "add.f32 $0, $1, $2;",
            "add.f32 $0, $1;",
            "mov.f32 $1, $1;",
            "mov.f32 $0, undeclared;",
            "@p mov.f32 $0, $1;",
            "{ .reg .b32 a; mov.f32 $0, $1; }",
            "again: mov.f32 $0, $1; bra again;",
            "setp.lt.f32 $0, $1, $1;",
            "",
        ),
    )
    def test_other_assembly_is_not_read(self, text):
        self.assertIsNone(expression_of(text, 1))

    def test_unknown_operations_are_refused(self):
        text = ttir(program_ids, torch.zeros(1)).replace('"tt.store"', '"tt.strange"')
        with self.assertRaisesRegex(LoweringError, "tt.strange: this operation is not supported"):
            lower(text)


instantiate_parametrized_tests(TestControl)
instantiate_parametrized_tests(TestDebugging)

if __name__ == "__main__":
    run_tests()
