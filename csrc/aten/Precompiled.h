// Headers of torch that most files of the backend include, compiled once; setup.py includes this
// file before every source. Files still include what they need.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
