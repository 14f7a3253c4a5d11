// All that a backend shows of itself, in one header: devices, streams, events, random generators.
//
// The names are those of PyTorch's pages for integrators of accelerators, in namespace
// c10::openreg; docs/from_pytorch_openreg.md lists them. Launches of kernels have headers of their
// own: core/Launch.h and aten/OpLaunch.h.
#pragma once

#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace c10::openreg {

// The names of PyTorch's pages for integrators, which have all of a backend in one namespace.
using at::openreg::createOpenRegGenerator;
using at::openreg::getDefaultOpenRegGenerator;

}  // namespace c10::openreg
