#include "csrc/extras/inductor/InductorKernel.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <exception>
#include <vector>

#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using c10::openreg::KernelError;

// Calls generated code. What it throws is a check of its data, also where it is no exception of
// torch's.
KernelError callInductorKernel(const void* call, const OpenRegSlot* slots) {
  try {
    reinterpret_cast<OpenRegKernelCall>(const_cast<void*>(call))(slots);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what());
  }
  return {};
}

OpenRegKernelCall findCall(const std::string& name, const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  TORCH_CHECK(handle != nullptr, name,
              ": expected the library of a kernel that has been loaded, got ", library);
  void* call = dlsym(handle, OPENREG_KERNEL_CALL);
  dlclose(handle);
  TORCH_CHECK(call != nullptr, name,
              ": expected a library that exports " OPENREG_KERNEL_CALL ", got ", library);
  return reinterpret_cast<OpenRegKernelCall>(call);
}

GeneratedParameter parameterOf(const std::string& name, char letter) {
  switch (letter) {
    case 'r':
      return GeneratedParameter::Read;
    case 'w':
      return GeneratedParameter::Written;
    case 'u':
      return GeneratedParameter::Updated;
    case 'i':
      return GeneratedParameter::Integer;
    case 'f':
      return GeneratedParameter::Number;
    default:
      TORCH_CHECK(false, name, ": expected parameters of the kinds r, w, u, i and f, got '", letter,
                  "'");
  }
}

}  // namespace

GeneratedKernel& inductorKernel(const std::string& name, const std::string& library,
                                std::string_view parameters) {
  return inductorKernel(name, findCall(name, library), parameters);
}

GeneratedKernel& inductorKernel(const std::string& name, OpenRegKernelCall call,
                                std::string_view parameters) {
  std::vector<GeneratedParameter> parsed;
  parsed.reserve(parameters.size());
  for (const char letter : parameters) {
    parsed.push_back(parameterOf(name, letter));
  }
  return GeneratedKernel::get(name, {&callInductorKernel, reinterpret_cast<const void*>(call)},
                              parsed);
}

Tensor emptyStridedOn(c10::DeviceIndex device, IntArrayRef sizes, IntArrayRef strides,
                      ScalarType dtype) {
  const c10::Device target(c10::openreg::kDeviceType, device);
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    return at::empty_strided(sizes, strides, at::TensorOptions(target).dtype(dtype));
  }
  const c10::DeviceGuard guard(target);
  return emptyStridedOnCurrentDevice(sizes, strides, dtype);
}

}  // namespace at::openreg
