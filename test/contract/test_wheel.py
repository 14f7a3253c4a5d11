"""tools/wheel.py reports a wheel's defects."""

import runpy
import tempfile
import zipfile
from pathlib import Path

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from source_tree import ROOT

_TOOL = runpy.run_path(str(ROOT / "tools" / "wheel.py"), run_name="wheel")

_NAME = "torch_openreg-0.1.0+torch2.14-cp311-cp311-manylinux_2_28_x86_64.whl"
_FOLDER = "torch_openreg-0.1.0+torch2.14.dist-info"
_METADATA = "Metadata-Version: 2.4\nVersion: 0.1.0+torch2.14\nRequires-Dist: torch==2.14.*\n"
_FILES = dict.fromkeys(_TOOL["_NEEDED"], "") | {
    "torch_openreg/lib/TORCH_VERSION": "2.14.1+cpu\n",
    "torch_openreg/lib/libopenreg.so": "",
    "torch_openreg/lib/libtorch_openreg.so": "",
    "torch_openreg/_C.cpython-311-x86_64-linux-gnu.so": "",
    f"{_FOLDER}/METADATA": _METADATA,
    f"{_FOLDER}/licenses/LICENSE": "",
}


class TestCheck(OpenRegTestCase):
    def check(self, files, name=_NAME):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            with zipfile.ZipFile(path, "w") as wheel:
                for one, text in files.items():
                    if text is not None:
                        wheel.writestr(one, text)
            _TOOL["check"](path)

    def test_right_wheel_passes(self):
        self.check(_FILES)

    @parametrize(
        "changes,text",
        [
            subtest(
                ({"torch_openreg/py.typed": None}, "expected it to contain torch_openreg/py.typed"),
                name="missing_file",
            ),
            subtest(
                (
                    {"torch_openreg/include/torch_openreg/core/Stream.h": None},
                    "expected it to contain torch_openreg/include/torch_openreg/core/Stream.h",
                ),
                name="missing_header",
            ),
            subtest(
                (
                    {"torch_openreg/demo/data/README.md": None},
                    "expected it to contain torch_openreg/demo/data/README.md",
                ),
                name="missing_license_of_images",
            ),
            subtest(
                ({f"{_FOLDER}/licenses/LICENSE": None}, "expected it to contain a license"),
                name="missing_license",
            ),
            subtest(
                (
                    {"torch_openreg.libs/libtorch_cpu-12.so": ""},
                    "got torch_openreg.libs/libtorch_cpu",
                ),
                name="library_of_torch",
            ),
            subtest(
                ({"torch_openreg/lib/libgomp.so.1": ""}, "got torch_openreg/lib/libgomp.so.1"),
                name="library_of_the_system",
            ),
            subtest(
                (
                    {f"{_FOLDER}/METADATA": _METADATA.replace("2.14.*", "2.13.*")},
                    r"to require torch==2\.14\.\*, got \['torch==2\.13\.\*'\]",
                ),
                name="other_requirement",
            ),
            subtest(
                (
                    {f"{_FOLDER}/METADATA": _METADATA.replace("+torch2.14", "")},
                    r"ends with \+torch2\.14, got 0\.1\.0",
                ),
                name="no_label",
            ),
            subtest(
                ({"torch_openreg/large": "x" * (11 << 20)}, "expected at most 10485760 bytes"),
                name="size",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, changes, text):
        with self.assertRaisesRegex(_TOOL["WheelError"], text):
            self.check(_FILES | changes)

    def test_tag_of_this_machine_alone_is_refused(self):
        with self.assertRaisesRegex(_TOOL["WheelError"], "expected a tag manylinux_X_Y"):
            self.check(_FILES, _NAME.replace("manylinux_2_28", "linux"))


instantiate_parametrized_tests(TestCheck)

if __name__ == "__main__":
    run_tests()
