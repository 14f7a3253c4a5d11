"""Runs the tests of Triton and of libraries of its kernels, unmodified, on this backend.

``python tools/upstream_triton.py [--device cuda|openreg] FOLDER [FILE ...]``

The folder is one of these checkouts, with the requirements of its tests installed:

- ``python`` of triton-lang/triton or triton-lang/triton-cpu, of the release that is installed: the
  tests of its language, and the tutorials 01 to 09
- linkedin/Liger-Kernel: the tests of its operators
- fla-org/flash-linear-attention: the tests of its operators

FILE names test files in it. The tests are those projects' and no part of this repository. Each file
runs in a separate process; a test that crashes or exceeds the time limit is one failure, and the
following tests still run.

A tutorial is one test, which runs the script as ``python`` does. What a script measures runs once,
with the smallest size alone, without plots and without Triton's profiler, which needs a GPU: on a
processor the others take days. A script also fails by printing the mark for a wrong result. Tests
in a tutorial run as well.

``upstream_triton.toml`` lists the tests that fail for a known reason. The exit code is 1 if a test
fails that is not listed, if a listed test passes or does not exist, or if nothing ran. The part of
the list that is about files which ran counts.

This file is also the pytest plug-in in the processes of the tests.
"""

import contextlib
import importlib.util
import inspect
import io
import os
import sys
import types
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from upstream_suites import Suite, run_suite

__all__ = ["SUITE"]

_LANGUAGE = (
    "annotations",
    "block_pointer",
    "compile_errors",
    "compile_only",
    "conversions",
    "core",
    "decorator",
    "frontend",
    "libdevice",
    "line_info",
    "matmul",
    "module",
    "mxfp",
    "pipeliner",
    "random",
    "reproducer",
    "standard",
    "subprocess",
    "tensor_descriptor",
    "tuple",
    "warp_specialization",
)

_TUTORIALS = (
    "01-vector-add",
    "02-fused-softmax",
    "03-matrix-multiplication",
    "04-low-memory-dropout",
    "05-layer-norm",
    "06-fused-attention",
    "07-extern-functions",
    "08-grouped-gemm",
    "09-persistent-matmul",
)

# Other files test models and trainers of the package transformers, and kernels in other languages.
_LIGER = (
    "attn_res",
    "cross_entropy",
    "dyt",
    "embedding",
    "flex_attention",
    "fused_add_rms_norm",
    "fused_linear_cross_entropy",
    "fused_linear_jsd",
    "fused_linear_scaled_cross_entropy",
    "fused_moe",
    "fused_neighborhood_attention",
    "geglu",
    "group_norm",
    "grpo_loss",
    "jsd",
    "kl_div",
    "layer_norm",
    "llama4_rope",
    "mhc",
    "mm_int8int2",
    "modulated_rms_norm",
    "multi_token_attention",
    "poly_norm",
    "qwen2vl_mrope",
    "relu_squared",
    "rms_norm",
    "rope",
    "softmax",
    "sparsemax",
    "swiglu",
    "tiled_mlp",
    "tvd",
)

# Other files test caches of the library, and kernels in other languages.
_FLA = (
    "attn",
    "attn_sink",
    "attnres",
    "based",
    "comba",
    "delta",
    "delta_product",
    "deltaformer",
    "dplr_delta",
    "forgetting_attn",
    "gdn",
    "gdn2",
    "gdn_kernels",
    "gdp",
    "gla",
    "gsa",
    "hgrn",
    "iplr_delta",
    "kda",
    "lightning_attn",
    "linear_attn",
    "log_linear_attn",
    "mesa",
    "moba",
    "nsa",
    "oja",
    "parallax",
    "path_attn",
    "precond_gated_delta",
    "precond_kda",
    "retention",
    "rwkv6",
    "rwkv7",
    "simple_gla",
    "solve_tril",
    "titans",
    "ttt",
    "wall_attn",
)

_SHARED = {
    "OPENREG_CUDA_NOTICE": "0",
    # What tunes takes its first configuration: times on a processor say nothing.
    "OPENREG_TRITON_AUTOTUNE": "first",
    "MPLBACKEND": "Agg",
}

SUITE = Suite(
    Path(__file__),
    __doc__,
    "a checkout",
    files=[
        *(f"test/unit/language/test_{name}.py" for name in _LANGUAGE),
        *(f"tutorials/{name}.py" for name in _TUTORIALS),
        *(f"test/transformers/test_{name}.py" for name in _LIGER),
        *(f"tests/ops/test_{name}.py" for name in _FLA),
    ],
    devices={
        "cuda": {**_SHARED, "OPENREG_DEVICE_TYPE": "cuda"},
        "openreg": {**_SHARED, "OPENREG_DEVICE_TYPE": "openreg"},
    },
    plugin="upstream_triton",
    has_settings=True,
)


# --- The plug-in, in the process of the tests


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Lets tests import their library, but the installed Triton and not the checkout's sources."""
    folder = Path.cwd()
    if (folder / "triton").is_dir():
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    else:
        sys.path[:0] = [str(folder / "src"), str(folder)]


def pytest_configure(config: pytest.Config) -> None:
    """Names the device, and adds what this release of Triton lacks of another one's."""
    # In --device of Triton's tests.
    if "device" in vars(config.option):
        config.option.device = os.environ["OPENREG_DEVICE_TYPE"]
    import triton._internal_testing as shared

    if not hasattr(shared, "is_cpu"):  # in triton-cpu alone
        shared.is_cpu = lambda: False


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Makes tests of a tutorial."""
    if module_path.parent.name != "tutorials":
        return None
    return _Tutorial.from_parent(parent, path=module_path)


class _Tutorial(pytest.Module):
    """A tutorial, whose first test is all of it."""

    def collect(self) -> Iterator[pytest.Item]:
        yield _Script.from_parent(self, name="script")
        if "def test_op(" in self.path.read_text(encoding="utf-8"):
            yield from super().collect()  # type: ignore[misc]

    def importtestmodule(self) -> Any:
        # Its name is not one of Python's.
        spec = importlib.util.spec_from_file_location("tutorial", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["tutorial"] = module
        spec.loader.exec_module(module)
        return module

    _importtestmodule = importtestmodule


class _Script(pytest.Item):
    """A tutorial as a program."""

    def runtest(self) -> None:
        from triton import testing

        testing.Mark.run = _run_smallest
        testing.do_bench = _run_once
        _replace_profiler()
        sys.argv = [str(self.path)]
        script = types.ModuleType("__main__")
        script.__file__ = str(self.path)
        sys.modules["__main__"] = script
        code = compile(self.path.read_bytes(), self.path, "exec")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, script.__dict__, _Names(script.__dict__))
        print(output.getvalue())
        wrong = [line for line in output.getvalue().splitlines() if _WRONG in line]
        assert not wrong, f"the script prints {', '.join(wrong)}"


# The mark of tutorials for a result that differs.
_WRONG = "❌"


class _Names(MutableMapping[str, Any]):
    """The names of a script, whose functions repeat what they measure once by default."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, types.FunctionType) and value.__defaults__:
            given = inspect.signature(value).parameters.values()
            value.__defaults__ = tuple(
                1 if one.name in ("reps", "warmup_reps") else one.default
                for one in given
                if one.default is not one.empty and one.kind is not one.KEYWORD_ONLY
            )
        self._names[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._names[name]

    def __delitem__(self, name: str) -> None:
        del self._names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _replace_profiler() -> None:
    """Replaces what scripts use of ``triton.profiler`` by functions that measure nothing."""
    import triton.profiler

    for name in ("start", "activate", "deactivate", "finalize"):
        setattr(triton.profiler, name, lambda *args, **options: None)
    triton.profiler.scope = lambda *args, **options: contextlib.nullcontext()
    viewer: Any = types.ModuleType("triton.profiler.viewer")
    viewer.parse = lambda *args, **options: (None, None)
    viewer.print_tree = lambda *args, **options: None
    sys.modules[viewer.__name__] = triton.profiler.viewer = viewer


def _run_smallest(mark: Any, *args: Any, **options: Any) -> None:
    """Replaces ``Mark.run``: calls what a tutorial measures with its first size."""
    for name in ("show_plots", "print_data", "save_path", "return_df"):
        options.pop(name, None)
    benchmarks = mark.benchmarks if isinstance(mark.benchmarks, list) else [mark.benchmarks]
    for benchmark in benchmarks:
        first = benchmark.x_vals[0]
        names = benchmark.x_names
        sizes = first if isinstance(first, (list, tuple)) else [first] * len(names)
        for line in benchmark.line_vals:
            mark.fn(
                **dict(zip(names, sizes, strict=True)),
                **{benchmark.line_arg: line},
                **benchmark.args,
                **options,
            )


def _run_once(function: Any, *args: Any, quantiles: Any = None, **options: Any) -> Any:
    """Replaces ``do_bench``: calls what a tutorial measures; returns some time."""
    function()
    return 1.0 if quantiles is None else [1.0] * len(quantiles)


if __name__ == "__main__":
    sys.exit(run_suite(SUITE))
