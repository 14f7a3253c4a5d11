"""Random programs: the sanitizer finds exactly what a model of its rules finds."""

import os
import random
from collections import Counter

import pytest
import torch
from common import (
    DEVICE_COUNT,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from extras.sanitizer.model import Finding, Model
from extras.sanitizer.programs import Event, Stream, _module, current, device, stream
from extras.sanitizer.random_programs import SIZE, Program, Step, View, random_steps, shrink

from torch_openreg.extras.sanitizer import sanitizer as checker

pytestmark = pytest.mark.sample(0.24)

_FILE = "<a random program>"
# OPENREG_TEST_PROGRAMS and OPENREG_TEST_SEED choose others.
_COUNT = int(os.environ.get("OPENREG_TEST_PROGRAMS", "0")) or (
    10_000 if os.environ.get("OPENREG_TEST_FULL") == "1" else 1_500
)
_ALL = View(0, SIZE)
_SEED = int(os.environ.get("OPENREG_TEST_SEED", "1"))


def _actual(program):
    """Runs a program and returns the findings, by lines."""
    names = {"torch": torch, "stream": stream, "current": current, "main": current()}
    names |= {"one": Stream(), "two": Stream(), "e": Event(), "f": Event()}
    names["synchronize"] = _module.synchronize
    if program.has_second_device:
        names["other"] = Stream(torch.device(device.type, 1))
    code = compile(program.text, _FILE, "exec")
    checker.clear()
    try:
        with checker.check("collect", host="operators"):
            exec(code, names)
        return {
            Finding(
                one.kind,
                *(access.lineno for access in one.accesses),
                next((frame.lineno for frame in one.freed if frame.filename == _FILE), 0),
            )
            for one in checker.findings()
        }
    finally:
        checker.clear()
        names.clear()
        for index in range(1 + program.has_second_device):
            _module.synchronize(index)


def _is_wrong(steps):
    program = Program(steps)
    return _actual(program) != program.model.findings


def _describe(seed, steps):
    program = Program(steps)
    actual, expected = _actual(program), program.model.findings
    lines = [f"{number:3} {line}" for number, line in enumerate(program.lines, 1)]
    lines += [f"only the sanitizer: {one}" for one in sorted(actual - expected)]
    lines += [f"only the model: {one}" for one in sorted(expected - actual)]
    return "\n".join([f"seed {seed}", *lines])


class WithoutRecordStream(Model):
    def free(self, operation, memory):
        memory.announced.clear()
        super().free(operation, memory)


class WithoutHostWaits(Model):
    def host_waits(self, event):
        pass


class WithoutWaits(Model):
    def wait(self, stream, event):
        pass


class WithoutOwners(Model):
    def allocate(self, operation, owner, size):
        memory = super().allocate(operation, owner, size)
        memory.accesses.clear()
        return memory


class WithoutFrees(Model):
    def free(self, operation, memory):
        pass


class WithoutDischarge(Model):
    """Freed and waited for afterwards is as bad as not waited for."""

    def _hazards_of(self, memory, stream):
        return [
            one for one in self._hazards if one.owner == memory.owner and memory.birth > one.time
        ]


class WithoutBirths(Model):
    """What was allocated before the free suffers, too."""

    def _hazards_of(self, memory, stream):
        birth, memory.birth = memory.birth, self._time + 1
        found = super()._hazards_of(memory, stream)
        memory.birth = birth
        return found


class WithoutForgetting(Model):
    """Accesses that a later one makes needless are reported, too."""

    def launch(self, operation, stream, operands):
        before = {operand.memory: list(operand.memory.accesses) for operand in operands}
        super().launch(operation, stream, operands)
        for memory, accesses in before.items():
            new = [one for one in memory.accesses if one not in accesses]
            memory.accesses = accesses + new


class WithWholeTensors(Model):
    """Bytes do not count."""

    def launch(self, operation, stream, operands):
        wide = [one._replace(where=frozenset(range(64))) for one in operands]
        super().launch(operation, stream, wide)


class WithoutPuttingRight(Model):
    """Each later use of the same tensor is one more finding."""

    def _until(self, work):
        return []


_WRONG_RULES = [
    WithoutRecordStream,
    WithoutHostWaits,
    WithoutWaits,
    WithoutOwners,
    WithoutFrees,
    WithoutDischarge,
    WithoutBirths,
    WithoutForgetting,
    WithWholeTensors,
    WithoutPuttingRight,
]


class TestRandomPrograms(OpenRegTestCase):
    def test_sanitizer_and_model_agree(self):
        found, steps_drawn, steps_taken = Counter(), Counter(), Counter()
        for seed in range(_SEED, _SEED + _COUNT):
            steps = random_steps(random.Random(seed))
            program = Program(steps)
            if program.has_second_device and DEVICE_COUNT < 2:
                continue
            if _actual(program) != program.model.findings:
                self.fail(_describe(seed, shrink(steps, _is_wrong)))
            found.update(
                one.kind + " after a free" * (one.freed > 0) for one in program.model.findings
            )
            found["none"] += not program.model.findings
            steps_drawn.update(step.name for step in steps)
            steps_taken += program.steps_taken
        # Programs that never, or always, are right would prove little.
        for kind in ("race", "lifetime", "lifetime after a free", "host", "none"):
            self.assertGreater(found[kind], _COUNT // 30, found)
        # Nor would steps that never make sense where they stand.
        for name in steps_drawn:
            self.assertGreater(steps_taken[name], _COUNT // 30, steps_taken)

    def check_program(self, *steps):
        steps = [Step(name, arguments) for name, *arguments in steps]
        if _is_wrong(steps):
            self.fail(_describe("none", steps))
        return _actual(Program(steps))

    def test_one_kernel_makes_a_race_and_a_hazard(self):
        found = self.check_program(
            ("empty", "a", "two"),
            ("read_with_fallback", "b", "a", _ALL, "main"),
            ("delete", "a"),
            ("read", "", "b", View(8, 50), "two"),
        )
        self.assertLessEqual(
            {Finding("race", 4, 2), Finding("lifetime", 4, 2, freed=3)}, found, found
        )

    def test_hazard_names_the_last_use(self):
        found = self.check_program(
            ("empty", "a", "main"),
            ("read", "", "a", _ALL, "one"),
            ("read", "", "a", _ALL, "one"),
            ("delete", "a"),
            ("empty", "b", "main"),
            ("fill", "b", _ALL, "main"),
        )
        self.assertEqual(found, {Finding("lifetime", 6, 3, freed=4)})

    def test_hazard_that_was_reported_beside_a_race_is_gone(self):
        found = self.check_program(
            ("empty", "a", "main"),
            ("empty", "b", "main"),
            ("read", "", "a", _ALL, "one"),
            ("fill", "b", _ALL, "one"),
            ("delete", "a"),
            ("empty", "c", "main"),
            ("add", "c", _ALL, "b", _ALL, "two"),
            ("fill", "c", _ALL, "main"),
        )
        self.assertEqual(
            found,
            {Finding("lifetime", 7, 3, freed=5), Finding("race", 7, 4), Finding("race", 8, 7)},
        )

    @parametrize("rules", [subtest(one, name=one.__name__) for one in _WRONG_RULES])
    def test_programs_tell_the_rules_from_wrong_ones(self, rules):
        for seed in range(_SEED, _SEED + _COUNT):
            steps = random_steps(random.Random(seed))
            program = Program(steps)
            if Program(steps, rules()).model.findings != program.model.findings:
                self.assertEqual(_actual(program), program.model.findings)
                return
        self.fail("no program tells them apart")

    @parametrize("is_read_first", [False, True])
    def test_bytes_of_strided_views(self, is_read_first):
        rng = random.Random(_SEED)
        x = torch.zeros(200, device=device)
        sides, outcomes = [Stream(), Stream()], set()
        for _ in range(400):
            views, bytes_of = [], []
            for _ in range(2):
                dims = rng.randint(1, 3)
                sizes = [rng.randint(1, 4) for _ in range(dims)]
                strides = [rng.randint(0, 12) for _ in range(dims)]
                start = rng.randint(0, 80)
                views.append((sizes, strides, start))
                elements = {start}
                for size, stride in zip(sizes, strides, strict=True):
                    elements = {one + i * stride for one in elements for i in range(size)}
                bytes_of.append(elements)
            # The one that is written has to be one run, as no kernel writes a byte twice.
            sizes, _, start = views[0]
            length = len(bytes_of[0])
            written = x[start : start + length]
            bytes_of[0] = set(range(start, start + length))
            _module.synchronize()
            with checker.check("collect", lifetime=False):
                works = [written.zero_, x.as_strided(*views[1]).clone]
                for side, work in zip(sides, works[::-1] if is_read_first else works, strict=True):
                    with stream(side):
                        work()
                _module.synchronize()
            found = bool(checker.findings())
            checker.clear()
            self.assertEqual(found, not bytes_of[0].isdisjoint(bytes_of[1]), views)
            outcomes.add(found)
        self.assertEqual(outcomes, {False, True})

    def test_disagreement_is_noticed_and_cut_down(self):
        steps = random_steps(random.Random(_SEED))
        wrong = shrink(steps, lambda some: any(one.name == "fill" for one in some))
        self.assertEqual([one.name for one in wrong], ["fill"])


instantiate_parametrized_tests(TestRandomPrograms)


if __name__ == "__main__":
    run_tests()
