"""Stacks that the sanitizer keeps: gathered at each launch, and dropped in the end."""

import threading
import weakref

import torch
from common import OpenRegTestCase, run_tests
from extras.sanitizer.programs import Stream, _module, device, stream

from torch_openreg.extras.sanitizer import sanitizer as checker


class TestFrames(OpenRegTestCase):
    def tearDown(self):
        checker.clear()
        super().tearDown()

    def race(self, x):
        _module.synchronize()
        with stream(Stream()):
            x.add_(1)
        x.mul_(2)
        _module.synchronize()

    def test_frames_are_those_of_the_calls(self):
        with checker.check("collect"):
            self.race(torch.zeros(4, device=device))
        ((later, earlier),) = (one.accesses for one in checker.findings())
        for access in (later, earlier):
            names = [frame.name for frame in access.stack]
            place = names.index("race")
            self.assertEqual(names[place + 1], "test_frames_are_those_of_the_calls")
            self.assertEqual(access.stack[place].filename, __file__)
        first = type(self).race.__code__.co_firstlineno
        self.assertEqual((earlier.lineno, later.lineno), (first + 3, first + 4))

    def test_one_line_of_two_callers_has_two_stacks(self):
        def first(x):
            self.race(x)

        def second(x):
            self.race(x)

        for call in (first, second):
            with checker.check("collect"):
                call(torch.zeros(4, device=device))
            (finding,) = checker.findings()
            names = [frame.name for frame in finding.accesses[0].stack]
            self.assertEqual(names[names.index("race") + 1], call.__name__)
            checker.clear()

    def test_code_that_is_gone_is_let_go(self):
        x = torch.zeros(4, device=device)
        alive = weakref.WeakSet()
        with checker.check("collect"):
            for number in range(10_000):
                code = compile("x.add_(1)", f"<program {number}>", "exec")
                alive.add(code)
                exec(code, {"x": x})
                del code
        # Some are kept until there are enough to inspect.
        self.assertLess(len(alive), 5000)

    def test_threads_that_gather_and_drop(self):
        errors = []

        def work():
            try:
                x = torch.zeros(4, device=device)
                for number in range(2000):
                    exec(compile("x.add_(1)", f"<program {number}>", "exec"), {"x": x})
            except Exception as error:
                errors.append(error)

        with checker.check("collect", race=False, lifetime=False):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            _module.synchronize()
        self.assertEqual(errors, [])


if __name__ == "__main__":
    run_tests()
