"""One header defines which device type the library serves; no other file names one.

Texts have the words of the device type: those of the type cuda never say "OpenReg".
"""

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
    "csrc/core/DeviceForm.h": "the backend's own device type",
    "csrc/core/DeviceKeys.cpp": "which of the two it is",
    "csrc/hooks/Hooks.h": "torch has an interface for each device type",
    "csrc/hooks/Hooks.cpp": "torch has an interface for each device type",
    "csrc/extras/cuda/CudaForm.h": "the extra's device type",
    "csrc/extras/autocast/Autocast.cpp": "torch has AutocastCUDA's kernels in every build",
    "csrc/extras/profiler/KinetoProfiler.cpp": "Kineto knows plug-ins by this name",
    "csrc/extras/profiler/ProfilerStubs.cpp": "torch has a function that registers each device",
    "csrc/extras/profiler/RangeObserver.cpp": "a profiler state; for CUDA, torch's own serves",
    "csrc/extras/profiler/TraceSession.cpp": "a profiler state of each device type",
    "csrc/extras/profiler/TraceBuilder.h": "Kineto's names of the activities of either device type",
    "include/torch_openreg/inductor/model.h": "torch's runtime knows the devices of programs",
}

# Files of the core whose behavior differs with the device type cuda, with the reason; what differs
# elsewhere is installed by the extra. A GPU refuses calls that the CPU computes, and the place that
# refuses is that of the operator.
ASKING = {
    "include/torch_openreg/core/DeviceKeys.h": "keys of the device type",
    "csrc/core/DeviceKeys.cpp": "the function",
    "csrc/python/DeviceBindings.cpp": "the binding",
    "csrc/aten/attention/Attention.cpp": "refusals and warnings of CUDA's attention",
    "csrc/aten/attention/AttentionChoice.cpp": "CUDA chooses by rules of its own",
    "csrc/aten/dtypes/HalfTransforms.cpp": "refusals of cuFFT",
    "csrc/aten/fallback/FallbackOperator.cpp": "refusals, once per operator",
    "csrc/aten/fallback/HostCall.cpp": "a GPU's kernel finds errors of data later",
    "csrc/aten/ops/ForeachOperators.cpp": "refusals of CUDA's kernels of lists",
    "csrc/aten/ops/SparseOperators.cpp": "refusals of cuSPARSE",
    "csrc/aten/parity/GroupNorm.cpp": "layouts of gradients, which are the CPU's or CUDA's",
    "csrc/aten/parity/RecurrentNetworks.cpp": "refusals of cuDNN",
    "csrc/aten/refusals/RefusingKernel.h": "refusals, when an operator is registered",
    "csrc/aten/structured/StructuredOp.cpp": "refusals of CUDA's addcmul",
}


def literals(path) -> set[str]:
    if path.suffix == ".py":
        return set(re.findall(_PRIVATE_USE, path.read_text()))
    return set(_LITERAL.findall(re.sub(r"^\s*#include.*$", "", code_of(path), flags=re.MULTILINE)))


# Literals with "OpenReg" or the name of the module: texts that the type cuda does not
# have, or that it has as well, with the reason.
OPENREG_TEXTS = {
    "OpenReg": "the device's name, in one place: csrc/core/DeviceName.h",
    "_OpenRegDeviceProperties(name='": "the class of torch.openreg; torch.cuda has its own",
    'torch.openreg.set_fallback_mode(\\"silent\\") to allow it': "torch.cuda has no such function",
}


def texts_with_openreg() -> dict[str, list[str]]:
    """String literals of the backend, with the files that have them."""
    found: dict[str, list[str]] = {}
    for path in backend_files():
        text = re.sub(r"^\s*(?:#include|//).*$", "", path.read_text(), flags=re.MULTILINE)
        for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text):
            if re.search(r"OpenReg|torch\.openreg", literal):
                found.setdefault(literal, []).append(relative(path))
    return found


class TestTexts(TestCase):
    def test_texts_of_the_backend_are_those_of_the_device_type(self):
        found = texts_with_openreg()
        self.assertEqual(set(found), set(OPENREG_TEXTS))
        self.assertEqual(found["OpenReg"], ["csrc/core/DeviceName.h"])


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

    def test_core_asks_for_the_device_type_where_a_gpu_computes_otherwise(self):
        asking = {
            relative(path)
            for path in backend_files()
            if "extras" not in relative(path).split("/") and "servesCuda" in code_of(path)
        }
        self.assertEqual(asking, set(ASKING))

    def test_operators_are_registered_by_the_macro(self):
        shards = sorted((ROOT / "build").rglob("*tructured*.cpp"))
        for path in [*backend_files("aten"), *shards]:
            with self.subTest(path=str(path)):
                keys = re.findall(r"\bTORCH_LIBRARY_IMPL\(\w+, (\w+), m\)", code_of(path))
                self.assertLessEqual(set(keys), {"FuncTorchBatched"})


if __name__ == "__main__":
    run_tests()
