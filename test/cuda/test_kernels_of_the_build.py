"""A build of torch with CUDA: none of its kernels for a GPU is reachable.

See Note [Builds with CUDA] in csrc/extras/cuda/TakeOver.cpp. In a build without CUDA, the tests
hold as well.
"""

import re

import torch
from common import (
    BUILD_HAS_CUDA,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

FUNCTIONALITIES = ("", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
OWN_FILES = ("csrc/", "../csrc/", "generated/")
# Has kernels for all devices. Besides, torch registers kernels of its own operators in Python: some
# for all devices, some in Triton, which only kernels of the build call.
KEPT = ("c10d::",)


def active_kernel(name: str, key: str) -> str:
    """Where the kernel was registered that the dispatcher calls for a key."""
    found = re.search(rf"^{key}: registered at (\S+)", torch._C._dispatch_dump(name), re.MULTILINE)
    assert found is not None, (name, key)
    return found[1]


def is_ours(place: str) -> bool:
    return any(own in place for own in OWN_FILES) and "/ATen/" not in place


class TestWalk(OpenRegTestCase):
    """The dispatcher's table."""

    @parametrize("functionality", FUNCTIONALITIES)
    def test_each_kernel_is_ours(self, functionality):
        key = f"{functionality}CUDA"
        names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
        self.assertGreater(len(names), 10)
        foreign = {
            name: place
            for name in names
            if not name.startswith(KEPT)
            for place in [active_kernel(name, key)]
            if not is_ours(place) and not (".py:" in place and not name.startswith("aten::"))
        }
        self.assertEqual(foreign, {})

    def test_other_keys_of_cuda_have_no_kernels_of_the_build(self):
        """Those of autocast and autograd are the same in all builds."""
        keys = [
            name
            for name in vars(torch._C.DispatchKey)
            if name.endswith("CUDA") and name.removesuffix("CUDA") not in FUNCTIONALITIES
        ]
        self.assertIn("AutogradCUDA", keys)
        found = {
            (name, key): place
            for key in keys
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
            for place in [active_kernel(name, key)]
            if "RegisterCUDA" in place or "/native/cuda" in place or "/native/cudnn" in place
        }
        self.assertEqual(found, {})


class TestCompositions(OpenRegTestCase):
    """Operators for which the build has a kernel, and others a composition."""

    @parametrize(
        "name,arguments",
        [
            ("silu_backward", 2),
            ("mish_backward", 2),
            ("logit", 1),
        ],
    )
    def test_result_is_the_cpu_s(self, name, arguments):
        values = [torch.linspace(0.1, 0.9, 12).reshape(3, 4) for _ in range(arguments)]
        function = getattr(torch.ops.aten, name)
        expected = function(*values)
        self.assertEqual(function(*(one.cuda() for one in values)).cpu(), expected, rtol=0, atol=0)

    def test_gradients_of_a_norm_are_those_of_its_parts(self):
        # Builds of later releases have a kernel for the whole, and one for its gradients.
        gradients = []
        for device in ("cpu", "cuda"):
            x, weight = (
                torch.linspace(0.1, 0.9, 12).reshape(3, 4)[:rows].to(device).requires_grad_()
                for rows in (3, 1)
            )
            torch.nn.functional.rms_norm(x, [4], weight[0]).square().sum().backward()
            gradients.append((x.grad.cpu(), weight.grad.cpu()))
        self.assertEqual(gradients[1], gradients[0], rtol=0, atol=0)


class TestProcess(OpenRegTestCase):
    def test_import_is_silent_and_calls_no_driver(self):
        run = run_program(
            """
            import torch
            maps = open("/proc/self/maps").read()
            print("libcuda.so" in maps, torch.cuda.is_initialized())
            """
        )
        self.assertEqual((run.stdout.split(), run.stderr), (["False", "False"], ""))

    def test_libraries_of_the_build_are_missing(self):
        self.assertIsNone(torch.backends.cudnn.version())
        self.assertFalse(torch.backends.cudnn.is_available())
        self.assertFalse(torch.backends.cusparselt.is_available())
        self.assertFalse(torch.cuda.has_magma)
        self.assertFalse(hasattr(torch._C, "_cudnn"))

    def test_version_is_the_build_s(self):
        text = str(torch.version.cuda)
        self.assertEqual(re.fullmatch(r"\d+\.\d+", text) is not None, BUILD_HAS_CUDA)

    def test_fusers_generate_no_kernels_for_a_gpu(self):
        @torch.jit.script
        def function(x):
            return (x * 2 + 1).relu() * x

        x = torch.linspace(-1, 1, 64)
        on_device = x.cuda()
        for _ in range(4):
            result = function(on_device)
        self.assertEqual(result.cpu(), function(x), rtol=0, atol=0)


instantiate_parametrized_tests(TestWalk)
instantiate_parametrized_tests(TestCompositions)

if __name__ == "__main__":
    run_tests()
