#include "csrc/aten/dtypes/WideningKernel.h"

namespace at::openreg {
namespace detail {

c10::OperatorHandle operatorNamed(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

}  // namespace detail
}  // namespace at::openreg
