// The parts of torch_openreg._C, one per subject, and their shared helpers. Those of an extra are
// in its folder.
//
// Every file of bindings includes this header, so it includes little but pybind11.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace c10 {
struct Event;
}

namespace c10::openreg {
class OpenRegStream;
}

namespace torch_openreg {

// Adds functions and classes to the module. Each file of bindings has one at namespace scope, so
// that a file that is left out of a build is missed by none:
//   const Bindings kStreamBindings(&bindStream);
class Bindings {
 public:
  using Bind = void (*)(pybind11::module_&);

  explicit Bindings(Bind bind);

  // Calls all of them, in the order in which the files are linked.
  static void addAll(pybind11::module_& m);
};

// The stream given by the fields of a torch.Stream.
c10::openreg::OpenRegStream unpackStream(int64_t id, int64_t index, int64_t type);

// The event in a torch.Event, or in an instance of a subclass.
// Errors: TypeError for another object, with the name of the operation.
c10::Event& asEvent(pybind11::handle object, const char* operation);

// Call policy for functions that may wait: they run without the GIL.
using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;

// Calls a function that may wait, without the GIL, which the caller holds.
template <typename Function>
auto withoutGil(const Function& function) {
  const pybind11::gil_scoped_release released;
  return function();
}

}  // namespace torch_openreg
