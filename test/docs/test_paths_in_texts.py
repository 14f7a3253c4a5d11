"""The paths that pages and comments name exist, in the repository or in the installed torch."""

import functools
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from common import OpenRegTestCase, run_tests

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "minimal/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# Folders of what is built, installed or stored.
LEFT_OUT = re.compile(r"\.(?!ci$|github$)|(build|_build|dist|__pycache__)$|.*\.egg-info$")
SUFFIX = r"\.(?:c|cpp|css|h|hpp|inl|js|json|md|patch|py|pyi|supp|svg|toml|yaml|yml)"
COPIED_HEADERS = ROOT / "torch_openreg" / "include"
FOLDERS = "|".join(sorted(path.name for path in ROOT.glob("[a-z]*") if path.is_dir()))
# A file by its suffix, or a path from the root.
PATH = re.compile(
    rf"(?<![\w./<:-])(?:(?:\.\.\./)?((?:[\w.-]+/)*[\w-][\w.-]*{SUFFIX})\b"
    rf"|((?:{FOLDERS})/[\w./-]*\w/?)(?![\w*]))"
)

# Names of files that are elsewhere, by where they are named.
ELSEWHERE = {
    # PyTorch's own tests, and those of other projects.
    "docs/test_suites.md": (
        *("augmentation/test_random_generator.py", "classification/test_accuracy.py"),
        *("color/test_hsv.py", "filters/test_gaussian.py", "metrics/test_accuracy.py"),
        *("metrics/test_loss.py", "test_layerwise_gradient_scaler.py", "test_nn.py"),
        *("test_tensor_creation_ops.py", "test_torch.py", "test_transformers.py"),
        *("test_matmul_cuda.py", "test_nestedtensor.py", "test_unary_ufuncs.py"),
    ),
    "docs/from_pytorch_openreg.md": (
        *("allocator.md", "ci.md", "compiler.md", "docs/source/accelerator"),
        "test/cpp_extensions/open_registration_extension/torch_openreg",
    ),
    "docs/conformance.md": (".github/allowlist.yml",),
    "test/docs/accelerator_headings.toml": ("docs/source/accelerator",),
    "docs/testing.md": (
        *("_xpu.py", "test/xpu"),
        *("dynamo/test_cudagraphs.py", "test_cuda.py", "test_cuda_expandable_segments.py"),
        *("test_cuda_multigpu.py", "test_cuda_nvml_based_avail.py", "test_cuda_primary_ctx.py"),
        *("test_cuda_sanitizer.py", "test_cuda_trace.py", "test_nn.py", "test_unary_ufuncs.py"),
    ),
    "test/cuda/test_runtime.py": ("test_cuda_primary_ctx.py",),
    "test/tools/test_upstream_runner.py": ("test_cuda.py",),
    "tools/upstream_device.py": ("_xpu.py", "test/xpu", "test_nn.py", "test_nn_xpu.py"),
    "tools/upstream_device.toml": ("test_tensor_creation_ops.py", "test_torch.py"),
    # The sources of PyTorch.
    "tools/upstream_openreg.py": (
        "test/cpp_extensions/open_registration_extension/torch_openreg/tests",
    ),
    "include/torch_openreg/inductor/model.h": ("model_container.h",),
    "torch_openreg/_comm.py": ("torch/csrc/cuda/comm.cpp",),
    "csrc/extras/dry_run/TemporaryMemory.cpp": (
        "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
        *("aten/src/ATen/native/cuda/Sort.cpp", "TensorTopK.cpp"),
    ),
    "csrc/memory/ExpandableSegments.h": ("c10/cuda/CUDACachingAllocator.cpp",),
    "docs/dry_run.md": (
        *("cuda/CublasHandlePool.cpp", "native/transformers/cuda/flash_attn/flash_api.cpp"),
    ),
    "csrc/extras/dry_run/Workspaces.cpp": (
        *("aten/src/ATen/native/cuda/Blas.cpp", "aten/src/ATen/native/cuda/LinearAlgebra.cpp"),
    ),
    "csrc/extras/dry_run/Workspaces.h": ("aten/src/ATen/cuda/CublasHandlePool.cpp",),
    "torch_openreg/extras/dry_run/_profiles.py": ("aten/src/ATen/cuda/CublasHandlePool.cpp",),
    "test/extras/dry_run/test_ranks.py": ("benchmarks/llama3_h100_202412_torchtitan.md",),
    # Of the reader, of the published pages, of a wheel, and of tests' own programs.
    "csrc/aten/structured/codegen/gen_structured.py": ("DIR/structured_ops.json",),
    "docs/publish.py": ("versions.json",),
    "setup.py": ("compile_commands.json",),
    "test/docs/test_debugging.py": ("smallest.cpp",),
    "docs/start.md": (".github/workflows/cuda-tests.yml",),
    "docs/versions.md": ("torch_openreg/lib/torch2.13/",),
    "test/contract/test_facts.py": ("a.cpp",),
    "test/contract/test_layering.py": ("a.h", "b.h"),
    "torch_openreg/extras/cuda/program.py": ("script.py",),
    # Modules of torch.
    "test/extras/inductor/test_registration.py": ("torch._inductor.codegen.cpp",),
}


def files_of_the_repository() -> list[Path]:
    """Returns all files but those that are built or installed; git is not needed."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if not LEFT_OUT.match(name) and Path(folder, name) != COPIED_HEADERS
        ]
        found += [Path(folder, name) for name in names]
    return sorted(found)


@functools.cache
def known_ends() -> frozenset[str]:
    """Returns the ends of all paths: for the file a/b, these are "b", "a/b" and "a".

    Those of torch have two parts at least: its files have many names.
    """
    ours = _ends(path.relative_to(ROOT) for path in files_of_the_repository())
    installed = Path(torch.__file__).parents[1]
    roots = (installed / "torch", installed / "torchgen")
    of_torch = _ends(path.relative_to(installed) for root in roots for path in root.rglob("*.*"))
    return frozenset(ours | {end for end in of_torch if "/" in end} | {"native_functions.yaml"})


def _ends(paths: Iterable[Path]) -> set[str]:
    all_paths = {one for path in paths for one in (path, *path.parents)}
    return {"/".join(path.parts[start:]) for path in all_paths for start in range(len(path.parts))}


def missing_in(text: str) -> list[str]:
    """Returns the paths in a text that are the end of no path, and are not below the root.

    A build makes what is in the folders of LEFT_OUT.
    """
    return [
        path
        for path in dict.fromkeys(file or other for file, other in PATH.findall(text))
        if path.rstrip("/") not in known_ends()
        and not (ROOT / path).exists()
        and not any(LEFT_OUT.match(part) for part in path.split("/"))
    ]


def named_in_page(text: str) -> str:
    """Returns what a page has in backticks, outside of code blocks.

    The first cells of tables headed "PyTorch's OpenReg" are about the files of that one.
    """
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(
        r"^\| PyTorch's OpenReg \|.*\n(?:\|.*\n)+",
        lambda table: re.sub(r"(?m)^\|[^|]*", "", table[0]),
        text,
        flags=re.MULTILINE,
    )
    return "\n".join(name for name in re.findall(r"`([^`\n]+)`", text) if " " not in name)


def comments_of(path: Path) -> str:
    """Returns the comments of a source, and the docstrings of a Python file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        return "\n".join(_python_comments(text))
    if path.suffix in (".c", ".cpp", ".h"):
        return "\n".join(re.findall(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL))
    return "\n".join(re.findall(r"(?:^|\s)#[^\n]*", text))


def _python_comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""'))
        if token.type == tokenize.COMMENT or is_docstring:
            yield token.string


def without_addresses(text: str) -> str:
    """Returns the text without what is on other machines."""
    return re.sub(r"\w+://\S+", "", text)


@functools.cache
def missing() -> dict[str, list[str]]:
    """Returns the paths that do not exist, by the files that name them."""
    texts = {path: named_in_page(path.read_text(encoding="utf-8")) for path in PAGES}
    suffixes = {".c", ".cpp", ".h", ".py", ".pyi", ".toml", ".yaml", ".yml"}
    texts |= {
        path: comments_of(path) for path in files_of_the_repository() if path.suffix in suffixes
    }
    found = {
        path.relative_to(ROOT).as_posix(): missing_in(without_addresses(text))
        for path, text in texts.items()
    }
    return {name: paths for name, paths in found.items() if paths}


class TestPaths(OpenRegTestCase):
    def test_paths_in_pages_and_comments_exist(self):
        unknown = {
            name: [path for path in paths if path not in ELSEWHERE.get(name, ())]
            for name, paths in missing().items()
        }
        self.assertEqual({name: paths for name, paths in unknown.items() if paths}, {})

    def test_names_of_files_elsewhere_are_named(self):
        obsolete = {
            name: sorted(set(paths) - set(missing().get(name, ())))
            for name, paths in ELSEWHERE.items()
        }
        self.assertEqual({name: paths for name, paths in obsolete.items() if paths}, {})

    def test_path_that_does_not_exist_is_found(self):
        for path in (
            *("csrc/aten/ops/LayoutFallback.h", "test/sanitizer/test_uninitialized.py"),
            *("csrc/sanitizer/", "docs/streams.md", "Streams.h"),
        ):
            page = f"The code is in `{path}`, beside `csrc/core/Stream.cpp` and `stream.cpp`.\n"
            self.assertEqual(missing_in(named_in_page(page)), [path])
            self.assertEqual(missing_in(f"// See {path}: the next line."), [path])

    def test_code_blocks_and_names_of_pytorchs_openreg_are_left_out(self):
        table = "| PyTorch's OpenReg | here | difference |\n|---|---|---|\n| `a.h` | `b.h` | |\n"
        self.assertEqual(missing_in(named_in_page(f"{table}\n```\n`c.h`\n```\n`d e.h`\n")), ["b.h"])


if __name__ == "__main__":
    run_tests()
