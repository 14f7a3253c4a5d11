// What most bindings include, compiled once for all of them; setup.py puts it in front of every
// source. Headers of torch and Python only: files include what they need all the same.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
