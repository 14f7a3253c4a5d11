#include "csrc/aten/dtypes/WideningKernel.h"

namespace at::openreg::detail {

c10::OperatorHandle operatorNamed(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

}  // namespace at::openreg::detail
