"""The version of the package, the supported releases of torch, and the error texts for others.

The build reads this file before torch or this package can be imported; so it imports neither.

Note [Versions]
    The sources are the same for every release of torch in ``TORCH_RELEASES``. A build supports one:
    torch's C++ interface changes with each minor release, and stays as it is within one, whether
    torch is built with CUDA or without. So a build requires ``torch==X.Y.*`` of the release that it
    was compiled against, and notes it in ``lib/TORCH_VERSION``, which is read before the native
    library is loaded.

    In an environment without torch, ``DEFAULT_RELEASE`` is used, with which every change is tested.

    A wheel that is given to others is labeled with the release, such as ``+torch2.15``. What pip
    builds on the user's machine is not, since its version in a package index has no label.

    ``tools/wheel.py`` joins such wheels, one for each release, to a single wheel without a label,
    which an index takes. In it, the libraries that depend on torch are in ``lib/torch2.13`` and so
    on. Those of the installed torch are chosen before anything is loaded.
"""

import os

__all__ = [
    "DEFAULT_RELEASE",
    "TORCH_RELEASES",
    "VersionError",
    "__version__",
    "check_torch",
    "check_torch_of_build",
    "labeled_version",
    "library_folder",
    "release_of",
    "torch_requirement",
]

__version__ = "0.2.0"

# From the oldest to the newest.
TORCH_RELEASES = ("2.13", "2.14", "2.15")
DEFAULT_RELEASE = "2.13"


class VersionError(Exception):
    """Why torch and torch_openreg do not fit, and what to type, as one line for the user."""


def release_of(torch_version: str) -> str:
    """Returns the release of a version of torch: ``"2.15"`` for ``"2.15.0+cpu"``."""
    return ".".join(torch_version.split("+")[0].split(".")[:2])


def torch_requirement(release: str | None = None) -> str:
    """Returns the requirement for torch: the release of a build, or any supported release."""
    if release is not None:
        return f"torch=={release}.*"
    major, minor = TORCH_RELEASES[-1].split(".")
    return f"torch>={TORCH_RELEASES[0]},<{major}.{int(minor) + 1}"


def labeled_version(release: str) -> str:
    """Returns the version of a wheel for others, which contains its release of torch."""
    return f"{__version__}+torch{release}"


def library_folder(package: str, torch_version: str) -> str:
    """Returns the folder of the native libraries for a torch, as described above.

    Args:
        package: The folder of the package.
        torch_version: The version of the torch that is there.

    Raises:
        VersionError: The package has libraries for several releases, and not for this one.
    """
    folder = os.path.join(package, "lib")
    prefix = "torch"
    releases = sorted(
        (name.removeprefix(prefix) for name in _folders_in(folder) if name.startswith(prefix)),
        key=lambda release: [int(number) for number in release.split(".")],
    )
    if not releases:
        return folder
    release = release_of(torch_version)
    if release not in releases:
        raise VersionError(
            f"this wheel of torch_openreg {__version__} has libraries for torch "
            f"{' and '.join(releases)}, but torch {torch_version} is installed. Install one of "
            f"these, or build the package for it from its sources"
        )
    return os.path.join(folder, f"{prefix}{release}")


def _folders_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def check_torch(torch_version: str) -> None:
    """Raises VersionError if the sources do not support this torch."""
    if release_of(torch_version) not in TORCH_RELEASES:
        *first, last = TORCH_RELEASES
        raise VersionError(
            f"torch_openreg {__version__} supports torch {', '.join(first)} and {last}, but torch "
            f"{torch_version} is installed. Install a supported release: pip install "
            f"'{torch_requirement(last)}'"
        )


def check_torch_of_build(torch_version: str, built_for: str, source: str) -> None:
    """Raises VersionError if a build does not support this torch.

    Args:
        torch_version: The version of the torch that is there.
        built_for: The version of torch that the build was compiled against.
        source: What pip installs torch_openreg from: its arguments.
    """
    check_torch(torch_version)
    if release_of(built_for) != release_of(torch_version):
        raise VersionError(
            f"torch_openreg {__version__} was built for torch {release_of(built_for)}, but torch "
            f"{torch_version} is installed. Rebuild it for this torch: pip install --no-deps "
            f"--force-reinstall --no-cache-dir {source}"
        )
