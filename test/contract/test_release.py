"""A release: its version, its changelog, and what a package index shows of it."""

import datetime
import io
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unittest
from pathlib import Path

from source_tree import ROOT, relative, repository_files
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_openreg import _version
from torch_openreg._version import __version__

try:
    import yaml
except ImportError:
    yaml = None
try:
    from trove_classifiers import classifiers as known_classifiers
except ImportError:
    known_classifiers = None

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_RELEASE = runpy.run_path(str(ROOT / "tools" / "release.py"), run_name="release")
_WHEEL = runpy.run_path(str(ROOT / "tools" / "wheel.py"), run_name="wheel")
_CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
_TAG = f"v{__version__}"
_DATED = f"## [{__version__}] - 2030-01-31\n\n- A change.\n\n## [0.0.1] - 2029-12-31\n\n- Old.\n"
_RIGHT = f"# Changelog\n\n## [Unreleased]\n\nNo changes.\n\n{_DATED}"


def numbers(version: str) -> list[int]:
    return [int(one) for one in version.split(".")]


class TestChangelog(TestCase):
    def test_changes_after_the_release_have_a_section(self):
        self.assertEqual(_RELEASE["sections_of"](_CHANGELOG)[0].version, "Unreleased")

    def test_released_versions_have_dates_and_are_in_order(self):
        _, newest, *older = _RELEASE["sections_of"](_CHANGELOG)
        self.assertEqual(newest.version, __version__)
        datetime.date.fromisoformat(newest.date)
        versions = [numbers(one.version) for one in (newest, *older)]
        self.assertEqual(versions, sorted(versions, reverse=True))
        for one in older:
            self.assertRegex(one.date, r"^(\d{4}-\d\d-\d\d|not published)$")
            self.assertTrue(one.text)

    def test_text_of_a_release_is_its_section(self):
        self.assertEqual(_RELEASE["notes_of"](_TAG, _RIGHT), "- A change.")

    @parametrize(
        "tag,changelog,text",
        [
            subtest(("v0.0.1", _RIGHT, f"expected the tag {_TAG}, .* got v0.0.1$"), name="tag"),
            subtest((__version__, _RIGHT, f"expected the tag {_TAG}"), name="tag_without_a_v"),
            subtest((_TAG, _DATED, rf"Unreleased.* got \[{__version__}\]"), name="no_unreleased"),
            subtest(
                (_TAG, _RIGHT.replace("No changes.", "- New."), "got .Unreleased.: '- New.'"),
                name="changes_without_a_version",
            ),
            subtest(
                (_TAG, _RIGHT.replace("2030-01-31", "soon"), r"YYYY-MM-DD' next, got .* - soon$"),
                name="no_date",
            ),
            subtest(
                (_TAG, _RIGHT.replace(f"[{__version__}]", "[9.0.0]"), r"got \[9\.0\.0\]"),
                name="other_version",
            ),
            subtest((_TAG, "# Changelog\n", r"got \[nothing\]"), name="no_sections"),
        ],
    )
    def test_what_is_no_release_is_refused(self, tag, changelog, text):
        with self.assertRaisesRegex(_RELEASE["ReleaseError"], text):
            _RELEASE["notes_of"](tag, changelog)

    def test_program_prints_the_tag_and_refuses_another(self):
        def run(*arguments):
            command = [sys.executable, str(ROOT / "tools" / "release.py"), *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        self.assertEqual(run().stdout, f"{_TAG}\n")
        refused = run("v0.0.1")
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr, r"^tools/release\.py: expected the tag .*\n$")


@unittest.skipIf(repository_files() is None, "needs a clone and git")
class TestNumber(TestCase):
    """The version is declared once; what quotes it agrees."""

    def test_pages_have_the_version(self):
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        quoted = [
            (page.name, version)
            for page in pages
            for version in re.findall(r"torch_openreg(?:[ -]|==)(\d+\.\d+\.\d+)", page.read_text())
        ]
        self.assertGreater(len(quoted), 2)
        self.assertEqual([one for one in quoted if one[1] != __version__], [])

    def test_messages_in_the_page_of_versions_are_those_of_the_program(self):
        page = (ROOT / "docs" / "versions.md").read_text()
        for arguments in (("2.12.1",), ("2.15.0", "2.13.0", "-e ~/torch_openreg")):
            check = _version.check_torch_of_build if arguments[1:] else _version.check_torch
            with self.assertRaises(_version.VersionError) as raised:
                check(*arguments)
            self.assertIn(f"{raised.exception}\n", page)

    def test_no_other_file_has_it(self):
        pattern = re.compile(rf"torch_openreg\W{{0,4}}{re.escape(__version__)}")
        with_number = {
            relative(path)
            for path in repository_files()
            if path.is_file() and pattern.search(path.read_text(errors="replace"))
        }
        self.assertEqual(with_number, {"docs/versions.md"})


class TestMetadata(TestCase):
    """What a package index shows."""

    URL = "https://git.org/us/torch_openreg"
    FILES = f"{URL}/blob/{_TAG}"

    def test_authors_license_and_description_are_there(self):
        (author,) = _PROJECT["authors"]
        self.assertIn(author["name"].lower(), (ROOT / "LICENSE").read_text().lower())
        self.assertEqual(_PROJECT["license"], "BSD-3-Clause")
        self.assertEqual(_PROJECT["readme"], "README.md")
        self.assertLess(len(_PROJECT["description"]), 100)

    @unittest.skipIf(known_classifiers is None, "needs the package trove-classifiers")
    def test_an_index_has_the_classifiers(self):
        self.assertEqual(set(_PROJECT["classifiers"]) - known_classifiers, set())

    def test_classifiers_are_sorted_and_have_pytest(self):
        self.assertIn("Framework :: Pytest", _PROJECT["classifiers"])
        self.assertEqual(_PROJECT["classifiers"], sorted(set(_PROJECT["classifiers"])))

    @unittest.skipIf(yaml is None, "needs the package pyyaml")
    def test_pythons_that_wheels_are_for_are_in_the_classifiers_and_on_the_pages(self):
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
        pythons = workflow["jobs"]["wheel"]["strategy"]["matrix"]["python"]
        prefix = "Programming Language :: Python :: 3."
        listed = [one.rpartition(" ")[2] for one in _PROJECT["classifiers"] if prefix in one]
        self.assertEqual(listed, pythons)
        for page in ("README.md", "docs/start.md", "docs/versions.md"):
            found = re.findall(r"Python (3\.\d+) to (3\.\d+)", (ROOT / page).read_text())
            self.assertEqual(set(found), {(pythons[0], pythons[-1])}, page)

    def test_every_link_of_the_readme_leads_to_a_file_at_the_tag(self):
        readme = (ROOT / "README.md").read_text()
        made = _WHEEL["_with_links"](f"Version: 1\n\n{readme}", self.URL).partition("\n\n")[2]
        links = re.findall(r"\]\(([^)]+)\)", made)
        self.assertGreater(len(links), 20)
        self.assertEqual(len(links), len(re.findall(r"\]\(", readme)))
        local = re.findall(r"\]\((?!https?:|#)([^)#]+)", readme)
        self.assertEqual([one for one in local if not (ROOT / one).exists()], [])
        headings = re.findall(r"(?m)^#+ (.*)$", readme)
        anchors = {f"#{one.lower().replace(' ', '-')}" for one in headings}
        for link in links:
            if link.startswith("#"):
                self.assertIn(link, anchors)
            else:
                self.assertRegex(link, rf"^({re.escape(self.FILES)}/|https?://)")
        # No other form of a link, and no picture.
        self.assertNotRegex(readme, r"(?m)^\[[^\]]+\]: |<a |<img ")

    def test_source_distribution_gets_the_address_and_keeps_its_files(self):
        information = "Metadata-Version: 2.4\nVersion: 1\n\n[a](docs/a.md)\n"
        files = {"p-1/PKG-INFO": information, "p-1/p.egg-info/PKG-INFO": information}
        files |= {"p-1/README.md": "[a](docs/a.md)\n", "p-1/run": "#!/bin/sh\n"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "p-1.tar.gz")
            with tarfile.open(path, "w:gz") as archive:
                for name, text in files.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(text), 0o755 if name == "p-1/run" else 0o644
                    archive.addfile(member, io.BytesIO(text.encode()))
            command = [sys.executable, str(ROOT / "tools" / "wheel.py"), folder]
            subprocess.run([*command, "--sdist", str(path), "--url", self.URL], check=True)
            with tarfile.open(path) as archive:
                made = {one.name: archive.extractfile(one).read().decode() for one in archive}
                self.assertEqual(archive.getmember("p-1/run").mode, 0o755)
        self.assertEqual(set(made), set(files))
        for name, text in made.items():
            if name.endswith("PKG-INFO"):
                self.assertIn(f"\n\n[a]({self.FILES}/docs/a.md)\n", text)
                self.assertIn(f"\nProject-URL: Repository, {self.URL}\n", text)
            else:
                self.assertEqual(text, files[name])


instantiate_parametrized_tests(TestChangelog)

if __name__ == "__main__":
    run_tests()
