// What most files of the backend include, compiled once for all of them; setup.py puts it in front
// of every source. Headers of torch only: files include what they need all the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
