"""Runs the package with any release of torch that it serves: ``nox``, or ``nox -s torch-2.15``.

Each session installs torch and what the package index has of it, makes a copy of the working tree,
and installs that as a user does. Then it runs the demo program, the tests of interfaces, and a
sample of the sweeps. What follows ``--`` goes to ``test/run.py`` instead of this choice:
``nox -s torch-2.14 -- test/core/test_stream.py``; a lone ``all`` is for all tests.
"""

import runpy
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
RELEASES = runpy.run_path(str(ROOT / "torch_openreg" / "_version.py"))["TORCH_RELEASES"]

# What depends on torch's interfaces, and results of each operator. A few minutes.
CHOICE = (
    "aten/test_codegen.py",
    "contract/test_facts.py",
    "contract/test_stubs.py",
    "contract/test_symbols.py",
    "core/test_accelerator.py",
    "core/test_device.py",
    "core/test_errors.py",
    "core/test_event.py",
    "core/test_guard.py",
    "core/test_guard_cpp.py",
    "core/test_hooks.py",
    "core/test_random.py",
    "core/test_stream.py",
    "extras/graph/test_graph.py",
    "extras/profiler/test_profiler.py",
    "generic/test_func.py",
    "generic/test_ops_backward.py",
    "generic/test_ops_forward.py",
    "memory/test_memory_pools.py",
    "memory/test_memory_snapshot.py",
    "python/test_comm.py",
    "python/test_versions.py",
)

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True


def copy_tree(session: nox.Session) -> Path:
    """Copies the working tree, with its links.

    A file that has not changed keeps its time, so it is not built.
    """
    copy = Path(session.create_tmp()).resolve() / "tree"
    listed = session.run(
        *("git", "-C", str(ROOT), "ls-files", "-z"),
        *("--cached", "--others", "--exclude-standard", "--deduplicate"),
        external=True,
        silent=True,
    )
    names = [name for name in str(listed).split("\0") if (ROOT / name).is_file()]
    for name in names:
        source, target = ROOT / name, copy / name
        is_same_kind = target.is_symlink() == source.is_symlink()
        if not is_same_kind or not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy(source, target, follow_symlinks=False)
    return copy


def chosen_of_cuda() -> list[str]:
    """Returns the files for device type cuda: its own, and two sweeps."""
    own = sorted((ROOT / "test" / "cuda").glob("test_*.py"))
    sweeps = ["test/generic/test_ops_backward.py", "test/generic/test_ops_forward.py"]
    return [*(str(path.relative_to(ROOT)) for path in own), *sweeps]


def run_release(session: nox.Session, release: str) -> None:
    """Builds for a release of torch; runs the demo program and a choice of the tests."""
    session.install(f"torch=={release}.*")
    session.install("-r", str(ROOT / "requirements-test.txt"))
    session.chdir(copy_tree(session))
    session.install("-e", ".")
    session.run("torch-openreg", "--epochs", "2")
    chosen = [f"test/{name}" for name in CHOICE]
    if session.posargs:
        chosen = ["--all"] if session.posargs == ["all"] else list(session.posargs)
    session.run("python", "test/run.py", *chosen)
    if not session.posargs:
        # The index may have a build with CUDA of this release, which this takes over.
        session.run("python", "test/run.py", "--cuda", *chosen_of_cuda())
        session.run("pytest", "--openreg-cuda", "examples/cuda_project")


def add_session(release: str) -> None:
    """Makes the session ``torch-RELEASE``."""

    @nox.session(name=f"torch-{release}")  # type: ignore[untyped-decorator,unused-ignore]
    def session_of_release(session: nox.Session) -> None:
        run_release(session, release)


for one in RELEASES:
    add_session(one)
