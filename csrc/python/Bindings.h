// The parts of torch_openreg._C, one per noun.
#pragma once

#include <c10/core/Event.h>
#include <pybind11/pybind11.h>

#include "torch_openreg/core/Stream.h"

namespace torch_openreg {

void bindDevice(pybind11::module& m);
void bindStream(pybind11::module& m);
void bindEvent(pybind11::module& m);
void bindMemory(pybind11::module& m);
void bindRandom(pybind11::module& m);
void bindIpc(pybind11::module& m);
void bindFallback(pybind11::module& m);
void bindGate(pybind11::module& m);
void bindAutograd(pybind11::module& m);
void bindProfiler(pybind11::module& m);

// The stream that Python names by the fields of a torch.Stream.
inline c10::openreg::OpenRegStream unpackStream(int64_t id, int64_t index, int64_t type) {
  return c10::openreg::OpenRegStream(c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(index),
                                                          static_cast<c10::DeviceType>(type)));
}

// The event in a torch.Event, or in an instance of a subclass.
// Errors: TypeError for another object, with the name of the operation.
c10::Event& asEvent(pybind11::handle object, const char* operation);

// Binds a function that may wait: it runs without the GIL.
using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;

}  // namespace torch_openreg
