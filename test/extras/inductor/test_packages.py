"""Programs that AOTInductor compiles: packaged, loaded in Python and in C++, with other weights."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from common import DEVICE_TYPE, StreamGate, requires_two_devices, run_tests
from extras.inductor.compiled import CompiledTestCase, requires_full
from torch import nn

from torch_openreg import cpp_extension

pytestmark = pytest.mark.sample(0.067)


# docs: package
def make_package(model, x, path):
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
        return torch._inductor.aoti_compile_and_package(program, package_path=path)


# docs: end


class Model(nn.Module):
    """Weights, a buffer that it writes, kernels, and operators that it calls in different ways."""

    def __init__(self):
        super().__init__()
        # Inductor writes tensors of up to 8 elements into the code.
        self.linear = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.register_buffer("calls", torch.zeros(12))

    def forward(self, x):
        self.calls.add_(1)
        y = self.norm(torch.relu(self.linear(x)))
        values, order = torch.sort(y, -1)
        return values * self.calls, order, torch.cummax(y, 0)[0].sum(-1).isneginf()


def new_model(seed):
    torch.manual_seed(seed)
    return Model().eval()


class TestPackages(CompiledTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.x = torch.randn(4, 8)
        cls.package = make_package(
            new_model(0).to(DEVICE_TYPE), cls.x.to(DEVICE_TYPE), f"{cls.folder}/model.pt2"
        )
        with torch.no_grad():
            model = torch.compile(new_model(0), dynamic=True)
            cls.expected = [model(x) for x in (cls.x, cls.x[:3], cls.x)]

    def assert_outputs(self, actual, expected):
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            self.assert_same(*pair, f"output {index}", same_bits=True)

    @pytest.mark.slow
    def test_package_gives_what_compiled_code_gives_on_the_cpu(self):
        with mock.patch.dict(os.environ, AOTI_RUNTIME_CHECK_INPUTS="1"):
            loaded = torch._inductor.aoti_load_package(self.package)
            for x, expected in zip((self.x, self.x[:3], self.x), self.expected, strict=True):
                self.assert_outputs(loaded(x.to(DEVICE_TYPE)), expected)
            with self.assertRaisesRegex(RuntimeError, "unmatched device type"):
                loaded(self.x)

    @requires_two_devices
    def test_package_is_loaded_on_the_device_that_is_asked_for(self):
        before = torch.openreg.memory_allocated(1)
        loaded = torch._inductor.aoti_load_package(self.package, device_index=1)
        weights = torch.openreg.memory_allocated(1) - before
        self.assertGreaterEqual(weights, sum(p.numel() * 4 for p in Model().parameters()))
        outputs = loaded(self.x.to(f"{DEVICE_TYPE}:1"))
        self.assertEqual({output.device.index for output in outputs}, {1})
        self.assert_outputs(outputs, self.expected[0])
        del loaded, outputs
        self.assertEqual(torch.openreg.memory_allocated(1), before)

    def test_run_returns_before_its_kernels_have_run(self):
        loaded = torch._inductor.aoti_load_package(self.package)
        x = self.x.to(DEVICE_TYPE)
        loaded(x)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            outputs = loaded(self.x[:3].to(DEVICE_TYPE, non_blocking=True))
            self.assertFalse(torch.openreg.current_stream().query())
            del loaded
            gate.open()
        self.assert_outputs(outputs, self.expected[1])

    def test_weights_are_exchanged(self):
        loaded = torch._inductor.aoti_load_package(self.package)
        x = self.x.to(DEVICE_TYPE)
        other = new_model(1)
        weights = {name: one.to(DEVICE_TYPE) for name, one in other.state_dict().items()}
        self.assertEqual(set(loaded.get_constant_fqns()), set(weights))
        model = torch.compile(other, dynamic=True)
        with torch.no_grad():
            expected = [model(self.x), model(self.x), model(self.x)]
        loaded.load_constants(weights, check_full_update=True)
        self.assert_outputs(loaded(x), expected[0])
        self.assert_bit_equal(weights["calls"], torch.zeros(12))  # the program has copies
        loaded.load_constants(weights, check_full_update=True, user_managed=True)
        self.assert_outputs(loaded(x), expected[0])
        self.assert_bit_equal(weights["calls"], torch.ones(12))  # and now these
        self.assert_outputs(loaded(x), expected[1])

    def test_weights_that_are_elsewhere_are_refused(self):
        loaded = torch._inductor.aoti_load_package(self.package)
        with self.assertRaises(RuntimeError):
            loaded.load_constants(new_model(1).state_dict(), check_full_update=True)
        self.assert_outputs(loaded(self.x.to(DEVICE_TYPE)), self.expected[0])

    def test_what_cannot_be_packaged_is_refused(self):
        class WithHostConstant(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("index", torch.arange(12) % 8)

            def forward(self, x):
                return x[:, self.index]

        program = torch.export.export(WithHostConstant(), (self.x.to(DEVICE_TYPE),))
        with self.assertRaisesRegex(Exception, "expected constants on .*, got 'index' on cpu"):
            torch._inductor.aoti_compile_and_package(program)

    @requires_full
    def test_program_in_cpp_runs_it(self):
        source = Path(__file__).with_name("package_program.cpp")
        program = cpp_extension.load(
            "package_program",
            [str(source)],
            extra_ldflags=["-Wl,--no-as-needed"],  # which registers the device type
            build_directory=self.folder,
            is_python_module=False,
            is_standalone=True,
        )
        folders = [
            os.path.join(os.path.dirname(torch.__file__), "lib"),
            *cpp_extension.library_paths(),
        ]
        output = subprocess.run(
            [program, self.package],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(folders)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(output.returncode, 0, output.stderr)
        device, *values = output.stdout.split()
        self.assertEqual(device, DEVICE_TYPE)
        loaded = torch._inductor.aoti_load_package(self.package)
        ones = torch.ones(3, 8, device=DEVICE_TYPE)
        self.assertEqual(
            torch.tensor([float(value) for value in values]), loaded(ones)[0].cpu().flatten()
        )


if __name__ == "__main__":
    run_tests()
