"""Copies this backend under another name, as the start of a project.

``python minimal/rename.py mychip ../mychip`` makes the folder ``../mychip``: the sources, their
tests, a README and the license. The name is that of the device: ``torch.device("mychip")``,
``torch.mychip``, the package ``torch_mychip``.
"""

import argparse
import contextlib
import keyword
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_MINIMAL = Path(__file__).resolve().parent

# The names of torch's device types, and that of the backend beside which this one is developed.
TAKEN = frozenset(
    (
        *("cpu", "cuda", "fpga", "hip", "hpu", "ideep", "ipu", "lazy", "maia", "meta", "metal"),
        *("mkldnn", "mps", "mtia", "opencl", "opengl", "privateuseone", "ve", "vulkan", "xla"),
        *("xpu", "openreg"),
    )
)


def _device_name(text: str) -> str:
    """Checks a name; torch.device() reads letters and underscores up to the colon."""
    if not re.fullmatch("[a-z][a-z_]*", text) or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(
            f"expected a Python identifier of lower-case letters and underscores, got {text!r}"
        )
    if text in TAKEN:
        raise argparse.ArgumentTypeError(
            f"expected a name that no other device has, got {text!r}, which is taken"
        )
    return text


def _new_folder(text: str) -> Path:
    if Path(text).exists():
        raise argparse.ArgumentTypeError(f"expected a folder that does not exist, got {text!r}")
    return Path(text)


def _is_attribute_of_torch(name: str) -> bool:
    """Whether ``torch.NAME`` exists. Without torch, importing the package will tell."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    with contextlib.suppress(ImportError):
        import torch

        return hasattr(torch, name)
    return False


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; ends it with a text if an argument is wrong."""
    parser = argparse.ArgumentParser(description="Copies minimal/ under another name.")
    parser.add_argument("name", type=_device_name, help="the name of the device, such as mychip")
    parser.add_argument("folder", type=_new_folder, help="the folder to make, such as ../mychip")
    options = parser.parse_args(arguments)
    name, target = options.name, options.folder
    if _is_attribute_of_torch(name):
        parser.error(f"argument name: expected a name that torch does not have, got torch.{name}")

    left_out = ("build", "*.egg-info", "*.so", "__pycache__", ".*", "README*", Path(__file__).name)
    shutil.copytree(_MINIMAL, target, ignore=shutil.ignore_patterns(*left_out))
    (target / "python" / "torch_minimal").rename(target / "python" / f"torch_{name}")
    for file in (*target.rglob("*.py"), *target.rglob("*.cpp"), *target.rglob("*.h")):
        text = re.sub("^(//|#) docs: .*\n", "", file.read_text(), flags=re.MULTILINE)
        file.write_text(text.replace('"minimal"', f'"{name}"').rstrip() + "\n")
    readme = (_MINIMAL / "README.template.md").read_text()
    (target / "README.md").write_text(readme.replace("NAME", name))
    shutil.copy(_MINIMAL.parent / "LICENSE", target)


if __name__ == "__main__":
    main()
