"""Which of the samples and their variants a sweep runs, and which of its tests by default."""

from openreg_target import TARGET

# isort: split
import importlib
import inspect
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from common import OpenRegTestCase, run_tests
from known_gaps import GAPS, names_of_gaps
from sample import share_of
from torch.testing._internal import common_methods_invocations as operators
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.hop_db import hop_db

from torch_openreg.conformance import sweep
from torch_openreg.conformance.cases import ConformanceTestCase
from torch_openreg.conformance.sweep import Counts, crossed, sampled

__all__ = ["TARGET"]

_CONFTEST = runpy.run_path(str(Path(__file__).resolve().parents[1] / "conftest.py"))
_COUNTS = Counts(usual=2, thorough=8, others=1)


def _variants_of(sample: int) -> list[tuple[int, int]]:
    return [(sample, number) for number in range(8)]


def _counts(is_full: bool, counts: Counts = _COUNTS) -> list[int]:
    """How many variants each sample has, of those that have any."""
    with mock.patch.object(sweep, "IS_FULL", is_full):
        pairs = list(crossed("name", range(20), 3, _variants_of, counts))
        assert pairs == list(crossed("name", range(20), 3, _variants_of, counts))
    assert all(variant[0] == sample for sample, variant in pairs)
    assert len(set(pairs)) == len(pairs)
    samples = [sample for sample, _ in pairs]
    return [samples.count(sample) for sample in sorted(set(samples))]


class TestSampling(OpenRegTestCase):
    def test_usual_run_has_some_samples_with_some_variants(self):
        self.assertEqual(_counts(is_full=False), [2, 2, 2])

    def test_full_run_has_all_samples_and_some_with_all_variants(self):
        self.assertEqual(sorted(_counts(is_full=True)), [1] * 17 + [8] * 3)

    def test_limit_above_the_number_of_variants_is_all(self):
        limits = Counts(usual=100, thorough=100, others=100)
        self.assertEqual(_counts(is_full=True, counts=limits), [8] * 20)

    def test_others_take_different_variants(self):
        with mock.patch.object(sweep, "IS_FULL", True):
            pairs = crossed("name", range(20), 0, _variants_of, _COUNTS)
            self.assertGreater(len({number for _, (_, number) in pairs}), 4)

    def test_full_run_has_all_items(self):
        for is_full, count in ((False, 5), (True, 20)):
            with mock.patch.object(sweep, "IS_FULL", is_full):
                self.assertEqual(len(sampled("name", range(20), 5)), count)


def _items_of(module: str) -> list[Any]:
    """The tests of a module of the kit, as pytest has them."""
    classes = inspect.getmembers(
        importlib.import_module(f"torch_openreg.conformance.{module}"), inspect.isclass
    )
    return [
        SimpleNamespace(
            nodeid=f"test/generic/{module}.py::{class_name}::{name}",
            name=name,
            function=function,
            get_closest_marker=lambda _: None,
        )
        for class_name, one in classes
        if issubclass(one, ConformanceTestCase)
        for name, function in inspect.getmembers(one, inspect.isfunction)
        if name.startswith("test_")
    ]


def _names(items: list[Any]) -> list[str]:
    return [item.nodeid for item in items]


class TestSample(OpenRegTestCase):
    """Of the sweeps of which the default run has a sample."""

    def sweeps(self):
        folder = Path(sweep.__file__).parent
        for file in sorted(Path(__file__).parent.glob("test_*.py")):
            share = share_of(file)
            if share < 1 and (folder / file.name).exists():
                items = _items_of(file.stem)
                self.assertGreater(len(items), 0, file)
                yield file.name, items, _CONFTEST["sample_of"](items, share)

    def test_sample_has_a_part_of_each_sweep(self):
        count = 0
        for file, items, by_default in self.sweeps():
            count += 1
            self.assertLess({*_names(by_default)}, {*_names(items)}, file)
        self.assertGreater(count, 5)

    def test_each_parametrized_test_is_in_the_default_run(self):
        for file, items, default in self.sweeps():
            everything, by_default = (
                {item.function.__qualname__ for item in some} for some in (items, default)
            )
            self.assertEqual(by_default, everything, file)

    def test_each_mode_of_a_module_is_in_the_default_run(self):
        items = _items_of("test_modules")
        share = share_of(Path(__file__).with_name("test_modules.py"))
        default = _CONFTEST["sample_of"](items, share)
        for test in ("test_module", "test_layouts"):
            for mode in ("train", "eval"):
                names = [item.name for item in default if item.name.startswith(test)]
                self.assertTrue([name for name in names if name.endswith(mode)], (test, mode))

    def test_default_runs_of_sweeps_have_different_operators(self):
        chosen = {
            file: {str(item.function.__defaults__) for item in default}
            for file, _, default in self.sweeps()
            if file in ("test_ops_layouts.py", "test_ops_mutations.py")
        }
        first, second = chosen.values()
        self.assertGreater(len(first - second), len(first) // 2)

    def test_operators_with_a_gap_are_in_the_default_run(self):
        is_found = False
        for file, items, default in self.sweeps():
            with_a_gap = [
                item.nodeid
                for item in items
                if any(
                    getattr(value, "name", None) in names_of_gaps()
                    or getattr(value, "formatted_name", None) in names_of_gaps()
                    for value in (item.function.__defaults__ or ({},))[0].values()
                )
            ]
            self.assertLessEqual({*with_a_gap}, {*_names(default)}, file)
            is_found |= bool(with_a_gap)
        self.assertTrue(is_found)

    def test_gaps_name_operators_and_modules(self):
        databases = [
            *(value for name, value in vars(operators).items() if name.endswith("_db")),
            hop_db,
            module_db,
            optim_db,
        ]
        infos = [info for database in databases for info in database]
        names = {getattr(info, "formatted_name", info.name) for info in infos}
        names |= {info.name for info in infos}
        self.assertGreater(len(names), 500)
        self.assertEqual({gap.name for gap in GAPS} - names, set())


if __name__ == "__main__":
    run_tests()
