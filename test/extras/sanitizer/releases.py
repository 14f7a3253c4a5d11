"""Runs libraries as they were released, before and after mistakes that were found in them.

``python test/extras/sanitizer/releases.py`` installs each release into a separate folder, with pip
and without its requirements, runs a small program of it under the sanitizer, and fails unless the
releases with the mistake have a finding and those without have none. It is not part of the tests:
it needs the network. ``libraries.py`` has the same patterns in small.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["main"]

# The release, its program below, and whether it has the mistake.
_RELEASES = (
    ("timm==1.0.20", "prefetched", True),
    ("timm==1.0.31", "prefetched", False),
    ("diffusers==0.35.2", "offloaded_by_group", True),
    ("diffusers==0.42.1", "offloaded_by_group", False),
    # Without a layer beside the blocks, nothing waits for the weights.
    ("diffusers==0.42.1", "blocks_offloaded_by_group", True),
    ("torchtune==0.3.1", "offloaded_activations", True),
    ("torchtune==0.6.1", "offloaded_activations", False),
)

# The requirements of the programs besides torch, and those of transformers.
_REQUIREMENTS = {"diffusers": ("importlib-metadata", "pillow", "zipp")}


def main() -> int:
    """Runs the program and returns its exit code, 0 if all releases are as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("only", nargs="*", help="libraries, such as timm; default: all")
    only = parser.parse_args().only
    wrong = 0
    for release, program, is_mistaken in _RELEASES:
        if only and release.partition("=")[0] not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            others = _REQUIREMENTS.get(release.partition("=")[0], ())
            subprocess.run([*pip, "--target", folder, release, *others], check=True)
            result = subprocess.run(
                [sys.executable, __file__, program],
                env=os.environ
                | {
                    "OPENREG_DEVICE_TYPE": "cuda",
                    "OPENREG_CUDA_NOTICE": "0",
                    "OPENREG_RELEASE": folder,
                },
                capture_output=True,
                text=True,
                check=False,
            )
        # 77 is the status of a process with findings.
        is_as_expected = result.returncode == (77 if is_mistaken else 0)
        wrong += not is_as_expected
        print(f"{'ok' if is_as_expected else 'WRONG'}: {release}, {program}")
        print(result.stdout if is_as_expected else result.stdout + result.stderr, flush=True)
    return 1 if wrong else 0


class _Absent(types.ModuleType):
    """A module that the programs need nothing of."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _leave_out(*names: str) -> None:
    for name in names:
        sys.modules[name] = _Absent(name)


def _load(folder: str, *names: str) -> types.ModuleType:
    """Loads the last one of some modules, the others as far as it imports them.

    The code around them, and its requirements, is not used.
    """
    for name in names[:-1]:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(folder, *name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module(names[-1])


def _prefetched(folder: str) -> None:
    _leave_out("timm.data.dataset", "timm.data.mixup", "timm.data.transforms_factory")
    module = _load(folder, "timm", "timm.data", "timm.data.loader")
    device = torch.device("cuda")
    numbers = torch.arange(6 * 4 * 12, dtype=torch.uint8).reshape(-1, 3, 2, 2)
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(numbers, torch.arange(24)), batch_size=4, pin_memory=True
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 24)).to(device)
    for _ in range(2):
        for images, labels in module.PrefetchLoader(batches, device=device):
            torch.nn.functional.cross_entropy(model(images), labels).backward()


def _offloaded_by_group(folder: str) -> None:
    del folder
    for kind, options in (("leaf_level", {}), ("block_level", {"num_blocks_per_group": 1})):
        for is_recorded in (False, True):
            model = _Blocks(torch.nn.Linear(64, 64))
            _offload(model, offload_type=kind, record_stream=is_recorded, **options)


def _blocks_offloaded_by_group(folder: str) -> None:
    del folder
    _offload(_Blocks(), offload_type="block_level", num_blocks_per_group=1)


def _offload(model: torch.nn.Module, **options: Any) -> None:
    from diffusers.hooks import apply_group_offloading

    host, accelerator = torch.device("cpu"), torch.device("cuda")
    apply_group_offloading(model, accelerator, host, use_stream=True, **options)
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(4, 64, device=accelerator))
    torch.cuda.synchronize()


class _Blocks(torch.nn.Module):
    def __init__(self, *before: torch.nn.Module) -> None:
        super().__init__()
        self.before = before[0] if before else None
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x) if self.before else x
        for block in self.blocks:
            x = block(x)
        return x


def _offloaded_activations(folder: str) -> None:
    _leave_out("torchao", "torchao.dtypes", "torchao.dtypes.nf4tensor")
    _leave_out("torchtune.modules", "torchtune.utils")
    sys.modules["torchtune.utils"].get_logger = lambda level: None
    module = _load(
        folder, "torchtune", "torchtune.training", "torchtune.training._activation_offloading"
    )

    class Square(torch.autograd.Function):
        """Its backward pass returns a view of the saved tensor."""

        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            saved = 2 * x
            ctx.save_for_backward(saved)
            return x * x

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            (saved,) = ctx.saved_tensors
            return saved.view_as(saved)

    for _ in range(2):
        x = torch.ones(512, device="cuda", requires_grad=True)
        with module.OffloadActivations(use_streams=True, max_fwd_stash_size=1, min_offload_size=8):
            y = Square.apply(x.sin().exp()).tanh().sin().exp().sum()
        y.backward()
        torch.cuda.synchronize()


_PROGRAMS: dict[str, Callable[[str], None]] = {
    "prefetched": _prefetched,
    "offloaded_by_group": _offloaded_by_group,
    "blocks_offloaded_by_group": _blocks_offloaded_by_group,
    "offloaded_activations": _offloaded_activations,
}


def _run(program: str) -> None:
    folder = os.environ["OPENREG_RELEASE"]
    sys.path.insert(0, folder)
    from torch_openreg.extras.sanitizer import sanitizer

    sanitizer.enable("collect")
    _PROGRAMS[program](folder)
    for finding in sanitizer.findings():
        print(finding)
    print(sanitizer.summary())


if __name__ == "__main__":
    if "OPENREG_RELEASE" in os.environ:
        _run(sys.argv[1])
    else:
        sys.exit(main())
