"""The chapters of the kit: which tests belong to which, and which page shows how it is done."""

from dataclasses import dataclass

__all__ = ["CHAPTERS", "Chapter", "chapter_of"]


@dataclass(frozen=True)
class Chapter:
    """A part of a device's features.

    Attributes:
        name: The chapter's name, which ``--conformance-chapter`` takes.
        page: The page of this project's documentation that shows how openreg does it.
        tests: Modules of tests, or a module and the beginning of names of tests in it.
        note: A note for the report about properties that no test checks, or an empty string.
    """

    name: str
    page: str
    tests: tuple[str, ...]
    note: str = ""


# docs: chapters
CHAPTERS = (
    Chapter(
        "operators",
        "operators",
        (
            "test_ops_forward::test_forward",
            "test_ops_backward",
            "test_ops_inplace",
            "test_ops_out",
            "test_ops_transforms",
            "test_ops_warnings",
            "test_foreach::test_forward",
            "test_foreach::test_inplace",
            "test_foreach::test_backward",
            "test_autograd",
            "test_func",
        ),
    ),
    Chapter("layouts", "operators", ("test_ops_layouts", "test_foreach::test_others")),
    Chapter(
        "repeated calls",
        "fallback",
        (
            "test_ops_forward::test_repetition",
            "test_ops_mutations",
            "test_ops_threads",
            "test_ops_fork",
        ),
    ),
    Chapter("modules", "operators", ("test_modules",)),
    Chapter("optimizers", "operators", ("test_optimizers",)),
    Chapter("guard", "guard", ("test_guard",)),
    Chapter("hooks", "hooks", ("test_hooks",)),
    Chapter("streams", "stream", ("test_streams", "test_stream_programs")),
    Chapter("events", "event", ("test_events",)),
    Chapter("memory", "memory", ("test_memory",)),
    Chapter("graphs", "graphs", ("test_graphs",)),
    Chapter("random numbers", "generator", ("test_random",)),
    Chapter("autocast", "amp", ("test_autocast",)),
    Chapter(
        "serialization",
        "serialization",
        ("test_serialization",),
        "a library may have its own list of device types. safetensors has one, and refuses other "
        "names: load_file(path, device=0) loads to the first accelerator (docs/ecosystem.md)",
    ),
    Chapter("errors", "errors", ("test_errors", "test_op_errors")),
)
# docs: end


def chapter_of(module: str, test: str) -> Chapter:
    """The chapter of a test.

    Args:
        module: The module's name, without the package's.
        test: The test's name.
    """
    for chapter in CHAPTERS:
        for entry in chapter.tests:
            name, _, beginning = entry.partition("::")
            if name == module and test.startswith(beginning):
                return chapter
    raise ValueError(f"chapter_of: expected a test of a chapter, got {module}::{test}")
