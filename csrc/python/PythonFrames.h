// Stacks of Python, for the sanitizer: gathered often, looked up seldom.
#pragma once

#include <c10/core/Allocator.h>
#include <pybind11/pybind11.h>

#include <memory>

namespace torch_openreg {

// The calling thread's. Equal stacks are one object, so that a loop needs memory once. Null in a
// thread that has never run Python, and while the interpreter ends.
// Locks: takes the GIL.
std::shared_ptr<c10::GatheredContext> gatherPythonFrames();

// Dictionaries with filename, line and name, innermost frame first. The GIL is held.
pybind11::list describePythonFrames(const std::shared_ptr<c10::GatheredContext>& stack);

}  // namespace torch_openreg
