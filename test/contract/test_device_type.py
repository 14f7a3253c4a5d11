"""One header defines which device type the library serves; no other file names one."""

import re

from source_tree import BACKEND, ROOT, backend_files, code_of, relative
from torch.testing._internal.common_utils import TestCase, run_tests

# Identifiers of one device type, or of its dispatch key.
_PRIVATE_USE = r"\w*(?:PrivateUse1|PRIVATEUSE1|PRIVATEUSEONE|privateuse)\w*"
_LITERAL = re.compile(
    _PRIVATE_USE + r"|\bk?CUDA\b"
    r"|\b(?:Autograd|Autocast|Sparse|SparseCsr|Quantized|NestedTensor)CUDA\b"
    r"|\bCUDABit\b|\bk?Cuda\b"
)

# Where they may stand, with the reason.
ALLOWED = {
    "include/torch_openreg/core/DeviceKeys.h": "the one place that chooses",
    "csrc/hooks/Hooks.h": "torch has an interface for each device type",
    "csrc/hooks/Hooks.cpp": "torch has an interface for each device type",
    "csrc/extras/autocast/Autocast.cpp": "torch has AutocastCUDA's kernels in every build",
    "csrc/extras/profiler/KinetoProfiler.cpp": "Kineto knows plug-ins by this name",
    "csrc/extras/profiler/ProfilerStubs.cpp": "torch has a function that registers each device",
    "csrc/extras/profiler/RangeObserver.cpp": "a profiler state; for CUDA, torch's own serves",
    "csrc/extras/profiler/TraceBuilder.h": "Kineto's names of the activities of either device type",
    "include/torch_openreg/inductor/model.h": "torch's runtime knows the devices of programs",
}


def literals(path) -> set[str]:
    if path.suffix == ".py":
        return set(re.findall(_PRIVATE_USE, path.read_text()))
    return set(_LITERAL.findall(re.sub(r"^\s*#include.*$", "", code_of(path), flags=re.MULTILINE)))


class TestDeviceType(TestCase):
    def users(self) -> dict[str, set[str]]:
        files = [*backend_files(), *sorted(BACKEND.rglob("*.py"))]
        self.assertGreater(len(files), 100)
        return {relative(path): found for path in files if (found := literals(path))}

    def test_no_other_file_names_a_device_type_or_a_key_of_one(self):
        others = {path: names for path, names in self.users().items() if path not in ALLOWED}
        self.assertEqual(others, {})

    def test_the_list_has_no_entry_that_nobody_needs(self):
        self.assertEqual(set(ALLOWED) - set(self.users()), set())

    def test_operators_are_registered_by_the_macro(self):
        shards = sorted((ROOT / "build").rglob("*tructured*.cpp"))
        for path in [*backend_files("aten"), *shards]:
            with self.subTest(path=str(path)):
                keys = re.findall(r"\bTORCH_LIBRARY_IMPL\(\w+, (\w+), m\)", code_of(path))
                self.assertLessEqual(set(keys), {"FuncTorchBatched"})


if __name__ == "__main__":
    run_tests()
