"""What ``import torch`` calls: the entry point of the group ``torch.backends``.

It is a module outside of the package for two reasons. In an editable installation the package is in
the source tree, and a copy of this module is beside torch: ``import torch``, which fails if an
entry point fails, still works if the tree was removed. And importlib imports the module of an entry
point before it calls anything; see Note [Imports by several threads] in torch_openreg/_loading.py.
"""

import sys
from importlib import import_module
from types import ModuleType

__all__ = ["autoload"]


# docs: autoload
def autoload() -> None:
    """Lets the package register the device, or warns why it cannot be imported. Never raises."""
    try:
        package = _import_package()
    except Exception as error:
        _warn(error)
    else:
        package._autoload()


# docs: end


def _import_package() -> ModuleType:
    try:
        return import_module("torch_openreg")
    except RuntimeError:
        # importlib's deadlock error: another thread loads the package, and waits for this one.
        if "torch_openreg" not in sys.modules:
            raise
        return sys.modules["torch_openreg"]


def _warn(error: Exception) -> None:
    import os
    import warnings

    for name in [name for name in sys.modules if name.split(".")[0] == "torch_openreg"]:
        del sys.modules[name]
    reason = f"{type(error).__name__}: {error}"
    tree = _source_tree()
    if tree is not None and not os.path.isdir(os.path.join(tree, "torch_openreg")):
        reason = (
            f"it was installed from {tree} with pip install -e, and is no longer there. Install it "
            "from where it is now, pip install -e FOLDER, or remove it: pip uninstall torch_openreg"
        )
    text = f"The device 'openreg' is not available: {reason}"
    try:
        warnings.warn(text, stacklevel=3)
    except UserWarning:  # -W error; import torch must not fail
        print(text, file=sys.stderr)


def _source_tree() -> str | None:
    """Returns the folder that an editable installation was made from, if this is one."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        text = metadata.distribution("torch_openreg").read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return unquote(urlsplit(origin["url"]).path)
