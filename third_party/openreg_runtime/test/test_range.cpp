// Ranges and marks: how they nest, and what records they leave.
#include <thread>

#include "check.h"

namespace {

struct Seen {
  orActivityRecord record;
  std::string name;
};

std::vector<Seen> consume() {
  std::vector<Seen> records;
  CHECK_OK(orTraceConsume(
      [](const orActivityRecord* record, void* records) {
        static_cast<std::vector<Seen>*>(records)->push_back({*record, record->name});
      },
      &records));
  return records;
}

}  // namespace

TEST(bad_arguments_are_refused) {
  uint64_t id = 0;
  CHECK_ERROR(orRangePush(nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orRangeStart(nullptr, &id), orErrorInvalidValue);
  CHECK_ERROR(orRangeStart("name", nullptr), orErrorInvalidValue);
  CHECK_ERROR(orMark(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orRangePop(nullptr), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "no open range");
  CHECK_ERROR(orRangeEnd(77), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "77");
}

TEST(ranges_nest_per_thread) {
  int depth = -1;
  CHECK_OK(orRangePush("outer", &depth));
  CHECK_EQUAL(depth, 0);
  CHECK_OK(orRangePush("inner", &depth));
  CHECK_EQUAL(depth, 1);
  std::thread([] {
    int depth = -1;
    CHECK_ERROR(orRangePop(&depth), orErrorInvalidValue);
    CHECK_OK(orRangePush("other", &depth));
    CHECK_EQUAL(depth, 0);
  }).join();
  CHECK_OK(orRangePop(&depth));
  CHECK_EQUAL(depth, 1);
  CHECK_OK(orRangePop(&depth));
  CHECK_EQUAL(depth, 0);
  CHECK_ERROR(orRangePop(&depth), orErrorInvalidValue);
}

TEST(ranges_and_marks_leave_records) {
  std::string name = "inner";
  CHECK_OK(orTraceStart(orActivityRange | orActivityMark));
  CHECK_OK(orRangePush("outer", nullptr));
  CHECK_OK(orRangePush(name.c_str(), nullptr));
  name = "another";  // the name was copied
  CHECK_OK(orMark("moment"));
  CHECK_OK(orRangePop(nullptr));
  CHECK_OK(orRangePop(nullptr));
  CHECK_OK(orTraceStop());
  const auto records = consume();
  CHECK_EQUAL(records.size(), size_t{3});
  const Seen& mark = records[0];
  const Seen& inner = records[1];
  const Seen& outer = records[2];
  CHECK_EQUAL(mark.name, "moment");
  CHECK_EQUAL(inner.name, "inner");
  CHECK_EQUAL(outer.name, "outer");
  CHECK_EQUAL(mark.record.kind, orActivityMark);
  CHECK_EQUAL(inner.record.kind, orActivityRange);
  CHECK_EQUAL(mark.record.start_ns, mark.record.end_ns);
  CHECK(outer.record.start_ns <= inner.record.start_ns);
  CHECK(inner.record.start_ns <= mark.record.start_ns);
  CHECK(mark.record.end_ns <= inner.record.end_ns);
  CHECK(inner.record.end_ns <= outer.record.end_ns);
  for (const Seen& one : records) {
    CHECK_EQUAL(one.record.thread_id, static_cast<int>(getpid()));
    CHECK_EQUAL(one.record.device, -1);
    CHECK_EQUAL(one.record.stream_id, UINT64_MAX);
  }
}

TEST(a_started_range_may_overlap_and_be_ended_by_another_thread) {
  uint64_t first = 0;
  uint64_t second = 0;
  CHECK_OK(orTraceStart(orActivityRange));
  CHECK_OK(orRangeStart("first", &first));
  CHECK_OK(orRangeStart("second", &second));
  CHECK(first >= 1 && first != second);
  CHECK_OK(orRangeEnd(first));
  CHECK_ERROR(orRangeEnd(first), orErrorInvalidValue);
  std::thread([&] { CHECK_OK(orRangeEnd(second)); }).join();
  CHECK_OK(orTraceStop());
  const auto records = consume();
  CHECK_EQUAL(records.size(), size_t{2});
  CHECK_EQUAL(records[0].name, "first");
  CHECK_EQUAL(records[1].name, "second");
  CHECK_EQUAL(records[1].record.thread_id, static_cast<int>(getpid()));
}

TEST(a_range_that_was_open_when_tracing_began_or_ended_leaves_no_record) {
  CHECK_OK(orRangePush("before", nullptr));
  CHECK_OK(orTraceStart(orActivityRange));
  CHECK_OK(orRangePop(nullptr));
  CHECK_OK(orRangePush("after", nullptr));
  CHECK_OK(orTraceStop());
  CHECK_OK(orTraceStart(orActivityRange));
  CHECK_OK(orRangePop(nullptr));
  CHECK_OK(orTraceStop());
  CHECK(consume().empty());
}

TEST(ranges_need_no_device_and_work_in_a_forked_child) {
  test::device_malloc(1);
  test::check_child([] {
    uint64_t id = 0;
    CHECK_OK(orRangePush("range", nullptr));
    CHECK_OK(orRangePop(nullptr));
    CHECK_OK(orRangeStart("range", &id));
    CHECK_OK(orRangeEnd(id));
    CHECK_OK(orMark("mark"));
  });
}
