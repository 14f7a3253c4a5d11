"""Step 12 of docs/bring_up.md: a backend of torch.distributed, in Python.

The messages are Gloo's, in host memory. A chip with links of its own sends device memory instead,
on a stream. In full: csrc/extras/distributed/ProcessGroupOCCL.cpp.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import _C

# docs: chip-collectives
BACKEND = f"{_C.NAME}_ccl"


class _Done(dist.Work):
    """What an operation returns that is complete; DDP takes the result from the future."""

    def __init__(self, result: list[Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class ProcessGroup(dist.ProcessGroup):
    """The operations that DistributedDataParallel calls."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # these two: with the store, torch 2.13 ignores the methods
        self._host = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return BACKEND

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        host = [tensor.cpu() for tensor in tensors]
        self._host.allreduce(host, opts).wait()
        return _returned(tensors, host)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        host = [tensor.cpu() for tensor in tensors]
        self._host.broadcast(host, opts).wait()
        return _returned(tensors, host)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        host = [[torch.empty_like(one, device="cpu") for one in outputs[0]]]
        self._host.allgather(host, [inputs[0].cpu()], opts).wait()
        return _returned(outputs[0], host[0])

    def barrier(self, opts: Any = None) -> dist.Work:
        torch.accelerator.synchronize()
        self._host.barrier(opts).wait()
        return _Done([])


def _returned(tensors: list[Tensor], host: list[Tensor]) -> _Done:
    for tensor, result in zip(tensors, host, strict=True):
        tensor.copy_(result)
    return _Done(tensors)


dist.Backend.register_backend(BACKEND, ProcessGroup, devices=[_C.NAME])
# docs: end
