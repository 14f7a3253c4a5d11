#include "csrc/aten/launch/TensorPool.h"

namespace at::openreg {

TensorPool& TensorPool::ofThisThread() {
  thread_local TensorPool pool;
  return pool;
}

}  // namespace at::openreg
