// The parts of torch_openreg._C, one per noun.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_openreg {

void bindDevice(pybind11::module& m);
void bindStream(pybind11::module& m);
void bindEvent(pybind11::module& m);
void bindRandom(pybind11::module& m);
void bindFallback(pybind11::module& m);
void bindGate(pybind11::module& m);
void bindAutograd(pybind11::module& m);
void bindProfiler(pybind11::module& m);

// Binds a function that may wait: it runs without the GIL.
using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;

}  // namespace torch_openreg
