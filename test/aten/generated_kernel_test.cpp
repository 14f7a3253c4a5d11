// A small extra that launches functions of its own as generated kernels, as a compiler's backend
// does. With it, test/aten/test_generated_kernel.py checks what
// include/torch_openreg/aten/GeneratedKernel.h promises.

#include <torch/csrc/utils/pybind.h>
#include <torch_openreg/aten/GeneratedKernel.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace {

namespace py = pybind11;
using at::openreg::GeneratedArguments;
using at::openreg::GeneratedFunction;
using at::openreg::GeneratedKernel;
using at::openreg::GeneratedParameter;
using c10::openreg::KernelError;

float* numbersOf(const OpenRegSlot& slot) {
  return static_cast<float*>(const_cast<void*>(slot.pointer));
}

// (out, in, count, factor): the context is added.
KernelError scale(const void* context, const OpenRegSlot* slots) {
  for (int64_t i = 0; i < slots[2].integer; ++i) {
    numbersOf(slots[0])[i] = numbersOf(slots[1])[i] * static_cast<float>(slots[3].number) +
                             *static_cast<const float*>(context);
  }
  return {};
}

// (x): adds one to its first element.
KernelError increment(const void* /*context*/, const OpenRegSlot* slots) {
  numbersOf(slots[0])[0] += 1;
  return {};
}

KernelError fail(const void* /*context*/, const OpenRegSlot* /*slots*/) {
  return {orErrorIllegalAddress, "load past the end", "scale.py:3", 0x1000};
}

KernelError throwException(const void* /*context*/, const OpenRegSlot* /*slots*/) {
  throw std::runtime_error("no good number");
}

constexpr float kNothing = 0;
constexpr float kTen = 10;

GeneratedKernel& kernelOf(const std::string& name, const std::vector<std::string>& kinds) {
  static const std::map<std::string, GeneratedFunction> functions = {
      {"scale", {&scale, &kNothing}}, {"scale and add ten", {&scale, &kTen}},
      {"increment", {&increment}},    {"fail", {&fail}},
      {"throw", {&throwException}},
  };
  static const std::map<std::string, GeneratedParameter> parameters = {
      {"read", GeneratedParameter::Read},       {"written", GeneratedParameter::Written},
      {"updated", GeneratedParameter::Updated}, {"unknown", GeneratedParameter::Unknown},
      {"integer", GeneratedParameter::Integer}, {"number", GeneratedParameter::Number},
  };
  std::vector<GeneratedParameter> parsed;
  for (const std::string& kind : kinds) {
    parsed.push_back(parameters.at(kind));
  }
  return GeneratedKernel::get(name, functions.at(name), parsed);
}

using Argument = std::variant<at::Tensor, int64_t, double>;

void launch(const std::string& name, const std::vector<std::string>& kinds,
            const std::vector<Argument>& values, c10::DeviceIndex device) {
  const GeneratedKernel& kernel = kernelOf(name, kinds);
  GeneratedArguments arguments(kernel, device);
  for (const Argument& value : values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      if (tensor->is_cpu() && tensor->dim() == 0) {
        arguments.addHostScalar(*tensor);
      } else {
        arguments.addTensor(*tensor);
      }
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      arguments.addInteger(*integer);
    } else {
      arguments.addNumber(std::get<double>(value));
    }
  }
  kernel.launch(arguments);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("launch", &launch, py::call_guard<py::gil_scoped_release>());
  m.def("is_same", [](const std::string& name, const std::vector<std::string>& kinds) {
    return &kernelOf(name, kinds) == &kernelOf(name, kinds);
  });
}
