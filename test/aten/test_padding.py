"""Padding: values and strides are the CPU's in every memory format, forward and backward."""

import torch
import torch.nn.functional as F
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

SHAPES = {1: (2, 3, 6), 2: (2, 3, 5, 4), 3: (2, 3, 5, 4, 6)}
FORMATS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(
        memory_format={3: None, 4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
        or torch.contiguous_format
    ),
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "unbatched": lambda x: x[0],
}
MODULES = {
    ("replicate", 1): torch.nn.ReplicationPad1d,
    ("replicate", 2): torch.nn.ReplicationPad2d,
    ("replicate", 3): torch.nn.ReplicationPad3d,
    ("reflect", 1): torch.nn.ReflectionPad1d,
    ("reflect", 2): torch.nn.ReflectionPad2d,
    ("reflect", 3): torch.nn.ReflectionPad3d,
}
OPERATORS = {
    "replicate": {n: getattr(torch.ops.aten, f"replication_pad{n}d") for n in (1, 2, 3)},
    "reflect": {n: getattr(torch.ops.aten, f"reflection_pad{n}d") for n in (1, 2, 3)},
}


def padding(dimensions):
    return [1, 2, 2, 1, 1, 1][: 2 * dimensions]


class PaddingTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)

    def assert_same(self, actual, expected):
        self.assertEqual(actual.device.type, DEVICE_TYPE)
        self.assertEqual(actual.stride(), expected.stride())
        self.assert_bit_equal(actual, expected)


class TestPadding(PaddingTestCase):
    @parametrize("mode", ["replicate", "reflect", "circular", "constant"])
    @parametrize("dimensions", [1, 2, 3])
    @parametrize("layout", list(FORMATS))
    def test_result_and_gradient_are_the_cpu_s(self, mode, dimensions, layout):
        x = FORMATS[layout](torch.randn(SHAPES[dimensions]))
        if mode == "circular" and layout == "unbatched":
            self.skipTest("torch does not pad such tensors in a circle")
        results = []
        for device in ("cpu", DEVICE_TYPE):
            one = x.to(device, copy=True).requires_grad_()
            padded = F.pad(one, padding(dimensions), mode=mode)
            (padded * padded).sum().backward()
            results.append((padded.detach(), one.grad))
        for actual, expected in zip(results[1], results[0], strict=True):
            self.assert_same(actual, expected)

    @parametrize("mode", ["replicate", "reflect"])
    @parametrize("dimensions", [1, 2, 3])
    def test_modules_give_the_cpu_s_strides(self, mode, dimensions):
        module = MODULES[mode, dimensions](padding(dimensions))
        x = FORMATS["channels_last"](torch.randn(SHAPES[dimensions]))
        for _ in range(3):
            self.assert_same(module(x.to(DEVICE_TYPE)), module(x))

    @parametrize("mode", ["replicate", "reflect"])
    @parametrize("dimensions", [1, 2, 3])
    @parametrize("layout", ["contiguous", "channels_last"])
    @parametrize("out_layout", ["none", "contiguous", "channels_last", "narrow"])
    def test_out_gets_the_cpu_s_strides(self, mode, dimensions, layout, out_layout):
        x = FORMATS[layout](torch.randn(SHAPES[dimensions]))
        shape = F.pad(x, padding(dimensions), mode=mode).shape
        outs = []
        for device in ("cpu", DEVICE_TYPE):
            if out_layout == "none":
                out = torch.empty(0, device=device)
            elif out_layout == "narrow":
                out = torch.zeros(*shape[:-1], 2 * shape[-1], device=device)[..., : shape[-1]]
            else:
                out = FORMATS[out_layout](torch.zeros(shape, device=device))
            operator = OPERATORS[mode][dimensions].out
            self.assertIs(operator(x.to(device), padding(dimensions), out=out), out)
            outs.append(out)
        self.assert_same(outs[1], outs[0])

    @parametrize("mode", ["replicate", "reflect"])
    @parametrize("dimensions", [1, 2, 3])
    @parametrize("layout", ["contiguous", "channels_last"])
    def test_backward_into_out_gets_the_cpu_s_strides(self, mode, dimensions, layout):
        name = {"replicate": "replication", "reflect": "reflection"}[mode]
        operator = getattr(torch.ops.aten, f"{name}_pad{dimensions}d_backward").grad_input
        x = FORMATS[layout](torch.randn(SHAPES[dimensions]))
        gradient = torch.randn(F.pad(x, padding(dimensions), mode=mode).shape)
        outs = []
        for device in ("cpu", DEVICE_TYPE):
            out = torch.empty(0, device=device)
            operator(gradient.to(device), x.to(device), padding(dimensions), grad_input=out)
            outs.append(out)
        self.assert_same(outs[1], outs[0])

    def test_out_whose_storage_is_too_small_for_the_strides_is_refused(self):
        x = torch.randn(SHAPES[2], device=DEVICE_TYPE)
        out = torch.zeros(1, device=DEVICE_TYPE).expand(2, 3, 8, 7)
        with self.assertRaisesRegex(RuntimeError, "out=: expected a tensor with a storage of 1344"):
            torch.ops.aten.replication_pad2d.out(x, padding(2), out=out)

    @parametrize("mode", ["replicate", "reflect", "circular"])
    @parametrize("dimensions", [2, 3])
    def test_padded_convolution_in_channels_last_is_the_cpu_s(self, mode, dimensions):
        convolution = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dimensions]
        memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[dimensions]
        module = convolution(3, 4, 3, padding=1, padding_mode=mode).to(memory_format=memory_format)
        x = FORMATS["channels_last"](torch.randn(SHAPES[dimensions]))
        expected = module(x)
        for _ in range(2):
            self.assert_same(module.to(DEVICE_TYPE)(x.to(DEVICE_TYPE)), expected.detach())


instantiate_parametrized_tests(TestPadding)

if __name__ == "__main__":
    run_tests()
