"""Programs in which one wait, record or record_stream is missing, made from correct ones.

A mutant is a correct program, or the corrected form of one with a mistake, in which one call that
orders work or records a use is removed:

- statements that call ``wait_stream``, ``wait_event``, ``record``, ``synchronize`` or
  ``record_stream``, and loops that poll until it is done, are removed;
- ``record_event()`` becomes an event that was never recorded;
- ``x.item()`` as a statement becomes ``x``, and ``x.cpu()`` a copy that does not block;
- a tensor that is ready (``_ready``) becomes one whose values are on their way.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import extras.sanitizer.correct
import extras.sanitizer.hosts
import extras.sanitizer.libraries
import extras.sanitizer.lifetimes
import extras.sanitizer.races  # noqa: F401
import torch
from extras.sanitizer.correct import CORRECT
from extras.sanitizer.programs import MISTAKES, SIZE, Event, device

__all__ = ["FOLLOWED_CORRECT", "FOLLOWED_MISTAKES", "Mutant", "is_followed", "mutants"]

# Without programs of other files: the model covers neither accesses outside of operators, nor
# graphs, nor uninitialized memory.
_FILES = {
    f"extras.sanitizer.{name}" for name in ("correct", "races", "lifetimes", "hosts", "libraries")
}
FOLLOWED_MISTAKES = [one for one in MISTAKES if one.run.__module__ in _FILES]
FOLLOWED_CORRECT = [run for run in CORRECT if run.__module__ in _FILES]

_ORDERING = (
    *("wait_stream", "wait_event", "record", "synchronize", "record_stream", "_after"),
    "wait_until_reached",
)
# Functions that the model's recorder does not support.
_NOT_FOLLOWED = ("backward", "raph", "Thread", "Gate")


@dataclass(eq=False)
class Mutant:
    """A correct program without one of its calls.

    Attributes:
        program: The function's name.
        call: The removed source text; with a number if it occurs several times.
        run: The program.
        filename: Where the program is.
        is_followed: Whether the recorder can follow it.
    """

    program: str
    call: str
    run: Callable[[], None]
    filename: str
    is_followed: bool

    @property
    def name(self) -> tuple[str, str]:
        return (self.program, self.call)


def _not_ready(*sizes: int, where: torch.device = device) -> torch.Tensor:
    return torch.zeros(sizes or (SIZE,), device=where)


class _Mutation(ast.NodeTransformer):
    """Changes the call with a number; counts them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.call = ""

    def _is_chosen(self, node: ast.AST) -> bool:
        self.count += 1
        if self.count - 1 == self.number:
            self.call = ast.unparse(node).split("\n")[0]
        return self.count - 1 == self.number

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        name = _called(node.value)
        if name in _ORDERING and self._is_chosen(node):
            return ast.Pass()
        if name == "item" and self._is_chosen(node):
            assert isinstance(node.value, ast.Call)
            assert isinstance(node.value.func, ast.Attribute)
            return ast.Expr(node.value.func.value)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return ast.Pass() if self._is_chosen(node) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        replacements = {
            "record_event": lambda: ast.parse("Event()", mode="eval").body,
            "_ready": lambda: ast.Call(
                ast.Name("_not_ready", ast.Load()), node.args, node.keywords
            ),
            "cpu": lambda: ast.Call(
                ast.Attribute(node.func.value, "to", ast.Load()),
                [ast.Constant("cpu")],
                [ast.keyword("non_blocking", ast.Constant(True))],
            ),
        }
        replacement = replacements.get(_called(node) or "")
        if replacement and self._is_chosen(node):
            return replacement()
        return self.generic_visit(node)


def _called(node: ast.AST) -> str | None:
    """The name of the function or method that an expression calls."""
    if not isinstance(node, ast.Call):
        return None
    return getattr(node.func, "attr", getattr(node.func, "id", None))


def is_followed(program: Callable[..., None]) -> bool:
    """Whether the recorder can follow a program."""
    source = inspect.getsource(program)
    return not any(text in source for text in _NOT_FOLLOWED)


def mutants() -> list[Mutant]:
    """Returns the mutants of all programs."""
    programs: list[tuple[Any, tuple[bool, ...]]] = [(one.run, (True,)) for one in FOLLOWED_MISTAKES]
    programs += [(run, ()) for run in FOLLOWED_CORRECT]
    return [mutant for run, arguments in programs for mutant in _mutants_of(run, arguments)]


def _mutants_of(run: Callable[..., None], arguments: tuple[bool, ...]) -> list[Mutant]:
    lines, first = inspect.getsourcelines(run)
    source = textwrap.dedent("".join(lines))
    filename = inspect.getsourcefile(run) or ""
    found: list[Mutant] = []
    while True:
        tree = ast.parse(source)
        mutation = _Mutation(len(found))
        tree = mutation.visit(tree)
        if mutation.count <= len(found):
            return found
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list.clear()
        ast.fix_missing_locations(ast.increment_lineno(tree, first - 1))
        names = dict(vars(sys.modules[run.__module__]), _not_ready=_not_ready, Event=Event)
        exec(compile(tree, filename, "exec"), names)
        same = sum(one.call.split("  #")[0] == mutation.call for one in found)
        found.append(
            Mutant(
                run.__name__,
                f"{mutation.call}  # {same + 1}" if same else mutation.call,
                lambda function=names[run.__name__]: function(*arguments),
                filename,
                is_followed(run),
            )
        )
