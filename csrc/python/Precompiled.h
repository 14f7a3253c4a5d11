// Headers of torch and Python that most bindings include, compiled once; setup.py includes this
// file before every source. Files still include what they need.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
