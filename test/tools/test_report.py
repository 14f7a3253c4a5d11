"""The report of the sweeps counts the cases, and lists sweeps without comparisons."""

from common import TestCase, run_tests
from report import empty_variants, is_asynchronous, summary

from torch_openreg.conformance.records import Record


class TestReport(TestCase):
    def test_variant_of_which_no_case_agreed_is_empty(self):
        records = [
            Record("abs", "forward", samples=3),
            Record("abs", "out", failed=1),
            Record("sum", "out"),
        ]
        self.assertEqual(empty_variants(records), ["out"])

    def test_one_case_is_enough_for_a_variant(self):
        records = [Record("abs", "out"), Record("sum", "out", samples=1)]
        self.assertEqual(empty_variants(records), [])

    def test_cases_and_asynchronous_cases_are_counted_by_variant(self):
        records = [
            Record(
                "abs", "layouts", samples=5, asynchronous=5, operators={"aten::abs": "generated"}
            ),
            Record("unique", "layouts", samples=4, asynchronous=1, waited=["aten::_unique2"]),
        ]
        text = summary(records)
        (row,) = [line.split() for line in text.splitlines() if line.startswith("layouts")]
        self.assertEqual(row[:4], ["layouts", "2", "9", "6"])
        self.assertIn("6 of 9 cases", text)

    def test_record_that_waited_is_not_asynchronous(self):
        operators = {"aten::abs": "generated"}
        self.assertTrue(is_asynchronous(Record("abs", "out", samples=1, operators=operators)))
        waiting = Record("abs", "out", samples=1, operators=operators, waited=["aten::abs"])
        self.assertFalse(is_asynchronous(waiting))


if __name__ == "__main__":
    run_tests()
