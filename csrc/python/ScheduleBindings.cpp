// The schedule of the streams, for tests.

#include <openreg/schedule.h>
#include <pybind11/pybind11.h>

#include <array>
#include <string>

#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"

namespace torch_openreg {
namespace {

std::string getSchedule() {
  std::array<char, OPENREG_SCHEDULE_SIZE> text{};
  OPENREG_CHECK(orGetSchedule(text.data(), text.size()));
  return text.data();
}

void setSchedule(const std::string& schedule) { OPENREG_CHECK(orSetSchedule(schedule.c_str())); }

void bindSchedule(pybind11::module_& m) {
  m.def("_get_schedule", &getSchedule);
  m.def("_set_schedule", &setSchedule, pybind11::arg("schedule"), ReleaseGil());
}

const Bindings kScheduleBindings(&bindSchedule);

}  // namespace

}  // namespace torch_openreg
