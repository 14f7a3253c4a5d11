"""Builds an extension with kernels for openreg, against the torch_openreg that is installed."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension

from torch_openreg.cpp_extension import OpenRegExtension

setup(
    name="openreg_rows",
    version="0.1",
    packages=["openreg_rows"],
    ext_modules=[OpenRegExtension("openreg_rows._C", ["openreg_rows/rows.cpp"])],
    # The library only registers operators: it is not a Python module.
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
