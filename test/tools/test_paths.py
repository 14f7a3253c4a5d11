"""A test file runs by its path, from any folder, without a PYTHONPATH."""

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.067)

_TEST = Path(__file__).resolve().parents[1]
_FILES = sorted(_TEST.rglob("test_*.py"))
_FOLDERS = sorted({file.parent for file in _FILES})
_SHARED = {path.stem for path in _TEST.iterdir() if path.suffix == ".py" or path.is_dir()}


def _imports(file: Path) -> list[str]:
    """The modules that a file imports at its beginning, without those of its folder."""
    names = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return [
        name for name in names if not (file.parent / f"{name}.py").is_file() or name == "common"
    ]


class TestPaths(TestCase):
    @parametrize(
        "folder", [subtest(one, name="_".join(one.relative_to(_TEST).parts)) for one in _FOLDERS]
    )
    def test_file_runs_by_its_path(self, folder):
        file = max(
            (one for one in _FILES if one.parent == folder), key=lambda one: len(_imports(one))
        )
        left_out = ("PYTHON", "PYTEST_", "OPENREG_")
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(left_out) and name != "CI"
        }
        if folder.name == "cuda":
            environment |= {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"}
        with tempfile.TemporaryDirectory() as elsewhere:
            run = subprocess.run(
                [sys.executable, str(file), "-k", "no_test_has_this_name"],
                cwd=elsewhere,
                env=environment,
                capture_output=True,
                text=True,
            )
        self.assertRegex(run.stdout + run.stderr, r"Ran 0 tests|\d+ deselected|no tests ran")

    def test_modules_that_folders_share_are_imported_after_common(self):
        # It adds the folder that they are in.
        count = 0
        for file in _FILES:
            shared = [name for name in _imports(file) if name.partition(".")[0] in _SHARED]
            count += len(shared)
            self.assertIn(shared[:1], ([], ["common"]), file)
        self.assertGreater(count, 150)


instantiate_parametrized_tests(TestPaths)

if __name__ == "__main__":
    run_tests()
