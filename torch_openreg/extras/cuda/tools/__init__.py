"""Programs and modules that CUDA's users call beside torch: ``nvidia-smi`` and ``pynvml``.

They are files of a folder that is not on the search path by default. :func:`offer` adds it, for the
programs that ``python -m torch_openreg.cuda`` and ``pytest --openreg-cuda`` run. None of them
imports torch.
"""

import importlib.util
import os
import sys

__all__ = ["offer"]

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def offer() -> None:
    """Puts ``nvidia-smi`` on the path of this process and of those that it starts.

    Has Python find ``pynvml``, too, unless one is installed.
    """
    _add("PATH", os.path.join(_FOLDER, "bin"), is_first=True)
    if importlib.util.find_spec("pynvml") is None:
        _add("PYTHONPATH", _FOLDER, is_first=False)
        sys.path.append(_FOLDER)


def _add(variable: str, folder: str, is_first: bool) -> None:
    folders = [one for one in os.environ.get(variable, "").split(os.pathsep) if one]
    if folder not in folders:
        folders.insert(0 if is_first else len(folders), folder)
        os.environ[variable] = os.pathsep.join(folders)
