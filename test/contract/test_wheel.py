"""tools/wheel.py reports a wheel's defects."""

import re
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

from torch_openreg._version import VersionError, __version__, library_folder

_TOOL = runpy.run_path(str(ROOT / "tools" / "wheel.py"), run_name="wheel")

_LABELED = f"{__version__}+torch2.14"
_NAME = f"torch_openreg-{_LABELED}-cp311-cp311-manylinux_2_28_x86_64.whl"
_FOLDER = f"torch_openreg-{_LABELED}.dist-info"
_METADATA = f"Metadata-Version: 2.4\nVersion: {_LABELED}\nRequires-Dist: torch==2.14.*\n"
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
                    f"expected version {re.escape(_LABELED)}, got {__version__}",
                ),
                name="no_label",
            ),
            subtest(
                ({"torch_openreg/large": "x" * 14_000_001}, "expected at most 14000000 bytes"),
                name="size",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, changes, text):
        with self.assertRaisesRegex(_TOOL["WheelError"], text):
            self.check(_FILES | changes)

    def test_bindings_of_another_python_are_refused(self):
        with self.assertRaisesRegex(_TOOL["WheelError"], "bindings for cp312, got some for cp311"):
            self.check(_FILES, _NAME.replace("cp311", "cp312"))

    def test_bindings_of_a_second_python_are_refused(self):
        other = {"torch_openreg/_C.cpython-312-x86_64-linux-gnu.so": ""}
        with self.assertRaisesRegex(_TOOL["WheelError"], "bindings for cp311, got some for cp312"):
            self.check(_FILES | other)

    def test_tag_of_this_machine_alone_is_refused(self):
        with self.assertRaisesRegex(_TOOL["WheelError"], "expected a tag manylinux_X_Y"):
            self.check(_FILES, _NAME.replace("manylinux_2_28", "linux"))


_JOINED_NAME = f"torch_openreg-{__version__}-cp311-cp311-manylinux_2_28_x86_64.whl"
_JOINED_METADATA = (
    f"Metadata-Version: 2.4\nVersion: {__version__}\nRequires-Dist: torch<2.16,>=2.13\n"
)
_NATIVE = ("TORCH_VERSION", "libtorch_openreg.so", "_C.cpython-311-x86_64-linux-gnu.so")
_JOINED = (
    {name: text for name, text in _FILES.items() if Path(name).name not in _NATIVE}
    | {f"{_FOLDER}/METADATA": _JOINED_METADATA}
    | {
        f"torch_openreg/lib/torch{release}/{name}": f"{release}.1" if "." not in name else ""
        for release in ("2.13", "2.15")
        for name in _NATIVE
    }
)


class TestJoinedWheel(OpenRegTestCase):
    """One wheel for several releases of torch."""

    check = TestCheck.check

    def test_right_wheel_passes(self):
        self.check(_JOINED, _JOINED_NAME)

    @parametrize(
        "changes,text",
        [
            subtest(
                ({"torch_openreg/lib/torch2.15/libtorch_openreg.so": None}, "of torch 2.15"),
                name="no_backend",
            ),
            subtest(
                (
                    {"torch_openreg/lib/torch2.15/_C.cpython-311-x86_64-linux-gnu.so": None},
                    "expected the bindings, the backend and .*torch2.15/TORCH_VERSION",
                ),
                name="no_bindings",
            ),
            subtest(
                (
                    {"torch_openreg/lib/torch2.15/TORCH_VERSION": "2.14.0"},
                    "expected libraries for torch 2.15 there, got 2.14.0",
                ),
                name="other_release",
            ),
            subtest(
                ({"torch_openreg/lib/libopenreg.so": None}, "to contain .*libopenreg.so"),
                name="no_runtime",
            ),
            subtest(
                ({f"{_FOLDER}/METADATA": _METADATA}, f"expected version {__version__}, got"),
                name="label",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, changes, text):
        with self.assertRaisesRegex(_TOOL["WheelError"], text):
            self.check(_JOINED | changes, _JOINED_NAME)


class TestMetadata(OpenRegTestCase):
    def test_links_of_the_description_become_absolute(self):
        text = "Version: 1.2.3\n\n[a](docs/a.md), [b](#b), [c](https://c.org/x), [`d/`](d)\n"
        files = f"https://git.org/us/blob/v{__version__}"
        self.assertEqual(
            _TOOL["_with_links"](text, "https://git.org/us"),
            "Version: 1.2.3\n"
            "Project-URL: Repository, https://git.org/us\n"
            f"Project-URL: Documentation, {files}/docs/index.md\n"
            "Project-URL: Issues, https://git.org/us/issues\n"
            f"Project-URL: Changelog, {files}/CHANGELOG.md\n"
            f"\n[a]({files}/docs/a.md), [b](#b), [c](https://c.org/x), [`d/`]({files}/d)\n",
        )


class TestChoice(OpenRegTestCase):
    """The package's folder for the installed torch."""

    def folder_for(self, torch_version, folders):
        with tempfile.TemporaryDirectory() as package:
            for folder in folders:
                Path(package, "lib", folder).mkdir(parents=True)
            return Path(library_folder(package, torch_version)).relative_to(package)

    def test_libraries_of_one_release(self):
        self.assertEqual(self.folder_for("2.14.0", ["other"]), Path("lib"))

    def test_libraries_of_several_releases(self):
        folders = ["torch2.13", "torch2.15"]
        self.assertEqual(self.folder_for("2.15.1+cu132", folders), Path("lib", "torch2.15"))
        with self.assertRaisesRegex(VersionError, "for torch 2.13 and 2.15, but torch 2.14.0 is"):
            self.folder_for("2.14.0", folders)


instantiate_parametrized_tests(TestCheck)
instantiate_parametrized_tests(TestJoinedWheel)

if __name__ == "__main__":
    run_tests()
