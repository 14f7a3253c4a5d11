"""What needs real CUDA, where the process would crash or torch's own text would mislead."""

from typing import Any

__all__ = ["install"]


def _refuse_gloo() -> None:
    """Keeps ProcessGroupGloo from tensors on CUDA: in a build without CUDA it crashes on them."""
    import torch.distributed.distributed_c10d as c10d

    config: Any = c10d.BackendConfig
    make = config.__init__

    def make_without_gloo_on_cuda(self: Any, backend: Any) -> None:
        make(self, backend)
        if self.device_backend_map.get("cuda") == c10d.Backend.GLOO:
            if "cuda:" in str(backend).lower():
                raise ValueError(
                    f"init_process_group: expected another backend than gloo for cuda, got "
                    f"'{backend}'; gloo's collectives on cuda tensors need a build of torch with "
                    "CUDA, so use nccl for cuda, or backend='gloo' and tensors on the CPU"
                )
            # Collectives on such tensors then raise that no backend serves them.
            del self.device_backend_map["cuda"]

    config.__init__ = make_without_gloo_on_cuda


def install() -> None:
    """Puts the refusals in place."""
    _refuse_gloo()
