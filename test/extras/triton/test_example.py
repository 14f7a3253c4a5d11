"""The example project with a kernel of Triton passes its tests, and its mistakes are found."""

import os
import subprocess
import sys
from pathlib import Path

from common import run_tests
from extras.triton.kernels import TritonTestCase, cache_folder, needs_triton

PROJECT = Path(__file__).resolve().parents[3] / "examples" / "triton_project"


@needs_triton
class TestExample(TritonTestCase):
    def run_python(self, *arguments, **settings):
        settings |= {"TRITON_CACHE_DIR": cache_folder()}
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env=environment | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def test_its_tests_pass_under_the_sanitizer(self):
        options = ("--openreg-cuda", "--openreg-sanitizer", "-p", "no:cacheprovider", "-q")
        result = self.run_python("-m", "pytest", *options, "test_sums.py")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("4 passed", result.stdout)

    def test_access_behind_the_matrix(self):
        result = self.run_python("-m", "torch_openreg.cuda", "mistakes.py", "mask")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("of without_mask reads 4 bytes 0 bytes behind the end", result.stderr)

    def test_race_between_programs(self):
        settings = {"OPENREG_SANITIZER": "1"}
        result = self.run_python("-m", "torch_openreg.cuda", "mistakes.py", "atomics", **settings)
        self.assertEqual(result.returncode, 77, result.stderr)
        self.assertIn("program (1, 0, 0) of without_atomics", result.stderr)
        self.assertIn("tl.atomic_add", result.stderr)


if __name__ == "__main__":
    run_tests()
