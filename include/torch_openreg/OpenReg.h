// The public interface of the backend in one header: devices, streams, events, random number
// generators.
//
// The names are those of PyTorch's pages for integrators of accelerators, in namespace
// c10::openreg; docs/from_pytorch_openreg.md lists them. Kernel launches have separate headers:
// core/Launch.h and aten/OpLaunch.h.
#pragma once

#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace c10::openreg {

// The names of PyTorch's pages for integrators, which use one namespace for a backend.
using at::openreg::createOpenRegGenerator;
using at::openreg::getDefaultOpenRegGenerator;

}  // namespace c10::openreg
