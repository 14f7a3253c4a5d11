"""The device's name is in one place, torch_openreg/_device_name.py: a backend made of this one is
renamed there.
"""

import ast
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from common import OpenRegTestCase, run_program, run_tests
from source_tree import ROOT, relative

PACKAGE = ROOT / "torch_openreg"

# String literals that have the word "openreg" and do not mean the device, with the reason.
OTHER_MEANINGS = {
    ("torch_openreg/_device_name.py", "openreg"): "the one place",
    ("torch_openreg/_loading.py", "openreg"): "a value of OPENREG_DEVICE_TYPE",
    (
        "torch_openreg/extras/cuda/tools/pynvml.py",
        "/memfd:openreg-device-",
    ): "a file of the runtime",
    ("torch_openreg/cpp_extension.py", "openreg"): "the runtime's library",
    ("torch_openreg/extras/triton/__init__.py", "openreg"): "the name of Triton's entry point",
    ("torch_openreg/extras/triton/_compile.py", "openreg"): "a folder of the cache",
    ("torch_openreg/extras/triton/_stages.py", "openreg"): "the name of Triton's entry point",
    ("torch_openreg/extras/triton/_stages.py", "openreg-"): "the key of a kernel in the cache",
    ("torch_openreg/extras/inductor/_cpp_wrapper.py", "openreg"): "the prefix of functions in C++",
    ("torch_openreg/extras/sanitizer/sanitizer.py", "openreg-frames"): "the name of a thread",
}

# The same for literals of C++ that are this word alone.
OTHER_MEANINGS_IN_CPP = {
    "csrc/core/DeviceName.h": "the one place",
    "csrc/core/Functions.cpp": "a value of OPENREG_DEVICE_TYPE",
}

# The prelude of a program whose device has another name, which is the one change.
_RENAMED = """
import sys, types
renamed = types.ModuleType("torch_openreg._device_name")
renamed.DEVICE_NAME = "npu"
sys.modules[renamed.__name__] = renamed
"""


def run_renamed(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_program(_RENAMED + textwrap.dedent(program), **options)


def literals(path: Path) -> set[str]:
    """Returns the string literals of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    assigned = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "__doc__"
        for part in ast.walk(node.value)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings | assigned
    }


class TestLiterals(OpenRegTestCase):
    def found(self):
        files = [path for path in sorted(PACKAGE.rglob("*.py")) if "include" not in path.parts]
        self.assertGreater(len(files), 100)
        # Names of operations, which _named() gives to programs, are apart.
        return {
            (relative(path), literal)
            for path in files
            for literal in literals(path)
            if re.search(r"(?i)(?<![\w.-])openreg\b", literal)
            or re.search(r"\btorch\.openreg(?![\w.]*$)", literal)
        }

    def test_no_other_literal_of_the_package_means_the_device(self):
        self.assertEqual(self.found(), set(OTHER_MEANINGS))

    def test_no_other_literal_of_the_backend_means_the_device(self):
        files = [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "csrc").rglob("*.h")]
        self.assertGreater(len(files), 200)
        found = {relative(path) for path in files if '"openreg"' in path.read_text()}
        self.assertEqual(found, set(OTHER_MEANINGS_IN_CPP))


class TestRenamedDevice(OpenRegTestCase):
    def test_tensors_streams_and_errors_have_the_name(self):
        run_renamed(
            """
            import torch
            x = torch.ones(3, device="npu")
            assert (x.device.type, x.npu().is_npu) == ("npu", True)
            assert (x + 1).sum().item() == 6
            assert torch.accelerator.current_accelerator().type == "npu"
            assert torch.get_device_module("npu") is torch.npu
            assert not hasattr(torch, "openreg")
            side = torch.npu.Stream()
            with torch.npu.stream(side):
                event = side.record_event()
            torch.npu.synchronize("npu:0")
            assert repr(side).startswith("<torch.npu.Stream device=npu:0"), repr(side)
            assert repr(event).startswith("<torch.npu.Event device=npu:0"), repr(event)
            assert str(torch.npu.FloatTensor) == "<class 'torch.npu.FloatTensor'>"
            for wrong in (lambda: torch.npu.synchronize("cpu"),
                          lambda: torch.npu.set_device("none")):
                try:
                    wrong()
                except (RuntimeError, ValueError) as error:
                    assert str(error).startswith("torch.npu."), error
                    assert "a npu device" in str(error), error
                else:
                    raise AssertionError("no error")
            """
        )

    def test_extras_have_the_name(self):
        run_renamed(
            """
            import io
            import torch
            x = torch.ones(3, device="npu")
            with torch.autocast("npu", dtype=torch.bfloat16):
                assert (x.view(3, 1) @ x.view(1, 3)).dtype == torch.bfloat16
            activity = torch.profiler.ProfilerActivity.NPU
            with torch.profiler.profile(activities=[activity]) as profile:
                x.mul(2)
                torch.npu.synchronize()
            assert any("aten::mul" in event.name for event in profile.events())
            file = io.BytesIO()
            torch.save(x, file)
            file.seek(0)
            assert torch.load(file).device.type == "npu"
            assert torch.Generator("npu").manual_seed(1).device.type == "npu"
            with torch.npu.sanitizer.check("collect"):
                side = torch.npu.Stream()
                x.add_(1)
                with torch.npu.stream(side):
                    x.mul_(2)
            text = str(torch.npu.sanitizer.findings()[0])
            assert text.startswith("npu sanitizer: race"), text
            assert "torch.npu.current_stream()" in text, text
            torch.npu.sanitizer.clear()
            graph = torch.npu.Graph()
            with torch.npu.graph(graph):
                y = x * 2
            graph.replay()
            assert torch.equal(y, x * 2)
            import torch.distributed as dist
            assert dist.Backend.default_device_backend_map["npu"] == "occl"
            """
        )

    @pytest.mark.slow
    def test_compiled_programs_run_under_the_name(self):
        run_renamed(
            """
            import tempfile
            import torch

            class Scaled(torch.nn.Module):
                def forward(self, x):
                    return x.sin() * 2

            x = torch.ones(4, device="npu")
            assert torch.equal(torch.compile(Scaled())(x), x.sin() * 2)
            with tempfile.TemporaryDirectory() as folder:
                path = torch._inductor.aoti_compile_and_package(
                    torch.export.export(Scaled(), (x,)), package_path=f"{folder}/model.pt2"
                )
                result = torch._inductor.aoti_load_package(path)(x)
            assert result.device.type == "npu"
            assert torch.equal(result, x.sin() * 2)
            """
        )

    def test_a_backend_of_another_name_is_refused_with_ours(self):
        ended = run_renamed(
            """
            import os
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
            import torch
            torch.utils.rename_privateuse1_backend("other")
            import torch_openreg
            """,
            expect_success=False,
        )
        self.assertRegex(ended.stderr, "To use 'npu', uninstall the package of 'other'")


if __name__ == "__main__":
    run_tests()
