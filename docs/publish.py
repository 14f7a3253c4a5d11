"""Adds the built pages to the published ones: ``python docs/publish.py SITE REF``.

SITE is a folder with a folder for each version, such as a checkout of the branch ``gh-pages``. REF
is the branch ``main``, whose pages are ``latest``, or a tag such as ``v0.2.1``, whose pages are
``v0.2``. ``versions.json`` lists the versions for ``_static/versions.js``, and ``index.html`` leads
to the newest release.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

__all__ = ["folder_of", "main", "publish"]

_BUILT = Path(__file__).resolve().parent / "_build"
_LATEST = "latest"
_INDEX = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>torch_openreg</title>
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">torch_openreg</a>
</html>
"""


def folder_of(ref: str) -> str:
    """Returns the folder for the pages of a branch or a tag.

    Raises:
        ValueError: It is neither ``main`` nor a tag of a release.
    """
    if ref == "main":
        return _LATEST
    tag = re.fullmatch(r"(v\d+\.\d+)\.\d+", ref)
    if tag is None:
        raise ValueError(f"expected main or a tag vX.Y.Z, got {ref!r}")
    return tag[1]


def publish(built: Path, site: Path, ref: str) -> None:
    """Replaces the pages of a version, and lists all versions.

    Args:
        built: What Sphinx has built.
        site: The folder of the published pages.
        ref: The branch or the tag that they are built from.
    """
    if not (built / "index.html").is_file():
        raise ValueError(f"expected pages in {built}: run sphinx-build docs docs/_build")
    target = site / folder_of(ref)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo*"))
    releases = sorted(
        (one.name for one in site.glob("v*") if re.fullmatch(r"v\d+\.\d+", one.name)),
        key=lambda name: [int(number) for number in name[1:].split(".")],
        reverse=True,
    )
    newest = releases[0] if releases else None
    latest = [_LATEST] if (site / _LATEST).is_dir() else []
    versions = {"newest": newest, "versions": [*latest, *releases]}
    (site / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    (site / "index.html").write_text(_INDEX.format(newest or _LATEST), encoding="utf-8")
    # GitHub leaves out folders with an underscore, such as _static, without it.
    (site / ".nojekyll").touch()


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python docs/publish.py", description=__doc__)
    parser.add_argument("site", type=Path, metavar="SITE", help="the folder of all versions")
    parser.add_argument("ref", metavar="REF", help="main, or the tag of a release")
    options = parser.parse_args()
    try:
        publish(_BUILT, options.site, options.ref)
    except ValueError as error:
        print(f"docs/publish.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
