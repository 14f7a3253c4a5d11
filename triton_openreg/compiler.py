"""Triton's compiler for kernels on devices of torch_openreg."""

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget

__all__ = ["OpenRegBackend", "OpenRegTarget"]


class OpenRegTarget(GPUTarget):  # type: ignore[misc]
    """A device of torch_openreg as a target, which may have the name of another one's.

    With the device type cuda, the target's backend is ``cuda``, which programs query. By its class,
    it is no target of the compiler for NVIDIA's GPUs, which compiles for any other such target.
    """


class OpenRegBackend(BaseBackend):  # type: ignore[misc]
    """Compiles by way of C++ to a library for the processors of this machine."""

    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """Returns whether the target is a device of torch_openreg."""
        return isinstance(target, OpenRegTarget) or target.backend == "openreg"

    def __init__(self, target: GPUTarget) -> None:
        """Makes a compiler for a target."""
        super().__init__(target)
        from torch_openreg.extras.triton import _stages

        self._stages = _stages.Stages(target)

    def hash(self) -> str:
        """Returns what compiled kernels depend on besides their sources and options."""
        return self._stages.hash()

    def get_target_name(self, options: Any) -> str:
        """Returns the name of the target, such as ``openreg:80``."""
        return f"openreg:{self.target.arch}"

    def parse_options(self, opts: dict[str, Any]) -> Any:
        """Returns the options of a kernel: those of CUDA and HIP are accepted."""
        return self._stages.parse_options(opts)

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any = None) -> None:
        """Adds the stages of a compilation."""
        self._stages.add(stages, options, language)

    def load_dialects(self, ctx: Any) -> None:
        """Loads the dialects that kernels for CUDA use, too."""
        self._stages.load_dialects(ctx)

    def get_module_map(self) -> dict[str, ModuleType]:
        """Returns the modules that stand for others in kernels."""
        return self._stages.module_map()

    def get_codegen_implementation(self, options: Any) -> dict[str, Any]:
        """Returns what the front end asks of the target."""
        return self._stages.codegen_functions(options)

    def pack_metadata(self, metadata: Any) -> tuple[Any, ...]:
        """Returns what hooks of launches see, as for CUDA."""
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)


# Triton refuses to be imported with a backend that lacks a method which its base class declares. A
# later release may declare more: what needs it then fails, and nothing else.
OpenRegBackend.__abstractmethods__ = frozenset()
